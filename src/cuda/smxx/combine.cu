#include <cfloat>

#include "core/tile_scheduler.h"
#include "cuda/device/launch.cuh"
#include "cuda/device/row_io.cuh"
#include "cuda/smxx/combine.h"

namespace snapmla::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;

/// One warp merges kColumns of the 512 columns of one row. Few rows are spread over many warps by
/// narrow columns; the partial results are always added one by one in their order, so the width
/// changes no bit.
template <int kColumns>
__global__ void __launch_bounds__(kThreads) combine_kernel(const __grid_constant__ DecodeArgs a) {
  constexpr int kPerLane = kColumns / kWarpSize;
  constexpr int kWidth = kPerLane < 4 ? kPerLane : 4;  // per load
  constexpr int kChunks = kPerLane / kWidth;
  constexpr int kParts = kKvLoraRank / kColumns;  // warps per row
  constexpr int kBatch = kPerLane >= 16 ? 2 : 8;  // partial results loaded before they are added
  wait_for_predecessor();
  release_successor();
  const int lane = lane_id();
  const std::int64_t rows = a.rows();
  const std::int64_t planned = reinterpret_cast<const ScheduleHeader*>(a.schedule)->b;
  const std::int64_t stride = std::int64_t{gridDim.x} * kWarps;
  for (std::int64_t unit = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
       unit < a.b * rows * kParts; unit += stride) {
    // b * rows output rows of at least 1 KB: 32 bits hold their number on any device.
    const std::uint32_t global_row = static_cast<std::uint32_t>(unit / kParts);
    const std::uint32_t request = global_row / static_cast<std::uint32_t>(rows);
    const std::int64_t row = global_row - request * static_cast<std::uint32_t>(rows);
    const int column = static_cast<int>(unit % kParts) * kColumns + lane * kWidth;

    std::int64_t first = 0, last = 0;
    if (request < planned) {
      first = a.num_splits[request];
      last = a.num_splits[request + 1];
      if (last - first < 2) continue;  // the decode kernel has written this row
      // A stale or foreign plan must not lead outside the workspace.
      first = max(first, std::int64_t{0});
      last = min(last, a.slots);
    }

    float max_lse = -FLT_MAX;
    for (std::int64_t slot = first + lane; slot < last; slot += kWarpSize) {
      max_lse = fmaxf(max_lse, a.lse_accum[slot * rows + row]);
    }
    max_lse = warp_max(max_lse);

    float sum = 0.0f;
    float out[kChunks][kWidth] = {};
    for (std::int64_t group = first; group < last; group += kWarpSize) {
      // Each lane makes the weight of one partial result of the group.
      const float own_weight =
          group + lane < last ? expf(a.lse_accum[(group + lane) * rows + row] - max_lse) : 0.0f;
      const int count = static_cast<int>(min(std::int64_t{kWarpSize}, last - group));
      for (int begin = 0; begin < count; begin += kBatch) {
        Packed<float, kWidth> loaded[kBatch][kChunks];
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
          if (begin + k < count) {
            const float* partial =
                a.out_accum + ((group + begin + k) * rows + row) * kKvLoraRank + column;
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
            sum += weight;
#pragma unroll
            for (int c = 0; c < kChunks; ++c) {
              float values[kWidth];
              loaded[k][c].unpack(values);
#pragma unroll
              for (int i = 0; i < kWidth; ++i) out[c][i] = fmaf(weight, values[i], out[c][i]);
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

}  // namespace

void launch_combine(const DecodeArgs& args, cudaStream_t stream, bool pdl) {
  const std::int64_t rows = args.b * args.rows();
  if (rows == 0) return;
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
