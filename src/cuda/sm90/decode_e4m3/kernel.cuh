#pragma once

// FP8 decode attention for sm_90a: where to start reading. A CTA has one worker's share of the plan
// and one tile of query rows; its four warpgroups are a pipeline:
//
// clang-format off
//   0  loads (load.cuh)        cache pages into a ring of 4 stages, queries, the walk through the plan
//   1  QK and softmax          P and its factors into a ring of 4 slots      (mainloop.cuh)
//   2  PV, columns 0..255      O = O + factor * (P V) in fp32, output        (mainloop.cuh)
//   3  PV, columns 256..511
// clang-format on
//
// barriers.h says who waits for whom; docs/kernels/sm90-decode-e4m3.md why it is built this way.

#include "core/tile_scheduler.h"
#include "cuda/device/launch.cuh"
#include "cuda/sm90/decode_e4m3/load.cuh"
#include "cuda/sm90/decode_e4m3/mainloop.cuh"

namespace snapmla::cuda::sm90 {

template <class Config>
__device__ void init_barriers(Barriers<Config>& barriers) {
  using B = Barriers<Config>;
  for (int i = 0; i < Config::kStages; ++i) {
    ptx::mbarrier_init(&barriers.kv_full[i], 1);
    ptx::mbarrier_init(&barriers.kv_empty[i], B::kPvArrivals);
  }
  for (int i = 0; i < Config::kPSlots; ++i) {
    ptx::mbarrier_init(&barriers.p_full[i], B::kQkArrivals);
    ptx::mbarrier_init(&barriers.p_empty[i], B::kPvArrivals);
  }
  ptx::mbarrier_init(&barriers.q_full, 1);
  ptx::mbarrier_init(&barriers.q_empty, B::kQkArrivals);
  for (int i = 0; i < 2; ++i) {
    ptx::mbarrier_init(&barriers.chunk_full[i], 1);
    ptx::mbarrier_init(&barriers.chunk_empty[i], B::kChunkArrivals);
    ptx::mbarrier_init(&barriers.rows_full[i], B::kQkArrivals);
  }
  ptx::mbarrier_init_fence();
}

/// Zeroes what is read but perhaps never written: query rows that a narrow tile doesn't have, and
/// the flags of QK warps without rows.
template <class Config>
__device__ void clear_shared(SharedStorage<Config>& smem) {
  if constexpr (Config::kRows < 64) {
    for (int i = threadIdx.x; i < kStageBytes / 16; i += Config::kThreads) {
      reinterpret_cast<uint4*>(smem.q)[i] = make_uint4(0, 0, 0, 0);
    }
    ptx::fence_proxy_async();
  }
  if (threadIdx.x < Config::kPSlots) smem.factors[threadIdx.x].flags = 0;
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    decode_e4m3_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) std::uint8_t shared[];
  SharedStorage<Config>& smem = *reinterpret_cast<SharedStorage<Config>*>(shared);
  const int warpgroup = threadIdx.x / kWarpgroupThreads;
  const int warp = threadIdx.x / kWarpSize % 4;
  const int worker = blockIdx.x / params.row_tiles, row_tile = blockIdx.x % params.row_tiles;

  if (threadIdx.x == 0) {
    init_barriers(smem.barriers);
    ptx::tma_prefetch_map(&params.content);
    ptx::tma_prefetch_map(&params.rope);
    ptx::tma_prefetch_map(&params.q_codes);
    ptx::tma_prefetch_map(&params.q_rope);
  }
  clear_shared(smem);
  __syncthreads();
  wait_for_predecessor();
  release_successor();

  if (warpgroup == 0) {
    ptx::set_max_registers_down<Config::kLoadRegisters>();
    if (warp == 0) load_cache(params, smem, row_tile);
    if (warp == 1) load_queries(params, smem, row_tile);
    if (warp == 2) walk_plan(params, smem, worker);
  } else if (warpgroup == 1) {
    ptx::set_max_registers_down<Config::kQkRegisters>();
    run_qk_softmax(params, smem, row_tile);
  } else {
    ptx::set_max_registers_up<Config::kPvRegisters>();
    run_pv(params, smem, warpgroup - 2);
  }
}

}  // namespace snapmla::cuda::sm90
