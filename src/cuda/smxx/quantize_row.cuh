#pragma once

// One warp quantizes one token or query row: 512 content values and 64 RoPE values, held in
// registers between the search for the largest magnitude and the conversion.

#include "core/ops.h"
#include "cuda/device/row_io.cuh"

namespace snapmla::cuda {

template <class T>
class QuantizedRow {
  static constexpr int kWidth = 16 / static_cast<int>(sizeof(T));  // values in a 16-byte load
  static constexpr int kChunks = kKvLoraRank / (kWarpSize * kWidth);
  static constexpr int kRopeWidth = kRopeDim / kWarpSize;

 public:
  /// Starts all loads of the row; nothing is waited for until finish().
  __device__ __forceinline__ void load(const T* content, const T* rope) {
    const int lane = lane_id();
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      content_[c] = Packed<T, kWidth>::load(content + (c * kWarpSize + lane) * kWidth);
    }
    rope_ = Packed<T, kRopeWidth>::load(rope + lane * kRopeWidth);
  }

  __device__ __forceinline__ void finish(ScaleMode mode, std::uint8_t* codes, float* scale,
                                         std::uint16_t* rope) const {
    const int lane = lane_id();
    float amax = 0.0f;  // and fmaxf ignores NaN
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      float values[kWidth];
      content_[c].unpack(values);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) amax = fmaxf(amax, fabsf(values[i]));
    }
    const float s = scale_from_amax(warp_max_nonnegative(amax), mode);
    const float inverse = 1.0f / s;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      float values[kWidth];
      content_[c].unpack(values);
      std::uint32_t words[kWidth / 4];
#pragma unroll
      for (int i = 0; i < kWidth / 4; ++i) {
        words[i] = e4m3x4_from_floats(values[4 * i] * inverse, values[4 * i + 1] * inverse,
                                      values[4 * i + 2] * inverse, values[4 * i + 3] * inverse);
      }
      typename Word<kWidth>::type raw;
      memcpy(&raw, words, sizeof(raw));
      *reinterpret_cast<typename Word<kWidth>::type*>(codes + (c * kWarpSize + lane) * kWidth) =
          raw;
    }
    float values[kRopeWidth];
    rope_.unpack(values);
    *reinterpret_cast<std::uint32_t*>(rope + lane * kRopeWidth) =
        bf16x2_from_floats(values[0] * inverse, values[1] * inverse);
    if (lane == 0) *scale = s;
  }

 private:
  Packed<T, kWidth> content_[kChunks];
  Packed<T, kRopeWidth> rope_;
};

}  // namespace snapmla::cuda
