#pragma once

#include <functional>
#include <vector>

#include "capture.h"

namespace snapmla::tools {

/// Attention of every query row of a capture.
struct AttentionResult {
  std::vector<double> out;  ///< [s_q, h_q, 512]
  std::vector<double> lse;  ///< [s_q, h_q], natural log
};

/// Causal attention over the capture's BF16 values in float64: what a decode without any
/// quantization gives. Shares no code with the library. `on_row` is called after each row.
AttentionResult exact_attention(const Capture& capture, const std::function<void()>& on_row = {});

}  // namespace snapmla::tools
