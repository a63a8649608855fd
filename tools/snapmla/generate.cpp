#include "generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "bf16.h"
#include "snapmla/cache.h"
#include "snapmla/error.h"

namespace snapmla::tools {
namespace {

/// Normal variates from the uniform bits alone (Box-Muller): the same on every platform.
class Normal {
 public:
  explicit Normal(std::uint64_t seed) : random_(seed) {}

  double operator()() {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(6.283185307179586 * uniform());
  }
  /// In (0, 1).
  double uniform() { return (static_cast<double>(random_() >> 11) + 0.5) * 0x1p-53; }

 private:
  std::mt19937_64 random_;
};

void fill(std::vector<std::uint16_t>& values, std::int64_t count, auto&& value) {
  values.resize(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    values[i] = bf16_from_float(static_cast<float>(value(i)));
  }
}

/// Queries whose logits have about this standard deviation over tokens of unit variance.
void fill_queries(Capture& capture, Normal& normal, double logit_deviation,
                  double content_deviation, double rope_deviation) {
  const double variance = kKvLoraRank * content_deviation * content_deviation +
                          kRopeDim * rope_deviation * rope_deviation;
  const double amplitude = logit_deviation / std::sqrt(variance) / capture.softmax_scale;
  fill(capture.q_nope, capture.h_q * kKvLoraRank, [&](auto) { return amplitude * normal(); });
  fill(capture.q_rope, capture.h_q * kRopeDim, [&](auto) { return amplitude * normal(); });
}

void fill_gaussian(Capture& capture, Normal& normal, double mean, double logit_deviation) {
  fill(capture.content, capture.tokens * kKvLoraRank, [&](auto) { return mean + normal(); });
  fill(capture.rope, capture.tokens * kRopeDim, [&](auto) { return normal(); });
  fill_queries(capture, normal, logit_deviation, 1, 1);
}

// The ranges of the SnapMLA paper's Figure 3: content within +-10, RoPE to +-1e3 with few
// dimensions carrying the tails.
void fill_wide_rope(Capture& capture, Normal& normal) {
  constexpr int kWideDims = 4;
  fill(capture.content, capture.tokens * kKvLoraRank,
       [&](auto) { return std::clamp(2.5 * normal(), -10.0, 10.0); });
  fill(capture.rope, capture.tokens * kRopeDim, [&](std::int64_t i) {
    return std::clamp((i % kRopeDim < kWideDims ? 300.0 : 10.0) * normal(), -1e3, 1e3);
  });
  fill_queries(capture, normal, 1.5, 2.5, std::sqrt((kWideDims * 9e4 + 60 * 100) / kRopeDim));
}

// One token in 64 has some very large channels, as "massive activations" do. The queries keep
// away from these channels, and through RoPE from these tokens, so that the ordinary tokens make
// the result.
void fill_outliers(Capture& capture, Normal& normal, double outlier_scale) {
  constexpr int kOutlierEvery = 64, kOutlierDims = 8;
  const auto is_outlier = [](std::int64_t token) { return token % kOutlierEvery == 17; };
  fill(capture.content, capture.tokens * kKvLoraRank, [&](std::int64_t i) {
    const bool large = is_outlier(i / kKvLoraRank) && i % kKvLoraRank < kOutlierDims;
    return (large ? outlier_scale : 1.0) * normal();
  });
  fill(capture.rope, capture.tokens * kRopeDim, [&](std::int64_t i) {
    return i % kRopeDim == 0 ? (is_outlier(i / kRopeDim) ? -60.0 : 0.0) : normal();
  });
  fill_queries(capture, normal, 1, 1, 1);
  for (std::int64_t h = 0; h < capture.h_q; ++h) {
    for (int d = 0; d < kOutlierDims; ++d) capture.q_nope[h * kKvLoraRank + d] = 0;
    capture.q_rope[h * kRopeDim] = bf16_from_float(1.0f / capture.softmax_scale);  // logit -60
  }
}

// Every other token has content `outlier_scale` times smaller, and the heads attend to these tokens
// only (RoPE dimension 0 keeps them off the others).
void fill_mixed(Capture& capture, Normal& normal, double outlier_scale) {
  const auto is_small = [](std::int64_t token) { return token % 2 == 1; };
  fill(capture.content, capture.tokens * kKvLoraRank, [&](std::int64_t i) {
    return (is_small(i / kKvLoraRank) ? 1 / outlier_scale : 1.0) * normal();
  });
  fill(capture.rope, capture.tokens * kRopeDim, [&](std::int64_t i) {
    return i % kRopeDim == 0 ? (is_small(i / kRopeDim) ? 0.0 : -60.0) : normal();
  });
  fill_queries(capture, normal, 1, 1, 1);
  for (std::int64_t h = 0; h < capture.h_q; ++h) {
    capture.q_rope[h * kRopeDim] = bf16_from_float(1.0f / capture.softmax_scale);  // logit -60
  }
}

}  // namespace

const std::vector<GeneratorKind>& generator_kinds() {
  static const std::vector<GeneratorKind> kinds = {
      {"gaussian", "zero-mean content, logits with deviation 0.1"},
      {"mean", "content with mean 1, logits with deviation 0.1"},
      {"flat", "content with mean 1, almost equal logits (deviation 0.01)"},
      {"peaked", "zero-mean content, peaked attention (logits with deviation 4)"},
      {"wide-rope", "the paper's ranges: content within +-10, RoPE to +-1e3"},
      {"mixed", "half of the tokens --outlier-scale times smaller, attention on these"},
      {"outliers", "one token in 64 with channels --outlier-scale times larger"},
  };
  return kinds;
}

Capture generate_capture(const GenerateOptions& options) {
  if (!(options.outlier_scale >= 1 && options.outlier_scale <= 1e9)) {
    throw InvalidArgument("outlier-scale", "1 <= ratio <= 1e9",
                          fmt::format("{}", options.outlier_scale));
  }
  Capture capture;
  capture.path = fmt::format("{}-{}", options.kind, options.tokens);
  capture.tokens = options.tokens;
  capture.s_q = 1;
  capture.h_q = options.heads;
  capture.softmax_scale = 0.0721687836f;  // 192^-0.5
  Normal normal(options.seed);
  if (options.kind == "gaussian") {
    fill_gaussian(capture, normal, 0, 0.1);
  } else if (options.kind == "mean") {
    fill_gaussian(capture, normal, 1, 0.1);
  } else if (options.kind == "flat") {
    fill_gaussian(capture, normal, 1, 0.01);
  } else if (options.kind == "peaked") {
    fill_gaussian(capture, normal, 0, 4);
  } else if (options.kind == "wide-rope") {
    fill_wide_rope(capture, normal);
  } else if (options.kind == "mixed") {
    fill_mixed(capture, normal, options.outlier_scale);
  } else if (options.kind == "outliers") {
    fill_outliers(capture, normal, options.outlier_scale);
  } else {
    std::string names;
    for (const GeneratorKind& kind : generator_kinds()) {
      names += fmt::format("{}{}", names.empty() ? "" : ", ", kind.name);
    }
    throw InvalidArgument("generate", "one of " + names, options.kind);
  }
  return capture;
}

}  // namespace snapmla::tools
