#pragma once

// Conversions through the hardware's own instructions. float_formats.h has the same functions in
// portable code; tests compare all bit patterns.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "core/float_formats.h"

namespace snapmla::cuda {

inline constexpr int kWarpSize = 32;
inline constexpr unsigned kFullMask = 0xffffffffu;

__device__ __forceinline__ int lane_id() { return static_cast<int>(threadIdx.x) % kWarpSize; }

/// Two e4m3 codes, `low` in the low byte; saturating, NaN becomes 0x7f.
__device__ __forceinline__ std::uint32_t e4m3x2_from_floats(float low, float high) {
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}

__device__ __forceinline__ std::uint32_t e4m3x4_from_floats(float a, float b, float c, float d) {
  return e4m3x2_from_floats(a, b) | (e4m3x2_from_floats(c, d) << 16);
}

__device__ __forceinline__ float2 floats_from_e4m3x2(std::uint32_t codes) {
  const __half2_raw halves =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), __NV_E4M3);
  return __half22float2(__half2(halves));
}

/// Two BF16 values, `low` in the low half.
__device__ __forceinline__ std::uint32_t bf16x2_from_floats(float low, float high) {
  return bit_cast_hd<std::uint32_t>(__floats2bfloat162_rn(low, high));
}

__device__ __forceinline__ float2 floats_from_bf16x2(std::uint32_t pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

/// Maximum over the warp of values that are neither negative nor NaN: their bits order like
/// integers.
__device__ __forceinline__ float warp_max_nonnegative(float x) {
  return __uint_as_float(__reduce_max_sync(kFullMask, __float_as_uint(x)));
}

/// Maximum over the warp; NaN is ignored unless all are NaN.
__device__ __forceinline__ float warp_max(float x) {
  for (int step = kWarpSize / 2; step > 0; step /= 2) {
    x = fmaxf(x, __shfl_xor_sync(kFullMask, x, step));
  }
  return x;
}

__device__ __forceinline__ float warp_sum(float x) {
  for (int step = kWarpSize / 2; step > 0; step /= 2) x += __shfl_xor_sync(kFullMask, x, step);
  return x;
}

}  // namespace snapmla::cuda
