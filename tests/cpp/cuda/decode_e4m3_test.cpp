// The FP8 decode kernel: against float64 where P is exact, against the CPU FP8 pipeline elsewhere.

#include <cmath>
#include <cstdio>
#include <limits>

#include "cases/decode_cases.h"
#include "core/float_formats.h"
#include "device.h"
#include "support/compare.h"

namespace snapmla::test {
namespace {

class DecodeE4m3Test : public CudaTest {
 protected:
  static Result decode(const Problem& problem) {
    ScopedBackend forced("cuda");
    return run(problem, device_memory());
  }

  /// The CPU pipeline with the kernel's P block and its narrow accumulators: two over the content
  /// dimensions of QK, a fresh one per block for PV.
  static Result emulate(const Problem& problem) {
    NumericsOptions numerics;
    numerics.accumulate = NumericsOptions::Accumulate::hopper;
    numerics.qk_accumulators = 2;
    ScopedBackend forced("cpu");
    return run(problem, host_memory(), numerics);
  }

  /// P, QK and PV of this data are exact in the narrow accumulators: float64 to rounding.
  static void check_exact(Case c) {
    c.plan.p_block = 0;
    SCOPED_TRACE(to_string(c));
    ScopedBackend forced("cuda");
    Pipeline pipeline(make_problem(c), device_memory());
    pipeline.append();
    pipeline.quantize();
    pipeline.plan();
    pipeline.decode();
    const Result actual = pipeline.result();
    EXPECT_EQ(pipeline.status(), 0);
    const double bf16 = c.out_dtype == DType::bf16 ? 3e-3 : 0;
    EXPECT_TRUE(within(actual, attend_stored(pipeline), {.out = 1e-4 + bf16}));
  }
};

TEST_F(DecodeE4m3Test, ExactPCases) {
  for (const Case& c : pairwise_cases(Data::exact_p)) check_exact(c);
}

TEST_F(DecodeE4m3Test, ExactPLongCases) {
  for (const Case& c : long_cases(Data::exact_p, 8)) check_exact(c);
}

TEST_F(DecodeE4m3Test, EveryHeadCount) {
  for (std::int64_t heads :
       {1, 2, 8, 12, 15, 16, 17, 20, 24, 31, 32, 33, 40, 63, 64, 65, 96, 128}) {
    Case c;
    c.name = "heads";
    c.h_q = heads;
    c.lengths = {300, 0, 129, 64, 1};
    c.data = Data::exact_p;
    c.out_dtype = heads % 2 ? DType::bf16 : DType::f32;
    c.plan.num_sms = 7;
    check_exact(c);
  }
}

// bugs.md B13, B19: more row tiles than SMs.
TEST_F(DecodeE4m3Test, MoreRowTilesThanSms) {
  Case c;
  c.name = "many_query_tokens";
  c.lengths = {100, 3, 0};
  c.s_q = 67;
  c.h_q = 128;
  c.form = CacheForm::packed;
  c.data = Data::exact_p;
  check_exact(c);
}

TEST_F(DecodeE4m3Test, KindsOfContent) {
  for (Case c : content_cases()) {
    c.plan.p_block = 0;
    SCOPED_TRACE(to_string(c));
    const Problem problem = make_problem(c);
    const Result actual = decode(problem);
    EXPECT_TRUE(all_finite(actual.out));
    const Result expected = emulate(problem);
    const Difference out = compare(actual.out, expected.out),
                     lse = compare(actual.lse, expected.lse);
    EXPECT_TRUE(out.same_nonfinite && lse.same_nonfinite);
    std::printf("%s: out %.2e lse %.2e\n", c.name.c_str(), out.relative_l2, lse.relative_l2);
    // Logits of 1e5 and more carry fp32 errors that exp turns into anything.
    if (c.data == Data::amplitudes_in_block || c.data == Data::rope_outliers) continue;
    EXPECT_LE(out.relative_l2, 2e-3);
    EXPECT_LE(lse.relative_l2, 3e-5);
  }
}

TEST_F(DecodeE4m3Test, PagesThatDoNotExistAreLeftOutAndCounted) {
  for (std::int64_t heads : {4, 24, 100}) {
    Case c;
    c.name = "bad_pages";
    c.lengths = {300, 130, 64};
    c.h_q = heads;
    c.data = Data::exact_p;
    const Problem problem = make_problem(c);
    const auto decode_with_holes = [&](Memory& memory, const char* backend) {
      ScopedBackend forced(backend);
      Pipeline pipeline(problem, memory);
      pipeline.append();
      pipeline.quantize();
      pipeline.plan();
      std::vector<std::int32_t> table = problem.block_table;
      table[1] = -1;
      table[problem.table_stride] = static_cast<std::int32_t>(problem.num_pages);
      table[2 * problem.table_stride] = -5;  // the only page: an empty row
      pipeline.block_table_buffer().upload(table.data(), table.size() * 4);
      pipeline.decode();
      EXPECT_EQ(pipeline.status(), 3);
      return pipeline.result();
    };
    const Result expected = decode_with_holes(host_memory(), "reference");
    const Result actual = decode_with_holes(device_memory(), "cuda");
    const Difference out = compare(actual.out, expected.out);
    EXPECT_LE(out.relative_l2, 1e-4);
    EXPECT_TRUE(compare(actual.lse, expected.lse).same_nonfinite);
    EXPECT_LE(compare(actual.lse, expected.lse).relative_l2, 1e-5);
  }
}

// NaN in a query row stays in its row; NaN in a token reaches its own request alone.
TEST_F(DecodeE4m3Test, NanStaysWhereItBelongs) {
  Case c;
  c.name = "nan";
  c.lengths = {150, 80};
  c.h_q = 3;
  Problem problem = make_problem(c);
  problem.q[1 * kQkDim + 7] = std::numeric_limits<float>::quiet_NaN();  // request 0, head 1
  problem.kv[(problem.first_token[1] + 3) * kQkDim + 9] =
      std::numeric_limits<float>::quiet_NaN();  // request 1
  Result expected;
  {
    ScopedBackend forced("cpu");
    expected = run(problem);
  }
  const Result actual = decode(problem);
  EXPECT_TRUE(compare(actual.out, expected.out).same_nonfinite);
  EXPECT_TRUE(compare(actual.lse, expected.lse).same_nonfinite);
}

// The reference of a row moves by hundreds of powers of two, in some rows and not in others.
TEST_F(DecodeE4m3Test, RisingLogitsRescaleTheOutput) {
  for (std::int64_t heads : {5, 30, 64}) {
    Case c;
    c.name = "rising";
    c.lengths = {700, 260};
    c.h_q = heads;
    Problem problem = make_problem(c);
    for (std::int64_t r = 0; r < c.b(); ++r) {
      for (std::int64_t t = problem.first_token[r]; t < problem.first_token[r + 1]; ++t) {
        const std::int64_t block = (t - problem.first_token[r]) / 64;
        problem.kv[t * kQkDim + kKvLoraRank] = static_cast<float>(block * 40);
      }
    }
    for (std::int64_t row = 0; row < c.b() * heads; ++row) {
      // 1/24 * 40 * 36 = 60 nats per block for some rows, falling for others
      problem.q[row * kQkDim + kKvLoraRank] = row % 3 == 0 ? 36.0f : row % 3 == 1 ? -36.0f : 0.0f;
    }
    Result expected;
    {
      ScopedBackend forced("cpu");
      expected = run(problem);
    }
    const Result actual = decode(problem);
    EXPECT_LE(compare(actual.out, expected.out).relative_l2, 6e-3) << heads;
    EXPECT_LE(compare(actual.lse, expected.lse).relative_l2, 1e-4) << heads;
    EXPECT_TRUE(all_finite(actual.out));
  }
}

TEST_F(DecodeE4m3Test, RepeatedRunsAreBitwiseEqual) {
  for (std::int64_t heads : {16, 32, 64, 128}) {
    Case c;
    c.name = "repeat";
    c.lengths = {5000, 0, 777, 64, 3000};
    c.h_q = heads;
    const Problem problem = make_problem(c);
    ScopedBackend forced("cuda");
    Pipeline pipeline(problem, device_memory());
    pipeline.append();
    pipeline.quantize();
    pipeline.plan();
    pipeline.decode();
    const Result first = pipeline.result();
    for (int i = 0; i < 20; ++i) {
      pipeline.out_buffer().fill(0xff);
      pipeline.workspace_buffer().fill(0xff);
      pipeline.decode();
      ASSERT_TRUE(identical(pipeline.result(), first)) << "run " << i << ", heads " << heads;
    }
  }
}

// A row's bits depend on neither its tile mates, the tile's width, the batch nor the page order.
TEST_F(DecodeE4m3Test, BatchInvariantPlansGiveTheSameBits) {
  Case c;
  c.name = "invariant";
  c.lengths = {4100, 100, 9000, 1};
  c.s_q = 2;
  c.h_q = 64;
  c.data = Data::peaked;
  c.causal = false;
  c.plan.batch_invariant = true;
  c.plan_max_seqlen = 10000;
  const Problem problem = make_problem(c);
  const Result together = decode(problem);
  for (std::int64_t heads : {1, 16, 24, 64}) {
    // The first `heads` heads of query 0 of request 2, alone.
    Problem alone = problem.select({2});
    alone.spec.s_q = 1;
    alone.spec.h_q = heads;
    alone.q.resize(heads * kQkDim);
    const Result result = decode(alone);
    const Result expected_rows = rows_of(together, c, 2);
    for (std::int64_t h = 0; h < heads; ++h) {
      for (int d = 0; d < kKvLoraRank; ++d) {
        ASSERT_EQ(bit_cast_hd<std::uint32_t>(result.out[h * kKvLoraRank + d]),
                  bit_cast_hd<std::uint32_t>(expected_rows.out[h * kKvLoraRank + d]))
            << heads << " heads, head " << h << " dim " << d;
      }
      ASSERT_EQ(result.lse[h], expected_rows.lse[h * c.s_q]) << heads << " heads, head " << h;
    }
  }
}

}  // namespace
}  // namespace snapmla::test
