#include "core/float_formats.h"
#include "cuda/device/math.cuh"
#include "device.h"

namespace snapmla::test {
namespace {

__global__ void spin_kernel(long long nanoseconds) {
  const auto now = [] {
    long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
  };
  const long long end = now() + nanoseconds;
  while (now() < end) __nanosleep(1000);
}

__global__ void compare_conversions_kernel(ConversionMismatches* result) {
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < (1ull << 32);
       i += stride) {
    const auto bits = static_cast<std::uint32_t>(i);
    const float x = __uint_as_float(bits);
    const std::uint32_t e4m3 = e4m3_from_float(x);
    if (cuda::e4m3x2_from_floats(x, 1.0f) != (e4m3 | 0x3800u)) {
      atomicAdd(&result->e4m3, 1ull);
      result->e4m3_example = bits;
    }
    const std::uint32_t bf16 = bf16_from_float(x);
    if (cuda::bf16x2_from_floats(x, 1.0f) != (bf16 | 0x3f800000u)) {
      atomicAdd(&result->bf16, 1ull);
      result->bf16_example = bits;
    }
  }
}

__global__ void compare_e4m3_decoding_kernel(unsigned* mismatches) {
  const std::uint32_t code = threadIdx.x;
  const float2 hardware = cuda::floats_from_e4m3x2(code | (code << 8));
  const float portable = e4m3_to_float(static_cast<std::uint8_t>(code));
  const bool same = isnan(portable) ? isnan(hardware.x) && isnan(hardware.y)
                                    : __float_as_uint(portable) == __float_as_uint(hardware.x) &&
                                          __float_as_uint(portable) == __float_as_uint(hardware.y);
  if (!same) atomicAdd(mismatches, 1u);
}

}  // namespace

void spin(cudaStream_t stream, double milliseconds) {
  spin_kernel<<<1, 1, 0, stream>>>(static_cast<long long>(milliseconds * 1e6));
  EXPECT_EQ(cudaSuccess, cudaGetLastError());
}

ConversionMismatches compare_conversions() {
  Buffer result = Buffer::of(device_memory(), std::vector<ConversionMismatches>(1));
  compare_conversions_kernel<<<4096, 256, 0, device_memory().cuda_stream()>>>(
      static_cast<ConversionMismatches*>(result.data()));
  EXPECT_EQ(cudaSuccess, cudaGetLastError());
  return result.read<ConversionMismatches>()[0];
}

unsigned compare_e4m3_decoding() {
  Buffer result = Buffer::of(device_memory(), std::vector<unsigned>(1));
  compare_e4m3_decoding_kernel<<<1, 256, 0, device_memory().cuda_stream()>>>(
      static_cast<unsigned*>(result.data()));
  EXPECT_EQ(cudaSuccess, cudaGetLastError());
  return result.read<unsigned>()[0];
}

}  // namespace snapmla::test
