// quantize_query, append_kv, fetch_dequant and copy_tokens: bytes against the tests' own formulas.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "support/compare.h"
#include "support/pipeline.h"
#include "support/random.h"

namespace snapmla::test {
namespace {

constexpr ScaleMode kModes[] = {ScaleMode::exact, ScaleMode::power_of_two};
const float kNaN = std::nanf("");
constexpr float kInf = std::numeric_limits<float>::infinity();

/// Rows of every kind: amplitudes from 1e-38 to 1e38, zeros, one dominant value, amax at every
/// edge.
std::vector<float> varied_rows(std::int64_t n, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> rows(n * kQkDim);
  for (std::int64_t i = 0; i < n; ++i) {
    const double amplitude = random.log_uniform(1e-30, 1e30);
    float* row = &rows[i * kQkDim];
    for (int d = 0; d < kQkDim; ++d) {
      row[d] = static_cast<float>(amplitude * random.normal() * std::exp(-4 * random.uniform()));
    }
    switch (i % 6) {
      case 1:
        std::fill(row, row + kKvLoraRank, 0.0f);
        break;
      case 2:
        row[random.integer(0, 511)] = static_cast<float>(448 * (1 + i / 97.0));
        break;
      case 3:
        for (int d = 0; d < kQkDim; ++d) row[d] = 1.0f + static_cast<float>(random.uniform());
        break;
      case 4:
        for (int d = 0; d < kQkDim; ++d) row[d] = static_cast<float>(random.normal() * 1e-7);
        break;
      default:
        break;
    }
  }
  return rows;
}

struct Appended {
  CacheBuffers cache;
  Buffer status = Buffer::of(host_memory(), std::vector<std::int32_t>{0});
  std::int32_t faults() const { return status.read<std::int32_t>()[0]; }
};

template <class Index>
Appended append(const std::vector<float>& rows, const std::vector<Index>& slots, ScaleMode mode,
                std::optional<std::int64_t> pad_slot = {}, std::int64_t pages = 4,
                CacheForm form = CacheForm::planes) {
  Appended result;
  result.cache = CacheBuffers(host_memory(), form, pages, kPackedPageBytes);
  const auto n = static_cast<std::int64_t>(slots.size());
  const Buffer kv = Buffer::of(host_memory(), rows), index = Buffer::of(host_memory(), slots);
  AppendOptions options;
  options.scale = mode;
  options.pad_slot = pad_slot;
  options.status = TensorView(result.status.data(), DType::i32, {1});
  append_kv(result.cache.cache(), TensorView(kv.data(), DType::f32, {n, kQkDim}),
            TensorView(index.data(), sizeof(Index) == 8 ? DType::i64 : DType::i32, {n}), options);
  EXPECT_TRUE(result.cache.guards_intact());
  return result;
}

std::vector<std::int64_t> iota(std::int64_t n, std::int64_t first = 0) {
  std::vector<std::int64_t> v(n);
  for (std::int64_t i = 0; i < n; ++i) v[i] = first + i;
  return v;
}

std::vector<float> fetch(const CacheBuffers& cache, const std::vector<std::int64_t>& slots,
                         DType dtype = DType::f32, std::int32_t* faults = nullptr) {
  const auto n = static_cast<std::int64_t>(slots.size());
  const Buffer index = Buffer::of(host_memory(), slots);
  Buffer status = Buffer::of(host_memory(), std::vector<std::int32_t>{0});
  Buffer out(host_memory(), n * kQkDim * dtype_bytes(dtype));
  fetch_dequant(cache.cache(), TensorView(index.data(), DType::i64, {n}),
                TensorView(out.data(), dtype, {n, kQkDim}),
                TensorView(status.data(), DType::i32, {1}));
  EXPECT_TRUE(out.guards_intact());
  if (faults) *faults = status.read<std::int32_t>()[0];
  if (dtype == DType::f32) return out.read<float>();
  std::vector<float> values;
  for (std::uint16_t bits : out.read<std::uint16_t>()) values.push_back(bf16_value(bits));
  return values;
}

TEST(AppendKv, BytesFollowTheFormula) {
  const std::int64_t n = 200;
  const auto rows = varied_rows(n, 1);
  for (ScaleMode mode : kModes) {
    for (CacheForm form : {CacheForm::planes, CacheForm::packed}) {
      const Appended a = append(rows, iota(n, 11), mode, {}, 4, form);
      const auto bytes = a.cache.tokens_bytes(iota(n, 11));
      for (std::int64_t t = 0; t < n; ++t) {
        const auto expected =
            quantize_row(&rows[t * kQkDim], mode == ScaleMode::power_of_two).bytes();
        ASSERT_EQ(std::memcmp(&bytes[t * kTokenBytes], expected.data(), kTokenBytes), 0)
            << "row " << t << " mode " << scale_mode_name(mode);
      }
      EXPECT_EQ(a.faults(), 0);
    }
  }
}

TEST(AppendKv, WritesNothingButItsSlots) {
  const auto rows = varied_rows(3, 2);
  const Appended a = append(rows, std::vector<std::int64_t>{70, 64, 191}, ScaleMode::exact);
  CacheBuffers untouched(host_memory(), CacheForm::planes, 4);
  for (std::int64_t slot = 0; slot < 256; ++slot) {
    const bool written = slot == 70 || slot == 64 || slot == 191;
    EXPECT_EQ(a.cache.token_bytes(slot) != untouched.token_bytes(slot), written) << slot;
  }
}

TEST(AppendKv, TwoTensorsStridesAndDtypesGiveTheSameBytes) {
  const std::int64_t n = 9;
  auto rows = varied_rows(n, 3);
  for (float& x : rows) x = bf16_value(nearest_bf16(x));
  const auto slots = iota(n);
  const auto expected = append(rows, slots, ScaleMode::exact).cache.all_bytes();
  const std::vector<std::int32_t> slots32(slots.begin(), slots.end());
  EXPECT_EQ(append(rows, slots32, ScaleMode::exact).cache.all_bytes(), expected);

  // Content rows 640 apart and RoPE rows in reverse, as bf16.
  std::vector<float> content(n * 640, kNaN), rope(n * kRopeDim);
  for (std::int64_t t = 0; t < n; ++t) {
    std::copy_n(&rows[t * kQkDim], kKvLoraRank, &content[t * 640]);
    std::copy_n(&rows[t * kQkDim + kKvLoraRank], kRopeDim, &rope[(n - 1 - t) * kRopeDim]);
  }
  const Buffer c = Buffer::of(host_memory(), encode(content, DType::bf16));
  const Buffer r = Buffer::of(host_memory(), encode(rope, DType::bf16));
  const Buffer s = Buffer::of(host_memory(), slots);
  CacheBuffers cache(host_memory(), CacheForm::planes, 4);
  AppendOptions options;
  options.scale = ScaleMode::exact;
  append_kv(cache.cache(),
            {TensorView(c.data(), DType::bf16, {n, kKvLoraRank}, {640, 1}),
             TensorView(static_cast<std::uint16_t*>(r.data()) + (n - 1) * kRopeDim, DType::bf16,
                        {n, kRopeDim}, {-kRopeDim, 1})},
            TensorView(s.data(), DType::i64, {n}), options);
  EXPECT_EQ(cache.all_bytes(), expected);
}

TEST(AppendKv, NoTokens) {
  const Appended a = append({}, std::vector<std::int64_t>{}, ScaleMode::exact);
  EXPECT_EQ(a.cache.all_bytes(), CacheBuffers(host_memory(), CacheForm::planes, 4).all_bytes());
}

// B31: -1 is always skipped, a pad slot where it is named; without one slot 0 is a slot like
// others.
TEST(AppendKv, B31_PadTokensDoNotTouchTheirSlot) {
  auto rows = varied_rows(6, 4);
  const std::vector<std::int32_t> slots = {0, 0, 640, -1, 641, 0};
  for (int t : {0, 1, 3, 5}) std::fill_n(&rows[t * kQkDim], kQkDim, kNaN);
  const CacheBuffers untouched(host_memory(), CacheForm::planes, 12);
  for (bool pad : {false, true}) {
    const Appended a = append(rows, slots, ScaleMode::exact,
                              pad ? std::optional<std::int64_t>(0) : std::nullopt, 12);
    EXPECT_EQ(a.cache.token_bytes(640), quantize_row(&rows[2 * kQkDim], false).bytes());
    EXPECT_EQ(a.cache.token_bytes(641), quantize_row(&rows[4 * kQkDim], false).bytes());
    EXPECT_EQ(a.cache.token_bytes(0) == untouched.token_bytes(0), pad);
    EXPECT_EQ(a.faults(), 0);
  }
}

// B32: a slot is compared in 64 bits before anything is narrowed.
TEST(AppendKv, B32_SlotsOutsideTheCacheAreNotWritten) {
  const auto rows = varied_rows(6, 5);
  const std::int64_t capacity = 4 * 64;
  const std::int64_t wrapped = (std::int64_t{1} << 40) + 17;
  const Appended a = append(
      rows,
      std::vector<std::int64_t>{capacity, capacity - 1, wrapped, -2, (std::int64_t{1} << 32) + 3,
                                std::numeric_limits<std::int64_t>::min()},
      ScaleMode::exact);
  const CacheBuffers untouched(host_memory(), CacheForm::planes, 4);
  for (std::int64_t slot = 0; slot < capacity; ++slot) {
    EXPECT_EQ(a.cache.token_bytes(slot) != untouched.token_bytes(slot), slot == capacity - 1);
  }
  EXPECT_EQ(a.faults(), 5);
}

// B04: what +inf and NaN become is defined: an infinite amax gives S = inf, so the row's finite
// values become 0 and its infinities NaN; a NaN stays one and does not reach the scale.
TEST(AppendKv, B04_InfinityAndNaNAreDefined) {
  for (ScaleMode mode : kModes) {
    auto rows = varied_rows(2, 6);
    rows[7] = kInf;
    rows[kQkDim + 9] = kNaN;
    rows[kQkDim + kKvLoraRank + 1] = kInf;
    rows[kQkDim + kKvLoraRank + 2] = kNaN;
    const Appended a = append(rows, iota(2), mode);
    for (std::int64_t t = 0; t < 2; ++t) {
      EXPECT_EQ(a.cache.token_bytes(t),
                quantize_row(&rows[t * kQkDim], mode == ScaleMode::power_of_two).bytes());
    }
    EXPECT_EQ(a.cache.token_bytes(0)[7], 0x7f);
    EXPECT_EQ(a.cache.token_bytes(0)[8] & 0x7f, 0);
    EXPECT_EQ(a.cache.token_bytes(1)[9], 0x7f);
    float scale;
    std::memcpy(&scale, a.cache.token_bytes(1).data() + 640, 4);
    EXPECT_TRUE(std::isfinite(scale));
  }
}

// B04: the largest element may land a little above 448 after the multiplication; it saturates.
TEST(AppendKv, B04_EveryMagnitudeSaturatesInsteadOfOverflowing) {
  std::vector<float> rows;
  for (std::uint32_t bits = 0x3a83; bits <= 0x46ea; ++bits) {  // 1e-3 .. 3e4, every bf16 magnitude
    const std::size_t at = rows.size();
    rows.resize(at + kQkDim, 0.0f);
    rows[at] = bf16_value(static_cast<std::uint16_t>(bits));
    rows[at + 1] = -rows[at];
  }
  const auto n = static_cast<std::int64_t>(rows.size()) / kQkDim;
  for (ScaleMode mode : kModes) {
    const Appended a = append(rows, iota(n), mode, {}, n / 64 + 1);
    const auto bytes = a.cache.tokens_bytes(iota(n));
    for (std::int64_t t = 0; t < n; ++t) {
      const std::uint8_t code = bytes[t * kTokenBytes];
      if (mode == ScaleMode::exact) {
        ASSERT_EQ(code, 0x7e) << rows[t * kQkDim];
      }
      ASSERT_NE(code & 0x7f, 0x7f) << rows[t * kQkDim];
      ASSERT_GE(code, 0x77) << rows[t * kQkDim];  // 240 at least
      ASSERT_EQ(bytes[t * kTokenBytes + 1], code | 0x80);
    }
  }
}

// B02: the scale that readers multiply by is the scale that the codes were made with, in fp32.
TEST(Fetch, B02_CodesTimesTheStoredScale) {
  std::vector<float> rows(97 * kQkDim);
  Random random(8);
  for (int j = 0; j < 97; ++j) {
    float* row = &rows[j * kQkDim];
    for (int d = 0; d < kQkDim; ++d) row[d] = 100 * random.normal();
    for (int d = 0; d < kKvLoraRank; ++d) row[d] = std::fmin(std::fmax(row[d], -440), 440);
    row[j] = static_cast<float>(448 * (1 + j / 97.0));
  }
  for (ScaleMode mode : kModes) {
    const Appended a = append(rows, iota(97), mode);
    const auto values = fetch(a.cache, iota(97));
    const auto rounded = fetch(a.cache, iota(97), DType::bf16);
    for (int j = 0; j < 97; ++j) {
      const QuantizedRow q = quantize_row(&rows[j * kQkDim], mode == ScaleMode::power_of_two);
      if (mode == ScaleMode::exact) {
        EXPECT_EQ(q.scale, static_cast<float>(448 * (1 + j / 97.0)) / 448.0f);
      }
      for (int d = 0; d < kQkDim; ++d) {
        const float stored =
            d < kKvLoraRank ? e4m3_value(q.codes[d]) : bf16_value(q.rope[d - kKvLoraRank]);
        const int i = j * kQkDim + d;
        ASSERT_EQ(values[i], stored * q.scale) << j << " " << d;
        ASSERT_EQ(rounded[i], bf16_value(nearest_bf16(stored * q.scale))) << j << " " << d;
      }
    }
  }
}

// Power-of-two scales: reading back and appending again gives the same bytes, in f32 and in bf16.
TEST(Fetch, PowerOfTwoBytesSurviveFetchAndAppend) {
  const std::int64_t n = 255;
  auto rows = varied_rows(n, 9);
  // amax on and beside the edges where e4m3 rounds into the next interval: 224..240 and 448..464.
  for (std::int64_t t = 0; t < 200; ++t) {
    float* row = &rows[t * kQkDim];
    const float edge = static_cast<float>((t % 2 ? 220 : 440) + 0.25 * (t / 2));
    for (int d = 0; d < kKvLoraRank; ++d) row[d] = std::fmod(row[d], edge);
    row[17] = edge;
  }
  const Appended a = append(rows, iota(n), ScaleMode::power_of_two);
  const auto expected = a.cache.tokens_bytes(iota(n));
  for (DType dtype : {DType::f32, DType::bf16}) {
    const Appended again = append(fetch(a.cache, iota(n), dtype), iota(n), ScaleMode::power_of_two);
    const auto bytes = again.cache.tokens_bytes(iota(n));
    for (std::int64_t t = 0; t < n; ++t) {
      ASSERT_EQ(std::memcmp(&bytes[t * kTokenBytes], &expected[t * kTokenBytes], kTokenBytes), 0)
          << "token " << t << " as " << dtype_name(dtype);
    }
  }
}

TEST(Fetch, SlotsOutsideTheCacheGiveZerosAndAreCounted) {
  const auto rows = varied_rows(1, 10);
  const Appended a = append(rows, iota(1), ScaleMode::exact);
  std::int32_t faults = 0;
  const auto values = fetch(a.cache, {-1, 0, 256, std::int64_t{1} << 40}, DType::f32, &faults);
  EXPECT_EQ(faults, 3);
  for (std::int64_t i : {0, 2, 3}) {
    for (int d = 0; d < kQkDim; ++d) ASSERT_EQ(values[i * kQkDim + d], 0.0f);
  }
  EXPECT_EQ(std::vector<float>(values.begin() + kQkDim, values.begin() + 2 * kQkDim),
            fetch(a.cache, {0}));
}

TEST(Fetch, RangesEqualSlotsAndWriteNothingElse) {
  Case c;
  c.lengths = {130, 0, 65, 10};
  Pipeline pipeline(make_problem(c));
  pipeline.append();
  const Problem& p = pipeline.problem();
  Memory& memory = host_memory();
  const std::vector<std::int32_t> starts = {60, 0, 0, 2}, lengths = {70, 0, 65, 3},
                                  offsets = {5, 0, 80, 200};
  const std::int64_t rows = 150;  // request 3 lies past the output
  const Buffer s = Buffer::of(memory, starts), l = Buffer::of(memory, lengths),
               o = Buffer::of(memory, offsets);
  Buffer status = Buffer::of(memory, std::vector<std::int32_t>{0});
  Buffer out(memory, rows * kQkDim * 4);
  fetch_dequant(
      pipeline.cache(),
      TokenRanges{pipeline.block_table(), TensorView(s.data(), DType::i32, {4}),
                  TensorView(l.data(), DType::i32, {4}), TensorView(o.data(), DType::i32, {4})},
      TensorView(out.data(), DType::f32, {rows, kQkDim}),
      TensorView(status.data(), DType::i32, {1}));
  EXPECT_TRUE(out.guards_intact());
  EXPECT_EQ(status.read<std::int32_t>()[0], 3);
  const auto values = out.read<float>();
  std::vector<bool> written(rows, false);
  for (std::int64_t r : {0, 2}) {
    for (std::int64_t k = 0; k < lengths[r]; ++k) {
      const auto expected =
          fetch(pipeline.cache_buffers(), {p.slots[p.first_token[r] + starts[r] + k]});
      const std::int64_t row = offsets[r] + k;
      written[row] = true;
      ASSERT_EQ(std::memcmp(&values[row * kQkDim], expected.data(), kQkDim * 4), 0) << row;
    }
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    if (!written[row]) {
      ASSERT_TRUE(std::isnan(values[row * kQkDim])) << row << " was written";
    }
  }
}

TEST(Fetch, RangesOutsideTheTableGiveZeros) {
  Case c;
  c.lengths = {10};
  Pipeline pipeline(make_problem(c));
  pipeline.append();
  Memory& memory = host_memory();
  for (std::int32_t start : {-5, 1 << 20, 0x7ffffff0}) {
    const Buffer s = Buffer::of(memory, std::vector<std::int32_t>{start});
    const Buffer l = Buffer::of(memory, std::vector<std::int32_t>{4});
    const Buffer o = Buffer::of(memory, std::vector<std::int32_t>{0});
    Buffer out(memory, 4 * kQkDim * 4);
    Buffer status = Buffer::of(memory, std::vector<std::int32_t>{0});
    fetch_dequant(
        pipeline.cache(),
        TokenRanges{pipeline.block_table(), TensorView(s.data(), DType::i32, {1}),
                    TensorView(l.data(), DType::i32, {1}), TensorView(o.data(), DType::i32, {1})},
        TensorView(out.data(), DType::f32, {4, kQkDim}),
        TensorView(status.data(), DType::i32, {1}));
    EXPECT_EQ(status.read<std::int32_t>()[0], 4) << start;
    for (float x : out.read<float>()) ASSERT_EQ(x, 0.0f) << start;
  }
}

TEST(CopyTokens, MovesBytesUntouched) {
  const auto rows = varied_rows(100, 12);
  Appended a = append(rows, iota(100), ScaleMode::exact, {}, 8);
  const auto expected = a.cache.tokens_bytes({3, 64, 99, 0, 1});
  const std::vector<std::int64_t> src = {3, 64, 99, -1, 1 << 20, 0, 1},
                                  dst = {200, 511, 130, 131, 132, -1, 512};
  const Buffer s = Buffer::of(host_memory(), src), d = Buffer::of(host_memory(), dst);
  Buffer status = Buffer::of(host_memory(), std::vector<std::int32_t>{0});
  const auto before = a.cache.all_bytes();
  copy_tokens(a.cache.cache(), TensorView(s.data(), DType::i64, {7}),
              TensorView(d.data(), DType::i64, {7}), TensorView(status.data(), DType::i32, {1}));
  EXPECT_EQ(status.read<std::int32_t>()[0], 2);  // 1 << 20 and 512; pairs with -1 are not faults
  EXPECT_EQ(a.cache.tokens_bytes({200, 511, 130, 0, 1}), expected);
  const CacheBuffers untouched(host_memory(), CacheForm::planes, 8);
  EXPECT_EQ(a.cache.tokens_bytes({131, 132}), untouched.tokens_bytes({131, 132}));
  EXPECT_TRUE(a.cache.guards_intact());
  EXPECT_NE(a.cache.all_bytes(), before);
}

TEST(QuantizeQuery, BytesFollowTheFormula) {
  const std::int64_t b = 2, s_q = 3, h_q = 5, rows = b * s_q * h_q;
  const auto values = varied_rows(rows, 13);
  for (ScaleMode mode : kModes) {
    const Buffer q = Buffer::of(host_memory(), values);
    Buffer codes(host_memory(), rows * 512), scale(host_memory(), rows * 4),
        rope(host_memory(), rows * 128);
    quantize_query(TensorView(q.data(), DType::f32, {b, s_q, h_q, kQkDim}),
                   {TensorView(codes.data(), DType::u8, {b, s_q, h_q, 512}),
                    TensorView(scale.data(), DType::f32, {b, s_q, h_q}),
                    TensorView(rope.data(), DType::bf16, {b, s_q, h_q, 64})},
                   {mode});
    const auto c = codes.read<std::uint8_t>();
    const auto s = scale.read<float>();
    const auto r = rope.read<std::uint16_t>();
    for (std::int64_t i = 0; i < rows; ++i) {
      const QuantizedRow e = quantize_row(&values[i * kQkDim], mode == ScaleMode::power_of_two);
      ASSERT_EQ(std::memcmp(&c[i * 512], e.codes.data(), 512), 0) << i;
      ASSERT_EQ(std::memcmp(&r[i * 64], e.rope.data(), 128), 0) << i;
      ASSERT_EQ(s[i], e.scale) << i;
    }
    EXPECT_TRUE(codes.guards_intact() && scale.guards_intact() && rope.guards_intact());
  }
}

// B34: q as vLLM hands it over: two strided views, or a slice of a wider buffer.
TEST(QuantizeQuery, B34_StridedQueriesEqualContiguousOnes) {
  const std::int64_t b = 2, s_q = 2, h_q = 3, rows = b * s_q * h_q;
  auto values = varied_rows(rows, 14);
  for (float& x : values) x = bf16_value(nearest_bf16(x));
  const auto quantize = [&](const ContentRope& q) {
    Buffer codes(host_memory(), rows * 512), scale(host_memory(), rows * 4),
        rope(host_memory(), rows * 128);
    quantize_query(q, {TensorView(codes.data(), DType::u8, {b, s_q, h_q, 512}),
                       TensorView(scale.data(), DType::f32, {b, s_q, h_q}),
                       TensorView(rope.data(), DType::bf16, {b, s_q, h_q, 64})});
    auto all = codes.read<std::uint8_t>();
    for (const Buffer* part : {&scale, &rope}) {
      const auto bytes = part->read<std::uint8_t>();
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
  };
  const Buffer dense = Buffer::of(host_memory(), encode(values, DType::bf16));
  const auto expected = quantize(TensorView(dense.data(), DType::bf16, {b, s_q, h_q, kQkDim}));

  std::vector<float> wide(rows * 640, kNaN);
  for (std::int64_t i = 0; i < rows; ++i) {
    std::copy_n(&values[i * kQkDim], kQkDim, &wide[i * 640]);
  }
  const Buffer w = Buffer::of(host_memory(), encode(wide, DType::bf16));
  EXPECT_EQ(quantize(TensorView(w.data(), DType::bf16, {b, s_q, h_q, 640}).slice(3, 0, kQkDim)),
            expected);

  // q_nope stored [h, b, s, 512], q_pe [b, s, h, 192] of which the last 64 count.
  std::vector<float> nope(rows * 512), pe(rows * 192, kNaN);
  for (std::int64_t t = 0; t < b * s_q; ++t) {
    for (std::int64_t h = 0; h < h_q; ++h) {
      const float* row = &values[(t * h_q + h) * kQkDim];
      std::copy_n(row, 512, &nope[(h * b * s_q + t) * 512]);
      std::copy_n(row + 512, 64, &pe[(t * h_q + h) * 192 + 128]);
    }
  }
  const Buffer n = Buffer::of(host_memory(), encode(nope, DType::bf16));
  const Buffer p = Buffer::of(host_memory(), encode(pe, DType::bf16));
  EXPECT_EQ(quantize({TensorView(n.data(), DType::bf16, {b, s_q, h_q, 512},
                                 {s_q * 512, 512, b * s_q * 512, 1}),
                      TensorView(p.data(), DType::bf16, {b, s_q, h_q, 192}).slice(3, 128, 192)}),
            expected);
}

}  // namespace
}  // namespace snapmla::test
