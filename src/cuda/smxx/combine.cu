#include <cfloat>

#include "core/tile_scheduler.h"
#include "cuda/device/launch.cuh"
#include "cuda/device/row_io.cuh"
#include "cuda/smxx/combine.h"

namespace snapmla::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;

/// Partial results are added one by one in groups of kGroup, and the groups one by one, whatever
/// kernel does it and however many threads it has: a row's bits depend on its partial results
/// alone.
constexpr int kGroup = 16;

/// The slots of one row's partial results.
struct Slots {
  std::int64_t first = 0, last = 0;
  bool merge = true;  // false: one piece, which the decode kernel has written
};

__device__ __forceinline__ Slots slots_of(const DecodeArgs& a, std::uint32_t request) {
  Slots slots;
  if (request >= reinterpret_cast<const ScheduleHeader*>(a.schedule)->b) return slots;
  slots.first = a.num_splits[request];
  slots.last = a.num_splits[request + 1];
  slots.merge = slots.last - slots.first >= 2;
  // A stale or foreign plan must not lead outside the workspace.
  slots.first = max(slots.first, std::int64_t{0});
  slots.last = min(slots.last, a.slots);
  return slots;
}

__device__ __forceinline__ float largest_lse(const DecodeArgs& a, const Slots& slots,
                                             std::int64_t row) {
  float max_lse = -FLT_MAX;
  for (std::int64_t slot = slots.first + lane_id(); slot < slots.last; slot += kWarpSize) {
    max_lse = fmaxf(max_lse, a.lse_accum[slot * a.rows() + row]);
  }
  return warp_max(max_lse);
}

/// Many rows. One warp merges kColumns of the 512 columns of one row; fewer rows are spread over
/// more warps by narrower columns.
template <int kColumns>
__global__ void __launch_bounds__(kThreads) combine_kernel(const __grid_constant__ DecodeArgs a) {
  constexpr int kPerLane = kColumns / kWarpSize;
  constexpr int kWidth = kPerLane < 4 ? kPerLane : 4;  // per load
  constexpr int kChunks = kPerLane / kWidth;
  constexpr int kParts = kKvLoraRank / kColumns;  // warps per row
  constexpr int kBatch = kPerLane >= 16 ? 2 : 8;  // partial results loaded before they are added
  static_assert(kGroup % kBatch == 0 && kWarpSize % kGroup == 0);
  wait_for_predecessor();
  release_successor();
  const int lane = lane_id();
  const std::int64_t rows = a.rows();
  const std::int64_t stride = std::int64_t{gridDim.x} * kWarps;
  for (std::int64_t unit = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
       unit < a.b * rows * kParts; unit += stride) {
    // b * rows output rows of at least 1 KB: 32 bits hold their number on any device.
    const std::uint32_t global_row = static_cast<std::uint32_t>(unit / kParts);
    const std::uint32_t request = global_row / static_cast<std::uint32_t>(rows);
    const std::int64_t row = global_row - request * static_cast<std::uint32_t>(rows);
    const int column = static_cast<int>(unit % kParts) * kColumns + lane * kWidth;
    const Slots slots = slots_of(a, request);
    if (!slots.merge) continue;
    const float max_lse = largest_lse(a, slots, row);

    float sum = 0.0f, group_sum = 0.0f;
    float out[kChunks][kWidth] = {}, group_out[kChunks][kWidth] = {};
    for (std::int64_t base = slots.first; base < slots.last; base += kWarpSize) {
      // Each lane makes the weight of one of 32 partial results.
      const float own_weight =
          base + lane < slots.last ? expf(a.lse_accum[(base + lane) * rows + row] - max_lse) : 0.0f;
      const int count = static_cast<int>(min(std::int64_t{kWarpSize}, slots.last - base));
      for (int begin = 0; begin < count; begin += kBatch) {
        Packed<float, kWidth> loaded[kBatch][kChunks];
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
          if (begin + k < count) {
            const float* partial =
                a.out_accum + ((base + begin + k) * rows + row) * kKvLoraRank + column;
#pragma unroll
            for (int c = 0; c < kChunks; ++c) {
              loaded[k][c] = Packed<float, kWidth>::load(partial + c * kWarpSize * kWidth);
            }
          }
        }
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
          const float weight = __shfl_sync(kFullMask, own_weight, begin + k);
          if (begin + k < count) {
            group_sum += weight;
#pragma unroll
            for (int c = 0; c < kChunks; ++c) {
              float values[kWidth];
              loaded[k][c].unpack(values);
#pragma unroll
              for (int i = 0; i < kWidth; ++i) {
                group_out[c][i] = fmaf(weight, values[i], group_out[c][i]);
              }
            }
          }
        }
        if ((begin + kBatch) % kGroup == 0 || begin + kBatch >= count) {
          sum += group_sum;
          group_sum = 0.0f;
#pragma unroll
          for (int c = 0; c < kChunks; ++c) {
#pragma unroll
            for (int i = 0; i < kWidth; ++i) {
              out[c][i] += group_out[c][i];
              group_out[c][i] = 0.0f;
            }
          }
        }
      }
    }

    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    const std::int64_t offset = a.out.offset(request, row / a.h_q, row % a.h_q) + column;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) out[c][i] *= inverse;
      store_values<kWidth>(a.out, offset + c * kWarpSize * kWidth, out[c]);
    }
    if (a.lse != nullptr && column == 0) {
      *a.lse_at(request, row) = sum == 0.0f ? -INFINITY : max_lse + logf(sum);
    }
  }
}

constexpr int kWideWarps = 8;  // of combine_split_kernel: groups at a time
constexpr int kWideColumns = 128;

/// Few rows in many parts: a block merges 128 columns of one row, a warp one group at a time with
/// all of its loads in flight. What bounds it is the latency of L2, not its throughput.
__global__ void __launch_bounds__(kWideWarps* kWarpSize)
    combine_split_kernel(const __grid_constant__ DecodeArgs a) {
  constexpr int kParts = kKvLoraRank / kWideColumns;
  constexpr int kWidth = kWideColumns / kWarpSize;
  __shared__ float group_out[kWideWarps][kWideColumns];
  __shared__ float group_sum[kWideWarps];
  wait_for_predecessor();
  release_successor();
  const int warp = threadIdx.x / kWarpSize, lane = lane_id();
  const std::int64_t rows = a.rows();
  const std::uint32_t global_row = blockIdx.x / kParts;
  const std::uint32_t request = global_row / static_cast<std::uint32_t>(rows);
  const std::int64_t row = global_row - request * static_cast<std::uint32_t>(rows);
  const int first_column = static_cast<int>(blockIdx.x % kParts) * kWideColumns;
  const Slots slots = slots_of(a, request);
  if (!slots.merge) return;

  float max_lse = 0.0f;
  float out = 0.0f, sum = 0.0f;  // of column threadIdx.x
  for (std::int64_t round = slots.first; round < slots.last || round == slots.first;
       round += kWideWarps * kGroup) {
    const std::int64_t begin = round + warp * kGroup;
    const int count =
        static_cast<int>(max(min(std::int64_t{kGroup}, slots.last - begin), std::int64_t{0}));
    const float* partial =
        a.out_accum + (begin * rows + row) * kKvLoraRank + first_column + lane * kWidth;
    Packed<float, kWidth> loaded[kGroup];
#pragma unroll
    for (int k = 0; k < kGroup; ++k) {
      if (k < count) loaded[k] = Packed<float, kWidth>::load(partial + k * rows * kKvLoraRank);
    }
    const float own_lse = lane < count ? a.lse_accum[(begin + lane) * rows + row] : 0.0f;
    if (round == slots.first) max_lse = largest_lse(a, slots, row);
    const float own_weight = lane < count ? expf(own_lse - max_lse) : 0.0f;
    float values[kWidth], total[kWidth] = {}, total_weight = 0.0f;
#pragma unroll
    for (int k = 0; k < kGroup; ++k) {
      const float weight = __shfl_sync(kFullMask, own_weight, k);
      if (k < count) {
        loaded[k].unpack(values);
        total_weight += weight;
#pragma unroll
        for (int i = 0; i < kWidth; ++i) total[i] = fmaf(weight, values[i], total[i]);
      }
    }
    Packed<float, kWidth>::pack(total).store(&group_out[warp][lane * kWidth]);
    if (lane == 0) group_sum[warp] = total_weight;
    __syncthreads();
    if (threadIdx.x < kWideColumns) {
      for (int g = 0; g < kWideWarps && round + g * kGroup < slots.last; ++g) {
        out += group_out[g][threadIdx.x];
        sum += group_sum[g];
      }
    }
    __syncthreads();  // before the next round overwrites them
  }
  if (threadIdx.x >= kWideColumns) return;
  const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
  const float result[1] = {out * inverse};
  store_values<1>(
      a.out, a.out.offset(request, row / a.h_q, row % a.h_q) + first_column + threadIdx.x, result);
  if (a.lse != nullptr && first_column == 0 && threadIdx.x == 0) {
    *a.lse_at(request, row) = sum == 0.0f ? -INFINITY : max_lse + logf(sum);
  }
}

}  // namespace

void launch_combine(const DecodeArgs& args, cudaStream_t stream, bool pdl) {
  const std::int64_t rows = args.b * args.rows();
  if (rows == 0) return;
  if (rows <= 1024 && args.slots > kGroup / 2 * args.b) {
    launch("combine kernel", combine_split_kernel,
           {static_cast<unsigned>(rows * (kKvLoraRank / kWideColumns)), kWideWarps * kWarpSize},
           stream, pdl, args);
    return;
  }
  const auto enqueue = [&](auto kernel, int columns) {
    launch("combine kernel", kernel, {grid_size(rows * (kKvLoraRank / columns), kWarps), kThreads},
           stream, pdl, args);
  };
  if (rows >= 2048) {
    enqueue(combine_kernel<512>, 512);
  } else if (rows >= 512) {
    enqueue(combine_kernel<128>, 128);
  } else {
    enqueue(combine_kernel<32>, 32);
  }
}

}  // namespace snapmla::cuda
