#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/tile_scheduler.h"
#include "cpu/exp2.h"
#include "snapmla/decode.h"

namespace snapmla::cpu {

inline constexpr int kMaxBlock = 128;  // tokens per P block, at most
/// Sums over dimensions or tokens are kept in 16 lanes, lane = index % 16, and then folded in a
/// fixed order: plain loops and vectors of any width give the same bits.
inline constexpr int kLanes = 16;
inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

/// The tokens of one block, decoded to float, and what softmax needs of them. Tokens without a page
/// have codes 0 (0 * NaN would reach the output), scale 1, log2_scale 0 and inverse_scale 0, and so
/// has the padding from `tokens` up to the next multiple of 16.
struct Block {
  std::int64_t begin = 0;  // position of the first token
  int tokens = 0;
  bool all_valid = false;
  alignas(64) float codes[kMaxBlock][kKvLoraRank];
  alignas(64) float rope[kMaxBlock][kRopeDim];
  alignas(64) float scale[kMaxBlock], log2_scale[kMaxBlock], inverse_scale[kMaxBlock];
  bool valid[kMaxBlock];

  int padded_tokens() const { return (tokens + kLanes - 1) / kLanes * kLanes; }
};

/// Up to 64 query rows, their running results, and the block at work.
struct RowTile {
  int rows = 0;
  alignas(64) float codes[kRowTile][kKvLoraRank];
  alignas(64) float rope[kRowTile][kRopeDim];
  float scale[kRowTile];
  std::int64_t visible_end[kRowTile];
  alignas(64) float out[kRowTile][kKvLoraRank];
  float max[kRowTile];    // log domain: base 2, of y; chained: natural, of x
  float sum[kRowTile];    // log domain: of p / S; chained: of e
  float norm[kRowTile];   // what out is divided by: sum, or its form with quantized P
  float sigma[kRowTile];  // chained: the current P scale

  alignas(64) float scores[kRowTile][kMaxBlock];  // q . k of stored values, then P'
  float keep[kRowTile], add[kRowTile];            // log domain: factors of out and of the block

  bool sees(const Block& block, int row, int token) const {
    return block.valid[token] && block.begin + token < visible_end[row];
  }
};

/// The inner loops of the log-domain pipeline.
struct Kernels {
  const char* name;
  /// 512 e4m3 codes and 64 BF16 RoPE values to float.
  void (*decode_token)(const std::uint8_t* codes, const std::uint16_t* rope, float* codes_out,
                       float* rope_out);
  /// tile.scores = q . k over the stored values, for every row and token of the block.
  void (*score)(const NumericsOptions& numerics, const Block& block, RowTile& tile);
  /// Turns the scores of one row into P', sets keep and add, and updates max, sum and norm.
  /// c = S_Q * softmax_scale * log2(e).
  void (*softmax)(const NumericsOptions& numerics, const Block& block, RowTile& tile, int row,
                  float c);
  /// out = out * keep + (P' . codes) * add, the block summed on its own first.
  void (*accumulate)(const NumericsOptions& numerics, const Block& block, RowTile& tile);
};

/// Plain loops: every numerics option, every machine.
const Kernels& plain_kernels();
/// The widest vectors of this machine with fused multiply-add, the default numerics only and the
/// same bits; null where there are none.
const Kernels* simd_kernels();

/// The vector kernels where they exist and compute what `numerics` asks for.
const Kernels& choose_kernels(const NumericsOptions& numerics);

/// The plain loop's sum of P' . codes of one row, into sums[512]: on top of what is there.
void multiply_values(const NumericsOptions& numerics, const Block& block, const float* p,
                     float* sums);

/// Folds 16 lanes.
inline float fold_lanes(const float (&lanes)[kLanes]) {
  float halves[kLanes / 2];
  for (int k = 0; k < 8; ++k) halves[k] = lanes[k] + lanes[k + 8];
  for (int k = 0; k < 4; ++k) halves[k] += halves[k + 4];
  return (halves[0] + halves[2]) + (halves[1] + halves[3]);
}

/// The end of softmax for one row: how the block joins what came before it.
inline void finish_softmax(RowTile& tile, int row, float block_max, float block_sum,
                           float block_norm) {
  const float max = std::max(tile.max[row], block_max);
  const float keep = exp2_nonpositive(tile.max[row] - max);
  const float add = exp2_nonpositive(block_max - max);
  tile.max[row] = max;
  tile.keep[row] = keep;
  tile.add[row] = add;
  tile.sum[row] = std::fma(block_sum, add, tile.sum[row] * keep);
  tile.norm[row] = std::fma(block_norm, add, tile.norm[row] * keep);
}

}  // namespace snapmla::cpu
