// Merging partial results: the combine kernel, which decode kernels call, and merge_states.

#include "cuda/smxx/combine.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/tile_scheduler.h"
#include "device.h"
#include "snapmla/snapmla.h"
#include "support/compare.h"
#include "support/random.h"

namespace snapmla::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Partial results of requests with splits[i] parts (1: unsplit), in a plan for `planned` of them.
struct Partials {
  std::vector<std::int32_t> splits;
  std::int64_t planned, s_q, h_q;
  std::int64_t rows() const { return s_q * h_q; }
  std::vector<std::int32_t> num_splits;
  std::vector<float> out, lse;  // [slots, rows, 512], [slots, rows]
};

/// The data of request i depend on i and the row alone, so that batches can be compared.
Partials make_partials(std::vector<std::int32_t> splits, std::int64_t planned, std::int64_t s_q,
                       std::int64_t h_q) {
  Partials p{std::move(splits), planned, s_q, h_q, {0}, {}, {}};
  for (std::int64_t i = 0; i < planned; ++i) {
    p.num_splits.push_back(p.num_splits.back() + (p.splits[i] > 1 ? p.splits[i] : 0));
  }
  // Past the plan: whatever a buffer made for a larger batch holds.
  while (p.num_splits.size() < p.splits.size() + 1) p.num_splits.push_back(-77);
  const std::int64_t slots = p.num_splits[planned];
  p.out.resize(slots * p.rows() * kKvLoraRank);
  p.lse.resize(slots * p.rows());
  for (std::int64_t i = 0; i < planned; ++i) {
    for (std::int64_t s = 0; p.splits[i] > 1 && s < p.splits[i]; ++s) {
      for (std::int64_t row = 0; row < p.rows(); ++row) {
        Random random(1000003 * i + 1009 * s + row);
        const std::int64_t at = (p.num_splits[i] + s) * p.rows() + row;
        const bool empty = row % 7 == 3 || (row + s) % 5 == 0;  // row 3: all parts empty
        p.lse[at] = empty ? -kInf : static_cast<float>(random.uniform(-30, 30));
        if (row % 11 == 5) p.lse[at] = empty ? -kInf : static_cast<float>(1e4 * s);
        for (int d = 0; d < kKvLoraRank; ++d) {
          p.out[at * kKvLoraRank + d] = empty ? 0.0f : random.normal();
        }
      }
    }
  }
  return p;
}

struct Merged {
  std::vector<std::uint8_t> out;
  std::vector<float> lse;
};

Merged combine(const Partials& p, DType out_dtype, bool with_lse = true) {
  DeviceMemory& memory = device_memory();
  const auto b = static_cast<std::int64_t>(p.splits.size());
  ScheduleHeader header{};
  header.b = static_cast<std::int32_t>(p.planned);
  std::vector<std::int32_t> words(2 * kScheduleCols);
  std::memcpy(words.data(), &header, sizeof(header));
  Buffer schedule = Buffer::of(memory, words);
  Buffer num_splits = Buffer::of(memory, p.num_splits);
  Buffer out_accum = Buffer::of(memory, p.out), lse_accum = Buffer::of(memory, p.lse);
  const std::int64_t stride = kKvLoraRank + 16;  // a gap after each row
  Buffer out(memory, b * p.rows() * stride * dtype_bytes(out_dtype));
  Buffer lse(memory, b * p.rows() * 4);
  DecodeArgs a;
  a.schedule = static_cast<const std::int32_t*>(schedule.data());
  a.schedule_rows = 2;
  a.num_splits = static_cast<const std::int32_t*>(num_splits.data());
  a.b = b;
  a.s_q = p.s_q;
  a.h_q = p.h_q;
  a.out = {out.data(), out_dtype, {p.rows() * stride, p.h_q * stride, stride, 0}};
  a.lse = with_lse ? static_cast<float*>(lse.data()) : nullptr;
  a.lse_stride[0] = p.rows();
  a.lse_stride[1] = p.s_q;
  a.lse_stride[2] = 1;
  a.out_accum = static_cast<float*>(out_accum.data());
  a.lse_accum = static_cast<float*>(lse_accum.data());
  a.slots = static_cast<std::int64_t>(p.lse.size()) / p.rows();
  cuda::launch_combine(a, memory.cuda_stream(), true);
  Merged merged{out.read<std::uint8_t>(), lse.read<float>()};
  EXPECT_TRUE(out.guards_intact() && lse.guards_intact());
  return merged;
}

std::vector<float> row_of(const Merged& m, std::int64_t row, DType dtype) {
  const std::int64_t stride = kKvLoraRank + 16;
  std::vector<float> values(stride);
  for (std::int64_t d = 0; d < stride; ++d) {
    if (dtype == DType::f32) {
      std::memcpy(&values[d], &m.out[(row * stride + d) * 4], 4);
    } else {
      std::uint16_t bits;
      std::memcpy(&bits, &m.out[(row * stride + d) * 2], 2);
      values[d] = bf16_value(bits);
    }
  }
  return values;
}

class CudaCombineTest : public CudaTest {
 protected:
  static void check(const Partials& p, DType dtype) {
    const Merged merged = combine(p, dtype);
    for (std::size_t i = 0; i < p.splits.size(); ++i) {
      for (std::int64_t row = 0; row < p.rows(); ++row) {
        const std::vector<float> actual = row_of(merged, i * p.rows() + row, dtype);
        const float lse = merged.lse[i * p.rows() + (row % p.h_q) * p.s_q + row / p.h_q];
        for (int d = kKvLoraRank; d < kKvLoraRank + 16; ++d) ASSERT_TRUE(std::isnan(actual[d]));
        const bool planned = static_cast<std::int64_t>(i) < p.planned;
        if (planned && p.splits[i] < 2) {  // not this kernel's: still poisoned
          for (int d = 0; d < kKvLoraRank; ++d) ASSERT_TRUE(std::isnan(actual[d]));
          ASSERT_TRUE(std::isnan(lse));
          continue;
        }
        double max = -kInf, sum = 0;
        std::vector<double> expected(kKvLoraRank);
        const std::int64_t parts = planned ? p.splits[i] : 0;
        for (std::int64_t s = 0; s < parts; ++s) {
          max = std::max(max, double{p.lse[(p.num_splits[i] + s) * p.rows() + row]});
        }
        for (std::int64_t s = 0; s < parts && max > -kInf; ++s) {
          const std::int64_t at = (p.num_splits[i] + s) * p.rows() + row;
          const double weight = std::exp(p.lse[at] - max);
          sum += weight;
          for (int d = 0; d < kKvLoraRank; ++d) expected[d] += weight * p.out[at * kKvLoraRank + d];
        }
        for (int d = 0; d < kKvLoraRank; ++d) {
          const double e = sum == 0 ? 0 : expected[d] / sum;
          const double tolerance = dtype == DType::f32 ? 4e-6 : 4e-6 + std::fabs(e) / 256;
          ASSERT_NEAR(actual[d], e, tolerance) << "request " << i << " row " << row << " dim " << d;
        }
        if (sum == 0) {
          ASSERT_EQ(lse, -kInf);
        } else {
          ASSERT_NEAR(lse, max + std::log(sum), 1e-6 + 2e-7 * std::fabs(max));
        }
      }
    }
  }
};

TEST_F(CudaCombineTest, EqualsDoubleForEveryWidth) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    check(make_partials({132}, 1, 1, 16), dtype);                // groups side by side
    check(make_partials({300, 17, 2, 16}, 4, 1, 8), dtype);      // more groups than warps
    check(make_partials({2, 3}, 2, 1, 24), dtype);               // a column per lane
    check(make_partials({2, 1, 5, 0, 33}, 5, 2, 8), dtype);      // some requests are not split
    check(make_partials({3, 2, 1, 7, 2, 9}, 6, 1, 128), dtype);  // 4 columns per lane
    check(make_partials(std::vector<std::int32_t>(40, 3), 40, 1, 64), dtype);  // a warp per row
    check(make_partials({2, 3, 4, 5}, 2, 1, 24), dtype);  // requests past the plan's own
    check(make_partials({1, 1, 1}, 0, 3, 5), dtype);      // an empty plan
  }
}

TEST_F(CudaCombineTest, RowsDoNotDependOnTheirBatch) {
  const auto bits = [](const std::vector<float>& v) {
    std::vector<std::uint32_t> words(v.size());
    std::memcpy(words.data(), v.data(), v.size() * 4);
    return words;
  };
  const Merged alone = combine(make_partials({37}, 1, 1, 16), DType::f32);
  for (std::size_t mates : {49, 199}) {
    std::vector<std::int32_t> splits(mates + 1, 2);
    splits[0] = 37;
    const Merged together =
        combine(make_partials(splits, static_cast<std::int64_t>(splits.size()), 1, 16), DType::f32);
    for (int row = 0; row < 16; ++row) {
      EXPECT_EQ(bits(row_of(alone, row, DType::f32)), bits(row_of(together, row, DType::f32)));
      EXPECT_EQ(bits({alone.lse[row]}), bits({together.lse[row]}));
    }
  }
}

TEST_F(CudaCombineTest, WithoutLse) {
  const Partials p = make_partials({4, 2}, 2, 1, 8);
  EXPECT_EQ(combine(p, DType::f32, false).out, combine(p, DType::f32, true).out);
}

TEST_F(CudaCombineTest, ForeignPlanStaysInsideTheWorkspace) {
  Partials p = make_partials({3, 3}, 2, 1, 8);
  p.num_splits = {-5, 1 << 30, 0x7fffffff};
  combine(p, DType::f32);
  EXPECT_EQ(cudaSuccess, cudaGetLastError());
}

// --- merge_states --------------------------------------------------------------------------------

struct MergeShape {
  std::int64_t n, b, s_q, h_q;
};

Result merge(Memory& memory, const MergeShape& m, DType in_dtype, DType out_dtype) {
  Random random(m.n * 31 + m.h_q);
  const Device device = memory.device();
  const std::int64_t rows = m.b * m.s_q * m.h_q;
  const std::int64_t gap = 8, stride = kKvLoraRank + gap;
  std::vector<float> outs(m.n * rows * stride, kNan), lses(m.n * rows * 2, kNan);
  for (std::int64_t n = 0; n < m.n; ++n) {
    for (std::int64_t row = 0; row < rows; ++row) {
      float lse = static_cast<float>(random.uniform(-20, 20));
      if (random.integer(0, 3) == 0) lse = random.integer(0, 1) ? kInf : -kInf;
      if (row % 13 == 4) lse = -kInf;
      if (row % 17 == 5 && n == 0) lse = kNan;
      // lses: [n, b, h_q, s_q], s_q with stride 2
      const std::int64_t h = row % m.h_q, j = row / m.h_q % m.s_q, i = row / (m.h_q * m.s_q);
      lses[(((n * m.b + i) * m.h_q + h) * m.s_q + j) * 2] = lse;
      for (int d = 0; d < kKvLoraRank; ++d) {
        const float v = bf16_value(static_cast<std::uint16_t>(0x3e00 + random.integer(0, 511)));
        // An empty part's output may hold anything.
        outs[(n * rows + row) * stride + d] = std::isinf(lse) ? kNan : (d % 2 ? v : -v);
      }
    }
  }
  Buffer outs_buffer = Buffer::of(memory, encode(outs, in_dtype));
  Buffer lses_buffer = Buffer::of(memory, lses);
  Buffer out(memory, rows * kKvLoraRank * dtype_bytes(out_dtype)), lse(memory, rows * 4);
  merge_states(
      TensorView(outs_buffer.data(), in_dtype, {m.n, m.b, m.s_q, m.h_q, kKvLoraRank},
                 {rows * stride, m.s_q * m.h_q * stride, m.h_q * stride, stride, 1}, device),
      TensorView(lses_buffer.data(), DType::f32, {m.n, m.b, m.h_q, m.s_q},
                 {m.b * m.h_q * m.s_q * 2, m.h_q * m.s_q * 2, m.s_q * 2, 2}, device),
      TensorView(out.data(), out_dtype, {m.b, m.s_q, m.h_q, kKvLoraRank}, device),
      TensorView(lse.data(), DType::f32, {m.b, m.h_q, m.s_q}, device), memory.stream());
  EXPECT_TRUE(out.guards_intact() && lse.guards_intact());
  Result result;
  result.lse = lse.read<float>();
  if (out_dtype == DType::f32) {
    result.out = out.read<float>();
  } else {
    for (std::uint16_t bits : out.read<std::uint16_t>()) result.out.push_back(bf16_value(bits));
  }
  return result;
}

class CudaMergeTest : public CudaTest {};

TEST_F(CudaMergeTest, EqualsTheCpu) {
  for (const MergeShape& shape : {MergeShape{1, 2, 1, 16},
                                  {2, 3, 2, 16},
                                  {8, 4, 1, 128},
                                  {5, 1, 3, 1},
                                  {40, 2, 1, 3},
                                  {0, 1, 1, 2}}) {
    for (DType in_dtype : {DType::bf16, DType::f32}) {
      for (DType out_dtype : {DType::bf16, DType::f32}) {
        const Result expected = merge(host_memory(), shape, in_dtype, out_dtype);
        const Result actual = merge(device_memory(), shape, in_dtype, out_dtype);
        const Difference out = compare(actual.out, expected.out);
        const Difference lse = compare(actual.lse, expected.lse);
        // Roundings that fall the other way: one unit of bf16 in a few elements.
        EXPECT_LE(out.relative_l2, out_dtype == DType::f32 ? 1e-6 : 5e-4) << "n=" << shape.n;
        EXPECT_TRUE(out.same_nonfinite) << "n=" << shape.n;
        EXPECT_LE(lse.relative_l2, 1e-6) << "n=" << shape.n;
        EXPECT_TRUE(lse.same_nonfinite) << "n=" << shape.n;
      }
    }
  }
}

}  // namespace
}  // namespace snapmla::test
