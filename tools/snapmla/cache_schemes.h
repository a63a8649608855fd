#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "capture.h"
#include "exact_attention.h"
#include "snapmla/quantize.h"

namespace snapmla::tools {

/// A way to store an MLA cache and to attend over it, for comparison. Everything here is emulated
/// in double; nothing of the library takes part, so it checks the library too.
enum class CacheScheme {
  snapmla,         ///< content e4m3 per token, RoPE BF16 divided by the scale
  rope_fp8,        ///< config A of the paper: the RoPE part e4m3 per token as well
  tensor_static,   ///< config B: content e4m3 with scale 1, RoPE BF16
  tensor_dynamic,  ///< config C: content e4m3 with one scale for the tensor, RoPE BF16
  block,       ///< config D: content e4m3 with a scale per 128 tokens x 128 dimensions, RoPE BF16
  bf16,        ///< everything BF16
  tensor_all,  ///< one e4m3 scale for content and RoPE together, P in e4m3 with unit scale
};

struct SchemeInfo {
  CacheScheme scheme;
  ScaleMode scale_mode;  ///< of per-token scales
  const char* name;
  const char* description;
};
const std::vector<SchemeInfo>& cache_schemes();

/// A capture as a scheme represents it.
struct SchemeTensors {
  std::int64_t tokens = 0, s_q = 0, h_q = 0;
  double softmax_scale = 0;
  std::vector<float> content, rope;   ///< real values after the round trip
  std::vector<float> q_nope, q_rope;  ///< the same of the queries
  std::vector<double> value_scale;    ///< per token, fused into P
  enum class P { exact, bf16, block_dynamic, unit } p = P::exact;
};

/// What is rounded: the cache alone (which isolates the format), or also queries and P as the
/// scheme's kernel has them.
enum class Rounding { cache, everything };

SchemeTensors apply_scheme(const SchemeInfo& info, const Capture& capture, Rounding rounding);

/// Causal attention over a scheme's tensors in double, P rounded as it says.
AttentionResult attend(const SchemeTensors& tensors);

}  // namespace snapmla::tools
