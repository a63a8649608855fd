#pragma once

#include <cuda_runtime_api.h>

#include "core/ops.h"

namespace snapmla::cuda {

/// One launch of one block: writes the words that schedule_tiles() writes.
void launch_plan_decode(const PlanArgs& args, cudaStream_t stream, bool pdl);

}  // namespace snapmla::cuda
