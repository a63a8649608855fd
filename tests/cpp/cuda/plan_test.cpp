#include <numeric>
#include <vector>

#include "device.h"
#include "snapmla/snapmla.h"
#include "support/pipeline.h"
#include "support/random.h"

namespace snapmla::test {
namespace {

struct Words {
  std::vector<std::int32_t> schedule, num_splits;
  friend bool operator==(const Words&, const Words&) = default;
};

/// The plan that the backend of `memory` makes; guard bands checked.
Words plan_words(Memory& memory, const std::vector<std::int32_t>& lengths, PlanSpec spec,
                 const PlanOptions& options) {
  spec.device = memory.device();
  const PlanSize size = plan_size(spec, options);
  Buffer seqlens = Buffer::of(memory, lengths);
  Buffer schedule(memory, size.schedule_rows * size.schedule_cols * 4);
  Buffer num_splits(memory, size.num_splits * 4);
  plan_decode(TensorView(seqlens.data(), DType::i32, {spec.b}, spec.device), spec, options,
              {TensorView(schedule.data(), DType::i32, {size.schedule_rows, size.schedule_cols},
                          spec.device),
               TensorView(num_splits.data(), DType::i32, {size.num_splits}, spec.device)},
              memory.stream());
  Words words{schedule.read<std::int32_t>(), num_splits.read<std::int32_t>()};
  EXPECT_TRUE(schedule.guards_intact() && num_splits.guards_intact());
  return words;
}

enum class Lengths { zeros, ones, short_ones, ragged, one_long, equal, negative_and_huge };

std::vector<std::int32_t> make_lengths(std::int64_t b, Lengths kind, Random& random) {
  std::vector<std::int32_t> lengths(b);
  for (auto& length : lengths) {
    switch (kind) {
      case Lengths::zeros:
        length = 0;
        break;
      case Lengths::ones:
        length = 1;
        break;
      case Lengths::short_ones:
        length = static_cast<std::int32_t>(random.integer(0, 3));
        break;
      case Lengths::ragged:
        length = static_cast<std::int32_t>(random.integer(0, 40000));
        break;
      case Lengths::one_long:
        length = static_cast<std::int32_t>(random.integer(0, 200));
        break;
      case Lengths::equal:
        length = 5000;
        break;
      case Lengths::negative_and_huge:
        length = random.integer(0, 3) == 0 ? 0x7fffffff
                                           : static_cast<std::int32_t>(random.integer(-5, 300));
        break;
    }
  }
  if (kind == Lengths::one_long && b > 0) {
    lengths[static_cast<std::size_t>(random.integer(0, b - 1))] = 131072;
  }
  return lengths;
}

class CudaPlanTest : public CudaTest {
 protected:
  static void check(const std::vector<std::int32_t>& lengths, std::int64_t rows,
                    const PlanOptions& options, std::int64_t max_seqlen, const char* what) {
    const PlanSpec spec{static_cast<std::int64_t>(lengths.size()), rows, max_seqlen, {}};
    const Words expected = plan_words(host_memory(), lengths, spec, options);
    const Words actual = plan_words(device_memory(), lengths, spec, options);
    ASSERT_EQ(actual.num_splits, expected.num_splits)
        << what << ", b=" << spec.b << " rows=" << rows << " num_sms=" << options.num_sms
        << " forced_splits=" << options.forced_splits << " split_tokens=" << options.split_tokens;
    ASSERT_EQ(actual.schedule, expected.schedule)
        << what << ", b=" << spec.b << " rows=" << rows << " num_sms=" << options.num_sms
        << " forced_splits=" << options.forced_splits << " split_tokens=" << options.split_tokens;
  }

  static void check_random(int trials) {
    Random random(9);
    for (int trial = 0; trial < trials; ++trial) {
      PlanOptions options;
      options.num_sms = static_cast<int>(random.integer(1, 200));
      options.p_block = 64;
      const std::int64_t mode = random.integer(0, 2);
      if (mode == 1) options.forced_splits = static_cast<int>(random.integer(1, 300));
      if (mode == 2) options.split_tokens = 128 * static_cast<int>(random.integer(1, 64));
      const auto lengths =
          make_lengths(random.integer(0, 300), static_cast<Lengths>(random.integer(0, 5)), random);
      check(lengths, random.integer(1, 600), options, 131072, "random");
      if (HasFatalFailure()) return;
    }
  }
};

TEST_F(CudaPlanTest, WordsEqualTheHostPlanners) {
  Random random(7);
  const Lengths kinds[] = {
      Lengths::zeros,    Lengths::ones,  Lengths::short_ones,       Lengths::ragged,
      Lengths::one_long, Lengths::equal, Lengths::negative_and_huge};
  for (std::int64_t b :
       {0, 1, 2, 5, 31, 32, 33, 127, 128, 129, 700, 1023, 1024, 1025, 4095, 5000}) {
    for (Lengths kind : kinds) {
      const auto lengths = make_lengths(b, kind, random);
      for (int num_sms : {1, 7, 132, 1500}) {
        for (int mode = 0; mode < 5; ++mode) {
          PlanOptions options;
          options.num_sms = num_sms;
          options.p_block = 64;
          std::int64_t max_seqlen = 131072;
          if (mode == 1) options.forced_splits = static_cast<int>(random.integer(1, 40));
          if (mode == 2) options.split_tokens = static_cast<int>(random.integer(1, 40)) * 128;
          if (mode == 3) options.batch_invariant = true;
          if (mode == 4) {  // sequences longer than max_seqlen
            options.split_tokens = 256;
            max_seqlen = 1000;
          }
          check(lengths, random.integer(1, 300), options, max_seqlen, "sweep");
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_F(CudaPlanTest, BatchesBeyondOneBlockOfThreads) {
  Random random(8);
  for (std::int64_t b : {65536, 65537, 200000}) {
    for (Lengths kind : {Lengths::short_ones, Lengths::ragged, Lengths::one_long}) {
      for (int mode = 0; mode < 3; ++mode) {
        PlanOptions options;
        options.num_sms = 132;
        options.p_block = 64;
        if (mode == 1) options.forced_splits = 5;
        if (mode == 2) options.split_tokens = 2048;
        check(make_lengths(b, kind, random), 16, options, 131072, "large batch");
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(CudaPlanTest, RandomSpecs) { check_random(2000); }

// For slow tools.
TEST_F(CudaPlanTest, FewSpecs) { check_random(30); }

}  // namespace
}  // namespace snapmla::test
