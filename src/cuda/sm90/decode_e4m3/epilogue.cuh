#pragma once

// The end of a chunk: lse from the QK warpgroup, normalised output from the PV warpgroups.

#include "cuda/device/row_io.cuh"
#include "cuda/sm90/decode_e4m3/smem.cuh"
#include "cuda/sm90/decode_e4m3/softmax.cuh"
#include "cuda/sm90/decode_e4m3/value_fragments.cuh"

namespace snapmla::cuda::sm90 {

/// Folds the sums of the quad, writes lse, and leaves for PV where each row goes and what it is
/// divided by.
template <class Config>
__device__ __forceinline__ void finish_rows(const DecodeArgs& a, const ChunkInfo& chunk,
                                            int first_row, const RowPair& rows, int warp,
                                            RowResults<Config>& results) {
  const int lane = lane_id();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = rows.sum[r];
    sum += __shfl_xor_sync(kFullMask, sum, 1);
    sum += __shfl_xor_sync(kFullMask, sum, 2);
    if (lane % 4 != 0) continue;
    const int row = first_row + 8 * r;
    const int at = warp * 16 + lane / 4 + 8 * r;
    results.inverse_sum[at] = sum == 0.0f ? 0.0f : 1.0f / sum;
    results.offset[at] = -1;
    if (row >= a.rows()) continue;
    const float lse = sum == 0.0f ? -INFINITY : (rows.reference[r] + log2f(sum / kE4m3Max)) * kLn2;
    if (chunk.slot >= 0) {
      const std::int64_t partial = chunk.slot * a.rows() + row;
      a.lse_accum[partial] = lse;
      results.offset[at] = partial * kKvLoraRank;
    } else {
      if (a.lse != nullptr) *a.lse_at(chunk.request, row) = lse;
      const int heads = static_cast<int>(a.h_q);
      results.offset[at] = a.out.offset(chunk.request, row / heads, row % heads);
    }
  }
}

/// Each thread holds pairs of adjacent columns; a warp writes 16 columns of a row together.
template <class Config>
__device__ __forceinline__ void write_output(const DecodeArgs& a, bool partial,
                                             const RowResults<Config>& results, int group,
                                             const float (&o)[kSlices][Config::kRows / 2]) {
  const unsigned thread = ptx::thread_index_again();
  const int warp = thread / kWarpSize % 4, lane = thread % kWarpSize;
  const int column = group * kSlices * kSliceColumns + warp * 16 + lane / 4 * 2;
  Rows target = a.out;
  if (partial) {
    target.data = a.out_accum;
    target.dtype = DType::f32;
  }
#pragma unroll
  for (int j = 0; j < Config::kRows / 8; ++j) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int row = 8 * j + lane % 4 * 2 + c;
      const std::int64_t offset = results.offset[row];
      const float inverse = results.inverse_sum[row];
      if (offset < 0) continue;
#pragma unroll
      for (int q = 0; q < kSlices; ++q) {
        const float pair[2] = {inverse == 0.0f ? 0.0f : o[q][4 * j + c] * inverse,
                               inverse == 0.0f ? 0.0f : o[q][4 * j + 2 + c] * inverse};
        store_values<2>(target, offset + column + q * kSliceColumns, pair);
      }
    }
  }
}

}  // namespace snapmla::cuda::sm90
