#pragma once

// The load warpgroup: warp 0 fills the ring of cache blocks, warp 1 loads queries, warp 2 walks the
// plan, apart so that 24 registers are enough for each.

#include <new>

#include "core/tile_scheduler.h"
#include "cuda/device/math.cuh"
#include "cuda/device/ptx/tma.cuh"
#include "cuda/sm90/decode_e4m3/params.h"
#include "cuda/sm90/decode_e4m3/smem.cuh"

namespace snapmla::cuda::sm90 {

/// The chunk as this call's lengths and table allow it. A stale plan must not lead outside.
__device__ __forceinline__ ChunkInfo clip_chunk(const DecodeArgs& a, const Chunk& chunk) {
  const std::int64_t end = min(min(chunk.end, std::int64_t{a.cache_seqlens[chunk.request]}),
                               a.block_table.max_blocks * kPageTokens);
  const std::int64_t begin = max(chunk.begin, std::int64_t{0}) / kPageTokens * kPageTokens;
  ChunkInfo info;
  info.request = static_cast<std::int32_t>(chunk.request);
  info.begin = static_cast<std::int32_t>(begin);
  info.end = static_cast<std::int32_t>(end);
  info.blocks = static_cast<std::int32_t>(begin < end ? ceil_div(end - begin, kPageTokens) : 0);
  info.slot = chunk.slot;
  return info;
}

/// One page into one stage; called by one thread.
template <class Config>
__device__ __forceinline__ void load_block(const Params& params, SharedStorage<Config>& smem,
                                           unsigned stage, std::int32_t page) {
  std::uint64_t* full = &smem.barriers.kv_full[stage];
  std::uint8_t* kv = smem.kv[stage];
  // Each page is read once by a CTA; with several row tiles the others read it soon after.
  const ptx::L2Hint hint =
      params.row_tiles == 1 ? ptx::L2Hint::evict_first : ptx::L2Hint::evict_normal;
  ptx::mbarrier_arrive_expect(full, kStageBytes + kScaleBytes);
#pragma unroll
  for (int tile = 0; tile < kContentTiles; ++tile) {
    ptx::tma_load_3d(kv + tile * kTileBytes, &params.content, full, tile * kTileRowBytes, 0, page,
                     hint);
  }
  ptx::tma_load_3d(kv + kContentTiles * kTileBytes, &params.rope, full, 0, 0, page, hint);
  ptx::bulk_load(smem.scale[stage],
                 params.args.cache.scale + page * params.args.cache.scale_page_stride, kScaleBytes,
                 full, hint);
}

template <class Config>
__device__ void walk_plan(const Params& params, SharedStorage<Config>& smem, int worker) {
  const DecodeArgs& a = params.args;
  Barriers<Config>& barriers = smem.barriers;
  if (lane_id() != 0) return;
  WorkerChunks* const walk = new (smem.plan_walk)
      WorkerChunks(a.schedule, a.num_splits, a.cache_seqlens, a.b, a.slots, worker);
  for (unsigned n = 0;; ++n) {
    ptx::mbarrier_wait(&barriers.chunk_empty[n % 2], (n / 2 + 1) % 2);
    Chunk chunk;
    const bool more = walk->next(chunk);
    if (more) {
      smem.chunks[n % 2] = clip_chunk(a, chunk);
    } else {
      smem.chunks[n % 2].request = -1;
    }
    ptx::mbarrier_arrive(&barriers.chunk_full[n % 2]);
    if (!more) return;
  }
}

template <class Config>
__device__ void load_cache(const Params& params, SharedStorage<Config>& smem, int row_tile) {
  const DecodeArgs& a = params.args;
  Barriers<Config>& barriers = smem.barriers;
  const int lane = lane_id();
  unsigned k = 0;  // blocks so far
  for (unsigned n = 0;; ++n) {
    ptx::mbarrier_wait(&barriers.chunk_full[n % 2], n / 2 % 2);
    const ChunkInfo info = smem.chunks[n % 2];
    __syncwarp();
    warp_arrive<Config>(&barriers.chunk_empty[n % 2], lane);
    if (info.request < 0) return;

    // The lanes read 32 entries of the block table at a time, one group ahead.
    const std::int32_t* table =
        a.block_table.data + info.request * a.block_table.row_stride + info.begin / kPageTokens;
    const auto read_pages = [&](int first) {
      return first + lane < info.blocks ? table[first + lane] : 0;
    };
    std::int32_t pages = 0, next_pages = read_pages(0);
    for (int i = 0; i < info.blocks; ++i, ++k) {
      if (i % kWarpSize == 0) {
        pages = next_pages;
        next_pages = read_pages(i + kWarpSize);
      }
      const std::int32_t page = __shfl_sync(kFullMask, pages, i % kWarpSize);
      if (lane == 0) {
        const unsigned stage = k % Config::kStages;
        ptx::mbarrier_wait(&barriers.kv_empty[stage], (k / Config::kStages + 1) % 2);
        if (page >= 0 && page < a.cache.num_pages) {
          smem.valid_tokens[stage] = min(info.end - info.begin - i * kPageTokens, kPageTokens);
          load_block(params, smem, stage, page);
        } else {
          // No such page: its tokens are left out. The stage keeps whatever it holds.
          smem.valid_tokens[stage] = 0;
          ptx::mbarrier_arrive(&barriers.kv_full[stage]);
          if (a.status != nullptr && row_tile == 0) atomicAdd(a.status, 1);
        }
      }
    }
  }
}

template <class Config>
__device__ void load_queries(const Params& params, SharedStorage<Config>& smem, int row_tile) {
  Barriers<Config>& barriers = smem.barriers;
  if (lane_id() != 0) return;
  for (unsigned n = 0;; ++n) {
    ptx::mbarrier_wait(&barriers.chunk_full[n % 2], n / 2 % 2);
    const int request = smem.chunks[n % 2].request;
    ptx::mbarrier_arrive(&barriers.chunk_empty[n % 2]);
    if (request < 0) return;
    ptx::mbarrier_wait(&barriers.q_empty, (n + 1) % 2);
    // Rows past the last are filled with zeros.
    ptx::mbarrier_arrive_expect(&barriers.q_full,
                                (kContentTiles + 1) * Config::kRows * kTileRowBytes);
#pragma unroll
    for (int tile = 0; tile < kContentTiles; ++tile) {
      ptx::tma_load_3d(smem.q + tile * kTileBytes, &params.q_codes, &barriers.q_full,
                       tile * kTileRowBytes, row_tile * kRowTile, request,
                       ptx::L2Hint::evict_normal);
    }
    ptx::tma_load_3d(smem.q + kContentTiles * kTileBytes, &params.q_rope, &barriers.q_full, 0,
                     row_tile * kRowTile, request, ptx::L2Hint::evict_normal);
  }
}

}  // namespace snapmla::cuda::sm90
