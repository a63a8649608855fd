#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cache_schemes.h"
#include "capture.h"
#include "error_stats.h"
#include "snapmla/decode.h"

namespace snapmla::tools {

/// How far one scheme is from float64 attention over the BF16 originals.
struct SchemeResult {
  const SchemeInfo* scheme;
  ErrorStats cache;                  ///< only the cache rounded
  ErrorStats everything;             ///< queries and P too
  std::vector<ErrorStats> per_head;  ///< everything rounded, [h_q]
};

/// All schemes on one input. `on_step` is called 1 + 2 * schemes times.
std::vector<SchemeResult> study_schemes(const Capture& capture,
                                        const std::function<void()>& on_step);
inline std::size_t scheme_steps() { return 1 + 2 * cache_schemes().size(); }

/// A way to compute the same attention over the same cache bytes.
struct Pipeline {
  const char* name;
  const char* description;
  NumericsOptions numerics;
  int p_block;
  ScaleMode scale = kDefaultScaleMode;
};
const std::vector<Pipeline>& pipelines();

/// How far one pipeline, unsplit, is from float64 attention over the dequantized cache.
struct PipelineResult {
  const Pipeline* pipeline;
  ErrorStats stats;
};

/// All pipelines of the `cpu` backend on one input. `on_step` is called after each.
std::vector<PipelineResult> study_pipelines(const Capture& capture,
                                            const std::function<void()>& on_step);
inline std::size_t pipeline_steps() { return pipelines().size(); }

}  // namespace snapmla::tools
