#pragma once

#include <algorithm>
#include <cmath>

namespace snapmla::tools {

inline constexpr double kE4m3Max = 448;

/// The nearest e4m3 value, ties to even, saturating: from the definition, not from the bits.
inline double round_to_e4m3(double x) {
  if (std::abs(x) >= kE4m3Max) return std::copysign(kE4m3Max, x);
  if (x == 0) return x;
  const int exponent = std::max(std::ilogb(x), -6);
  const double unit = std::ldexp(1.0, exponent - 3);
  return std::nearbyint(x / unit) * unit;
}

}  // namespace snapmla::tools
