#pragma once

// Quantize, append, fetch, copy and merge in plain loops: what every CPU backend uses.

#include "core/ops.h"

namespace snapmla::cpu {

void quantize_query(const QuantizeQueryArgs& args);
void append_kv(const AppendArgs& args);
void fetch_dequant(const FetchArgs& args);
void copy_tokens(const CopyArgs& args);
void merge_states(const MergeArgs& args);

/// Adds one to a status counter, if there is one; threads may do so at once.
void count_fault(std::int32_t* status);

/// 512 output values to an out row of bf16 or f32.
void store_output(const Rows& out, std::int64_t offset, const float* values);

}  // namespace snapmla::cpu
