#include "cache_schemes.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "bf16.h"
#include "e4m3.h"
#include "snapmla/cache.h"

namespace snapmla::tools {
namespace {

constexpr int kPBlock = 64;  // tokens per P block
constexpr int kBlock = 128;  // tokens and dimensions per block of config D

std::vector<float> to_floats(const std::vector<std::uint16_t>& bits) {
  std::vector<float> values(bits.size());
  std::transform(bits.begin(), bits.end(), values.begin(), bf16_to_float);
  return values;
}

double amax(const float* values, std::int64_t count) {
  double max = 0;
  for (std::int64_t i = 0; i < count; ++i) max = std::max(max, std::abs(double{values[i]}));
  return max;
}

double make_scale(double largest, ScaleMode mode) {
  const double floor = 0x1p-40;
  if (mode == ScaleMode::exact) return std::max(largest / kE4m3Max, floor);
  return largest == 0 ? floor : std::max(std::exp2(std::ceil(std::log2(largest / 464))), floor);
}

void round_e4m3(float* values, std::int64_t count, double scale) {
  for (std::int64_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(round_to_e4m3(values[i] / scale) * scale);
  }
}

float round_bf16(double x) { return bf16_to_float(bf16_from_float(static_cast<float>(x))); }

/// Rows of content and RoPE with one scale each, the RoPE part stored as BF16 in the scale's domain
/// or as e4m3 with a scale of its own. Returns the content scales.
std::vector<double> round_rows(std::vector<float>& content, std::vector<float>& rope,
                               ScaleMode mode, bool rope_fp8) {
  const auto rows = static_cast<std::int64_t>(content.size()) / kKvLoraRank;
  std::vector<double> scales;
  for (std::int64_t i = 0; i < rows; ++i) {
    float* c = &content[i * kKvLoraRank];
    float* r = &rope[i * kRopeDim];
    const double scale = make_scale(amax(c, kKvLoraRank), mode);
    round_e4m3(c, kKvLoraRank, scale);
    if (rope_fp8) {
      round_e4m3(r, kRopeDim, make_scale(amax(r, kRopeDim), mode));
    } else {
      for (int d = 0; d < kRopeDim; ++d) {
        r[d] = static_cast<float>(round_bf16(r[d] / scale) * scale);
      }
    }
    scales.push_back(scale);
  }
  return scales;
}

void round_blocks(std::vector<float>& content, std::int64_t tokens) {
  for (std::int64_t t = 0; t < tokens; t += kBlock) {
    const std::int64_t end = std::min(t + kBlock, tokens);
    for (int d = 0; d < kKvLoraRank; d += kBlock) {
      double largest = 0;
      for (std::int64_t j = t; j < end; ++j) {
        largest = std::max(largest, amax(&content[j * kKvLoraRank + d], kBlock));
      }
      const double scale = make_scale(largest, ScaleMode::exact);
      for (std::int64_t j = t; j < end; ++j) {
        round_e4m3(&content[j * kKvLoraRank + d], kBlock, scale);
      }
    }
  }
}

double shared_amax(const std::vector<float>& a, const std::vector<float>& b) {
  return std::max(amax(a.data(), static_cast<std::int64_t>(a.size())),
                  amax(b.data(), static_cast<std::int64_t>(b.size())));
}

double dot(const float* a, const float* b, int n) {
  // Four sums: the compiler may not reorder one.
  double sums[4] = {};
  for (int d = 0; d < n; d += 4) {
    for (int k = 0; k < 4; ++k) sums[k] += double{a[d + k]} * b[d + k];
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/// Weights e_j = exp(x_j - max) to what the scheme's PV product sees of them.
void round_weights(const SchemeTensors& t, std::vector<double>& weights) {
  using P = SchemeTensors::P;
  switch (t.p) {
    case P::exact:
      return;
    case P::bf16:
      for (double& w : weights) w = round_bf16(w);
      return;
    case P::unit:
      for (double& w : weights) w = round_to_e4m3(w);
      return;
    case P::block_dynamic:
      for (std::size_t begin = 0; begin < weights.size(); begin += kPBlock) {
        const std::size_t end = std::min(begin + kPBlock, weights.size());
        double largest = 0;
        for (std::size_t j = begin; j < end; ++j) {
          largest = std::max(largest, weights[j] * t.value_scale[j]);
        }
        if (largest == 0) continue;
        const double sigma = largest / kE4m3Max;
        for (std::size_t j = begin; j < end; ++j) {
          weights[j] =
              round_to_e4m3(weights[j] * t.value_scale[j] / sigma) * sigma / t.value_scale[j];
        }
      }
      return;
  }
}

void attend_row(const SchemeTensors& t, std::int64_t row, AttentionResult& result) {
  const std::int64_t visible = t.tokens - t.s_q + row / t.h_q + 1;
  std::vector<double> weights(static_cast<std::size_t>(visible));
  double max = -std::numeric_limits<double>::infinity();
  for (std::int64_t j = 0; j < visible; ++j) {
    weights[j] = t.softmax_scale *
                 (dot(&t.q_nope[row * kKvLoraRank], &t.content[j * kKvLoraRank], kKvLoraRank) +
                  dot(&t.q_rope[row * kRopeDim], &t.rope[j * kRopeDim], kRopeDim));
    max = std::max(max, weights[j]);
  }
  double sum = 0;
  for (double& w : weights) sum += w = std::exp(w - max);
  round_weights(t, weights);
  double* out = &result.out[row * kKvLoraRank];
  for (std::int64_t j = 0; j < visible; ++j) {
    for (int d = 0; d < kKvLoraRank; ++d) out[d] += weights[j] * t.content[j * kKvLoraRank + d];
  }
  for (int d = 0; d < kKvLoraRank; ++d) out[d] /= sum;
  result.lse[row] = max + std::log(sum);
}

}  // namespace

const std::vector<SchemeInfo>& cache_schemes() {
  constexpr ScaleMode kExact = ScaleMode::exact, kPow2 = ScaleMode::power_of_two;
  static const std::vector<SchemeInfo> schemes = {
      {CacheScheme::snapmla, kExact, "snapmla", "content per token | RoPE BF16"},
      {CacheScheme::snapmla, kPow2, "pow2", "the same with power-of-two scales"},
      {CacheScheme::rope_fp8, kExact, "A", "content per token | RoPE FP8 per token"},
      {CacheScheme::tensor_static, kExact, "B", "content per tensor, scale 1 | RoPE BF16"},
      {CacheScheme::tensor_dynamic, kExact, "C", "content per tensor, dynamic scale | RoPE BF16"},
      {CacheScheme::block, kExact, "D", "content per 128 x 128 block | RoPE BF16"},
      {CacheScheme::tensor_all, kExact, "tensor",
       "content and RoPE per tensor, queries too, P with unit scale"},
      {CacheScheme::bf16, kExact, "bf16", "BF16 cache, queries and P"},
  };
  return schemes;
}

SchemeTensors apply_scheme(const SchemeInfo& info, const Capture& capture, Rounding rounding) {
  const CacheScheme scheme = info.scheme;
  const ScaleMode scale_mode = info.scale_mode;
  SchemeTensors t;
  t.tokens = capture.tokens;
  t.s_q = capture.s_q;
  t.h_q = capture.h_q;
  t.softmax_scale = capture.softmax_scale;
  t.content = to_floats(capture.content);
  t.rope = to_floats(capture.rope);
  t.q_nope = to_floats(capture.q_nope);
  t.q_rope = to_floats(capture.q_rope);
  t.value_scale.assign(static_cast<std::size_t>(t.tokens), 1.0);

  const bool everything = rounding == Rounding::everything;
  switch (scheme) {
    case CacheScheme::snapmla:
    case CacheScheme::rope_fp8:
      t.value_scale = round_rows(t.content, t.rope, scale_mode, scheme == CacheScheme::rope_fp8);
      break;
    case CacheScheme::tensor_static:
      round_e4m3(t.content.data(), static_cast<std::int64_t>(t.content.size()), 1.0);
      break;
    case CacheScheme::tensor_dynamic:
      round_e4m3(t.content.data(), static_cast<std::int64_t>(t.content.size()),
                 make_scale(amax(t.content.data(), static_cast<std::int64_t>(t.content.size())),
                            ScaleMode::exact));
      break;
    case CacheScheme::block:
      round_blocks(t.content, t.tokens);
      break;
    case CacheScheme::bf16:
      break;
    case CacheScheme::tensor_all: {
      const double scale = make_scale(shared_amax(t.content, t.rope), ScaleMode::exact);
      round_e4m3(t.content.data(), static_cast<std::int64_t>(t.content.size()), scale);
      round_e4m3(t.rope.data(), static_cast<std::int64_t>(t.rope.size()), scale);
      break;
    }
  }
  if (!everything) return t;

  if (scheme == CacheScheme::bf16) {
    t.p = SchemeTensors::P::bf16;
  } else if (scheme == CacheScheme::tensor_all) {
    const double scale = make_scale(shared_amax(t.q_nope, t.q_rope), ScaleMode::exact);
    round_e4m3(t.q_nope.data(), static_cast<std::int64_t>(t.q_nope.size()), scale);
    round_e4m3(t.q_rope.data(), static_cast<std::int64_t>(t.q_rope.size()), scale);
    t.p = SchemeTensors::P::unit;
  } else {
    round_rows(t.q_nope, t.q_rope, scale_mode, scheme == CacheScheme::rope_fp8);
    t.p = SchemeTensors::P::block_dynamic;
  }
  return t;
}

AttentionResult attend(const SchemeTensors& tensors) {
  AttentionResult result;
  const std::int64_t rows = tensors.s_q * tensors.h_q;
  result.out.resize(static_cast<std::size_t>(rows) * kKvLoraRank);
  result.lse.resize(static_cast<std::size_t>(rows));
#pragma omp parallel for schedule(dynamic)
  for (std::int64_t row = 0; row < rows; ++row) attend_row(tensors, row, result);
  return result;
}

}  // namespace snapmla::tools
