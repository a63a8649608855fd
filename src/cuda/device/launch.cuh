#pragma once

// Launching kernels, and programmatic dependent launch (PDL).
//
// With PDL a kernel may start while its predecessor in the stream still runs. The rule that makes
// this safe for any mix of our kernels and other people's: every thread of every kernel calls
// wait_for_predecessor() before its first access to global memory, reads and writes alike. As a
// grid then can't finish before its predecessor has, the order holds along the whole chain.
//
// Memory must not be read through the non-coherent path (__ldg, const __restrict__): the compiler
// may move such loads above the wait.

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>

#include "cuda/device/check.h"

namespace snapmla::cuda {

/// Waits until the preceding kernel has finished and its writes are visible. Without PDL it returns
/// at once.
__device__ __forceinline__ void wait_for_predecessor() { cudaGridDependencySynchronize(); }

/// Lets the next kernel in the stream start as soon as every block of this one has come here; it
/// will wait in its own wait_for_predecessor().
__device__ __forceinline__ void release_successor() { cudaTriggerProgrammaticLaunchCompletion(); }

struct LaunchShape {
  dim3 grid, block;
  std::size_t shared_bytes = 0;
};

/// Enqueues `kernel`; throws DeviceError naming it when the launch fails.
template <class... Params, class... Args>
void launch(const char* name, void (*kernel)(Params...), const LaunchShape& shape,
            cudaStream_t stream, bool pdl, const Args&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = pdl ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, kernel, args...), name);
}

/// Blocks for `items` at `per_block` each, within the limit of gridDim.x and, where given, `limit`.
/// Kernels loop over the grid, so that fewer blocks are still correct.
inline unsigned grid_size(std::int64_t items, std::int64_t per_block,
                          std::int64_t limit = std::numeric_limits<std::int32_t>::max()) {
  const std::int64_t blocks = (items + per_block - 1) / per_block;
  return static_cast<unsigned>(blocks < limit ? blocks : limit);
}

}  // namespace snapmla::cuda
