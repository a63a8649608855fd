#include "cuda/device/launch.cuh"
#include "cuda/device/row_io.cuh"
#include "cuda/smxx/fetch_dequant.h"

namespace snapmla::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kSlotsBlocksPerSm = 8;   // 64 warps: all that fit
constexpr int kRangesBlocksPerSm = 4;  // needs more than 32 registers

/// One warp reads one token: each lane 8 codes twice and 2 RoPE values, so that loads of 256 bytes
/// and stores of 512 bytes (bf16) are contiguous over the warp.
template <class T>
__device__ __forceinline__ void fetch_token(const FetchArgs& a, std::int64_t slot,
                                            std::int64_t row) {
  constexpr int kWidth = 8;
  constexpr int kChunks = kKvLoraRank / (kWarpSize * kWidth);
  constexpr int kStore = 16 / static_cast<int>(sizeof(T));  // values in a 16-byte store
  const int lane = lane_id();
  const bool valid = a.cache.has_slot(slot);
  uint2 codes[kChunks] = {};
  std::uint32_t rope_pair = 0;
  float scale = 0.0f;
  if (valid) {
    const std::uint8_t* content = a.cache.content_at(slot);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      codes[c] = *reinterpret_cast<const uint2*>(content + (c * kWarpSize + lane) * kWidth);
    }
    rope_pair = *reinterpret_cast<const std::uint32_t*>(a.cache.rope_at(slot) + 2 * lane);
    scale = read_scale(*a.cache.scale_at(slot));
  } else if (a.status != nullptr && lane == 0) {
    atomicAdd(a.status, 1);
  }

  T* content_out = static_cast<T*>(a.content.data) + a.content.offset(row);
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    float values[kWidth];
    const std::uint32_t words[2] = {codes[c].x, codes[c].y};
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) {
      const float2 v = floats_from_e4m3x2((words[i / 2] >> (16 * (i % 2))) & 0xffffu);
      values[2 * i] = v.x * scale;
      values[2 * i + 1] = v.y * scale;
    }
#pragma unroll
    for (int i = 0; i < kWidth; i += kStore) {
      float part[kStore];
#pragma unroll
      for (int k = 0; k < kStore; ++k) part[k] = values[i + k];
      Packed<T, kStore>::pack(part).store(content_out + (c * kWarpSize + lane) * kWidth + i);
    }
  }
  const float2 rope = floats_from_bf16x2(rope_pair);
  const float rope_values[2] = {rope.x * scale, rope.y * scale};
  Packed<T, 2>::pack(rope_values)
      .store(static_cast<T*>(a.rope.data) + a.rope.offset(row) + 2 * lane);
}

template <class T>
__global__ void __launch_bounds__(kThreads, kSlotsBlocksPerSm)
    fetch_slots_kernel(const __grid_constant__ FetchArgs a) {
  wait_for_predecessor();
  release_successor();
  const std::int64_t stride = std::int64_t{gridDim.x} * kWarps;
  std::int64_t row = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  if (row >= a.rows) return;
  std::int64_t slot = a.slots[row];
  while (true) {
    const std::int64_t next = row + stride;
    const std::int64_t next_slot = next < a.rows ? a.slots[next] : -1;  // one token ahead
    fetch_token<T>(a, slot, row);
    if (next >= a.rows) return;
    row = next;
    slot = next_slot;
  }
}

/// All ranges are laid end to end; warp w takes tokens w, w + W, ... of that line. A warp walks the
/// requests 32 at a time, each lane holding one, so that any number of requests and any mix of
/// lengths is spread evenly without knowing a length on the host.
template <class T>
__global__ void __launch_bounds__(kThreads, kRangesBlocksPerSm)
    fetch_ranges_kernel(const __grid_constant__ FetchArgs a) {
  wait_for_predecessor();
  release_successor();
  const int lane = lane_id();
  const std::int64_t warp = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  const std::int64_t stride = std::int64_t{gridDim.x} * kWarps;
  std::int64_t token = warp;  // on the line, relative to the first of the 32 requests in hand
  for (std::int64_t group = 0; group < a.b; group += kWarpSize) {
    // The part of the lane's range that has a row in `out`: k in [first, first + count).
    std::int64_t first = 0, count = 0, outside = 0;
    std::int64_t start = 0, offset = 0;
    if (const std::int64_t request = group + lane; request < a.b) {
      const std::int64_t length = a.lengths[request];
      offset = a.offsets[request];
      start = a.starts[request];
      first = offset < 0 ? -offset : 0;
      const std::int64_t last = length < a.rows - offset ? length : a.rows - offset;
      count = last > first ? last - first : 0;
      outside = length > 0 ? length - count : 0;
    }
    if (a.status != nullptr && warp == 0 && outside > 0) {
      atomicAdd(a.status, static_cast<std::int32_t>(outside));
    }
    std::int64_t end = count;  // inclusive sum over the lanes
    for (int step = 1; step < kWarpSize; step *= 2) {
      const std::int64_t other = __shfl_up_sync(kFullMask, end, step);
      if (lane >= step) end += other;
    }
    const std::int64_t total = __shfl_sync(kFullMask, end, kWarpSize - 1);
    for (; token < total; token += stride) {
      const int owner = __ffs(__ballot_sync(kFullMask, token < end)) - 1;
      const std::int64_t k = __shfl_sync(kFullMask, first + token - (end - count), owner);
      const std::int64_t position = __shfl_sync(kFullMask, start, owner) + k;
      const std::int64_t row = __shfl_sync(kFullMask, offset, owner) + k;
      const bool in_table = position >= 0 && position / kPageTokens < a.block_table.max_blocks;
      const std::int64_t page =
          in_table ? a.block_table.page(group + owner, position / kPageTokens) : -1;
      fetch_token<T>(a, page < 0 ? -1 : page * kPageTokens + position % kPageTokens, row);
    }
    token -= total;
  }
}

}  // namespace

void launch_fetch_dequant(const FetchArgs& args, cudaStream_t stream, bool pdl, int sm_count) {
  const bool bf16 = args.content.dtype == DType::bf16;
  const dim3 block(kThreads);
  const auto resident = [&](int blocks_per_sm) { return std::int64_t{sm_count} * blocks_per_sm; };
  if (!args.by_ranges) {
    if (args.rows == 0) return;
    launch("fetch_dequant kernel", bf16 ? fetch_slots_kernel<Bf16Bits> : fetch_slots_kernel<float>,
           {grid_size(args.rows, kWarps, resident(kSlotsBlocksPerSm)), block}, stream, pdl, args);
    return;
  }
  if (args.b == 0) return;
  // Ranges may name any number of rows outside `out`, so an empty `out` still has faults to count.
  launch("fetch_dequant by ranges kernel",
         bf16 ? fetch_ranges_kernel<Bf16Bits> : fetch_ranges_kernel<float>,
         {grid_size(args.rows > 0 ? args.rows : 1, kWarps, resident(kRangesBlocksPerSm)), block},
         stream, pdl, args);
}

}  // namespace snapmla::cuda
