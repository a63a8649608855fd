#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "support/pipeline.h"

namespace snapmla::test {

/// float64 attention over real values, computed here and nowhere else in the project.
struct Attention {
  std::vector<double> out;  ///< [b, s_q, h_q, 512]
  std::vector<double> lse;  ///< [b, h_q, s_q]
  double max_logit = 0;     ///< largest |logit|
};
Attention attend(const Problem& problem, const std::vector<float>& q, const std::vector<float>& kv);
/// What the format costs is judged against the originals,
inline Attention attend_originals(const Problem& p) { return attend(p, p.q, p.kv); }
/// what the arithmetic costs against the stored values.
Attention attend_stored(const Pipeline& pipeline);

/// Errors over a whole tensor, as docs/numerics.md section 5 judges them.
struct Difference {
  double relative_l2 = 0;
  double norm_ratio = 1;  ///< |actual| / |expected|
  double cosine = 1;
  bool same_nonfinite = true;  ///< the same positions hold NaN, +Inf and -Inf
};
Difference compare(const std::vector<float>& actual, const std::vector<double>& expected);
Difference compare(const std::vector<float>& actual, const std::vector<float>& expected);

/// docs/numerics.md section 5.
struct Gate {
  double out = 1e-4;        ///< relative L2
  double norm = 1;          ///< |norm ratio - 1|
  double lse = 1e-4;        ///< absolute, plus
  double lse_of_logit = 0;  ///< times the largest |logit|
};
inline constexpr double kStrongLse = 0x1p-11, kWeakLse = 0x1p-8;

::testing::AssertionResult within(const Result& actual, const Attention& expected,
                                  const Gate& gate);
/// Bit for bit, NaN payloads included.
::testing::AssertionResult identical(const Result& actual, const Result& expected);
/// The two results of one request each, or of the same requests.
Result rows_of(const Result& result, const Case& c, std::int64_t request);
::testing::AssertionResult all_finite(const std::vector<float>& values);

}  // namespace snapmla::test
