#pragma once

#include <cuda_runtime_api.h>

#include "core/ops.h"

namespace snapmla::cuda {

/// One launch; none for no tokens.
void launch_copy_tokens(const CopyArgs& args, cudaStream_t stream, bool pdl);

}  // namespace snapmla::cuda
