#include "distribution.h"

#include <algorithm>
#include <cmath>

#include "bf16.h"
#include "cache_schemes.h"
#include "snapmla/cache.h"

namespace snapmla::tools {
namespace {

double mean_squared_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = double{a[i]} - b[i];
    sum += difference * difference;
  }
  return sum / static_cast<double>(a.size());
}

Distribution describe(const std::vector<float>& values, int width) {
  Distribution d;
  d.width = width;
  d.dimension_amax.resize(static_cast<std::size_t>(width));
  d.min = d.max = values[0];
  double sum = 0;
  std::vector<double> token_amax(values.size() / width);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double x = values[i], magnitude = std::abs(x);
    sum += x;
    d.min = std::min(d.min, x);
    d.max = std::max(d.max, x);
    d.dimension_amax[i % width] = std::max(d.dimension_amax[i % width], magnitude);
    token_amax[i / width] = std::max(token_amax[i / width], magnitude);
    const int octave = x == 0 ? Distribution::kMinOctave : std::ilogb(x);
    ++d.octaves[std::clamp(octave, Distribution::kMinOctave, Distribution::kMaxOctave) -
                Distribution::kMinOctave];
  }
  const auto count = static_cast<double>(values.size());
  d.mean = sum / count;
  double second = 0, fourth = 0;
  for (const float x : values) {
    const double square = (x - d.mean) * (x - d.mean);
    second += square;
    fourth += square * square;
  }
  d.deviation = std::sqrt(second / count);
  d.kurtosis = second == 0 ? 0 : fourth / count / (d.variance() * d.variance());
  std::sort(token_amax.begin(), token_amax.end());
  d.token_amax_min = token_amax.front();
  d.token_amax_median = token_amax[token_amax.size() / 2];
  d.token_amax_max = token_amax.back();
  return d;
}

const SchemeInfo& scheme_named(CacheScheme scheme) {
  return *std::find_if(cache_schemes().begin(), cache_schemes().end(),
                       [&](const SchemeInfo& info) { return info.scheme == scheme; });
}

}  // namespace

CaptureDistribution analyze(const Capture& capture) {
  const SchemeTensors original =
      apply_scheme(scheme_named(CacheScheme::bf16), capture, Rounding::cache);
  const SchemeTensors aligned =
      apply_scheme(scheme_named(CacheScheme::snapmla), capture, Rounding::cache);
  const SchemeTensors all_fp8 =
      apply_scheme(scheme_named(CacheScheme::rope_fp8), capture, Rounding::cache);
  CaptureDistribution result{describe(original.content, kKvLoraRank),
                             describe(original.rope, kRopeDim)};
  result.content.e4m3_mse = mean_squared_difference(all_fp8.content, original.content);
  result.rope.e4m3_mse = mean_squared_difference(all_fp8.rope, original.rope);
  result.rope.bf16_mse = mean_squared_difference(aligned.rope, original.rope);
  return result;
}

}  // namespace snapmla::tools
