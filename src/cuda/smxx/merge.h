#pragma once

#include <cuda_runtime_api.h>

#include "core/ops.h"

namespace snapmla::cuda {

/// One launch; none for no rows.
void launch_merge_states(const MergeArgs& args, cudaStream_t stream, bool pdl);

}  // namespace snapmla::cuda
