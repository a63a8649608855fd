#pragma once

// Host-side checks of CUDA calls, and the device a call runs on.

#include <cuda_runtime_api.h>

namespace snapmla::cuda {

/// Throws DeviceError "<what>: <CUDA error>" unless `status` is cudaSuccess. Clears CUDA's
/// last-error state, so that the caller's own checks don't find our error a second time.
void check_cuda(cudaError_t status, const char* what);

/// Makes `device` current for a scope and restores the caller's device afterwards.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

/// Whether kernels may start before their predecessor in the stream has finished (programmatic
/// dependent launch). On by default; SNAPMLA_CUDA_PDL=0 in the environment turns it off. Results do
/// not depend on it.
bool pdl_enabled();
void set_pdl_enabled(bool enabled);

}  // namespace snapmla::cuda
