#pragma once

#include <cstdint>

#include "core/tile_scheduler.h"
#include "cuda/device/ptx/mbarrier.cuh"
#include "cuda/sm90/decode_e4m3/barriers.h"
#include "cuda/sm90/decode_e4m3/config.h"

namespace snapmla::cuda::sm90 {

// Tiles that wgmma reads are [rows][128 bytes], K-major, with the 128-byte swizzle: the 16-byte
// piece c of row r lies at piece c ^ (r % 8).
inline constexpr int kTileRowBytes = 128;
inline constexpr int kTileBytes = 64 * kTileRowBytes;                 // 64 rows
inline constexpr int kContentTiles = kKvLoraRank / 128;               // 4
inline constexpr int kStageBytes = (kContentTiles + 1) * kTileBytes;  // content, then RoPE
inline constexpr int kScaleBytes = kPageTokens * 4;

/// 64 per-token (or per-row) floats in the order in which accumulators hold columns: the values of
/// columns 8j + 2t and 8j + 2t + 1 at t * kStride + 2j, so that thread t of a quad reads its own in
/// 16-byte loads without bank conflicts.
template <int kColumns>
struct QuadOrder {
  static constexpr int kStride = kColumns / 4 + 4;
  static constexpr int kFloats = 4 * kStride;
  __device__ static int index(int column) {
    return (column % 8) / 2 * kStride + column / 8 * 2 + column % 2;
  }
};

/// What softmax needs of the tokens of one block, made by each QK warp for itself.
struct TokenFactors {
  using Order = QuadOrder<kPageTokens>;
  alignas(16) float scale[Order::kFloats];
  alignas(16) float log2_scale[Order::kFloats];
  alignas(16) float inverse_scale[Order::kFloats];
};

/// BlockFactors::flags, a byte per QK warp: whether `keep` differs from 1 in one of its rows; in
/// warp 0's byte, whether the block is the last of its chunk.
inline constexpr std::uint32_t kAnyMoved = 0x01010101, kLastBlock = 0x02;

/// How a block's P joins the output: O = O * keep + add * (P V), keep only if the flags say so.
template <class Config>
struct BlockFactors {
  using Order = QuadOrder<Config::kRows>;
  alignas(16) float add[Order::kFloats];
  alignas(16) float keep[Order::kFloats];
  std::uint32_t flags;
};

struct ChunkInfo {
  std::int32_t request;  // < 0: no more work
  std::int32_t begin;    // first position, a multiple of 64
  std::int32_t end;      // end of the positions to read
  std::int32_t blocks;
  std::int64_t slot;  // < 0: write to the output
};

/// Results per row that PV needs to finish a chunk.
template <class Config>
struct RowResults {
  std::int64_t offset[Config::kRows];  // first element of the row's output; < 0: no such row
  float inverse_sum[Config::kRows];    // 0: no valid key
};

template <class Config>
struct SharedStorage {
  alignas(1024) std::uint8_t kv[Config::kStages][kStageBytes];
  alignas(1024) std::uint8_t q[kStageBytes];  // rows beyond Config::kRows stay zero
  // P of two blocks side by side: [rows][2 x 64 tokens]
  alignas(1024) std::uint8_t p[Config::kPSlots / 2][Config::kRows * kTileRowBytes];
  alignas(16) float scale[Config::kStages][kPageTokens];
  TokenFactors tokens[4];
  BlockFactors<Config> factors[Config::kPSlots];
  RowResults<Config> rows[2];
  std::int32_t row_end[Config::kRows];  // first position that a row doesn't see
  ChunkInfo chunks[2];
  // The plan warp's place in the plan; here because that warp has few registers.
  alignas(WorkerChunks) std::uint8_t plan_walk[sizeof(WorkerChunks)];
  std::int32_t
      valid_tokens[Config::kStages];  // the block's first tokens that exist; the rest don't
  Barriers<Config> barriers;
};

/// One arrival for all that the warp has done before. Every use follows a __syncwarp().
template <class Config>
__device__ __forceinline__ void warp_arrive(std::uint64_t* barrier, int lane) {
  if (Config::kEveryLaneArrives || lane == 0) ptx::mbarrier_arrive(barrier);
}

}  // namespace snapmla::cuda::sm90
