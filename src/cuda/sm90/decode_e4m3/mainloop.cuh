#pragma once

// The two compute roles. One block of 64 tokens passes through them like this (time to the right):
//
//   QK, softmax   | QK(i)      | softmax(i)      | QK(i+1)    | softmax(i+1)    |
//   PV x 2        |            | PV(i-1)         |            | PV(i)           |
//
// P(i-1) is handed over only when QK(i) is done, so that the tensor cores first serve QK, which the
// softmax warpgroup waits for, and then PV, while that warpgroup computes exponentials. When block
// i is still on its way from memory the hand-over doesn't wait for it.
//
// QK has two FP8 accumulators, over the content dimensions 0..255 and over the rest and RoPE, added
// in fp32: one alone misses the gate for lse on aligned vectors.

#include "cuda/device/ptx/tma.cuh"
#include "cuda/device/ptx/warp.cuh"
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

__device__ __forceinline__ void issue_first_half(float (&part)[32], std::uint32_t q_tile,
                                                 std::uint32_t stage) {
  ptx::wgmma_fence();
  issue_qk_content<0, 8>(part, ptx::smem_descriptor(q_tile), ptx::smem_descriptor(stage));
  ptx::wgmma_commit();
}

__device__ __forceinline__ void issue_second_half(float (&s)[32], std::uint32_t q_tile,
                                                  std::uint32_t stage) {
  const std::uint64_t q = ptx::smem_descriptor(q_tile), k = ptx::smem_descriptor(stage);
  ptx::wgmma_fence();
  issue_qk_content<8, 16>(s, q, k);
  issue_qk_rope(s, q, k);
  ptx::wgmma_commit();
}

/// Waits for both halves and adds them.
__device__ __forceinline__ void finish_scores(float (&s)[32], float (&part)[32]) {
  ptx::wgmma_wait<0>();
  ptx::pin(s);
  ptx::pin(part);
#pragma unroll
  for (int i = 0; i < 32; ++i) s[i] += part[i];
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
  unsigned k = 0;  // blocks so far
  for (unsigned n = 0;; ++n) {
    ptx::mbarrier_wait(&barriers.chunk_full[n % 2], n / 2 % 2);
    const ChunkInfo& chunk = smem.chunks[n % 2];  // read again where needed: registers are short
    if (chunk.request < 0) return;

    const int first_row = row_tile * kRowTile + warp * 16 + lane / 4;
    RowPair rows;
    int warp_end = chunk.end;
    const int blocks = chunk.blocks;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = min(first_row + 8 * r, static_cast<int>(a.rows()) - 1);
      rows.scale[r] =
          read_scale(a.q_scale[chunk.request * a.rows() + row]) * a.softmax_scale * kLog2E;
      const int end = static_cast<int>(min(
          std::int64_t{chunk.end}, a.visible_end(chunk.request, row / static_cast<int>(a.h_q))));
      if (has_rows && lane % 4 == 0) smem.row_end[warp * 16 + lane / 4 + 8 * r] = end;
      warp_end = min(warp_end, end);
      rows.reference[r] = -FLT_MAX;
      rows.sum[r] = 0.0f;
    }
    warp_end = __reduce_min_sync(kFullMask, warp_end);
    __syncwarp();

    const auto wait_for_block = [&](unsigned block) {
      ptx::mbarrier_wait(&barriers.kv_full[block % Config::kStages], block / Config::kStages % 2);
    };
    const auto stage_address = [&](unsigned block) {
      return ptx::shared_address(smem.kv[block % Config::kStages]);
    };
    // What needs no scores yet: runs while the tensor cores work on block `block`.
    const auto prepare = [&](unsigned block) {
      if (!has_rows) return;
      const unsigned stage = block % Config::kStages;
      const unsigned thread = ptx::thread_index_again();
      make_token_factors(smem.scale[stage], smem.valid_tokens[stage], thread % kWarpSize,
                         smem.tokens[thread / kWarpSize % 4]);
      __syncwarp();
      ptx::mbarrier_wait(&barriers.p_empty[block % Config::kPSlots],
                         (block / Config::kPSlots + 1) % 2);
    };
    // Scores of block `block`, number i of the chunk, to P.
    const auto softmax_and_store = [&](float(&s)[32], unsigned block, int i) {
      const unsigned stage = block % Config::kStages, slot = block % Config::kPSlots;
      const int valid_tokens = smem.valid_tokens[stage];
      const unsigned thread = ptx::thread_index_again();
      const int warp = thread / kWarpSize % 4, lane = thread % kWarpSize;
      if (valid_tokens < kPageTokens) zero_values(smem.kv[stage], valid_tokens);
      if (has_rows) {
        const int begin = chunk.begin + i * kPageTokens;
        const bool masked = valid_tokens < kPageTokens || begin + kPageTokens > warp_end;
        std::uint32_t p[8];
        const BlockJoin join = softmax_block(s, smem.tokens[warp], i == 0, masked, begin,
                                             valid_tokens, &smem.row_end[warp * 16], lane, rows, p);
        store_p(ptx::shared_address(smem.p[slot / 2]), slot % 2, warp, lane, p);
        BlockFactors<Config>& factors = smem.factors[slot];
        if (lane % 4 == 0) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const int at = BlockFactors<Config>::Order::index(warp * 16 + lane / 4 + 8 * r);
            factors.add[at] = join.add[r];
            factors.keep[at] = join.keep[r];
          }
        }
        if (lane == 0) {
          reinterpret_cast<std::uint8_t*>(&factors.flags)[warp] =
              static_cast<std::uint8_t>(join.moved | (i + 1 == blocks ? kLastBlock : 0));
        }
      }
      ptx::fence_proxy_async();  // P, and zeroed values, before wgmma and the copy engine
      __syncwarp();
    };
    const auto hand_over = [&](unsigned block) {
      warp_arrive<Config>(&barriers.p_full[block % Config::kPSlots], lane);
    };

    ptx::mbarrier_wait(&barriers.q_full, n % 2);
#pragma unroll 1
    for (int i = 0; i < blocks; ++i, ++k) {
      // P of the previous block is written: hand it over now if this block isn't here yet.
      bool pending = i > 0;
      if (pending && !ptx::mbarrier_test_wait(&barriers.kv_full[k % Config::kStages],
                                              k / Config::kStages % 2)) {
        hand_over(k - 1);
        pending = false;
      }
      wait_for_block(k);
      float s[32], part[32];
      issue_first_half(part, q_tile, stage_address(k));
      issue_second_half(s, q_tile, stage_address(k));
      prepare(k);
      finish_scores(s, part);
      if (pending) hand_over(k - 1);
      softmax_and_store(s, k, i);
    }
    if (blocks > 0) hand_over(k - 1);
    warp_arrive<Config>(&barriers.q_empty, lane);
    if (has_rows) finish_rows(a, chunk, first_row, rows, warp, smem.rows[n % 2]);
    __syncwarp();
    warp_arrive<Config>(&barriers.rows_full[n % 2], lane);
    warp_arrive<Config>(&barriers.chunk_empty[n % 2], lane);
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
    const float2 f =
        *reinterpret_cast<const float2*>(keep + t * BlockFactors<Config>::Order::kStride + 2 * j);
#pragma unroll
    for (int q = 0; q < kSlices; ++q) {
      o[q][4 * j] *= f.x;
      o[q][4 * j + 1] *= f.y;
      o[q][4 * j + 2] *= f.x;
      o[q][4 * j + 3] *= f.y;
    }
  }
}

/// This thread's rows of one half of the tile: values[2j + e] is the row kRows / 2 * kPart + 8j +
/// 2t + e.
template <class Config, int kPart>
__device__ __forceinline__ void load_row_factors(const float* factors, int t,
                                                 float (&values)[Config::kRows / 8]) {
  const float* from =
      factors + t * BlockFactors<Config>::Order::kStride + kPart * Config::kRows / 8;
#pragma unroll
  for (int j = 0; j < Config::kRows / 16; ++j) {
    const float2 f = *reinterpret_cast<const float2*>(from + 2 * j);
    values[2 * j] = f.x;
    values[2 * j + 1] = f.y;
  }
}

/// o = o + add * tile for one half of the rows of a slice.
template <class Config, int kPart>
__device__ __forceinline__ void add_half_tile(const float (&add)[Config::kRows / 8],
                                              const float (&tile)[Config::kRows / 2],
                                              float (&o)[Config::kRows / 2]) {
  constexpr int kElements = Config::kRows / 4;
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    const int at = kPart * kElements + e;
    o[at] = fmaf(tile[at], add[e / 4 * 2 + e % 2], o[at]);
  }
}

template <class Config>
__device__ void run_pv(const Params& params, SharedStorage<Config>& smem, int group) {
  Barriers<Config>& barriers = smem.barriers;
  unsigned k = 0;  // blocks so far
#pragma unroll 1
  for (unsigned n = 0;; ++n) {
    ptx::mbarrier_wait(&barriers.chunk_full[n % 2], n / 2 % 2);
    if (smem.chunks[n % 2].request < 0) return;
    bool more = smem.chunks[n % 2].blocks > 0;

    Output<Config> o;
#pragma unroll
    for (int q = 0; q < kSlices; ++q) {
#pragma unroll
      for (int e = 0; e < Config::kRows / 2; ++e) o[q][e] = 0.0f;
    }
    float tile[Config::kRows / 2];
    ValueFragments a[2];  // one being multiplied, one being loaded

    // Slice 0 of a block is loaded ahead of P, unless QK will zero some of its values first.
    const auto whole = [&](unsigned block) {
      return smem.valid_tokens[block % Config::kStages] == kPageTokens;
    };
    const auto content = [&](unsigned block) {
      return ptx::shared_address(smem.kv[block % Config::kStages]);
    };
    const auto wait_for_block = [&](unsigned block) {
      ptx::mbarrier_wait(&barriers.kv_full[block % Config::kStages], block / Config::kStages % 2);
    };
    // Made again for each slice: there is no register to keep them in.
    const auto lane_offset = [] {
      const unsigned thread = ptx::thread_index_again();
      return value_lane_offset(thread / kWarpgroupThreads - Config::kFirstPvWarpgroup,
                               thread / kWarpSize % 4, thread % kWarpSize);
    };
    const auto quad_thread = [] { return ptx::thread_index_again() % 4; };
    const auto multiply_slice = [&](int slice, std::uint64_t p) {
      separate_columns(a[slice % 2]);
      ptx::wgmma_fence();
      ptx::wgmma_e4m3_rs(tile, a[slice % 2][0], p, 0);
      ptx::wgmma_e4m3_rs(tile, a[slice % 2][1], p + 2, 1);
      ptx::wgmma_commit();
    };
    {
      if (more) {
        wait_for_block(k);
        if (whole(k)) {
          load_value_pairs<0>(content(k), lane_offset(), 0, a[0]);
          load_value_pairs<1>(content(k), lane_offset(), 0, a[0]);
        }
      }
    }

#pragma unroll 1
    for (; more; ++k) {
      const unsigned stage = k % Config::kStages, slot = k % Config::kPSlots;
      const BlockFactors<Config>& factors = smem.factors[slot];
      const std::uint64_t p =
          ptx::smem_descriptor(ptx::shared_address(smem.p[slot / 2])) + slot % 2 * 4;

      ptx::mbarrier_wait(&barriers.p_full[slot], k / Config::kPSlots % 2);
      if ((factors.flags & kAnyMoved) != 0) rescale_output<Config>(factors.keep, quad_thread(), o);
      if (!whole(k)) {
        load_value_pairs<0>(content(k), lane_offset(), 0, a[0]);
        load_value_pairs<1>(content(k), lane_offset(), 0, a[0]);
      }
      multiply_slice(0, p);
#pragma unroll
      for (int slice = 0; slice < kSlices; ++slice) {
        // What the next slice and the addition need is loaded half before the wait, half after it:
        // its latency is hidden, and there are no registers for all of it beside the fragments that
        // are being multiplied.
        const bool in_block = slice + 1 < kSlices;
        const int next_slice = in_block ? slice + 1 : 0;
        ValueFragments& next = a[(slice + 1) % 2];
        bool load_next = true;
        const unsigned next_block = in_block ? k : k + 1;
        if (!in_block) {
          more = (factors.flags & kLastBlock) == 0;
          load_next = more;
          if (load_next) {
            wait_for_block(next_block);
            load_next = whole(next_block);
          }
        }
        float add[2][Config::kRows / 8];
        load_row_factors<Config, 0>(factors.add, quad_thread(), add[0]);
        if (load_next) load_value_pairs<0>(content(next_block), lane_offset(), next_slice, next);
        ptx::wgmma_wait<0>();
        ptx::pin(tile);
        load_row_factors<Config, 1>(factors.add, quad_thread(), add[1]);
        if (load_next) load_value_pairs<1>(content(next_block), lane_offset(), next_slice, next);
        add_half_tile<Config, 0>(add[0], tile, o[slice]);
        add_half_tile<Config, 1>(add[1], tile, o[slice]);
        if (in_block) multiply_slice(slice + 1, p);
        if (slice + 2 == kSlices) {  // all values are in registers
          __syncwarp();
          warp_arrive<Config>(&barriers.kv_empty[stage], lane_id());
        }
      }
      __syncwarp();
      warp_arrive<Config>(&barriers.p_empty[slot], lane_id());
    }

    ptx::mbarrier_wait(&barriers.rows_full[n % 2], n / 2 % 2);
    write_output<Config>(params.args, smem.chunks[n % 2].slot >= 0, smem.rows[n % 2], group, o);
    __syncwarp();
    warp_arrive<Config>(&barriers.chunk_empty[n % 2], lane_id());
  }
}

}  // namespace snapmla::cuda::sm90
