// The public operations: validate, pick a backend, run.

#include <algorithm>

#include "core/backend.h"
#include "core/tile_scheduler.h"
#include "core/validate.h"
#include "snapmla/snapmla.h"

namespace snapmla {
namespace {

PlanOptions resolve(const PlanSpec& spec, const PlanOptions& options) {
  const Backend& backend = select_backend(spec.device);
  const PlanOptions resolved = resolve_plan_options(
      spec, options, backend.default_workers(spec.device), backend.default_p_block());
  if (Support support = backend.supports_plan(resolved); !support.ok) {
    throw Unsupported("backend " + std::string(backend.name()) + ": " + support.reason);
  }
  return resolved;
}

}  // namespace

const char* version() noexcept {
  static const std::string text = std::to_string(kVersionMajor) + "." +
                                  std::to_string(kVersionMinor) + "." +
                                  std::to_string(kVersionPatch);
  return text.c_str();
}

const char* scale_mode_name(ScaleMode mode) noexcept {
  return mode == ScaleMode::exact ? "exact" : "power_of_two";
}

void quantize_query(const ContentRope& q, const QuantizedQuery& out, const QuantizeOptions& options,
                    Stream stream) {
  const auto [args, device] = validate_quantize_query(q, out, options);
  select_backend(device).quantize_query(args, device, stream);
}

void append_kv(const Cache& cache, const ContentRope& kv, const TensorView& slots,
               const AppendOptions& options, Stream stream) {
  const auto [args, device] = validate_append(cache, kv, slots, options);
  select_backend(device).append_kv(args, device, stream);
}

void fetch_dequant(const Cache& cache, const TensorView& slots, const ContentRope& out,
                   const TensorView& status, Stream stream) {
  const auto [args, device] = validate_fetch(cache, slots, out, status);
  select_backend(device).fetch_dequant(args, device, stream);
}

void fetch_dequant(const Cache& cache, const TokenRanges& ranges, const ContentRope& out,
                   const TensorView& status, Stream stream) {
  const auto [args, device] = validate_fetch(cache, ranges, out, status);
  select_backend(device).fetch_dequant(args, device, stream);
}

void copy_tokens(const Cache& cache, const TensorView& src, const TensorView& dst,
                 const TensorView& status, Stream stream) {
  const auto [args, device] = validate_copy(cache, src, dst, status);
  select_backend(device).copy_tokens(args, device, stream);
}

PlanSize plan_size(const PlanSpec& spec, const PlanOptions& options) {
  const PlanOptions resolved = resolve(spec, options);
  return {1 + plan_workers(spec.rows, resolved.num_sms), kScheduleCols, spec.b + 1};
}

std::int64_t workspace_bytes(const PlanSpec& spec, const PlanOptions& options) {
  const ScheduleHeader header = make_schedule_header(spec, resolve(spec, options));
  return max_partial_results(header) * partial_result_bytes(spec.rows);
}

void plan_decode(const TensorView& cache_seqlens, const PlanSpec& spec, const PlanOptions& options,
                 const DecodePlan& plan, Stream stream) {
  const auto [args, device] = validate_plan(cache_seqlens, spec, resolve(spec, options), plan);
  select_backend(device).plan_decode(args, device, stream);
}

void decode(const DecodePlan& plan, const QuantizedQuery& query, const Cache& cache,
            const TensorView& block_table, const TensorView& cache_seqlens, float softmax_scale,
            bool causal, const TensorView& out, const TensorView& lse, const TensorView& workspace,
            Stream stream, const DecodeOptions& options) {
  const auto [args, device] = validate_decode(plan, query, cache, block_table, cache_seqlens,
                                              softmax_scale, causal, out, lse, workspace, options);
  DecodeProblem problem;
  problem.b = args.b;
  problem.s_q = args.s_q;
  problem.h_q = args.h_q;
  problem.form = cache.form;
  problem.out_dtype = out.dtype;
  problem.device = device;
  problem.numerics = args.numerics;
  select_backend(problem).decode(args, device, stream);
}

void merge_states(const TensorView& outs, const TensorView& lses, const TensorView& out,
                  const TensorView& lse, Stream stream) {
  const auto [args, device] = validate_merge(outs, lses, out, lse);
  select_backend(device).merge_states(args, device, stream);
}

Explanation explain(const DecodeProblem& problem) {
  validate_problem(problem);
  const Backend& backend = select_backend(problem);
  Explanation result;
  result.backend = backend.name();
  for (const Backend* other : all_backends()) {
    if (other == &backend) break;
    const Support support = supports(problem, other->name());
    result.passed_over.push_back(std::string(other->name()) + ": " +
                                 (support.ok ? "another backend is forced" : support.reason));
  }

  const PlanSpec spec{problem.b, problem.s_q * problem.h_q, problem.max_seqlen, problem.device};
  const PlanOptions options = resolve_plan_options(
      spec, problem.plan, backend.default_workers(problem.device), backend.default_p_block());
  const ScheduleHeader header = make_schedule_header(spec, options);
  result.row_tiles = ceil_div(spec.rows, kRowTile);
  result.workers = header.workers;
  result.p_block = options.p_block;
  result.workspace_bytes = max_partial_results(header) * partial_result_bytes(spec.rows);
  const double tokens = static_cast<double>(problem.b) * static_cast<double>(problem.max_seqlen);
  result.cache_bytes = problem.b * problem.max_seqlen * kTokenBytes;
  result.flops = 2.0 * static_cast<double>(spec.rows) * tokens * (kQkDim + kKvLoraRank);

  if (header.mode == SplitMode::balanced) {
    const std::vector<std::int32_t> lengths(problem.b,
                                            static_cast<std::int32_t>(problem.max_seqlen));
    std::vector<std::int32_t> schedule((1 + header.workers) * kScheduleCols);
    std::vector<std::int32_t> num_splits(problem.b + 1);
    schedule_tiles(lengths.data(), header, schedule.data(), num_splits.data());
    for (std::int64_t i = 0; i < problem.b; ++i) {
      result.splits = std::max<std::int64_t>(
          {result.splits, num_splits[i + 1] - num_splits[i], std::int64_t{1}});
    }
  } else {
    result.splits =
        fixed_splits(plan_blocks(static_cast<std::int32_t>(problem.max_seqlen)), header);
  }
  backend.explain(problem, result);
  return result;
}

}  // namespace snapmla
