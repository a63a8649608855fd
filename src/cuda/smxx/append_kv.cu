#include "cuda/device/launch.cuh"
#include "cuda/smxx/append_kv.h"
#include "cuda/smxx/quantize_row.cuh"

namespace snapmla::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;

template <class T>
__global__ void __launch_bounds__(kThreads, 12)
    append_kv_kernel(const __grid_constant__ AppendArgs a) {
  wait_for_predecessor();
  release_successor();
  const std::int64_t stride = std::int64_t{gridDim.x} * kWarps;
  for (std::int64_t t = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize; t < a.tokens;
       t += stride) {
    // The row is loaded before its slot is known to be written: one memory latency, not two.
    QuantizedRow<T> quantized;
    quantized.load(static_cast<const T*>(a.content.data) + a.content.offset(t),
                   static_cast<const T*>(a.rope.data) + a.rope.offset(t));
    const std::int64_t slot = a.slots[t];
    if (slot == -1 || (a.has_pad_slot && slot == a.pad_slot)) continue;
    if (!a.cache.has_slot(slot)) {
      if (a.status != nullptr && lane_id() == 0) atomicAdd(a.status, 1);
      continue;
    }
    quantized.finish(a.mode, a.cache.content_at(slot), a.cache.scale_at(slot),
                     a.cache.rope_at(slot));
  }
}

}  // namespace

void launch_append_kv(const AppendArgs& args, cudaStream_t stream, bool pdl) {
  if (args.tokens == 0) return;
  const auto kernel =
      args.content.dtype == DType::bf16 ? append_kv_kernel<Bf16Bits> : append_kv_kernel<float>;
  launch("append_kv kernel", kernel, {grid_size(args.tokens, kWarps), kThreads}, stream, pdl, args);
}

}  // namespace snapmla::cuda
