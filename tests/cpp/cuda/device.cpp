#include "device.h"

#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "snapmla/snapmla.h"

namespace snapmla::test {
namespace {

void require(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
  }
}

/// Says in the last line what was not run. gtest owns it.
class SkipReport final : public ::testing::EmptyTestEventListener {
  void OnTestProgramEnd(const ::testing::UnitTest& unit_test) override {
    const bool available = find_backend("cuda").available;
    // ctest reports a program with the next line as skipped, so not where a test failed.
    if (!available && unit_test.failed_test_count() == 0) {
      std::printf("no usable CUDA device: %d tests skipped, %d run\n",
                  unit_test.skipped_test_count(),
                  unit_test.test_to_run_count() - unit_test.skipped_test_count());
    } else if (available) {
      std::printf("on %s: %d tests skipped\n", find_backend("cuda").reason.c_str(),
                  unit_test.skipped_test_count());
    }
  }
};

[[maybe_unused]] const bool registered = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new SkipReport);
  return true;
}();

}  // namespace

DeviceMemory::DeviceMemory() {
  require(cudaSetDevice(0), "cudaSetDevice");
  require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
}

DeviceMemory::~DeviceMemory() { cudaStreamDestroy(stream_); }

void* DeviceMemory::allocate(std::size_t bytes) {
  void* data = nullptr;
  require(cudaMalloc(&data, bytes), "cudaMalloc");
  return data;
}

void DeviceMemory::release(void* data) noexcept { cudaFree(data); }

void DeviceMemory::upload(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  require(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_), "upload");
  synchronize();
}

void DeviceMemory::download(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  require(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_), "download");
  synchronize();
}

void DeviceMemory::synchronize() { require(cudaStreamSynchronize(stream_), "synchronize"); }

DeviceMemory& device_memory() {
  // Never destroyed: at exit the CUDA runtime may be gone first.
  static auto* memory = new DeviceMemory;
  return *memory;
}

void CudaTest::SetUp() {
  const BackendInfo info = find_backend("cuda");
  if (!info.available) GTEST_SKIP() << info.reason;
}

}  // namespace snapmla::test
