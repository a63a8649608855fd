#pragma once

// e4m3 and BF16 conversions and the scale formula, one implementation for host and device: the CPU
// backend writes the bytes that the GPU writes.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "snapmla/quantize.h"

#if defined(__CUDACC__)
#define SNAPMLA_HD __host__ __device__ __forceinline__
#else
#define SNAPMLA_HD inline
#endif

namespace snapmla {

inline constexpr float kE4m3Max = 448.0f;
/// Smallest scale that is written: keeps rope / S, and the product of two of them, finite.
inline constexpr float kMinWrittenScale = 0x1p-40f;
/// Smallest scale that readers use: zero-filled pools and foreign caches may hold less.
inline constexpr float kMinReadScale = 0x1p-100f;

template <class To, class From>
SNAPMLA_HD To bit_cast_hd(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

/// BF16 bits of x, round to nearest even; NaN becomes 0x7fff as the GPU's cvt.rn.bf16.f32 gives it.
SNAPMLA_HD std::uint16_t bf16_from_float(float x) {
  const std::uint32_t u = bit_cast_hd<std::uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

SNAPMLA_HD float bf16_to_float(std::uint16_t bits) {
  return bit_cast_hd<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// e4m3 bits of x: round to nearest even, saturating at +-448 (infinities too), NaN becomes 0x7f:
/// the GPU's cvt.rn.satfinite.e4m3x2.f32.
SNAPMLA_HD std::uint8_t e4m3_from_float(float x) {
  const std::uint32_t u = bit_cast_hd<std::uint32_t>(x);
  const std::uint32_t magnitude = u & 0x7fffffffu;
  const std::uint8_t sign = static_cast<std::uint8_t>((u >> 24) & 0x80u);
  if (magnitude > 0x7f800000u) return 0x7f;
  if (magnitude >= 0x43e00000u) return sign | 0x7e;  // >= 448
  if (magnitude < 0x3c800000u) {
    // Below 2^-6, the smallest normal: a multiple of 2^-9. Adding 2^14 puts the unit in the last
    // place of a float at 2^-9, so the addition rounds to nearest even.
    const float shifted = bit_cast_hd<float>(magnitude) + 0x1p14f;
    return sign | static_cast<std::uint8_t>(bit_cast_hd<std::uint32_t>(shifted) & 0xffu);
  }
  // Round the 23-bit fraction to 3 bits, then rebias the exponent from 127 to 7.
  const std::uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  return sign | static_cast<std::uint8_t>((rounded >> 20) - (120u << 3));
}

SNAPMLA_HD float e4m3_to_float(std::uint8_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x80u) << 24;
  const std::uint32_t magnitude = bits & 0x7fu;
  if (magnitude == 0x7fu) return bit_cast_hd<float>(sign | 0x7fc00000u);
  if (magnitude < 8u) {
    return bit_cast_hd<float>(sign |
                              bit_cast_hd<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-9f));
  }
  return bit_cast_hd<float>(sign | ((magnitude + (120u << 3)) << 20));
}

/// The scale of a row with largest magnitude `amax` (NaN not counted, infinity stays infinite).
/// Power of two: the one that puts amax / S into (232, 464], the values that e4m3 rounds to
/// 240..448. Rounding amax / 448 up instead would let (224, 232] round to 224, and the bytes would
/// not survive fetch_dequant followed by append_kv.
SNAPMLA_HD float scale_from_amax(float amax, ScaleMode mode) {
  const bool power_of_two = mode == ScaleMode::power_of_two;
  float scale = amax / (power_of_two ? 464.0f : kE4m3Max);
  if (!(scale > kMinWrittenScale)) scale = kMinWrittenScale;
  if (power_of_two) {
    std::uint32_t u = bit_cast_hd<std::uint32_t>(scale);
    if (u < 0x7f800000u && (u & 0x7fffffu) != 0) u = (u & 0x7f800000u) + 0x800000u;
    scale = bit_cast_hd<float>(u);
  }
  return scale;
}

/// The larger of the two, `a` where b is NaN. fmax() will not do: it gives NaN for a signaling NaN,
/// and widening a BF16 NaN to float may make one.
template <class T>
SNAPMLA_HD T max_ignoring_nan(T a, T b) {
  return b > a ? b : a;
}

/// Scale as readers use it; the compare keeps NaN.
SNAPMLA_HD float read_scale(float scale) { return scale < kMinReadScale ? kMinReadScale : scale; }

}  // namespace snapmla
