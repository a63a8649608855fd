#pragma once

// Every rule about dtypes, shapes, strides, alignment and devices, once, for all backends. Each
// function throws InvalidArgument naming argument, rule and value, or returns the arguments that
// backends work with; `device` is where the operation runs.

#include "core/ops.h"
#include "snapmla/backend.h"

namespace snapmla {

template <class Args>
struct Validated {
  Args args;
  Device device;
};

Validated<QuantizeQueryArgs> validate_quantize_query(const ContentRope& q,
                                                     const QuantizedQuery& out,
                                                     const QuantizeOptions& options);
Validated<AppendArgs> validate_append(const Cache& cache, const ContentRope& kv,
                                      const TensorView& slots, const AppendOptions& options);
Validated<FetchArgs> validate_fetch(const Cache& cache, const TensorView& slots,
                                    const ContentRope& out, const TensorView& status);
Validated<FetchArgs> validate_fetch(const Cache& cache, const TokenRanges& ranges,
                                    const ContentRope& out, const TensorView& status);
Validated<CopyArgs> validate_copy(const Cache& cache, const TensorView& src, const TensorView& dst,
                                  const TensorView& status);

/// Checks spec and options and fills in num_sms and p_block where they are 0.
PlanOptions resolve_plan_options(const PlanSpec& spec, const PlanOptions& options, int workers,
                                 int p_block);
Validated<PlanArgs> validate_plan(const TensorView& cache_seqlens, const PlanSpec& spec,
                                  const PlanOptions& resolved, const DecodePlan& plan);
void validate_numerics(const NumericsOptions& numerics);
void validate_problem(const DecodeProblem& problem);
Validated<DecodeArgs> validate_decode(const DecodePlan& plan, const QuantizedQuery& query,
                                      const Cache& cache, const TensorView& block_table,
                                      const TensorView& cache_seqlens, float softmax_scale,
                                      bool causal, const TensorView& out, const TensorView& lse,
                                      const TensorView& workspace, const DecodeOptions& options);
/// What a plan in host memory allows to check besides: a plan for something else is then an error,
/// where devices can only clamp.
void check_host_plan(const DecodeArgs& args);
Validated<MergeArgs> validate_merge(const TensorView& outs, const TensorView& lses,
                                    const TensorView& out, const TensorView& lse);

}  // namespace snapmla
