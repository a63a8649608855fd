// Quantize, append, fetch and copy: the bytes of the CPU backend, bit for bit.

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "device.h"
#include "snapmla/snapmla.h"
#include "support/pipeline.h"
#include "support/random.h"

namespace snapmla::test {
namespace {

using Bytes = std::vector<std::uint8_t>;

/// Rows that hurt: ties, NaN, infinities, subnormals, extremes, zeros, among ordinary ones.
std::vector<float> hostile_rows(std::int64_t rows, Random& random) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<float> values(rows * kQkDim);
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto kind = row % 16;
    const float amplitude = static_cast<float>(random.log_uniform(1e-3, 1e3));
    for (int d = 0; d < kQkDim; ++d) {
      float v = random.normal() * amplitude;
      switch (kind) {
        case 1:
          v = d < kKvLoraRank ? 0.0f : (d % 2 ? 3.0f : -3.0f);  // zero content, RoPE +-3
          break;
        case 2:
          v = -0.0f;
          break;
        case 3:
          v = kNan;
          break;
        case 4:
          if (random.integer(0, 50) == 0) v = random.integer(0, 1) ? kNan : -kNan;
          break;
        case 5:
          if (random.integer(0, 100) == 0) v = random.integer(0, 1) ? kInf : -kInf;
          break;
        case 6:
          v *= 1e-38f;  // subnormal, also in bf16
          break;
        case 7:
          v = static_cast<float>(random.log_uniform(1e-30, 1e30)) * (d % 2 ? 1 : -1);
          break;
        case 8:
          v = 3.0e38f * (d % 3 - 1);
          break;
        case 9:  // with amax 448 the scale is 1: every e4m3 value, every tie between two of them
          v = d == 0
                  ? 448.0f
                  : e4m3_value(static_cast<std::uint8_t>(d % 126)) * (d % 3 == 0 ? 1.0f : 1.0625f);
          break;
        case 10:
          v = d == 5 ? 480.0f : static_cast<float>(d) * 0.9375f;
          break;
        case 11:
          v *= 1e-30f;
          break;
        case 12:
          v = kInf;
          break;
        case 13:
          v = amplitude;  // all equal: every element is the largest
          break;
        default:
          break;
      }
      values[row * kQkDim + d] = v;
    }
  }
  return values;
}

/// Values in the element type: bf16 by cutting (hostile bit patterns are welcome), f32 as they are.
Buffer upload_values(Memory& memory, const std::vector<float>& values, DType dtype) {
  return Buffer::of(memory, encode(values, dtype));
}

Bytes operator+(Bytes a, const Bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// The first difference, in words.
::testing::AssertionResult same_bytes(const Bytes& actual, const Bytes& expected) {
  if (actual.size() != expected.size()) {
    return ::testing::AssertionFailure() << actual.size() << " bytes, not " << expected.size();
  }
  std::size_t count = 0, first = 0;
  for (std::size_t i = actual.size(); i-- > 0;) {
    if (actual[i] != expected[i]) {
      ++count;
      first = i;
    }
  }
  if (count == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << count << " bytes differ, the first at " << first << ": "
                                       << int{actual[first]} << ", not " << int{expected[first]};
}

/// Bit for bit, but one NaN is as good as another: CPU and GPU make different payloads in f32.
Bytes canonical_nan(const Bytes& bytes, DType dtype) {
  Bytes result = bytes;
  if (dtype != DType::f32) return result;
  for (std::size_t i = 0; i + 4 <= result.size(); i += 4) {
    float value;
    std::memcpy(&value, &result[i], 4);
    // 0xffffffff is the poison of unwritten memory and must stay distinguishable.
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (std::isnan(value) && bits != 0xffffffffu) {
      bits = 0x7fc00000u;
      std::memcpy(&result[i], &bits, 4);
    }
  }
  return result;
}

class CudaDataPathTest : public CudaTest {
 protected:
  /// Runs `bytes_in` with host and with device memory and compares what it returns.
  static void expect_same(const std::function<Bytes(Memory&)>& bytes_in, const std::string& what) {
    EXPECT_TRUE(same_bytes(bytes_in(device_memory()), bytes_in(host_memory()))) << what;
  }
};

// --- quantize_query ------------------------------------------------------------------------------

struct QueryLayout {
  std::int64_t b, s_q, h_q;
  bool joined;
  std::int64_t gap;      // elements after each input row
  bool heads_first;      // q_nope as [h, b * s_q, 512] behind the [b, s_q, h, 512] view
  std::int64_t out_gap;  // 16-byte units after each output row
};

Bytes quantize(Memory& memory, const QueryLayout& l, DType dtype, ScaleMode mode) {
  Random random(11);
  const Device device = memory.device();
  const std::int64_t rows = l.b * l.s_q * l.h_q;
  const std::vector<float> values = hostile_rows(rows, random);
  const std::int64_t widths[2] = {l.joined ? kQkDim : kKvLoraRank, kRopeDim};
  TensorView inputs[2];
  Buffer buffers[2];
  for (int part = 0; part < (l.joined ? 1 : 2); ++part) {
    const std::int64_t width = widths[part], stride = width + l.gap;
    std::vector<float> strided(rows * stride, std::numeric_limits<float>::quiet_NaN());
    std::array<std::int64_t, 3> strides = {l.s_q * l.h_q * stride, l.h_q * stride, stride};
    if (l.heads_first) strides = {l.s_q * stride, stride, l.b * l.s_q * stride};
    for (std::int64_t i = 0; i < l.b; ++i) {
      for (std::int64_t j = 0; j < l.s_q; ++j) {
        for (std::int64_t h = 0; h < l.h_q; ++h) {
          const std::int64_t from = ((i * l.s_q + j) * l.h_q + h) * kQkDim + part * kKvLoraRank;
          std::copy_n(&values[from], width,
                      &strided[i * strides[0] + j * strides[1] + h * strides[2]]);
        }
      }
    }
    buffers[part] = upload_values(memory, strided, dtype);
    inputs[part] = TensorView(buffers[part].data(), dtype, {l.b, l.s_q, l.h_q, width},
                              {strides[0], strides[1], strides[2], 1}, device);
  }
  const auto output = [&](const Buffer& buffer, DType type, std::int64_t width, std::int64_t gap) {
    const std::int64_t stride = width + gap;
    return TensorView(buffer.data(), type, {l.b, l.s_q, l.h_q, width},
                      {l.s_q * l.h_q * stride, l.h_q * stride, stride, 1}, device);
  };
  Buffer codes(memory, rows * (kKvLoraRank + 16 * l.out_gap));
  Buffer rope(memory, rows * (kRopeDim * 2 + 16 * l.out_gap));
  Buffer scale(memory, rows * 4 * (1 + l.out_gap));
  const QuantizedQuery out = {
      output(codes, DType::u8, kKvLoraRank, 16 * l.out_gap),
      TensorView(scale.data(), DType::f32, {l.b, l.s_q, l.h_q},
                 {l.s_q * l.h_q * (1 + l.out_gap), l.h_q * (1 + l.out_gap), 1 + l.out_gap}, device),
      output(rope, DType::bf16, kRopeDim, 8 * l.out_gap)};
  const ContentRope q = l.joined ? ContentRope(inputs[0]) : ContentRope(inputs[0], inputs[1]);
  quantize_query(q, out, {mode}, memory.stream());
  const Bytes bytes =
      codes.read<std::uint8_t>() + scale.read<std::uint8_t>() + rope.read<std::uint8_t>();
  EXPECT_TRUE(codes.guards_intact() && rope.guards_intact() && scale.guards_intact());
  return bytes;
}

TEST_F(CudaDataPathTest, QuantizeQueryWritesTheCpusBytes) {
  const QueryLayout layouts[] = {
      {1, 1, 1, true, 0, false, 0},    {2, 1, 16, true, 0, false, 0},
      {3, 2, 20, true, 64, false, 0},  // a slice of [.., 640]
      {2, 3, 128, false, 0, false, 0}, {5, 1, 24, false, 128, true, 0},
      {4, 2, 40, false, 16, true, 3},  {128, 1, 128, true, 0, false, 0},
      {7, 8, 1, true, 8, false, 1},    {0, 1, 16, true, 0, false, 0},
  };
  for (const QueryLayout& layout : layouts) {
    for (DType dtype : {DType::bf16, DType::f32}) {
      for (ScaleMode mode : {ScaleMode::exact, ScaleMode::power_of_two}) {
        expect_same([&](Memory& memory) { return quantize(memory, layout, dtype, mode); },
                    "b=" + std::to_string(layout.b) + " h_q=" + std::to_string(layout.h_q) + " " +
                        dtype_name(dtype) + " " + scale_mode_name(mode));
      }
    }
  }
}

// bugs.md B04: every bf16 magnitude, also where x / S rounds to the end of the range.
TEST_F(CudaDataPathTest, QuantizeQueryRoundsEveryBf16ValueLikeTheCpu) {
  expect_same(
      [](Memory& memory) {
        const std::int64_t rows = 65536 / kKvLoraRank * 4;
        std::vector<std::uint16_t> bits(rows * kQkDim);
        for (std::int64_t row = 0; row < rows; ++row) {
          for (int d = 0; d < kQkDim; ++d) {
            // Each value meets four scales: a different largest element in each quarter of the
            // rows.
            const auto quarter = row / (rows / 4);
            auto value = static_cast<std::uint16_t>((row % (rows / 4)) * kKvLoraRank + d);
            if (d == 0) value = static_cast<std::uint16_t>(0x4200 + 0x11 * quarter);
            bits[row * kQkDim + d] = value;
          }
        }
        const Device device = memory.device();
        Buffer q = Buffer::of(memory, bits);
        Buffer codes(memory, rows * kKvLoraRank), scale(memory, rows * 4),
            rope(memory, rows * kRopeDim * 2);
        quantize_query(TensorView(q.data(), DType::bf16, {rows, 1, 1, kQkDim}, device),
                       {TensorView(codes.data(), DType::e4m3, {rows, 1, 1, kKvLoraRank}, device),
                        TensorView(scale.data(), DType::f32, {rows, 1, 1}, device),
                        TensorView(rope.data(), DType::bf16, {rows, 1, 1, kRopeDim}, device)},
                       {}, memory.stream());
        return codes.read<std::uint8_t>() + scale.read<std::uint8_t>() + rope.read<std::uint8_t>();
      },
      "all bf16 values");
}

// --- append_kv, fetch_dequant, copy_tokens -------------------------------------------------------

struct CacheLayout {
  CacheForm form;
  std::int64_t page_stride;
  const char* name;
};
const CacheLayout kLayouts[] = {{CacheForm::planes, kPackedPageBytes, "planes"},
                                {CacheForm::packed, kPackedPageBytes, "packed"},
                                {CacheForm::packed, 64 * 656, "packed 656"},
                                {CacheForm::packed, 100000, "packed with wide gaps"}};

template <class Int>
std::vector<Int> narrow(const std::vector<std::int64_t>& values) {
  return std::vector<Int>(values.begin(), values.end());
}

struct SlotTensor {
  SlotTensor(Memory& memory, const std::vector<std::int64_t>& slots, bool i64)
      : buffer(i64 ? Buffer::of(memory, slots) : Buffer::of(memory, narrow<std::int32_t>(slots))),
        view(buffer.data(), i64 ? DType::i64 : DType::i32,
             {static_cast<std::int64_t>(slots.size())}, memory.device()) {}
  Buffer buffer;
  TensorView view;
};

TensorView status_view(const Buffer& buffer) {
  return TensorView(buffer.data(), DType::i32, {1}, buffer.device());
}

TEST_F(CudaDataPathTest, AppendWritesTheCpusBytesAndNothingElse) {
  constexpr std::int64_t kPages = 9;
  for (const CacheLayout& layout : kLayouts) {
    for (DType dtype : {DType::bf16, DType::f32}) {
      for (bool i64 : {false, true}) {
        for (int variant = 0; variant < 4; ++variant) {
          const auto run = [&](Memory& memory) {
            Random random(21 + variant);
            CacheBuffers cache(memory, layout.form, kPages, layout.page_stride);
            std::vector<std::int64_t> slots(kPages * kPageTokens);
            std::iota(slots.begin(), slots.end(), 0);
            random.shuffle(slots);
            slots.resize(200);
            // Skipped and invalid slots in between, several times each.
            for (std::int64_t bad : {-1, -1, -2, 576, 577, -64, 0x7fffffff, -0x7fffffff - 1}) {
              slots.insert(slots.begin() + random.integer(0, 200), bad);
            }
            if (i64) {
              slots.push_back((std::int64_t{1} << 40) + 17);  // low 32 bits: a valid slot
              slots.push_back(-(std::int64_t{1} << 32));
            }
            const auto n = static_cast<std::int64_t>(slots.size());
            const std::int64_t stride = kQkDim + (variant == 1 ? 64 : 0);
            std::vector<float> values = hostile_rows(n, random);
            std::vector<float> strided(n * stride, 1.0f);
            for (std::int64_t t = 0; t < n; ++t) {
              std::copy_n(&values[t * kQkDim], kQkDim, &strided[t * stride]);
            }
            Buffer kv = upload_values(memory, strided, dtype);
            SlotTensor slot_tensor(memory, slots, i64);
            const TensorView joined(kv.data(), dtype, {n, kQkDim}, {stride, 1}, memory.device());
            const ContentRope input = variant == 2
                                          ? ContentRope(joined.slice(1, 0, kKvLoraRank),
                                                        joined.slice(1, kKvLoraRank, kQkDim))
                                          : ContentRope(joined);
            AppendOptions options;
            if (variant == 3) {
              options.pad_slot = slots[3];
              options.scale = ScaleMode::exact;
            }
            Buffer status = Buffer::of(memory, std::vector<std::int32_t>{100});
            options.status = status_view(status);
            append_kv(cache.cache(), input, slot_tensor.view, options, memory.stream());
            EXPECT_TRUE(cache.guards_intact());
            return cache.all_bytes() + status.read<std::uint8_t>();
          };
          expect_same(run, std::string(layout.name) + " " + dtype_name(dtype) + " variant " +
                               std::to_string(variant) + (i64 ? " i64" : " i32"));
        }
      }
    }
  }
}

// bugs.md B31, B32: engines pad with -1 or with a reserved slot and rows of NaN.
TEST_F(CudaDataPathTest, PadRowsOfNanStayOut) {
  for (bool pad : {false, true}) {
    const auto run = [&](Memory& memory) {
      CacheBuffers cache(memory, CacheForm::planes, 11);
      std::vector<float> values(6 * kQkDim, std::numeric_limits<float>::quiet_NaN());
      std::fill_n(&values[2 * kQkDim], kQkDim, 1.5f);
      std::fill_n(&values[4 * kQkDim], kQkDim, -2.5f);
      Buffer kv = upload_values(memory, values, DType::bf16);
      SlotTensor slots(memory, {0, 0, 640, -1, 641, 0}, true);
      AppendOptions options;
      if (pad) options.pad_slot = 0;
      append_kv(cache.cache(), TensorView(kv.data(), DType::bf16, {6, kQkDim}, memory.device()),
                slots.view, options, memory.stream());
      return cache.all_bytes();
    };
    expect_same(run, pad ? "with pad_slot" : "without pad_slot");
  }
}

TEST_F(CudaDataPathTest, EmptyCallsLaunchNothing) {
  Memory& memory = device_memory();
  const Device device = memory.device();
  CacheBuffers cache(memory, CacheForm::packed, 1);
  const auto before = cache.all_bytes();
  const TensorView none(nullptr, DType::i32, {0}, device);
  const TensorView no_rows(nullptr, DType::bf16, {0, kQkDim}, device);
  append_kv(cache.cache(), no_rows, none, {}, memory.stream());
  fetch_dequant(cache.cache(), none, no_rows, {}, memory.stream());
  copy_tokens(cache.cache(), none, none, {}, memory.stream());
  device_memory().synchronize();
  EXPECT_EQ(cache.all_bytes(), before);
}

/// A cache with tokens of hostile rows in every slot but the last page, which stays poisoned.
void fill_cache(Memory& memory, CacheBuffers& cache, std::int64_t pages, ScaleMode mode) {
  Random random(31);
  const std::int64_t n = (pages - 1) * kPageTokens;
  Buffer kv = upload_values(memory, hostile_rows(n, random), DType::f32);
  std::vector<std::int64_t> slots(n);
  std::iota(slots.begin(), slots.end(), 0);
  SlotTensor slot_tensor(memory, slots, true);
  AppendOptions options;
  options.scale = mode;
  append_kv(cache.cache(), TensorView(kv.data(), DType::f32, {n, kQkDim}, memory.device()),
            slot_tensor.view, options, memory.stream());
}

TEST_F(CudaDataPathTest, FetchBySlotsReturnsTheCpusValues) {
  constexpr std::int64_t kPages = 6;
  for (const CacheLayout& layout : kLayouts) {
    for (DType dtype : {DType::bf16, DType::f32}) {
      for (bool split : {false, true}) {
        const auto run = [&](Memory& memory) {
          Random random(41);
          CacheBuffers cache(memory, layout.form, kPages, layout.page_stride);
          fill_cache(memory, cache, kPages, split ? ScaleMode::exact : ScaleMode::power_of_two);
          std::vector<std::int64_t> slots;
          for (int i = 0; i < 700; ++i)
            slots.push_back(random.integer(-3, kPages * kPageTokens + 3));
          if (split) slots.push_back((std::int64_t{1} << 33) + 5);
          const auto n = static_cast<std::int64_t>(slots.size());
          SlotTensor slot_tensor(memory, slots, split);
          Buffer status = Buffer::of(memory, std::vector<std::int32_t>{0});
          const std::int64_t stride = kQkDim + (split ? 32 : 0);
          Buffer out(memory, n * stride * dtype_bytes(dtype));
          const TensorView joined(out.data(), dtype, {n, kQkDim}, {stride, 1}, memory.device());
          const ContentRope target = split ? ContentRope(joined.slice(1, 0, kKvLoraRank),
                                                         joined.slice(1, kKvLoraRank, kQkDim))
                                           : ContentRope(joined);
          fetch_dequant(cache.cache(), slot_tensor.view, target, status_view(status),
                        memory.stream());
          EXPECT_TRUE(out.guards_intact());
          return canonical_nan(out.read<std::uint8_t>(), dtype) + status.read<std::uint8_t>();
        };
        expect_same(run, std::string(layout.name) + " " + dtype_name(dtype));
      }
    }
  }
}

TEST_F(CudaDataPathTest, FetchByRangesReturnsTheCpusValues) {
  constexpr std::int64_t kPages = 6;
  for (int variant = 0; variant < 12; ++variant) {
    const DType dtype = variant % 2 ? DType::f32 : DType::bf16;
    const CacheLayout& layout = kLayouts[variant % 4];
    const auto run = [&](Memory& memory) {
      Random random(51 + variant);
      CacheBuffers cache(memory, layout.form, kPages, layout.page_stride);
      fill_cache(memory, cache, kPages, ScaleMode::exact);
      const std::int64_t b = std::vector<std::int64_t>{1, 3, 31, 32, 33, 100}[variant / 2];
      const std::int64_t max_blocks = 7, table_stride = 9;
      std::vector<std::int32_t> table(b * table_stride);
      for (auto& page : table) page = static_cast<std::int32_t>(random.integer(-1, kPages));
      std::vector<std::int32_t> starts(b), lengths(b), offsets(b);
      std::int32_t row = -3;  // some rows before `out` begins
      for (std::int64_t i = 0; i < b; ++i) {
        starts[i] = static_cast<std::int32_t>(random.integer(-2, 200));
        lengths[i] = static_cast<std::int32_t>(random.integer(-1, 300));
        offsets[i] = row;
        row += std::max(lengths[i], 0) + static_cast<std::int32_t>(random.integer(0, 2));
      }
      starts[b - 1] = 0x7fffffff - 10;  // positions past the table, near the end of int32
      const std::int64_t rows = std::max(row - 20, 1);  // and some past its end
      Buffer table_buffer = Buffer::of(memory, table), starts_buffer = Buffer::of(memory, starts),
             lengths_buffer = Buffer::of(memory, lengths),
             offsets_buffer = Buffer::of(memory, offsets);
      const Device device = memory.device();
      const TokenRanges ranges = {
          TensorView(table_buffer.data(), DType::i32, {b, max_blocks}, {table_stride, 1}, device),
          TensorView(starts_buffer.data(), DType::i32, {b}, device),
          TensorView(lengths_buffer.data(), DType::i32, {b}, device),
          TensorView(offsets_buffer.data(), DType::i32, {b}, device)};
      Buffer out(memory, rows * kQkDim * dtype_bytes(dtype));
      Buffer status = Buffer::of(memory, std::vector<std::int32_t>{7});
      fetch_dequant(cache.cache(), ranges, TensorView(out.data(), dtype, {rows, kQkDim}, device),
                    status_view(status), memory.stream());
      EXPECT_TRUE(out.guards_intact());
      return canonical_nan(out.read<std::uint8_t>(), dtype) + status.read<std::uint8_t>();
    };
    expect_same(run, "variant " + std::to_string(variant));
  }
}

// Lengths are device data: a garbage length must cost no time.
TEST_F(CudaDataPathTest, FetchByRangesCountsAHugeLengthWithoutWalkingIt) {
  Memory& memory = device_memory();
  const Device device = memory.device();
  CacheBuffers cache(memory, CacheForm::planes, 2);
  fill_cache(memory, cache, 2, ScaleMode::exact);
  Buffer table = Buffer::of(memory, std::vector<std::int32_t>{0});
  Buffer start = Buffer::of(memory, std::vector<std::int32_t>{0});
  Buffer length = Buffer::of(memory, std::vector<std::int32_t>{0x7fffffff});
  Buffer offset = Buffer::of(memory, std::vector<std::int32_t>{0});
  Buffer status = Buffer::of(memory, std::vector<std::int32_t>{0});
  Buffer out(memory, 10 * kQkDim * 4);
  fetch_dequant(cache.cache(),
                {TensorView(table.data(), DType::i32, {1, 1}, device),
                 TensorView(start.data(), DType::i32, {1}, device),
                 TensorView(length.data(), DType::i32, {1}, device),
                 TensorView(offset.data(), DType::i32, {1}, device)},
                TensorView(out.data(), DType::f32, {10, kQkDim}, device), status_view(status),
                memory.stream());
  EXPECT_EQ(status.read<std::int32_t>()[0], 0x7fffffff - 10);
}

TEST_F(CudaDataPathTest, CopyTokensMovesTheCpusBytes) {
  constexpr std::int64_t kPages = 6;
  for (const CacheLayout& layout : kLayouts) {
    for (bool i64 : {false, true}) {
      const auto run = [&](Memory& memory) {
        Random random(61);
        CacheBuffers cache(memory, layout.form, kPages, layout.page_stride);
        fill_cache(memory, cache, kPages, ScaleMode::exact);
        std::vector<std::int64_t> slots(kPages * kPageTokens);
        std::iota(slots.begin(), slots.end(), 0);
        random.shuffle(slots);
        std::vector<std::int64_t> src(slots.begin(), slots.begin() + 180);
        std::vector<std::int64_t> dst(slots.begin() + 180, slots.begin() + 360);
        const std::int64_t past = kPages * kPageTokens;
        for (auto [from, to] :
             std::vector<std::pair<std::int64_t, std::int64_t>>{{-1, slots[370]},
                                                                {slots[371], -1},
                                                                {past, slots[372]},
                                                                {slots[373], past + 9},
                                                                {-2, -1},
                                                                {-2, past}}) {
          src.push_back(from);
          dst.push_back(to);
        }
        SlotTensor src_tensor(memory, src, i64), dst_tensor(memory, dst, i64);
        Buffer status = Buffer::of(memory, std::vector<std::int32_t>{0});
        copy_tokens(cache.cache(), src_tensor.view, dst_tensor.view, status_view(status),
                    memory.stream());
        EXPECT_TRUE(cache.guards_intact());
        return cache.all_bytes() + status.read<std::uint8_t>();
      };
      expect_same(run, std::string(layout.name) + (i64 ? " i64" : " i32"));
    }
  }
}

// Power-of-two scales promise that a round trip gives the same bytes.
TEST_F(CudaDataPathTest, FetchThenAppendGivesTheSameBytesWithPowerOfTwoScales) {
  Memory& memory = device_memory();
  const Device device = memory.device();
  constexpr std::int64_t kTokens = 512;
  Random random(71);
  std::vector<float> values(kTokens * kQkDim);
  for (auto& v : values) v = random.normal() * static_cast<float>(random.log_uniform(1e-2, 1e2));
  CacheBuffers first(memory, CacheForm::packed, 8), second(memory, CacheForm::packed, 8);
  std::vector<std::int64_t> slots(kTokens);
  std::iota(slots.begin(), slots.end(), 0);
  SlotTensor slot_tensor(memory, slots, true);
  AppendOptions options;
  options.scale = ScaleMode::power_of_two;
  Buffer kv = upload_values(memory, values, DType::f32);
  append_kv(first.cache(), TensorView(kv.data(), DType::f32, {kTokens, kQkDim}, device),
            slot_tensor.view, options, memory.stream());
  Buffer fetched(memory, kTokens * kQkDim * 2);
  const TensorView rows(fetched.data(), DType::bf16, {kTokens, kQkDim}, device);
  fetch_dequant(first.cache(), slot_tensor.view, rows, {}, memory.stream());
  append_kv(second.cache(), rows, slot_tensor.view, options, memory.stream());
  EXPECT_TRUE(same_bytes(second.tokens_bytes(slots), first.tokens_bytes(slots)));
}

}  // namespace
}  // namespace snapmla::test
