#pragma once

// The two compute roles. One block of 64 tokens passes through them like this (time to the right):
//
//   QK, softmax   | QK(i)      | softmax(i)      | QK(i+1)    | softmax(i+1)    |
//   PV x 2        |            | PV(i-1)         |            | PV(i)           |
//
// P(i-1) is handed over only when QK(i) is done, so that the tensor cores first serve QK, which the
// softmax warpgroup waits for, and then PV, while that warpgroup computes exponentials. When block i
// is still on its way from memory the hand-over doesn't wait for it.

#include "cuda/device/ptx/tma.cuh"
#include "cuda/device/ptx/wgmma.cuh"
#include "cuda/sm90/decode_e4m3/epilogue.cuh"
#include "cuda/sm90/decode_e4m3/params.h"
#include "cuda/sm90/decode_e4m3/smem.cuh"
#include "cuda/sm90/decode_e4m3/softmax.cuh"
#include "cuda/sm90/decode_e4m3/value_fragments.cuh"

namespace snapmla::cuda::sm90 {

/// Issues steps [kBegin, kEnd) of 32 content dimensions each; kBegin starts a fresh accumulator.
template <int kBegin, int kEnd>
__device__ __forceinline__ void issue_qk_content(float (&s)[32], std::uint64_t q, std::uint64_t k) {
#pragma unroll
  for (int step = kBegin; step < kEnd; ++step) {
    const int offset = step / 4 * (kTileBytes / 16) + step % 4 * 2;
    ptx::wgmma_e4m3_ss(s, q + offset, k + offset, step > kBegin);
  }
}

/// RoPE comes last: the FP8 accumulator truncates to 13 bits below its largest term.
__device__ __forceinline__ void issue_qk_rope(float (&s)[32], std::uint64_t q, std::uint64_t k) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const int offset = kContentTiles * (kTileBytes / 16) + step * 2;
    ptx::wgmma_bf16_ss(s, q + offset, k + offset, 1);
  }
}

__device__ __forceinline__ void finish_partial_sum(float (&s)[32], float (&part)[32]) {
  ptx::wgmma_wait<0>();
  ptx::pin(s);
  ptx::pin(part);
#pragma unroll
  for (int i = 0; i < 32; ++i) s[i] += part[i];
}

/// s = Q K^T of one block. `while_running` runs while the tensor cores work.
template <class Config, class Overlapped>
__device__ __forceinline__ void multiply_qk(float (&s)[32], std::uint32_t q_tile,
                                            std::uint32_t stage, Overlapped while_running) {
  const std::uint64_t q = ptx::smem_descriptor(q_tile), k = ptx::smem_descriptor(stage);
  if constexpr (Config::kQkAccumulators == 1) {
    ptx::wgmma_fence();
    issue_qk_content<0, 16>(s, q, k);
    issue_qk_rope(s, q, k);
    ptx::wgmma_commit();
    while_running();
    ptx::wgmma_wait<0>();
    ptx::pin(s);
  } else if constexpr (Config::kQkAccumulators == 2) {
    float part[32];
    ptx::wgmma_fence();
    issue_qk_content<0, 8>(part, q, k);
    issue_qk_content<8, 16>(s, q, k);
    issue_qk_rope(s, q, k);
    ptx::wgmma_commit();
    while_running();
    finish_partial_sum(s, part);
  } else {
    float part[32];
    ptx::wgmma_fence();
    issue_qk_content<0, 4>(s, q, k);
    issue_qk_content<4, 8>(part, q, k);
    ptx::wgmma_commit();
    while_running();
    finish_partial_sum(s, part);
    ptx::wgmma_fence();
    issue_qk_content<8, 12>(part, q, k);
    ptx::wgmma_commit();
    finish_partial_sum(s, part);
    ptx::wgmma_fence();
    issue_qk_content<12, 16>(part, q, k);
    issue_qk_rope(part, q, k);
    ptx::wgmma_commit();
    finish_partial_sum(s, part);
  }
}

/// Zeroes the content of tokens from `first` on: P = 0 times a NaN code is NaN in the tensor core.
/// The whole QK warpgroup takes part.
__device__ __forceinline__ void zero_values(std::uint8_t* stage, int first) {
  ptx::named_barrier_sync(kQkNamedBarrier, kWarpgroupThreads);  // every warp is done with QK
  constexpr int kPieces = kTileRowBytes / 16;
  const int count = (kPageTokens - first) * kContentTiles * kPieces;
  for (int i = threadIdx.x % kWarpgroupThreads; i < count; i += kWarpgroupThreads) {
    const int token = first + i / (kContentTiles * kPieces);
    const int piece = i % (kContentTiles * kPieces);
    *reinterpret_cast<uint4*>(stage + piece / kPieces * kTileBytes + token * kTileRowBytes +
                              piece % kPieces * 16) = make_uint4(0, 0, 0, 0);
  }
}

template <class Config>
__device__ void run_qk_softmax(const Params& params, SharedStorage<Config>& smem, int row_tile) {
  const DecodeArgs& a = params.args;
  Barriers<Config>& barriers = smem.barriers;
  const int warp = threadIdx.x / kWarpSize % 4;
  const int lane = lane_id();
  const bool has_rows = warp * 16 < Config::kRows;  // else it only takes part in QK
  const std::uint32_t q_tile = ptx::shared_address(smem.q);
  int k = 0;  // blocks so far
  for (int n = 0;; ++n) {
    ptx::mbarrier_wait(&barriers.chunk_full[n % 2], n / 2 % 2);
    const ChunkInfo chunk = smem.chunks[n % 2];
    if (chunk.request < 0) return;

    const int first_row = row_tile * kRowTile + warp * 16 + lane / 4;
    RowPair rows;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = min(first_row + 8 * r, static_cast<int>(a.rows()) - 1);
      rows.scale[r] = read_scale(a.q_scale[chunk.request * a.rows() + row]) * a.softmax_scale *
                      kLog2E;
      rows.end[r] = static_cast<int>(
          min(std::int64_t{chunk.end},
              a.visible_end(chunk.request, row / static_cast<int>(a.h_q))));
      rows.reference[r] = -FLT_MAX;
      rows.sum[r] = 0.0f;
    }
    const int warp_end = __reduce_min_sync(kFullMask, min(rows.end[0], rows.end[1]));

    ptx::mbarrier_wait(&barriers.q_full, n % 2);
    for (int i = 0; i < chunk.blocks; ++i, ++k) {
      const int stage = k % Config::kStages, slot = k % Config::kPSlots;
      const std::uint32_t parity = k / Config::kStages % 2;
      // P(i-1) is written; hand it over now if block i is not here yet, else after its QK.
      bool hand_over = i > 0;
      const auto hand_over_p = [&] {
        if (hand_over && lane == 0) {
          ptx::mbarrier_arrive(&barriers.p_full[(k - 1) % Config::kPSlots]);
        }
        hand_over = false;
      };
      if (!Config::kDelayHandOver || !ptx::mbarrier_test_wait(&barriers.kv_full[stage], parity)) {
        hand_over_p();
      }
      ptx::mbarrier_wait(&barriers.kv_full[stage], parity);
      const int valid_tokens = smem.valid_tokens[stage];

      float s[32];
      multiply_qk<Config>(s, q_tile, ptx::shared_address(smem.kv[stage]), [&] {
        if (has_rows) {
          make_token_factors(smem.scale[stage], valid_tokens, smem.tokens[warp]);
          __syncwarp();
        }
      });
      hand_over_p();

      if (valid_tokens < kPageTokens) zero_values(smem.kv[stage], valid_tokens);
      if (has_rows) {
        const int begin = chunk.begin + i * kPageTokens;
        const bool masked = valid_tokens < kPageTokens || begin + kPageTokens > warp_end;
        std::uint32_t p[8];
        const BlockJoin join = softmax_block(s, smem.tokens[warp], i == 0, masked, begin,
                                             valid_tokens, rows, p);
        ptx::mbarrier_wait(&barriers.p_empty[slot], (k / Config::kPSlots + 1) % 2);
        BlockFactors<Config>& factors = smem.factors[slot];
        if (lane % 4 == 0) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const int at = BlockFactors<Config>::Order::index(warp * 16 + lane / 4 + 8 * r);
            factors.add[at] = join.add[r];
            factors.keep[at] = join.keep[r];
          }
        }
        if (lane == 0) factors.moved[warp] = join.moved;
        store_p(ptx::shared_address(smem.p[slot / 2]), slot % 2, warp, p);
      }
      ptx::fence_proxy_async();  // P, and zeroed values, before wgmma and the copy engine
      __syncwarp();
    }
    if (lane == 0) {
      ptx::mbarrier_arrive(&barriers.q_empty);
      if (chunk.blocks > 0) ptx::mbarrier_arrive(&barriers.p_full[(k - 1) % Config::kPSlots]);
    }
    if (has_rows) finish_rows(a, chunk, first_row, rows, warp, smem.rows[n % 2]);
    __syncwarp();
    if (lane == 0) {
      ptx::mbarrier_arrive(&barriers.rows_full[n % 2]);
      ptx::mbarrier_arrive(&barriers.chunk_empty[n % 2]);
    }
  }
}

/// Output of one PV warpgroup, transposed: of slice q, o[q][4j + 2r + c] is the row (head)
/// 8j + 2 (lane % 4) + c, column 64q + 16 warp + 2 (lane / 4) + r of its 256.
template <class Config>
using Output = float[kSlices][Config::kRows / 2];

/// Multiplies every row of the output by its factor; rows whose maximum didn't move have 1.
template <class Config>
__device__ __forceinline__ void rescale_output(const float* keep, int t, Output<Config>& o) {
#pragma unroll
  for (int j = 0; j < Config::kRows / 8; ++j) {
    const float2 f = *reinterpret_cast<const float2*>(
        keep + t * BlockFactors<Config>::Order::kStride + 2 * j);
#pragma unroll
    for (int q = 0; q < kSlices; ++q) {
      o[q][4 * j] *= f.x;
      o[q][4 * j + 1] *= f.y;
      o[q][4 * j + 2] *= f.x;
      o[q][4 * j + 3] *= f.y;
    }
  }
}

/// o = o + add * tile for one slice.
template <class Config>
__device__ __forceinline__ void add_tile(const float* add, int t,
                                         const float (&tile)[Config::kRows / 2],
                                         float (&o)[Config::kRows / 2]) {
#pragma unroll
  for (int j = 0; j < Config::kRows / 16; ++j) {
    const float4 f = *reinterpret_cast<const float4*>(
        add + t * BlockFactors<Config>::Order::kStride + 4 * j);
    const float factors[4] = {f.x, f.y, f.z, f.w};
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      o[8 * j + e] = fmaf(tile[8 * j + e], factors[e / 4 * 2 + e % 2], o[8 * j + e]);
    }
  }
}

template <class Config>
__device__ void run_pv(const Params& params, SharedStorage<Config>& smem, int group) {
  Barriers<Config>& barriers = smem.barriers;
  int k = 0;  // blocks so far
  for (int n = 0;; ++n) {
    ptx::mbarrier_wait(&barriers.chunk_full[n % 2], n / 2 % 2);
    if (smem.chunks[n % 2].request < 0) return;
    const int blocks = smem.chunks[n % 2].blocks;

    Output<Config> o;
#pragma unroll
    for (int q = 0; q < kSlices; ++q) {
#pragma unroll
      for (int e = 0; e < Config::kRows / 2; ++e) o[q][e] = 0.0f;
    }
    float tile[Config::kRows / 2];
    ValueFragments a[2];  // one being multiplied, one being loaded

    // Slice 0 of a block is loaded ahead of P, unless QK will zero some of its values first.
    const auto prefetch = [&](int block, std::uint32_t lane_offset) {
      const int stage = block % Config::kStages;
      ptx::mbarrier_wait(&barriers.kv_full[stage], block / Config::kStages % 2);
      if (smem.valid_tokens[stage] == kPageTokens) {
        load_value_fragments(ptx::shared_address(smem.kv[stage]), lane_offset, 0, a[0]);
      }
    };
    const auto multiply_slice = [&](int slice, std::uint64_t p) {
      ptx::wgmma_fence();
      ptx::wgmma_e4m3_rs(tile, a[slice % 2][0], p, 0);
      ptx::wgmma_e4m3_rs(tile, a[slice % 2][1], p + 2, 1);
      ptx::wgmma_commit();
    };
    {
      const int warp = threadIdx.x / kWarpSize % 4;
      if (blocks > 0) prefetch(k, value_lane_offset(group, warp, lane_id()));
    }

#pragma unroll 1
    for (int i = 0; i < blocks; ++i, ++k) {
      // Recomputed for every block: registers are short here.
      int thread = threadIdx.x;
      asm volatile("" : "+r"(thread));
      const int warp = thread / kWarpSize % 4, lane = thread % kWarpSize, t = lane % 4;
      const std::uint32_t lane_offset = value_lane_offset(group, warp, lane);
      const int stage = k % Config::kStages, slot = k % Config::kPSlots;
      const std::uint32_t stage_address = ptx::shared_address(smem.kv[stage]);
      const BlockFactors<Config>& factors = smem.factors[slot];
      const std::uint64_t p =
          ptx::smem_descriptor(ptx::shared_address(smem.p[slot / 2])) + slot % 2 * 4;

      ptx::mbarrier_wait(&barriers.p_full[slot], k / Config::kPSlots % 2);
      const uint4 moved = *reinterpret_cast<const uint4*>(factors.moved);
      if ((moved.x | moved.y | moved.z | moved.w) != 0) rescale_output<Config>(factors.keep, t, o);
      if (smem.valid_tokens[stage] != kPageTokens) {
        load_value_fragments(stage_address, lane_offset, 0, a[0]);
      }
      multiply_slice(0, p);
#pragma unroll
      for (int slice = 0; slice < kSlices; ++slice) {
        if (slice + 1 < kSlices) {
          load_value_fragments(stage_address, lane_offset, slice + 1, a[(slice + 1) % 2]);
          if (slice + 2 == kSlices) {
            __syncwarp();
            if (lane == 0) ptx::mbarrier_arrive(&barriers.kv_empty[stage]);
          }
        } else if (i + 1 < blocks) {
          prefetch(k + 1, lane_offset);
        }
        ptx::wgmma_wait<0>();
        ptx::pin(tile);
        add_tile<Config>(factors.add, t, tile, o[slice]);
        if (slice + 1 < kSlices) multiply_slice(slice + 1, p);
      }
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(&barriers.p_empty[slot]);
    }

    ptx::mbarrier_wait(&barriers.rows_full[n % 2], n / 2 % 2);
    write_output<Config>(params.args, smem.chunks[n % 2].slot >= 0, smem.rows[n % 2], group, o);
    __syncwarp();
    if (lane_id() == 0) ptx::mbarrier_arrive(&barriers.chunk_empty[n % 2]);
  }
}

}  // namespace snapmla::cuda::sm90
