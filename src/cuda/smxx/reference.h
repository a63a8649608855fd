#pragma once

#include <cuda_runtime_api.h>

#include "core/ops.h"

namespace snapmla::cuda {

/// Attention in fp32 over the dequantized cache, without tensor cores and without splits. Any
/// number of rows. One launch; none for b = 0.
void launch_decode_reference(const DecodeArgs& args, cudaStream_t stream, bool pdl);

}  // namespace snapmla::cuda
