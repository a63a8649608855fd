#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "capture.h"

namespace snapmla::tools {

/// How the values of one part of a cache (content or RoPE) are distributed, and what rounding them
/// costs.
struct Distribution {
  static constexpr int kMinOctave = -12, kMaxOctave = 15;
  static constexpr int kOctaves = kMaxOctave - kMinOctave + 1;

  int width = 0;
  double min = 0, max = 0, mean = 0, deviation = 0, kurtosis = 0;
  /// Values by floor(log2 |x|); smaller ones (zeros too) in the first, larger ones in the last.
  std::array<std::int64_t, kOctaves> octaves{};
  std::vector<double> dimension_amax;  ///< [width]
  /// Largest magnitude of a token: smallest, median and largest over the tokens.
  double token_amax_min = 0, token_amax_median = 0, token_amax_max = 0;
  double e4m3_mse = 0;  ///< mean squared error of e4m3 with a scale per token
  double bf16_mse = 0;  ///< of BF16 divided by the token's content scale, as the cache holds RoPE

  double variance() const { return deviation * deviation; }
};

struct CaptureDistribution {
  Distribution content, rope;
};

CaptureDistribution analyze(const Capture& capture);

}  // namespace snapmla::tools
