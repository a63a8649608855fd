#pragma once

#include <cuda_runtime_api.h>

#include "core/ops.h"

namespace snapmla::cuda {

/// Finishes a decode whose kernel has written, for every request with two or more partial results,
/// normalised partial outputs to args.out_accum [slots, rows, 512] and their natural-log lse to
/// args.lse_accum [slots, rows], at the slots that the plan's num_splits gives. Writes out and lse
/// of these requests, and 0 and -inf for requests past the plan's own b; touches no other request.
/// A row's result depends on its partial results alone, bit for bit. One launch; none for b = 0.
void launch_combine(const DecodeArgs& args, cudaStream_t stream, bool pdl);

}  // namespace snapmla::cuda
