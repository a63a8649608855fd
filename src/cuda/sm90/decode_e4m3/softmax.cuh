#pragma once

// Block-local softmax in the log domain (docs/numerics.md section 3), in the registers of the QK
// warpgroup. A thread holds two rows, 16 * warp + lane / 4 and the one 8 below.

#include <cfloat>

#include "core/ops.h"
#include "cuda/device/math.cuh"
#include "cuda/device/ptx/warp.cuh"
#include "cuda/sm90/decode_e4m3/smem.cuh"

namespace snapmla::cuda::sm90 {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;
inline constexpr float kLog2E4m3Max = 8.807354922057604f;  // log2(448): the largest p becomes 448
/// The reference of a row's output is the maximum of its first block. O is fp32, so later maxima
/// may exceed it; only above this many powers of two is the row rescaled.
inline constexpr float kMaxLead = 20.0f;

/// Makes the per-token factors of a block for one warp: lane l has tokens 2l and 2l + 1. Tokens
/// that don't exist get factors that keep garbage out of the sums.
__device__ __forceinline__ void make_token_factors(const float* scale, int valid_tokens, int lane,
                                                   TokenFactors& factors) {
  const float2 raw = reinterpret_cast<const float2*>(scale)[lane];
  const bool valid[2] = {2 * lane < valid_tokens, 2 * lane + 1 < valid_tokens};
  const float s[2] = {valid[0] ? read_scale(raw.x) : 1.0f, valid[1] ? read_scale(raw.y) : 1.0f};
  const int at = TokenFactors::Order::index(2 * lane);
  *reinterpret_cast<float2*>(&factors.scale[at]) = make_float2(s[0], s[1]);
  *reinterpret_cast<float2*>(&factors.log2_scale[at]) =
      make_float2(ptx::log2_approx(s[0]), ptx::log2_approx(s[1]));
  *reinterpret_cast<float2*>(&factors.inverse_scale[at]) =
      make_float2(valid[0] ? ptx::reciprocal_approx(s[0]) : 0.0f,
                  valid[1] ? ptx::reciprocal_approx(s[1]) : 0.0f);
}

struct RowPair {
  float scale[2];      // S_Q * softmax_scale * log2(e)
  float reference[2];  // M: what O and sum are relative to
  float sum[2];        // of p / S, this thread's columns only
};

/// How one block of a row pair joins the output.
struct BlockJoin {
  float add[2], keep[2];
  bool moved;  // keep differs from 1 in some row of the warp
};

/// Turns the scores of one block into P (four e4m3 codes a word, in the order of store_p) and
/// updates the rows. `masked`: some token of the block is invisible to some row of this warp, whose
/// ends are row_end[0..15].
__device__ __forceinline__ BlockJoin softmax_block(float (&s)[32], const TokenFactors& factors,
                                                   bool first, bool masked, int begin,
                                                   int valid_tokens, const int* row_end, int lane,
                                                   RowPair& rows, std::uint32_t (&p)[8]) {
  const int t = lane % 4;
  const int column = t * TokenFactors::Order::kStride;
  const auto load4 = [column](const float* values, int j) {
    return *reinterpret_cast<const float4*>(values + column + 4 * j);
  };
  // y = x + log2 S
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float4 scale = load4(factors.scale, j), log2 = load4(factors.log2_scale, j);
    const float scales[4] = {scale.x, scale.y, scale.z, scale.w};
    const float log2s[4] = {log2.x, log2.y, log2.z, log2.w};
#pragma unroll
    for (int c = 0; c < 4; ++c) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float& x = s[8 * j + 4 * (c / 2) + 2 * r + c % 2];
        x = fmaf(x * scales[c], rows.scale[r], log2s[c]);
      }
    }
  }
  if (masked) {
    // Selected by position, after everything that could make NaN of garbage.
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int limit = min(row_end[lane / 4 + 8 * r] - begin, valid_tokens) - 2 * t;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          if (8 * j + c >= limit) s[4 * j + 2 * r + c] = -INFINITY;
        }
      }
    }
  }

  BlockJoin join;
  float maximum[2], lead[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    // -FLT_MAX, not -inf: a block without a visible token gives p = 0 without a branch. fmaxf drops
    // NaN, which stays in p and in the sum.
    float block_max = -FLT_MAX;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      block_max = fmaxf(block_max, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
    }
    block_max = fmaxf(block_max, __shfl_xor_sync(kFullMask, block_max, 1));
    block_max = fmaxf(block_max, __shfl_xor_sync(kFullMask, block_max, 2));
    maximum[r] = block_max;
    if (first) rows.reference[r] = block_max;
    lead[r] = block_max - rows.reference[r];
    join.add[r] = ptx::exp2_approx(lead[r]);
    join.keep[r] = 1.0f;
  }
  join.moved = __any_sync(kFullMask, fmaxf(lead[0], lead[1]) > kMaxLead);
  if (join.moved) {
    // Rows that don't move are multiplied by exactly 1: a row's bits don't depend on the others.
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (lead[r] > kMaxLead) {
        join.keep[r] = ptx::exp2_approx(-lead[r]);
        join.add[r] = 1.0f;
        rows.reference[r] = maximum[r];
        rows.sum[r] *= join.keep[r];
      }
    }
  }

  const float shift[2] = {maximum[0] - kLog2E4m3Max, maximum[1] - kLog2E4m3Max};
  float block_sum[2] = {0.0f, 0.0f};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float4 inverse = load4(factors.inverse_scale, j);
    const float inverses[4] = {inverse.x, inverse.y, inverse.z, inverse.w};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float e[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        e[c] = ptx::exp2_approx(s[8 * j + 4 * (c / 2) + 2 * r + c % 2] - shift[r]);
        block_sum[r] = fmaf(e[c], inverses[c], block_sum[r]);
      }
      p[2 * j + r] = e4m3x4_from_floats(e[0], e[1], e[2], e[3]);
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) rows.sum[r] = fmaf(block_sum[r], join.add[r], rows.sum[r]);
  return join;
}

/// Writes the warp's 16 rows of P at tokens [64 half, 64 half + 64) of the tile. The order within a
/// row follows from how accumulators lie and is the order of value_fragments.cuh: byte 16h + 4t + j
/// is token 16h + 8 (j / 2) + 2t + j % 2.
__device__ __forceinline__ void store_p(std::uint32_t tile, int half, int warp, int lane,
                                        const std::uint32_t (&p)[8]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = warp * 16 + r * 8 + lane % 8;
    const int piece = 4 * half + lane / 8;
    ptx::stmatrix_x4(tile + row * kTileRowBytes + ((piece ^ (row % 8)) << 4), p[r], p[2 + r],
                     p[4 + r], p[6 + r]);
  }
}

}  // namespace snapmla::cuda::sm90
