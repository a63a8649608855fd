#include "cuda/device/check.h"

#include <atomic>
#include <cstdlib>
#include <string>

#include "snapmla/error.h"

namespace snapmla::cuda {
namespace {

std::atomic<bool>& pdl_flag() {
  static std::atomic<bool> flag{[] {
    const char* value = std::getenv("SNAPMLA_CUDA_PDL");
    return value == nullptr || std::string(value) != "0";
  }()};
  return flag;
}

}  // namespace

void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  throw DeviceError(std::string(what) + ": " + cudaGetErrorName(status) + " (" +
                    cudaGetErrorString(status) + ")");
}

DeviceGuard::DeviceGuard(int device) {
  check_cuda(cudaGetDevice(&previous_), "cudaGetDevice");
  if (previous_ == device) return;
  check_cuda(cudaSetDevice(device), "cudaSetDevice");
  changed_ = true;
}

DeviceGuard::~DeviceGuard() {
  if (changed_) cudaSetDevice(previous_);
}

bool pdl_enabled() { return pdl_flag().load(std::memory_order_relaxed); }
void set_pdl_enabled(bool enabled) { pdl_flag().store(enabled, std::memory_order_relaxed); }

}  // namespace snapmla::cuda
