#include <cfloat>

#include "core/tile_scheduler.h"
#include "cuda/device/launch.cuh"
#include "cuda/device/ptx/warp.cuh"
#include "cuda/device/row_io.cuh"
#include "cuda/smxx/combine.h"

namespace snapmla::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kWidth = 4;  // columns of a lane in one load
constexpr int kLoadColumns = kWidth * kWarpSize;

/// Partial results are added one by one in groups of kGroup, and the groups one by one, whatever
/// variant does it: a row's bits depend on its partial results alone.
constexpr int kGroup = 16;

/// kGroupWarps warps merge kChunks * 128 columns of one row, each a group of partial results at a
/// time, with 16 loads of a lane in flight. The time is latency (of num_splits, then of lse and the
/// partial results together), so few rows need many warps, and few parts wide ones.
template <int kGroupWarps, int kChunks>
__global__ void __launch_bounds__(kThreads, 2)
    combine_kernel(const __grid_constant__ DecodeArgs a) {
  constexpr int kUnits = kWarps / kGroupWarps;                    // of a block
  constexpr int kParts = kKvLoraRank / (kChunks * kLoadColumns);  // units of a row
  constexpr int kBatch = kGroup / kChunks;
  static_assert(kGroupWarps == 1 || kChunks == 1);
  [[maybe_unused]] __shared__ float group_out[kWarps][kLoadColumns];
  [[maybe_unused]] __shared__ float group_weight[kWarps];
  wait_for_predecessor();
  release_successor();
  const int lane = lane_id(), warp = threadIdx.x / kWarpSize;
  const int member = warp % kGroupWarps, first_warp = warp - member;
  const std::int64_t rows = a.rows();
  const std::int64_t unit = std::int64_t{blockIdx.x} * kUnits + warp / kGroupWarps;
  if (unit >= a.b * rows * kParts) return;
  // b * rows output rows of at least 1 KB: 32 bits hold their number on any device.
  const std::uint32_t global_row = static_cast<std::uint32_t>(unit / kParts);
  const std::uint32_t request = global_row / static_cast<std::uint32_t>(rows);
  const std::int64_t row = global_row - request * static_cast<std::uint32_t>(rows);
  const int column = static_cast<int>(unit % kParts) * kChunks * kLoadColumns + lane * kWidth;

  std::int64_t first = a.num_splits[request], last = a.num_splits[request + 1];
  if (request < reinterpret_cast<const ScheduleHeader*>(a.schedule)->b) {
    if (last - first < 2) return;  // the decode kernel has written this row
    // A stale or foreign plan must not lead outside the workspace.
    first = max(first, std::int64_t{0});
    last = min(last, a.slots);
  } else {
    first = last = 0;
  }

  float max_lse = -FLT_MAX;
  float sum = 0.0f, out[kChunks][kWidth] = {};
  for (std::int64_t round = first; round < last; round += kGroupWarps * kGroup) {
    const std::int64_t group = round + member * kGroup;
    const int count =
        static_cast<int>(max(min(std::int64_t{kGroup}, last - group), std::int64_t{0}));
    float total_weight = 0.0f, total[kChunks][kWidth] = {}, own_weight = 0.0f;
#pragma unroll
    for (int begin = 0; begin < kGroup; begin += kBatch) {
      if (begin > 0 && begin >= count) break;
      Packed<float, kWidth> loaded[kBatch][kChunks];
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        if (begin + k < count) {
          const float* partial =
              a.out_accum + ((group + begin + k) * rows + row) * kKvLoraRank + column;
#pragma unroll
          for (int c = 0; c < kChunks; ++c) {
            loaded[k][c] = Packed<float, kWidth>::load(partial + c * kLoadColumns);
          }
        }
      }
      if (begin == 0) {
        // Behind the loads above, so that they wait for memory together.
        const float own_lse = lane < count ? a.lse_accum[(group + lane) * rows + row] : 0.0f;
        if (round == first) {
          for (std::int64_t slot = first + lane; slot < last; slot += kWarpSize) {
            max_lse = fmaxf(max_lse, a.lse_accum[slot * rows + row]);
          }
          max_lse = warp_max(max_lse);
        }
        own_weight = lane < count ? expf(own_lse - max_lse) : 0.0f;
      }
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        const float weight = __shfl_sync(kFullMask, own_weight, begin + k);
        if (begin + k < count) {
          total_weight += weight;
#pragma unroll
          for (int c = 0; c < kChunks; ++c) {
            float values[kWidth];
            loaded[k][c].unpack(values);
#pragma unroll
            for (int i = 0; i < kWidth; ++i) {
              total[c][i] = fmaf(weight, values[i], total[c][i]);
            }
          }
        }
      }
    }
    if constexpr (kGroupWarps == 1) {
      sum += total_weight;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) out[c][i] += total[c][i];
      }
    } else {
      const int barrier = 1 + first_warp / kGroupWarps;
      Packed<float, kWidth>::pack(total[0]).store(&group_out[warp][lane * kWidth]);
      if (lane == 0) group_weight[warp] = total_weight;
      ptx::named_barrier_sync(barrier, kGroupWarps * kWarpSize);
      if (member == 0) {
        for (int g = 0; g < kGroupWarps && round + g * kGroup < last; ++g) {
          float values[kWidth];
          Packed<float, kWidth>::load(&group_out[first_warp + g][lane * kWidth]).unpack(values);
          sum += group_weight[first_warp + g];
#pragma unroll
          for (int i = 0; i < kWidth; ++i) out[0][i] += values[i];
        }
      }
      ptx::named_barrier_sync(barrier, kGroupWarps * kWarpSize);  // before the next round's stores
    }
  }
  if (member > 0) return;

  const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
  const std::int64_t offset = a.out.offset(request, row / a.h_q, row % a.h_q) + column;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) out[c][i] *= inverse;
    store_values<kWidth>(a.out, offset + c * kLoadColumns, out[c]);
  }
  if (a.lse != nullptr && column == 0) {
    *a.lse_at(request, row) = sum == 0.0f ? -INFINITY : max_lse + logf(sum);
  }
}

template <int kGroupWarps, int kChunks>
void launch_variant(const DecodeArgs& args, cudaStream_t stream, bool pdl) {
  const std::int64_t warps =
      args.b * args.rows() * (kKvLoraRank / (kChunks * kLoadColumns)) * kGroupWarps;
  launch("combine kernel", combine_kernel<kGroupWarps, kChunks>,
         {grid_size(warps, kWarps), kThreads}, stream, pdl, args);
}

}  // namespace

void launch_combine(const DecodeArgs& args, cudaStream_t stream, bool pdl) {
  const std::int64_t rows = args.b * args.rows();
  if (rows == 0) return;
  // The plan is on the device; what fits into the workspace bounds the parts of a request.
  const std::int64_t parts = args.slots / args.b;
  if (rows >= 512) {
    launch_variant<1, 4>(args, stream, pdl);
  } else if (parts < kGroup) {
    launch_variant<1, 1>(args, stream, pdl);
  } else if (parts < 8 * kGroup) {
    launch_variant<2, 1>(args, stream, pdl);
  } else {
    launch_variant<8, 1>(args, stream, pdl);
  }
}

}  // namespace snapmla::cuda
