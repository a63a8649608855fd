#pragma once

// Host side of one variant of the kernel.

#include <cudaTypedefs.h>

#include <algorithm>
#include <string>

#include "cuda/sm90/decode_e4m3/kernel.cuh"
#include "snapmla/error.h"

namespace snapmla::cuda::sm90 {

/// cuTensorMapEncodeTiled, asked from the driver so that the library doesn't link against it.
inline PFN_cuTensorMapEncodeTiled_v12000 encode_function() {
  static const auto function = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                cudaEnableDefault, &found),
               "cudaGetDriverEntryPointByVersion");
    if (found != cudaDriverEntryPointSuccess || entry == nullptr) {
      throw DeviceError("cuTensorMapEncodeTiled: the driver doesn't have it; needs CUDA 12.0");
    }
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(entry);
  }();
  return function;
}

/// A map of bytes [depth][rows][width], loaded in boxes of 128 bytes x box_rows.
inline CUtensorMap make_map(const char* name, const void* base, std::int64_t width,
                            std::int64_t rows, std::int64_t depth, std::int64_t depth_stride,
                            int box_rows) {
  CUtensorMap map;
  const cuuint64_t dims[3] = {static_cast<cuuint64_t>(width), static_cast<cuuint64_t>(rows),
                              static_cast<cuuint64_t>(std::max<std::int64_t>(depth, 1))};
  // With one page (or request) its stride may be anything, 0 too.
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(width),
                                 static_cast<cuuint64_t>(depth > 1 ? depth_stride : rows * width)};
  const cuuint32_t box[3] = {kTileRowBytes, static_cast<cuuint32_t>(box_rows), 1};
  const cuuint32_t element_strides[3] = {1, 1, 1};
  // 256-byte L2 promotion was measured 9 % slower on shuffled pages.
  const CUresult status = encode_function()(
      &map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, const_cast<void*>(base), dims, strides, box,
      element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    // Plain strings: fmt 9's compile-time checks don't get through nvcc 13 in C++20.
    throw DeviceError("cuTensorMapEncodeTiled of " + std::string(name) + ": error " +
                      std::to_string(static_cast<int>(status)) + " (depth " +
                      std::to_string(depth) + ", stride " + std::to_string(depth_stride) + ")");
  }
  return map;
}

template <class Config>
void launch_variant(const DecodeArgs& args, cudaStream_t stream, bool pdl) {
  static_assert(sizeof(SharedStorage<Config>) <= 227 * 1024);
  Params params;
  params.args = args;
  params.row_tiles = static_cast<int>(ceil_div(args.rows(), kRowTile));
  const CacheAccess& cache = args.cache;
  // A cache without pages is never read, but a map needs an address.
  const void* content =
      cache.num_pages > 0 ? static_cast<const void*>(cache.content) : args.q_codes;
  const void* rope = cache.num_pages > 0 ? static_cast<const void*>(cache.rope) : args.q_codes;
  params.content = make_map("content", content, kKvLoraRank, kPageTokens, cache.num_pages,
                            cache.content_page_stride, kPageTokens);
  params.rope = make_map("rope", rope, kRopeDim * 2, kPageTokens, cache.num_pages,
                         cache.rope_page_stride, kPageTokens);
  params.q_codes = make_map("query codes", args.q_codes, kKvLoraRank, args.rows(), args.b,
                            args.rows() * kKvLoraRank, Config::kRows);
  params.q_rope = make_map("query rope", args.q_rope, kRopeDim * 2, args.rows(), args.b,
                           args.rows() * kRopeDim * 2, Config::kRows);

  auto kernel = decode_e4m3_kernel<Config>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  sizeof(SharedStorage<Config>)),
             "cudaFuncSetAttribute of the decode kernel");
  cudaLaunchConfig_t config{};
  const std::int64_t workers = args.schedule_rows - 1;
  config.gridDim = dim3(static_cast<unsigned>(workers * params.row_tiles));
  config.blockDim = dim3(Config::kThreads);
  config.dynamicSmemBytes = sizeof(SharedStorage<Config>);
  config.stream = stream;
  cudaLaunchAttribute attributes[2] = {};
  config.attrs = attributes;
  if (pdl) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs].val.programmaticStreamSerializationAllowed = 1;
    ++config.numAttrs;
  }
  if (params.row_tiles % 2 == 0) {
    // Two row tiles read the same pages. As a cluster they run at the same time and place, so that
    // the second reads L2: 4.4 TB/s of unique data against 3.3 without (multicast was slower
    // still).
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs].val.clusterDim = {2, 1, 1};
    ++config.numAttrs;
  }
  check_cuda(cudaLaunchKernelEx(&config, kernel, params), "FP8 decode kernel");
}

}  // namespace snapmla::cuda::sm90
