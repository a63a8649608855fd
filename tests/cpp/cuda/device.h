#pragma once

// Device memory for the shared test support, and what tests of CUDA backends start from.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <string>

#include "support/memory.h"

namespace snapmla::test {

/// Fails the test where a CUDA call of the test itself fails.
#define SNAPMLA_TEST_CUDA(call) \
  ASSERT_EQ(cudaSuccess, (call)) << cudaGetErrorString(cudaGetLastError())

/// Memory of device 0 and a stream of its own, which does not wait for the default stream.
class DeviceMemory final : public Memory {
 public:
  DeviceMemory();
  ~DeviceMemory() override;
  Device device() const override { return {DeviceType::cuda, 0}; }
  Stream stream() const override { return {stream_}; }
  cudaStream_t cuda_stream() const { return stream_; }
  void* allocate(std::size_t bytes) override;
  void release(void* data) noexcept override;
  void upload(void* to, const void* from, std::size_t bytes) override;
  void download(void* to, const void* from, std::size_t bytes) override;
  void synchronize();

 private:
  cudaStream_t stream_ = nullptr;
};

/// One for the whole program.
DeviceMemory& device_memory();

/// Skips where the machine has no GPU that the CUDA backends can use.
class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override;
};

/// Keeps `stream` busy for about `milliseconds`.
void spin(cudaStream_t stream, double milliseconds);

/// Over all 2^32 floats, how often the hardware's conversions differ from float_formats.h.
struct ConversionMismatches {
  unsigned long long e4m3 = 0, bf16 = 0;
  unsigned e4m3_example = 0, bf16_example = 0;  ///< bits of one float that differs
};
ConversionMismatches compare_conversions();
/// The same for the 256 e4m3 codes.
unsigned compare_e4m3_decoding();

}  // namespace snapmla::test
