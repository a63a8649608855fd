#pragma once

// Emulates the e4m3 accumulator of Hopper's tensor cores as measured on an H200: one instruction
// adds 32 products to the accumulator on a common grid of 13 fraction bits below the largest term's
// leading bit; every term, and the result, is truncated to that grid. docs/numerics.md section 4.

#include <algorithm>
#include <cmath>

namespace snapmla::cpu {

inline constexpr int kHopperFractionBits = 13;
inline constexpr int kHopperStep = 32;  // k of one e4m3 wgmma

/// accumulator + sum of products[0..n), n <= 32. Products of two e4m3 values are exact in float.
inline float hopper_accumulate(float accumulator, const float* products, int n) {
  float largest = std::fabs(accumulator);
  double total = accumulator;
  for (int i = 0; i < n; ++i) {
    largest = std::fmax(largest, std::fabs(products[i]));
    total += products[i];
  }
  // Zeros, and NaN and infinities (which fmax may have hidden), need no grid.
  if (largest == 0.0f || !std::isfinite(total)) return static_cast<float>(total);
  const double unit = std::ldexp(1.0, std::ilogb(largest) - kHopperFractionBits);
  double sum = std::trunc(accumulator / unit);
  for (int i = 0; i < n; ++i) sum += std::trunc(products[i] / unit);
  if (sum == 0.0) return 0.0f;
  // A carry moves the leading bit up and the grid with it.
  const double result_unit = std::max(1.0, std::ldexp(1.0, std::ilogb(sum) - kHopperFractionBits));
  return static_cast<float>(std::trunc(sum / result_unit) * result_unit * unit);
}

}  // namespace snapmla::cpu
