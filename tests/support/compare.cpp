#include "support/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace snapmla::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

double dot(const float* a, const float* b) {
  double lanes[8] = {};
  for (int d = 0; d < kQkDim; d += 8) {
    for (int k = 0; k < 8; ++k) lanes[k] += static_cast<double>(a[d + k]) * b[d + k];
  }
  double sum = 0;
  for (double lane : lanes) sum += lane;
  return sum;
}

template <class Expected>
Difference compare_any(const std::vector<float>& actual, const std::vector<Expected>& expected) {
  Difference difference;
  if (actual.size() != expected.size()) {
    difference.same_nonfinite = false;
    difference.relative_l2 = kInf;
    return difference;
  }
  double error = 0, actual_norm = 0, expected_norm = 0, product = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double x = actual[i], y = static_cast<double>(static_cast<float>(expected[i]));
    if (!std::isfinite(x) || !std::isfinite(y)) {
      difference.same_nonfinite =
          difference.same_nonfinite && ((std::isnan(x) && std::isnan(y)) || x == y);
      continue;
    }
    const double exact = expected[i];
    error += (x - exact) * (x - exact);
    actual_norm += x * x;
    expected_norm += exact * exact;
    product += x * exact;
  }
  if (expected_norm > 0) {
    difference.relative_l2 = std::sqrt(error / expected_norm);
    difference.norm_ratio = std::sqrt(actual_norm / expected_norm);
    difference.cosine =
        actual_norm > 0 ? product / std::sqrt(actual_norm) / std::sqrt(expected_norm) : 0;
  } else if (actual_norm > 0) {
    difference.relative_l2 = kInf;
  }
  return difference;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b, std::size_t& where) {
  if (a.size() != b.size()) {
    where = std::min(a.size(), b.size());
    return false;
  }
  for (where = 0; where < a.size(); ++where) {
    if (std::memcmp(&a[where], &b[where], sizeof(T)) != 0) return false;
  }
  return true;
}

}  // namespace

Attention attend(const Problem& p, const std::vector<float>& q, const std::vector<float>& kv) {
  const Case& c = p.spec;
  Attention result;
  result.out.assign(c.b() * c.rows() * kKvLoraRank, 0.0);
  result.lse.assign(c.b() * c.rows(), -kInf);
  std::vector<double> logits;
  for (std::int64_t request = 0; request < c.b(); ++request) {
    const std::int64_t length = p.first_token[request + 1] - p.first_token[request];
    const float* keys = kv.data() + p.first_token[request] * kQkDim;
    for (std::int64_t i = 0; i < c.s_q; ++i) {
      const std::int64_t n = std::max<std::int64_t>(length - (c.causal ? c.s_q - 1 - i : 0), 0);
      if (n == 0) continue;
      for (std::int64_t h = 0; h < c.h_q; ++h) {
        const std::int64_t row = (request * c.s_q + i) * c.h_q + h;
        logits.resize(n);
        double max = -kInf;
        bool nan = false;
        for (std::int64_t j = 0; j < n; ++j) {
          logits[j] = dot(&q[row * kQkDim], keys + j * kQkDim) * p.softmax_scale;
          max = std::max(max, logits[j]);
          nan = nan || std::isnan(logits[j]);
          if (std::isfinite(logits[j])) {
            result.max_logit = std::max(result.max_logit, std::fabs(logits[j]));
          }
        }
        double sum = 0;
        double* out = &result.out[row * kKvLoraRank];
        for (std::int64_t j = 0; j < n; ++j) {
          const double weight = nan ? std::nan("") : std::exp(logits[j] - max);
          sum += weight;
          if (weight == 0) continue;
          for (int d = 0; d < kKvLoraRank; ++d) out[d] += weight * keys[j * kQkDim + d];
        }
        for (int d = 0; d < kKvLoraRank; ++d) out[d] /= sum;
        result.lse[(request * c.h_q + h) * c.s_q + i] = max + std::log(sum);
      }
    }
  }
  return result;
}

Attention attend_stored(const Pipeline& pipeline) {
  const Stored stored = pipeline.stored();
  return attend(pipeline.problem(), stored.q, stored.kv);
}

Difference compare(const std::vector<float>& actual, const std::vector<double>& expected) {
  return compare_any(actual, expected);
}
Difference compare(const std::vector<float>& actual, const std::vector<float>& expected) {
  return compare_any(actual, expected);
}

::testing::AssertionResult within(const Result& actual, const Attention& expected,
                                  const Gate& gate) {
  const Difference out = compare(actual.out, expected.out);
  const Difference lse = compare(actual.lse, expected.lse);
  double lse_error = 0;
  for (std::size_t i = 0; i < std::min(actual.lse.size(), expected.lse.size()); ++i) {
    if (std::isfinite(actual.lse[i]) && std::isfinite(expected.lse[i])) {
      lse_error = std::max(lse_error, std::fabs(actual.lse[i] - expected.lse[i]));
    }
  }
  const double lse_gate = gate.lse + gate.lse_of_logit * expected.max_logit;
  const bool ok = out.same_nonfinite && lse.same_nonfinite && out.relative_l2 <= gate.out &&
                  std::fabs(out.norm_ratio - 1) <= gate.norm && lse_error <= lse_gate;
  auto result = ok ? ::testing::AssertionSuccess() : ::testing::AssertionFailure();
  return result << "out: relative L2 " << out.relative_l2 << " (gate " << gate.out
                << "), norm ratio " << out.norm_ratio << " (gate 1 +- " << gate.norm << "), cosine "
                << out.cosine << "; lse: error " << lse_error << " (gate " << lse_gate
                << "); positions of inf and NaN: out " << (out.same_nonfinite ? "same" : "DIFFER")
                << ", lse " << (lse.same_nonfinite ? "same" : "DIFFER");
}

::testing::AssertionResult identical(const Result& actual, const Result& expected) {
  std::size_t where = 0;
  if (!same_bits(actual.out, expected.out, where)) {
    return ::testing::AssertionFailure()
           << "out differs first at " << where << " (row " << where / kKvLoraRank << ", dim "
           << where % kKvLoraRank << ") of " << expected.out.size() << ": "
           << (where < actual.out.size() ? actual.out[where] : 0.0f) << " instead of "
           << (where < expected.out.size() ? expected.out[where] : 0.0f);
  }
  if (!same_bits(actual.lse, expected.lse, where)) {
    return ::testing::AssertionFailure()
           << "lse differs first at " << where << ": "
           << (where < actual.lse.size() ? actual.lse[where] : 0.0f) << " instead of "
           << (where < expected.lse.size() ? expected.lse[where] : 0.0f);
  }
  return ::testing::AssertionSuccess();
}

Result rows_of(const Result& result, const Case& c, std::int64_t request) {
  const std::int64_t out = c.rows() * kKvLoraRank, lse = c.rows();
  return {{result.out.begin() + request * out, result.out.begin() + (request + 1) * out},
          {result.lse.begin() + request * lse, result.lse.begin() + (request + 1) * lse}};
}

::testing::AssertionResult all_finite(const std::vector<float>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) {
      return ::testing::AssertionFailure() << "value " << i << " is " << values[i];
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace snapmla::test
