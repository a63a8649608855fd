#include <cfloat>

#include "cuda/device/launch.cuh"
#include "cuda/device/row_io.cuh"
#include "cuda/smxx/merge.h"

namespace snapmla::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;

/// A warp per row, or, of bf16 parts, 256 columns of it: 16-byte loads, as many in flight as fit.
template <class T>
__global__ void __launch_bounds__(kThreads) merge_kernel(const __grid_constant__ MergeArgs a) {
  constexpr int kWidth = 16 / static_cast<int>(sizeof(T));
  constexpr int kChunks = 2;
  constexpr int kColumns = kChunks * kWidth * kWarpSize;
  constexpr int kParts = kKvLoraRank / kColumns;  // warps per row
  wait_for_predecessor();
  release_successor();
  const int lane = lane_id();
  const std::int64_t units = a.b * a.s_q * a.h_q * kParts;
  const std::int64_t stride = std::int64_t{gridDim.x} * kWarps;
  for (std::int64_t unit = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
       unit < units; unit += stride) {
    // Output rows are at least 1 KB: 32 bits hold their number on any device.
    const std::uint32_t global_row = static_cast<std::uint32_t>(unit / kParts);
    const std::uint32_t token = global_row / static_cast<std::uint32_t>(a.h_q);
    const std::int64_t h = global_row - token * static_cast<std::uint32_t>(a.h_q);
    const std::int64_t i = token / static_cast<std::uint32_t>(a.s_q);
    const std::int64_t j = token - i * static_cast<std::uint32_t>(a.s_q);
    const int column = static_cast<int>(unit % kParts) * kColumns + lane * kWidth;
    const float* lses = a.lses + i * a.lses_stride[1] + h * a.lses_stride[2] + j * a.lses_stride[3];
    const auto lse_of = [&](std::int64_t n) {
      const float lse = lses[n * a.lses_stride[0]];
      return lse == INFINITY ? -INFINITY : lse;
    };

    float max_lse = -FLT_MAX;
    for (std::int64_t n = lane; n < a.n; n += kWarpSize) max_lse = fmaxf(max_lse, lse_of(n));
    max_lse = warp_max(max_lse);

    float sum = 0.0f;
    float out[kChunks][kWidth] = {};
#pragma unroll 2
    for (std::int64_t n = 0; n < a.n; ++n) {
      const T* part = static_cast<const T*>(a.outs.data) + a.outs.offset(n, i, j, h) + column;
      Packed<T, kWidth> loaded[kChunks];
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        loaded[c] = Packed<T, kWidth>::load(part + c * kWarpSize * kWidth);
      }
      const float lse = lse_of(n);
      if (lse == -INFINITY) continue;  // an empty part's output may hold anything
      const float weight = expf(lse - max_lse);
      sum += weight;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        float values[kWidth];
        loaded[c].unpack(values);
#pragma unroll
        for (int k = 0; k < kWidth; ++k) out[c][k] = fmaf(weight, values[k], out[c][k]);
      }
    }

    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    const std::int64_t offset = a.out.offset(i, j, h) + column;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      // In pieces of 4 values, 16 bytes in f32.
#pragma unroll
      for (int k = 0; k < kWidth; k += 4) {
        const float part[4] = {out[c][k] * inverse, out[c][k + 1] * inverse,
                               out[c][k + 2] * inverse, out[c][k + 3] * inverse};
        store_values<4>(a.out, offset + c * kWarpSize * kWidth + k, part);
      }
    }
    if (a.lse != nullptr && column == 0) {
      a.lse[i * a.lse_stride[0] + h * a.lse_stride[1] + j * a.lse_stride[2]] =
          sum == 0.0f ? -INFINITY : max_lse + logf(sum);
    }
  }
}

}  // namespace

void launch_merge_states(const MergeArgs& args, cudaStream_t stream, bool pdl) {
  const std::int64_t rows = args.b * args.s_q * args.h_q;
  if (rows == 0) return;
  const bool bf16 = args.outs.dtype == DType::bf16;
  const std::int64_t units = rows * (bf16 ? 1 : 2);
  launch("merge_states kernel", bf16 ? merge_kernel<Bf16Bits> : merge_kernel<float>,
         {grid_size(units, kWarps), kThreads}, stream, pdl, args);
}

}  // namespace snapmla::cuda
