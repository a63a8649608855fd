#include "exact_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "bf16.h"
#include "snapmla/cache.h"

namespace snapmla::tools {
namespace {

double dot(const std::uint16_t* a, const std::vector<double>& b, std::size_t begin, int n) {
  double sum = 0;
  for (int d = 0; d < n; ++d) sum += bf16_to_float(a[d]) * b[begin + d];
  return sum;
}

}  // namespace

AttentionResult exact_attention(const Capture& capture, const std::function<void()>& on_row) {
  const std::vector<std::uint16_t>& q_nope = capture.q_nope;
  const std::vector<std::uint16_t>& q_rope = capture.q_rope;
  std::vector<double> content(capture.content.size()), rope(capture.rope.size());
  std::transform(capture.content.begin(), capture.content.end(), content.begin(), bf16_to_float);
  std::transform(capture.rope.begin(), capture.rope.end(), rope.begin(), bf16_to_float);

  AttentionResult result;
  result.out.resize(q_nope.size());
  std::vector<double> logits(static_cast<std::size_t>(capture.tokens));
  for (std::int64_t row = 0; row < capture.s_q * capture.h_q; ++row) {
    // Query i of s_q is the token at position tokens - s_q + i and sees itself and what precedes
    // it.
    const std::int64_t visible = capture.tokens - capture.s_q + row / capture.h_q + 1;
    double max = -std::numeric_limits<double>::infinity();
    for (std::int64_t j = 0; j < visible; ++j) {
      const double score = dot(&q_nope[row * kKvLoraRank], content, j * kKvLoraRank, kKvLoraRank) +
                           dot(&q_rope[row * kRopeDim], rope, j * kRopeDim, kRopeDim);
      logits[j] = score * capture.softmax_scale;
      max = std::max(max, logits[j]);
    }
    double sum = 0;
    double* out = &result.out[row * kKvLoraRank];
    for (std::int64_t j = 0; j < visible; ++j) {
      const double weight = std::exp(logits[j] - max);
      sum += weight;
      for (int d = 0; d < kKvLoraRank; ++d) out[d] += weight * content[j * kKvLoraRank + d];
    }
    for (int d = 0; d < kKvLoraRank; ++d) out[d] /= sum;
    result.lse.push_back(max + std::log(sum));
    if (on_row) on_row();
  }
  return result;
}

}  // namespace snapmla::tools
