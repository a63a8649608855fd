#pragma once

// The bulk copy engine (TMA) and the proxy fence that its readers and writers need.

#include <cuda.h>

#include <cstdint>

#include "cuda/device/ptx/mbarrier.cuh"

namespace snapmla::ptx {

/// L2 eviction hints, as encoded by createpolicy.fractional with fraction 1.
enum class L2Hint : std::uint64_t {
  evict_normal = 0x1000000000000000ull,
  evict_first = 0x12F0000000000000ull,
  evict_last = 0x14F0000000000000ull,
};

__device__ __forceinline__ void tma_prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

__device__ __forceinline__ void tma_load_3d(void* destination, const CUtensorMap* map,
                                            std::uint64_t* barrier, int x, int y, int z,
                                            L2Hint hint) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(destination)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z),
      "l"(static_cast<std::uint64_t>(hint))
      : "memory");
}

/// A contiguous copy; source, destination and size are multiples of 16 bytes.
__device__ __forceinline__ void bulk_load(void* destination, const void* source, int bytes,
                                          std::uint64_t* barrier, L2Hint hint) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(destination)),
      "l"(source), "r"(bytes), "r"(shared_address(barrier)), "l"(static_cast<std::uint64_t>(hint))
      : "memory");
}

/// Orders this thread's ordinary shared-memory accesses before later ones of the tensor cores and
/// the copy engine (which go through the async proxy). A barrier must follow.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace snapmla::ptx
