#pragma once

#include <cuda_runtime_api.h>

#include "core/ops.h"

namespace snapmla::cuda::sm90 {

/// Decodes with the FP8 kernel for sm_90a: writes out and lse of requests in one piece, and partial
/// results of the others for launch_combine(). One launch; allocates nothing.
void launch_decode_e4m3(const DecodeArgs& args, cudaStream_t stream, bool pdl);

/// The variant that launch_decode_e4m3() takes for this many query rows a request.
const char* decode_e4m3_variant(std::int64_t rows);

}  // namespace snapmla::cuda::sm90
