#pragma once

#include <cmath>
#include <cstdint>

#include "core/float_formats.h"

namespace snapmla::cpu {

/// Coefficients of 2^f on [-0.5, 0.5], relative error below 1e-7: the Taylor series in f * ln 2.
inline constexpr float kExp2Poly[] = {1.0f,
                                      6.931471806e-1f,
                                      2.402265070e-1f,
                                      5.550410866e-2f,
                                      9.618129108e-3f,
                                      1.333355815e-3f,
                                      1.540353039e-4f,
                                      1.525273380e-5f};

/// 2^x for x <= 0; below 2^-126 it is 0, NaN stays NaN. The vector code evaluates the same sequence
/// of operations, so both give the same bits.
inline float exp2_nonpositive(float x) {
  if (!(x >= -126.0f)) return std::isnan(x) ? x : 0.0f;
  const float n = std::nearbyint(x);
  const float f = x - n;
  float p = kExp2Poly[7];
  for (int i = 6; i >= 0; --i) p = std::fma(p, f, kExp2Poly[i]);
  return p *
         bit_cast_hd<float>(static_cast<std::uint32_t>(static_cast<std::int32_t>(n) + 127) << 23);
}

}  // namespace snapmla::cpu
