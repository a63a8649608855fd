#pragma once

// Rows of bf16 or f32, kWidth values of one lane at a time in single accesses of at most 16 bytes.

#include <cstdint>

#include "core/ops.h"
#include "cuda/device/math.cuh"

namespace snapmla::cuda {

/// Element types of rows: bf16 is carried as its bits.
using Bf16Bits = std::uint16_t;

template <int kBytes>
struct Word;
template <>
struct Word<2> {
  using type = std::uint16_t;
};
template <>
struct Word<4> {
  using type = std::uint32_t;
};
template <>
struct Word<8> {
  using type = uint2;
};
template <>
struct Word<16> {
  using type = uint4;
};

/// kWidth values of type T (Bf16Bits or float) as loaded, not yet converted.
template <class T, int kWidth>
struct Packed {
  using Raw = typename Word<kWidth* static_cast<int>(sizeof(T))>::type;
  Raw raw;

  __device__ __forceinline__ static Packed load(const T* p) {
    return {*reinterpret_cast<const Raw*>(p)};
  }
  __device__ __forceinline__ void store(T* p) const { *reinterpret_cast<Raw*>(p) = raw; }

  __device__ __forceinline__ void unpack(float (&values)[kWidth]) const {
    if constexpr (sizeof(T) == 4) {
      memcpy(values, &raw, sizeof(raw));
    } else if constexpr (kWidth == 1) {
      values[0] = bf16_to_float(raw);
    } else {
      std::uint32_t pairs[kWidth / 2];
      memcpy(pairs, &raw, sizeof(raw));
#pragma unroll
      for (int i = 0; i < kWidth / 2; ++i) {
        const float2 v = floats_from_bf16x2(pairs[i]);
        values[2 * i] = v.x;
        values[2 * i + 1] = v.y;
      }
    }
  }

  __device__ __forceinline__ static Packed pack(const float (&values)[kWidth]) {
    Packed packed;
    if constexpr (sizeof(T) == 4) {
      memcpy(&packed.raw, values, sizeof(packed.raw));
    } else if constexpr (kWidth == 1) {
      packed.raw = bf16_from_float(values[0]);
    } else {
      std::uint32_t pairs[kWidth / 2];
#pragma unroll
      for (int i = 0; i < kWidth / 2; ++i) {
        pairs[i] = bf16x2_from_floats(values[2 * i], values[2 * i + 1]);
      }
      memcpy(&packed.raw, pairs, sizeof(packed.raw));
    }
    return packed;
  }
};

/// Stores kWidth values at element `offset` of rows that are bf16 or f32.
template <int kWidth>
__device__ __forceinline__ void store_values(const Rows& rows, std::int64_t offset,
                                             const float (&values)[kWidth]) {
  if (rows.dtype == DType::bf16) {
    Packed<Bf16Bits, kWidth>::pack(values).store(static_cast<Bf16Bits*>(rows.data) + offset);
  } else {
    Packed<float, kWidth>::pack(values).store(static_cast<float*>(rows.data) + offset);
  }
}

}  // namespace snapmla::cuda
