#include "cuda/device/launch.cuh"
#include "cuda/device/math.cuh"
#include "cuda/smxx/copy_tokens.h"

namespace snapmla::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;

/// A warp per token: 16 bytes of content and 4 of RoPE per lane.
__global__ void __launch_bounds__(kThreads) copy_tokens_kernel(const __grid_constant__ CopyArgs a) {
  wait_for_predecessor();
  release_successor();
  const int lane = lane_id();
  const std::int64_t stride = std::int64_t{gridDim.x} * kWarps;
  for (std::int64_t t = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize; t < a.tokens;
       t += stride) {
    const std::int64_t src = a.src[t], dst = a.dst[t];
    if (!a.cache.has_slot(src) || !a.cache.has_slot(dst)) {
      if (a.status != nullptr && lane == 0 && src != -1 && dst != -1) atomicAdd(a.status, 1);
      continue;
    }
    const uint4 content = reinterpret_cast<const uint4*>(a.cache.content_at(src))[lane];
    const std::uint32_t rope = reinterpret_cast<const std::uint32_t*>(a.cache.rope_at(src))[lane];
    const float scale = *a.cache.scale_at(src);
    reinterpret_cast<uint4*>(a.cache.content_at(dst))[lane] = content;
    reinterpret_cast<std::uint32_t*>(a.cache.rope_at(dst))[lane] = rope;
    if (lane == 0) *a.cache.scale_at(dst) = scale;
  }
}

}  // namespace

void launch_copy_tokens(const CopyArgs& args, cudaStream_t stream, bool pdl) {
  if (args.tokens == 0) return;
  launch("copy_tokens kernel", copy_tokens_kernel, {grid_size(args.tokens, kWarps), kThreads},
         stream, pdl, args);
}

}  // namespace snapmla::cuda
