#pragma once

#include "core/ops.h"

namespace snapmla::cpu {

/// The FP8 pipeline of docs/numerics.md section 3: quantized P per block, scale fusion, splits and
/// combine as the GPU does them.
void decode_fp8(const DecodeArgs& args);

}  // namespace snapmla::cpu
