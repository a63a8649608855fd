#include <algorithm>
#include <cfloat>
#include <cmath>

#include "cpu/exp2.h"
#include "cpu/hopper_accumulator.h"
#include "cpu/tile.h"

namespace snapmla::cpu {
namespace {

bool emulates_hopper(const NumericsOptions& numerics) {
  return numerics.accumulate == NumericsOptions::Accumulate::hopper;
}

void decode_token(const std::uint8_t* codes, const std::uint16_t* rope, float* codes_out,
                  float* rope_out) {
  for (int d = 0; d < kKvLoraRank; ++d) codes_out[d] = e4m3_to_float(codes[d]);
  for (int d = 0; d < kRopeDim; ++d) rope_out[d] = bf16_to_float(rope[d]);
}

void add_products(const float* a, const float* b, int width, float (&lanes)[kLanes]) {
  for (int d = 0; d < width; d += kLanes) {
    for (int k = 0; k < kLanes; ++k) lanes[k] += a[d + k] * b[d + k];  // the products are exact
  }
}

/// FP8 steps first, in `qk_accumulators` narrow accumulators added in fp32; the BF16 RoPE steps
/// last.
float hopper_content_dot(const float* a, const float* b, int accumulators) {
  const int width = kKvLoraRank / accumulators;
  float sum = 0.0f;
  for (int begin = 0; begin < kKvLoraRank; begin += width) {
    float accumulator = 0.0f;
    for (int d = begin; d < begin + width; d += kHopperStep) {
      float products[kHopperStep];
      for (int k = 0; k < kHopperStep; ++k) products[k] = a[d + k] * b[d + k];
      accumulator = hopper_accumulate(accumulator, products, kHopperStep);
    }
    sum += accumulator;
  }
  return sum;
}

void score(const NumericsOptions& numerics, const Block& block, RowTile& tile) {
  for (int r = 0; r < tile.rows; ++r) {
    for (int j = 0; j < block.tokens; ++j) {
      float lanes[kLanes] = {};
      float content = 0.0f;
      if (emulates_hopper(numerics)) {
        content = hopper_content_dot(tile.codes[r], block.codes[j], numerics.qk_accumulators);
      } else {
        add_products(tile.codes[r], block.codes[j], kKvLoraRank, lanes);
      }
      add_products(tile.rope[r], block.rope[j], kRopeDim, lanes);
      tile.scores[r][j] = content + fold_lanes(lanes);
    }
  }
}

void softmax(const NumericsOptions& numerics, const Block& block, RowTile& tile, int r, float c) {
  float* scores = tile.scores[r];
  float block_max = -FLT_MAX;
  for (int j = 0; j < block.tokens; ++j) {
    scores[j] = tile.sees(block, r, j)
                    ? std::fma(scores[j] * block.scale[j], c, block.log2_scale[j])
                    : -kInf;
    if (scores[j] > block_max) block_max = scores[j];  // NaN stays out of the maximum
  }
  float sum_lanes[kLanes] = {}, norm_lanes[kLanes] = {};
  for (int j = 0; j < block.tokens; ++j) {
    const float p = kE4m3Max * exp2_nonpositive(scores[j] - block_max);
    scores[j] = e4m3_to_float(e4m3_from_float(p));
    sum_lanes[j % kLanes] = std::fma(p, block.inverse_scale[j], sum_lanes[j % kLanes]);
    norm_lanes[j % kLanes] = std::fma(scores[j], block.inverse_scale[j], norm_lanes[j % kLanes]);
  }
  finish_softmax(tile, r, block_max, fold_lanes(sum_lanes),
                 fold_lanes(numerics.normalize_by_quantized_p ? norm_lanes : sum_lanes));
}

void accumulate(const NumericsOptions& numerics, const Block& block, RowTile& tile) {
  for (int r = 0; r < tile.rows; ++r) {
    float sums[kKvLoraRank] = {};
    multiply_values(numerics, block, tile.scores[r], sums);
    for (int d = 0; d < kKvLoraRank; ++d) {
      tile.out[r][d] = std::fma(sums[d], tile.add[r], tile.out[r][d] * tile.keep[r]);
    }
  }
}

}  // namespace

void multiply_values(const NumericsOptions& numerics, const Block& block, const float* p,
                     float* sums) {
  if (!emulates_hopper(numerics)) {
    for (int j = 0; j < block.tokens; ++j) {
      for (int d = 0; d < kKvLoraRank; ++d) sums[d] += p[j] * block.codes[j][d];
    }
    return;
  }
  for (int d = 0; d < kKvLoraRank; ++d) {
    for (int begin = 0; begin < block.tokens; begin += kHopperStep) {
      const int n = std::min(kHopperStep, block.tokens - begin);
      float products[kHopperStep];
      for (int k = 0; k < n; ++k) products[k] = p[begin + k] * block.codes[begin + k][d];
      sums[d] = hopper_accumulate(sums[d], products, n);
    }
  }
}

const Kernels& plain_kernels() {
  static constexpr Kernels kernels = {"plain", decode_token, score, softmax, accumulate};
  return kernels;
}

}  // namespace snapmla::cpu
