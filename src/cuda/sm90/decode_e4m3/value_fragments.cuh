#pragma once

// V^T as the register operand of wgmma, straight from the content tiles: PV is computed as
// O^T = V^T P^T, so that V needs no transposed copy in shared memory.
//
// ldmatrix.trans moves 16-bit pairs: of two adjacent value columns of one token. A byte permute
// then separates the columns. What comes out: row g of the fragment is column 16w + 2g of the
// 64-column slice, row g + 8 is column 16w + 2g + 1 (w = warp, g = lane / 4), and its k order
// within 32 tokens is the one of store_p: byte 16h + 4t + j is token 16h + 8 (j / 2) + 2t + j % 2.

#include "cuda/device/ptx/warp.cuh"
#include "cuda/device/ptx/wgmma.cuh"
#include "cuda/sm90/decode_e4m3/smem.cuh"

namespace snapmla::cuda::sm90 {

inline constexpr int kSliceColumns = 64;  // M of wgmma
inline constexpr int kSlices = 4;         // of one PV warpgroup's 256 columns

/// Value fragments of one slice: two k-steps of 32 tokens.
using ValueFragments = std::uint32_t[2][4];

/// Where this lane reads slice 0 of PV warpgroup `group` within a stage.
__device__ __forceinline__ std::uint32_t value_lane_offset(int group, int warp, int lane) {
  return group * 2 * kTileBytes + lane * kTileRowBytes + ((warp ^ (lane % 8)) << 4);
}

/// Starts loading k-step kStep of one slice, as pairs of columns. stage: shared address of the
/// content; slice: constant after unrolling.
template <int kStep>
__device__ __forceinline__ void load_value_pairs(std::uint32_t stage, std::uint32_t lane_offset,
                                                 int slice, ValueFragments& a) {
  // Slices 2i and 2i + 1 are the two halves of a 128-byte row.
  ptx::ldmatrix_x4_trans(stage + (slice % 2 ? lane_offset ^ 64 : lane_offset) +
                             slice / 2 * kTileBytes + kStep * 32 * kTileRowBytes,
                         a[kStep]);
}

/// Turns the pairs into fragments. Apart from the load, so that its latency passes unnoticed.
__device__ __forceinline__ void separate_columns(ValueFragments& a) {
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const std::uint32_t r[4] = {a[k][0], a[k][1], a[k][2], a[k][3]};
    a[k][0] = __byte_perm(r[0], r[1], 0x6420);
    a[k][1] = __byte_perm(r[0], r[1], 0x7531);
    a[k][2] = __byte_perm(r[2], r[3], 0x6420);
    a[k][3] = __byte_perm(r[2], r[3], 0x7531);
    ptx::pin(a[k]);
  }
}

}  // namespace snapmla::cuda::sm90
