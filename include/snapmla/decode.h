#pragma once

#include <cstdint>
#include <string>

#include "snapmla/cache.h"
#include "snapmla/quantize.h"
#include "snapmla/tensor.h"

namespace snapmla {

/// What a plan is made for. A query row is one (query token, head): rows = s_q * h_q.
struct PlanSpec {
  std::int64_t b = 0;     ///< requests
  std::int64_t rows = 0;  ///< query rows per request
  /// An upper bound of cache_seqlens; needed only with a split length in tokens (split_tokens or
  /// batch_invariant), to bound the workspace. Longer sequences stay correct.
  std::int64_t max_seqlen = 0;
  Device device{};
};

struct PlanOptions {
  /// A row's result then depends on nothing but the row and its sequence: bitwise the same whatever
  /// the batch mates, page order and s_q. Splits have a fixed length in tokens.
  bool batch_invariant = false;
  /// > 0: every sequence is cut into this many parts (fewer where it has fewer 128-token blocks).
  int forced_splits = 0;
  /// > 0: every sequence is cut each `split_tokens` tokens; a multiple of 128.
  int split_tokens = 0;
  /// Workers to spread the work over; 0 = the device's SMs (CUDA) or threads (CPU).
  int num_sms = 0;
  /// Tokens per P quantization block: 64, 128 (CPU backends only), or 0 for the backend's choice.
  int p_block = 0;
};

/// Tokens per planning block: every split starts at a multiple of this.
inline constexpr int kPlanBlockTokens = 128;
/// Split length of batch-invariant plans that name none.
inline constexpr int kBatchInvariantSplitTokens = 2048;
/// Word 0 of every schedule.
inline constexpr int kPlanVersion = 1;

/// Shapes of a plan's tensors. The schedule's shape depends on rows and num_sms only, never on the
/// batch or the lengths, so that one persistent buffer serves a whole CUDA graph pool.
struct PlanSize {
  std::int64_t schedule_rows = 0;
  std::int64_t schedule_cols = 0;
  std::int64_t num_splits = 0;  ///< b + 1
};

/// Caller-owned plan tensors on the device of the cache.
struct DecodePlan {
  /// i32 [schedule_rows, schedule_cols]. Word 0 = kPlanVersion, word 1 = p_block.
  TensorView schedule;
  /// i32 [b + 1]: partial results before each request; a request that is not split adds none.
  TensorView num_splits;
};

PlanSize plan_size(const PlanSpec& spec, const PlanOptions& options = {});

/// Bytes that decode() needs as workspace for this plan: enough for every length.
std::int64_t workspace_bytes(const PlanSpec& spec, const PlanOptions& options = {});

/// Spreads the work of a batch over the workers: every (request, block) exactly once, in order.
/// cache_seqlens: i32 [b] on the device of the plan; negative lengths count as 0. No host
/// synchronization. A plan stays correct when lengths change afterwards (only the balance suffers),
/// is the same for every layer, and may be used in buffers made for a larger batch: requests past
/// the plan's own b then get out = 0 and lse = -inf.
void plan_decode(const TensorView& cache_seqlens, const PlanSpec& spec, const PlanOptions& options,
                 const DecodePlan& plan, Stream stream = {});

/// How the `cpu` backend computes; every other backend refuses anything but the default.
struct NumericsOptions {
  enum class Form : std::uint8_t {
    log_domain,  ///< block-local: the value scale is added to the logit (docs/numerics.md)
    chained,     ///< the SnapMLA paper's Algorithm 1: running max, P scale from a second row max
  };
  enum class Accumulate : std::uint8_t {
    exact,   ///< fp32
    hopper,  ///< emulates the e4m3 tensor core: 13 fraction bits, truncated
  };
  Form form = Form::log_domain;
  Accumulate accumulate = Accumulate::exact;
  /// With Accumulate::hopper: partial accumulators for the 512 content dimensions of QK; 1, 2 or 4.
  int qk_accumulators = 1;
  /// Divide by the sum of quantized P instead of the sum of p (lse always uses p). Parts of a split
  /// sequence are merged by lse, so results then depend on the splits, by about 1e-4.
  bool normalize_by_quantized_p = false;
  friend bool operator==(const NumericsOptions&, const NumericsOptions&) = default;
};

struct DecodeOptions {
  NumericsOptions numerics;
  /// Optional i32 [1]: incremented for every block-table entry of a valid position that names no
  /// page of the cache. The tokens of such a page are left out of the attention.
  TensorView status;
};

/// Decode attention of every query row over its request's cached tokens:
///   x_j = softmax_scale * (q . k_j), out = softmax(x) V, lse = ln sum exp(x_j), with V = content.
/// plan: from plan_decode with rows = s_q * h_q.   query: from quantize_query.
/// block_table: i32 [b, max_blocks], any row stride; entries past a sequence's end may hold
/// anything. cache_seqlens: i32 [b], including the s_q new tokens, which are already appended.
/// softmax_scale: finite; (192)^-0.5 times any YaRN factor for DeepSeek models. No default.
/// causal: query i sees positions < cache_seqlen - (s_q - 1 - i) (bottom-right aligned).
/// out: bf16|f32 [b, s_q, h_q, 512].   lse: f32 [b, h_q, s_q], any strides, optional; natural log.
/// A row without a valid key gets out = 0 and lse = -inf.
/// workspace: >= workspace_bytes() bytes of any dtype, contiguous, 16-byte aligned, contents
/// ignored. out, lse and workspace must not overlap each other or an input. Allocates nothing on
/// the device, never synchronizes, can be captured in a CUDA graph.
void decode(const DecodePlan& plan, const QuantizedQuery& query, const Cache& cache,
            const TensorView& block_table, const TensorView& cache_seqlens, float softmax_scale,
            bool causal, const TensorView& out, const TensorView& lse, const TensorView& workspace,
            Stream stream = {}, const DecodeOptions& options = {});

/// Merges partial attention results over disjoint key sets (context-parallel ranks, prefixes):
///   lse = ln sum_i exp(lse_i), out = sum_i exp(lse_i - lse) out_i.
/// outs: bf16|f32 [n, b, s_q, h_q, 512]; lses: f32 [n, b, h_q, s_q] (natural log); an lse of -inf,
/// or +inf as FlashMLA writes it, marks an empty part. out: bf16|f32 [b, s_q, h_q, 512]; lse: f32
/// [b, h_q, s_q], optional. Leading dimensions may have any strides.
void merge_states(const TensorView& outs, const TensorView& lses, const TensorView& out,
                  const TensorView& lse = {}, Stream stream = {});

}  // namespace snapmla
