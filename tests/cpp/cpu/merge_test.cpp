// merge_states, alone and over context-parallel parts of real problems.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "support/compare.h"
#include "support/random.h"

namespace snapmla::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Parts {
  std::int64_t n, b, s_q, h_q;
  std::vector<float> outs, lses;  // [n, b, s_q, h_q, 512], [n, b, h_q, s_q]
};

Result merge(const Parts& p, bool with_lse = true) {
  Memory& memory = host_memory();
  const Buffer outs = Buffer::of(memory, p.outs), lses = Buffer::of(memory, p.lses);
  const std::int64_t rows = p.b * p.s_q * p.h_q;
  Buffer out(memory, rows * kKvLoraRank * 4), lse(memory, rows * 4);
  TensorView lse_view;
  if (with_lse) lse_view = TensorView(lse.data(), DType::f32, {p.b, p.h_q, p.s_q});
  merge_states(TensorView(outs.data(), DType::f32, {p.n, p.b, p.s_q, p.h_q, kKvLoraRank}),
               TensorView(lses.data(), DType::f32, {p.n, p.b, p.h_q, p.s_q}),
               TensorView(out.data(), DType::f32, {p.b, p.s_q, p.h_q, kKvLoraRank}), lse_view);
  EXPECT_TRUE(out.guards_intact() && lse.guards_intact());
  return {out.read<float>(), lse.read<float>()};
}

Parts random_parts(std::int64_t n, std::int64_t b, std::int64_t s_q, std::int64_t h_q,
                   std::uint64_t seed) {
  Random random(seed);
  Parts p{n, b, s_q, h_q, {}, {}};
  p.outs.resize(n * b * s_q * h_q * kKvLoraRank);
  p.lses.resize(n * b * s_q * h_q);
  for (float& x : p.outs) x = random.normal();
  for (float& x : p.lses) x = 5 * random.normal();
  return p;
}

Attention merge_in_double(const Parts& p) {
  Attention a;
  const std::int64_t rows = p.b * p.s_q * p.h_q;
  a.out.assign(rows * kKvLoraRank, 0);
  a.lse.assign(rows, -kInf);
  for (std::int64_t i = 0; i < p.b; ++i) {
    for (std::int64_t j = 0; j < p.s_q; ++j) {
      for (std::int64_t h = 0; h < p.h_q; ++h) {
        const std::int64_t out = ((i * p.s_q + j) * p.h_q + h) * kKvLoraRank;
        const std::int64_t lse = (i * p.h_q + h) * p.s_q + j;
        double sum = 0;
        for (std::int64_t n = 0; n < p.n; ++n) {
          const float part = p.lses[n * rows + lse];
          if (std::isinf(part)) continue;
          sum += std::exp(static_cast<double>(part));
          for (int d = 0; d < kKvLoraRank; ++d) {
            a.out[out + d] +=
                std::exp(static_cast<double>(part)) * p.outs[n * rows * kKvLoraRank + out + d];
          }
        }
        if (sum == 0) continue;
        for (int d = 0; d < kKvLoraRank; ++d) a.out[out + d] /= sum;
        a.lse[lse] = std::log(sum);
      }
    }
  }
  return a;
}

constexpr Gate kRounding{1e-6, 1e-6, 1e-5, 0};

TEST(Merge, EqualsFloat64) {
  for (std::int64_t n : {1, 2, 3, 17}) {
    const Parts p = random_parts(n, 2, 3, 5, n);
    EXPECT_TRUE(within(merge(p), merge_in_double(p), kRounding)) << n;
    EXPECT_EQ(merge(p, false).out, merge(p).out) << "lse is optional";
  }
}

TEST(Merge, EmptyPartsMayHoldAnything) {
  for (float empty : {-kInf, kInf}) {  // +inf is how FlashMLA marks an empty row
    Parts p = random_parts(3, 2, 2, 2, 9);
    const std::int64_t rows = 8;
    for (std::int64_t row = 0; row < rows; row += 2) p.lses[rows + row] = empty;
    for (std::int64_t part = 0; part < 3; ++part) p.lses[part * rows + 3] = empty;
    // Poison the outputs that belong to them. lse [b, h, s], out [b, s, h]: rows 0 1 2 3 <-> 0 2
    // 1 3.
    const std::int64_t out_row[] = {0, 2, 1, 3, 4, 6, 5, 7};
    for (std::int64_t part = 0; part < 3; ++part) {
      for (std::int64_t row = 0; row < rows; ++row) {
        if (!std::isinf(p.lses[part * rows + row])) continue;
        float* out = &p.outs[(part * rows + out_row[row]) * kKvLoraRank];
        std::fill(out, out + kKvLoraRank, std::nanf(""));
      }
    }
    const Result result = merge(p);
    EXPECT_TRUE(all_finite(result.out));
    EXPECT_EQ(result.lse[3], -kInf);
    for (int d = 0; d < kKvLoraRank; ++d) ASSERT_EQ(result.out[out_row[3] * kKvLoraRank + d], 0);
    Parts clean = p;
    for (float& x : clean.outs) x = std::isnan(x) ? 0 : x;
    EXPECT_TRUE(within(result, merge_in_double(clean), kRounding));
  }
}

TEST(Merge, NoPartsGiveEmptyRows) {
  const Result result = merge({0, 1, 1, 2, {}, {}});
  EXPECT_EQ(result.lse, (std::vector<float>{-kInf, -kInf}));
  for (float x : result.out) ASSERT_EQ(x, 0);
}

TEST(Merge, HugeAndTinyLseDoNotOverflow) {
  Parts p = random_parts(2, 1, 1, 1, 4);
  p.lses = {1e6f, 1e6f - 1};
  const Result high = merge(p);
  EXPECT_TRUE(all_finite(high.out));
  EXPECT_NEAR(high.lse[0], 1e6f + std::log1p(std::exp(-1.0)), 0.1);
  p.lses = {-1e6f, -3e6f};
  EXPECT_EQ(merge(p).out, std::vector<float>(p.outs.begin(), p.outs.begin() + kKvLoraRank));
}

TEST(Merge, StridedAndBf16Parts) {
  const Parts p = random_parts(2, 2, 2, 3, 8);
  Memory& memory = host_memory();
  std::vector<float> rounded = p.outs;
  for (float& x : rounded) x = bf16_value(nearest_bf16(x));
  const Buffer outs = Buffer::of(memory, encode(rounded, DType::bf16));
  // lses as [n, b, s_q, h_q] in memory: strides make it [n, b, h_q, s_q].
  std::vector<float> transposed(p.lses.size());
  for (std::int64_t n = 0; n < 4; ++n) {
    for (std::int64_t h = 0; h < 3; ++h) {
      for (std::int64_t j = 0; j < 2; ++j) {
        transposed[n * 6 + j * 3 + h] = p.lses[n * 6 + h * 2 + j];
      }
    }
  }
  const Buffer lses = Buffer::of(memory, transposed);
  Buffer out(memory, 12 * kKvLoraRank * 4), lse(memory, 12 * 4);
  merge_states(TensorView(outs.data(), DType::bf16, {2, 2, 2, 3, kKvLoraRank}),
               TensorView(lses.data(), DType::f32, {2, 2, 3, 2}, {12, 6, 1, 3}),
               TensorView(out.data(), DType::f32, {2, 2, 3, kKvLoraRank}),
               TensorView(lse.data(), DType::f32, {2, 3, 2}));
  Parts expected = p;
  expected.outs = rounded;
  EXPECT_TRUE(within({out.read<float>(), lse.read<float>()}, merge_in_double(expected), kRounding));
}

// B10: context parallelism: tokens dealt to ranks by position, merged with natural-log lse.
TEST(Merge, B10_RanksThatOwnInterleavedTokens) {
  for (std::int32_t length : {777, 1}) {
    Case c;
    c.lengths = {length};
    c.h_q = 4;
    c.causal = false;
    const Problem whole = make_problem(c);
    for (const char* backend : {"cpu", "reference"}) {
      ScopedBackend scope(backend);
      const Attention expected = [&] {
        Pipeline pipeline(whole);
        pipeline.append();
        pipeline.quantize();
        return attend_stored(pipeline);
      }();
      for (std::int64_t ranks : {2, 4}) {
        Parts parts{ranks, 1, 1, c.h_q, {}, {}};
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
          Problem part = whole;
          part.kv.clear();
          for (std::int64_t t = rank; t < length; t += ranks) {
            part.kv.insert(part.kv.end(), whole.kv.begin() + t * kQkDim,
                           whole.kv.begin() + (t + 1) * kQkDim);
          }
          const auto owned = static_cast<std::int64_t>(part.kv.size()) / kQkDim;
          part.spec.lengths = {static_cast<std::int32_t>(owned)};
          part.first_token = {0, owned};
          assign_pages(part, PageOrder::random, 3);
          const Result result = run(part);
          parts.outs.insert(parts.outs.end(), result.out.begin(), result.out.end());
          parts.lses.insert(parts.lses.end(), result.lse.begin(), result.lse.end());
        }
        const bool exact = std::string(backend) == "reference";
        EXPECT_TRUE(within(merge(parts), expected, {exact ? 2e-6 : 3.2e-2, 1, 1e-4, kStrongLse}))
            << backend << " " << ranks << " ranks, length " << length;
      }
    }
  }
}

// B09: a prefix read back in chunks of any size, attended chunk by chunk and merged.
TEST(Merge, B09_ChunkedPrefixEqualsOneShot) {
  Case c;
  c.lengths = {1000};
  c.h_q = 2;
  c.causal = false;
  Pipeline pipeline(make_problem(c));
  pipeline.append();
  pipeline.quantize();
  const Stored stored = pipeline.stored();
  const Attention expected = attend(pipeline.problem(), stored.q, stored.kv);
  for (std::int64_t chunk : {1, 7, 64, 999}) {
    Parts parts{0, 1, 1, c.h_q, {}, {}};
    for (std::int64_t begin = 0; begin < 1000; begin += chunk, ++parts.n) {
      const std::int64_t n = std::min<std::int64_t>(chunk, 1000 - begin);
      // Read the chunk back through the library, by range of the block table.
      Memory& memory = host_memory();
      const Buffer start =
          Buffer::of(memory, std::vector<std::int32_t>{static_cast<std::int32_t>(begin)});
      const Buffer count =
          Buffer::of(memory, std::vector<std::int32_t>{static_cast<std::int32_t>(n)});
      const Buffer zero = Buffer::of(memory, std::vector<std::int32_t>{0});
      Buffer keys(memory, n * kQkDim * 4);
      fetch_dequant(pipeline.cache(),
                    TokenRanges{pipeline.block_table(), TensorView(start.data(), DType::i32, {1}),
                                TensorView(count.data(), DType::i32, {1}),
                                TensorView(zero.data(), DType::i32, {1})},
                    TensorView(keys.data(), DType::f32, {n, kQkDim}));
      Problem part = pipeline.problem();
      part.first_token = {0, n};
      const Attention a = attend(part, stored.q, keys.read<float>());
      parts.outs.insert(parts.outs.end(), a.out.begin(), a.out.end());
      parts.lses.insert(parts.lses.end(), a.lse.begin(), a.lse.end());
    }
    EXPECT_TRUE(within(merge(parts), expected, {1e-5, 1e-5, 1e-4, 0})) << "chunks of " << chunk;
  }
}

}  // namespace
}  // namespace snapmla::test
