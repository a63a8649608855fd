#pragma once

#include "core/ops.h"

namespace snapmla::cpu {

/// Attention in double over the dequantized inputs, one row at a time: the oracle. Splits play no
/// role in it.
void decode_reference(const DecodeArgs& args);

}  // namespace snapmla::cpu
