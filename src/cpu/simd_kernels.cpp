// The log-domain inner loops in vectors, compiled once per instruction set and picked at run time
// (Google Highway). They give the plain loops' bits: sums run in the same 16 lanes, products of
// stored values are exact in float, and whatever else is fused is fused there too.

#include <cfloat>
#include <cstddef>
#include <cstdint>

#include "cpu/exp2.h"
#include "cpu/tile.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd_kernels.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace snapmla::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Scalable vectors have no compile-time width; targets without FMA could not give the same bits.
#if HWY_HAVE_SCALABLE || !HWY_NATIVE_FMA || HWY_TARGET == HWY_SCALAR

const Kernels* get_kernels() { return nullptr; }

#else

constexpr int kN =
    static_cast<int>(hn::MaxLanes(hn::CappedTag<float, kLanes>()));  // floats per vector
constexpr int kVectors = kLanes / kN;                                // vectors per 16 lanes
using DF = hn::FixedTag<float, kN>;
using DU = hn::FixedTag<std::uint32_t, kN>;
using DI = hn::FixedTag<std::int32_t, kN>;
using VF = hn::Vec<DF>;
constexpr DF kF{};
constexpr DU kU{};
constexpr DI kI{};

HWY_INLINE float fold(const VF* lanes) {
  alignas(64) float values[kLanes];
  for (int v = 0; v < kVectors; ++v) hn::Store(lanes[v], kF, values + v * kN);
  const hn::FixedTag<float, 4> d4;
  const auto quarter = [&](int i) { return hn::Load(d4, values + 4 * i); };
  // (lane k + lane k+8) first, then the pairs four apart: fold_lanes() in tile.h.
  const auto sum = hn::Add(hn::Add(quarter(0), quarter(2)), hn::Add(quarter(1), quarter(3)));
  const auto pairs = hn::Add(sum, hn::Shuffle1032(sum));
  return hn::GetLane(hn::Add(pairs, hn::Shuffle2301(pairs)));
}

void decode_token(const std::uint8_t* codes, const std::uint16_t* rope, float* codes_out,
                  float* rope_out) {
  const hn::FixedTag<std::uint8_t, kN> d8;
  const hn::FixedTag<std::uint16_t, kN> d16;
  for (int d = 0; d < kKvLoraRank; d += kN) {
    const auto bits = hn::PromoteTo(kU, hn::LoadU(d8, codes + d));
    const auto magnitude = hn::And(bits, hn::Set(kU, 0x7f));
    const auto sign = hn::ShiftLeft<24>(hn::And(bits, hn::Set(kU, 0x80)));
    const auto normal = hn::Add(hn::ShiftLeft<20>(magnitude), hn::Set(kU, 120u << 23));
    const auto subnormal = hn::BitCast(
        kU, hn::Mul(hn::ConvertTo(kF, hn::BitCast(kI, magnitude)), hn::Set(kF, 0x1p-9f)));
    auto value = hn::IfThenElse(hn::Lt(magnitude, hn::Set(kU, 8)), subnormal, normal);
    value = hn::IfThenElse(hn::Eq(magnitude, hn::Set(kU, 0x7f)), hn::Set(kU, 0x7fc00000u), value);
    hn::Store(hn::BitCast(kF, hn::Or(value, sign)), kF, codes_out + d);
  }
  for (int d = 0; d < kRopeDim; d += kN) {
    const auto bits = hn::ShiftLeft<16>(hn::PromoteTo(kU, hn::LoadU(d16, rope + d)));
    hn::Store(hn::BitCast(kF, bits), kF, rope_out + d);
  }
}

/// kRows x kTokens dot products at once.
template <int kRows, int kTokens>
HWY_INLINE void score_block(const Block& block, RowTile& tile, int r, int j) {
  VF sums[kRows][kTokens][kVectors];
  for (auto& row : sums) {
    for (auto& token : row) {
      for (auto& lanes : token) lanes = hn::Zero(kF);
    }
  }
  const auto multiply = [&](const auto& q, const auto& k, int width) HWY_ATTR {
    for (int d = 0; d < width; d += kLanes) {
      for (int v = 0; v < kVectors; ++v) {
        VF keys[kTokens];
        for (int t = 0; t < kTokens; ++t) keys[t] = hn::Load(kF, k[j + t] + d + v * kN);
        for (int i = 0; i < kRows; ++i) {
          const VF query = hn::Load(kF, q[r + i] + d + v * kN);
          for (int t = 0; t < kTokens; ++t) {
            sums[i][t][v] = hn::MulAdd(query, keys[t], sums[i][t][v]);
          }
        }
      }
    }
  };
  multiply(tile.codes, block.codes, kKvLoraRank);
  multiply(tile.rope, block.rope, kRopeDim);
  for (int i = 0; i < kRows; ++i) {
    for (int t = 0; t < kTokens; ++t) tile.scores[r + i][j + t] = fold(sums[i][t]);
  }
}

void score(const NumericsOptions&, const Block& block, RowTile& tile) {
  // As many sums as the register file takes: 16 of 32 with AVX-512, 8 of 16 with AVX2.
  constexpr int kRows = kVectors == 1 ? 4 : 2;
  constexpr int kTokens = kVectors == 1 ? 4 : 2;
  int j = 0;
  for (; j + kTokens <= block.tokens; j += kTokens) {
    int r = 0;
    for (; r + kRows <= tile.rows; r += kRows) score_block<kRows, kTokens>(block, tile, r, j);
    for (; r < tile.rows; ++r) score_block<1, kTokens>(block, tile, r, j);
  }
  for (; j < block.tokens; ++j) {
    for (int r = 0; r < tile.rows; ++r) score_block<1, 1>(block, tile, r, j);
  }
}

/// exp2_nonpositive() of exp2.h.
HWY_INLINE VF exp2_nonpositive(VF x) {
  const auto in_range = hn::Ge(x, hn::Set(kF, -126.0f));
  const VF clamped = hn::IfThenElse(in_range, x, hn::Zero(kF));
  const VF n = hn::Round(clamped);
  const VF f = hn::Sub(clamped, n);
  VF p = hn::Set(kF, kExp2Poly[7]);
  for (int i = 6; i >= 0; --i) p = hn::MulAdd(p, f, hn::Set(kF, kExp2Poly[i]));
  const auto exponent = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(kI, n), hn::Set(kI, 127)));
  const VF value = hn::Mul(p, hn::BitCast(kF, exponent));
  return hn::IfThenElse(in_range, value, hn::IfThenElse(hn::IsNaN(x), x, hn::Zero(kF)));
}

/// e4m3_to_float(e4m3_from_float(p)) for 0 <= p <= 448 or NaN.
HWY_INLINE VF round_to_e4m3(VF p) {
  const auto bits = hn::BitCast(kU, p);
  const auto odd = hn::And(hn::ShiftRight<20>(bits), hn::Set(kU, 1));
  const auto rounded =
      hn::And(hn::Add(hn::Add(bits, hn::Set(kU, 0x7ffff)), odd), hn::Set(kU, 0xfff00000u));
  const VF subnormal = hn::Sub(hn::Add(p, hn::Set(kF, 0x1p14f)), hn::Set(kF, 0x1p14f));
  const VF value =
      hn::IfThenElse(hn::Lt(p, hn::Set(kF, 0x1p-6f)), subnormal, hn::BitCast(kF, rounded));
  return hn::IfThenElse(hn::IsNaN(p), p, value);
}

void softmax(const NumericsOptions& numerics, const Block& block, RowTile& tile, int r, float c) {
  float* scores = tile.scores[r];
  const int padded = block.padded_tokens();
  const std::int64_t visible = tile.visible_end[r] - block.begin;
  const int limit = visible < 0 ? 0 : static_cast<int>(HWY_MIN(visible, block.tokens));
  const VF minus_inf = hn::Set(kF, -kInf);
  VF max = hn::Set(kF, -FLT_MAX);
  for (int j = 0; j < padded; j += kN) {
    const VF scaled = hn::Mul(hn::Load(kF, scores + j), hn::Load(kF, block.scale + j));
    VF y = hn::MulAdd(scaled, hn::Set(kF, c), hn::Load(kF, block.log2_scale + j));
    const auto index = hn::Iota(kI, j);
    y = hn::IfThenElse(hn::RebindMask(kF, hn::Lt(index, hn::Set(kI, limit))), y, minus_inf);
    hn::Store(y, kF, scores + j);
    if (block.all_valid) max = hn::IfThenElse(hn::Gt(y, max), y, max);  // NaN stays out
  }
  if (!block.all_valid) {
    for (int j = 0; j < block.tokens; ++j) {
      if (!block.valid[j]) scores[j] = -kInf;
    }
    for (int j = 0; j < padded; j += kN) {
      const VF y = hn::Load(kF, scores + j);
      max = hn::IfThenElse(hn::Gt(y, max), y, max);
    }
  }
  const float block_max = hn::GetLane(hn::MaxOfLanes(kF, max));

  VF sums[kVectors], norms[kVectors];
  for (int v = 0; v < kVectors; ++v) sums[v] = norms[v] = hn::Zero(kF);
  for (int j = 0; j < padded; j += kLanes) {
    for (int v = 0; v < kVectors; ++v) {
      const int i = j + v * kN;
      const VF y = hn::Load(kF, scores + i);
      const VF p =
          hn::Mul(hn::Set(kF, kE4m3Max), exp2_nonpositive(hn::Sub(y, hn::Set(kF, block_max))));
      const VF quantized = round_to_e4m3(p);
      const VF inverse = hn::Load(kF, block.inverse_scale + i);
      sums[v] = hn::MulAdd(p, inverse, sums[v]);
      norms[v] = hn::MulAdd(quantized, inverse, norms[v]);
      hn::Store(quantized, kF, scores + i);
    }
  }
  finish_softmax(tile, r, block_max, fold(sums),
                 numerics.normalize_by_quantized_p ? fold(norms) : fold(sums));
}

/// kRows rows by kWide 16-lane groups of columns from `d` on.
template <int kRows, int kWide>
HWY_INLINE void accumulate_columns(const Block& block, RowTile& tile, int r, int d) {
  VF sums[kRows][kWide];
  for (auto& row : sums) {
    for (auto& sum : row) sum = hn::Zero(kF);
  }
  for (int j = 0; j < block.tokens; ++j) {
    VF codes[kWide];
    for (int w = 0; w < kWide; ++w) codes[w] = hn::Load(kF, block.codes[j] + d + w * kN);
    for (int i = 0; i < kRows; ++i) {
      const VF p = hn::Set(kF, tile.scores[r + i][j]);
      for (int w = 0; w < kWide; ++w) sums[i][w] = hn::MulAdd(p, codes[w], sums[i][w]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    const VF keep = hn::Set(kF, tile.keep[r + i]), add = hn::Set(kF, tile.add[r + i]);
    for (int w = 0; w < kWide; ++w) {
      float* out = tile.out[r + i] + d + w * kN;
      hn::Store(hn::MulAdd(sums[i][w], add, hn::Mul(hn::Load(kF, out), keep)), kF, out);
    }
  }
}

void accumulate(const NumericsOptions&, const Block& block, RowTile& tile) {
  constexpr int kRows = 4;
  constexpr int kWide = kVectors == 1 ? 4 : 2;
  for (int d = 0; d < kKvLoraRank; d += kWide * kN) {
    int r = 0;
    for (; r + kRows <= tile.rows; r += kRows) accumulate_columns<kRows, kWide>(block, tile, r, d);
    for (; r < tile.rows; ++r) accumulate_columns<1, kWide>(block, tile, r, d);
  }
}

const Kernels* get_kernels() {
  static constexpr Kernels kernels = {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
    "AVX-512",
#elif HWY_ARCH_X86
    "AVX2",
#else
    "SIMD",
#endif
    decode_token,
    score,
    softmax,
    accumulate
  };
  return &kernels;
}

#endif

}  // namespace snapmla::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace snapmla::cpu {

HWY_EXPORT(get_kernels);

const Kernels* simd_kernels() { return HWY_DYNAMIC_DISPATCH(get_kernels)(); }

}  // namespace snapmla::cpu
#endif
