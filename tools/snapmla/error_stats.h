#pragma once

#include <cstdint>
#include <span>

#include "exact_attention.h"

namespace snapmla::tools {

/// How far results are from what they should be, over whole tensors. Results with NaN give NaN.
class ErrorStats {
 public:
  void add(std::span<const double> actual, std::span<const double> expected);
  void add_lse(std::span<const double> actual, std::span<const double> expected);
  void add(const AttentionResult& actual, const AttentionResult& expected) {
    add(actual.out, expected.out);
    add_lse(actual.lse, expected.lse);
  }

  /// ||actual - expected|| / ||expected||
  double relative_l2() const;
  double one_minus_cosine() const;
  double rmse() const;
  /// ||actual|| / ||expected||
  double norm_ratio() const;
  /// max |actual - expected| of the log-sum-exps
  double max_lse_error() const { return max_lse_error_; }

 private:
  std::int64_t count_ = 0;
  double actual_squared_ = 0, expected_squared_ = 0, product_ = 0, difference_squared_ = 0;
  double max_lse_error_ = 0;
};

/// What attention over an FP8 cache may differ from exact attention (docs/numerics.md).
struct Gate {
  double relative_l2, one_minus_cosine;

  // Written so that NaN fails.
  bool holds(const ErrorStats& stats) const {
    return stats.relative_l2() <= relative_l2 && stats.one_minus_cosine() <= one_minus_cosine;
  }
};

/// Against float64 attention over the dequantized cache: the cost of FP8 probabilities.
inline constexpr Gate kGateVsDequantized{1e-2, 6e-5};
/// Against float64 attention over the BF16 originals: the cost of the format.
inline constexpr Gate kGateVsBf16{3e-2, 5e-4};

}  // namespace snapmla::tools
