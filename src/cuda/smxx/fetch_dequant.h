#pragma once

#include <cuda_runtime_api.h>

#include "core/ops.h"

namespace snapmla::cuda {

/// By slots or by ranges. One launch; none where there is nothing to fetch.
void launch_fetch_dequant(const FetchArgs& args, cudaStream_t stream, bool pdl, int sm_count);

}  // namespace snapmla::cuda
