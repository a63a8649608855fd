#include "cuda/device/launch.cuh"
#include "cuda/smxx/quantize_query.h"
#include "cuda/smxx/quantize_row.cuh"

namespace snapmla::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;

template <class T>
__global__ void __launch_bounds__(kThreads)
    quantize_query_kernel(const __grid_constant__ QuantizeQueryArgs a) {
  wait_for_predecessor();
  release_successor();
  const std::int64_t rows = a.b * a.s_q * a.h_q;
  const std::int64_t stride = std::int64_t{gridDim.x} * kWarps;
  for (std::int64_t row = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize; row < rows;
       row += stride) {
    // Output rows are 512 bytes, so fewer than 2^32 of them fit on any device: 32-bit divisions.
    const std::uint32_t h_q = static_cast<std::uint32_t>(a.h_q);
    const std::uint32_t token = static_cast<std::uint32_t>(row) / h_q;
    const std::uint32_t h = static_cast<std::uint32_t>(row) - token * h_q;
    const std::uint32_t i = token / static_cast<std::uint32_t>(a.s_q);
    const std::uint32_t j = token - i * static_cast<std::uint32_t>(a.s_q);
    QuantizedRow<T> quantized;
    quantized.load(static_cast<const T*>(a.content.data) + a.content.offset(i, j, h),
                   static_cast<const T*>(a.rope.data) + a.rope.offset(i, j, h));
    quantized.finish(a.mode,
                     static_cast<std::uint8_t*>(a.out_codes.data) + a.out_codes.offset(i, j, h),
                     static_cast<float*>(a.out_scale.data) + a.out_scale.offset(i, j, h),
                     static_cast<std::uint16_t*>(a.out_rope.data) + a.out_rope.offset(i, j, h));
  }
}

}  // namespace

void launch_quantize_query(const QuantizeQueryArgs& args, cudaStream_t stream, bool pdl) {
  const std::int64_t rows = args.b * args.s_q * args.h_q;
  if (rows == 0) return;
  const auto kernel = args.content.dtype == DType::bf16 ? quantize_query_kernel<Bf16Bits>
                                                        : quantize_query_kernel<float>;
  launch("quantize_query kernel", kernel, {grid_size(rows, kWarps), kThreads}, stream, pdl, args);
}

}  // namespace snapmla::cuda
