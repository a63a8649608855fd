#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "buffer.h"
#include "capture.h"
#include "exact_attention.h"
#include "snapmla/snapmla.h"

namespace snapmla::tools {

/// How to run a decode step over a capture.
struct RunOptions {
  std::string backend;  ///< empty: the first that is available and supports the problem
  CacheForm form = CacheForm::planes;
  ScaleMode scale = kDefaultScaleMode;
  PlanOptions plan;
  NumericsOptions numerics;
  std::int64_t seed = 1;  ///< of the page order
  int repeats = 3;        ///< decode calls; the fastest is reported
};

/// Forces a backend for the time of a scope.
class ForcedBackend {
 public:
  explicit ForcedBackend(const std::string& name) : previous_(forced_backend()) {
    force_backend(name);
  }
  ~ForcedBackend() { force_backend(previous_); }
  ForcedBackend(const ForcedBackend&) = delete;
  ForcedBackend& operator=(const ForcedBackend&) = delete;

 private:
  std::string previous_;
};

/// The backend that serves `problem`, whose device is replaced by the backend's: `requested`, or
/// the first available one that supports it. Throws Unsupported with the reasons where there is
/// none.
BackendInfo choose_backend(DecodeProblem problem, const std::string& requested);

/// The same for a capture and the options of its run.
BackendInfo choose_backend(const Capture& capture, const RunOptions& options);

struct StepTimes {
  double quantize_query_us = 0, append_kv_us = 0, plan_decode_us = 0, decode_us = 0;
};

/// A capture as a decode step leaves it: its query quantized, its tokens in a paged cache whose
/// pages lie in random order among pages that are not its own. The pool starts as NaN, so that
/// anything read that was not written shows.
class QuantizedCapture {
 public:
  /// Runs quantize_query and append_kv of `backend`.
  QuantizedCapture(const Capture& capture, const RunOptions& options, const BackendInfo& backend);

  /// plan_decode and decode of the backend, on the bytes made above.
  AttentionResult decode();
  /// Float64 attention over the same bytes: the `reference` backend, on the host.
  AttentionResult decode_reference() const;

  const StepTimes& times() const { return times_; }
  std::int64_t pages() const { return pages_; }

 private:
  struct Tensors {
    Buffer codes, q_scale, q_rope;      // the query
    Buffer content, scale, rope, pool;  // planes, or the packed pool
    Buffer block_table, cache_seqlens;

    Tensors copy_to(Device device) const;
    Device device() const { return codes.device(); }
  };

  QuantizedQuery query(const Tensors& tensors) const;
  Cache cache(const Tensors& tensors) const;
  AttentionResult attend(const Tensors& tensors, const PlanOptions& plan_options,
                         const NumericsOptions& numerics, int repeats, StepTimes* times) const;

  std::int64_t tokens_, s_q_, h_q_;
  float softmax_scale_;
  RunOptions options_;
  std::string backend_;
  std::int64_t pages_;
  Tensors tensors_;
  StepTimes times_;
};

}  // namespace snapmla::tools
