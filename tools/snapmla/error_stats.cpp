#include "error_stats.h"

#include <cmath>

#include "snapmla/error.h"

namespace snapmla::tools {
namespace {

void check_sizes(std::span<const double> actual, std::span<const double> expected) {
  if (actual.size() != expected.size()) {
    throw InvalidArgument("actual", std::to_string(expected.size()) + " values",
                          std::to_string(actual.size()));
  }
}

}  // namespace

void ErrorStats::add(std::span<const double> actual, std::span<const double> expected) {
  check_sizes(actual, expected);
  count_ += static_cast<std::int64_t>(actual.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double a = actual[i], e = expected[i];
    actual_squared_ += a * a;
    expected_squared_ += e * e;
    product_ += a * e;
    difference_squared_ += (a - e) * (a - e);
  }
}

void ErrorStats::add_lse(std::span<const double> actual, std::span<const double> expected) {
  check_sizes(actual, expected);
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double error = actual[i] == expected[i] ? 0 : std::abs(actual[i] - expected[i]);
    // NaN once is NaN for good: no comparison with it holds.
    if (error > max_lse_error_ || std::isnan(error)) max_lse_error_ = error;
  }
}

double ErrorStats::relative_l2() const {
  if (difference_squared_ == 0) return 0;
  return std::sqrt(difference_squared_ / expected_squared_);
}

double ErrorStats::one_minus_cosine() const {
  if (difference_squared_ == 0) return 0;
  return 1 - product_ / std::sqrt(actual_squared_ * expected_squared_);
}

double ErrorStats::rmse() const {
  return count_ == 0 ? 0 : std::sqrt(difference_squared_ / static_cast<double>(count_));
}

double ErrorStats::norm_ratio() const {
  if (difference_squared_ == 0) return 1;
  return std::sqrt(actual_squared_ / expected_squared_);
}

}  // namespace snapmla::tools
