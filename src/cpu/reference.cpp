#include "cpu/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/tile_scheduler.h"
#include "core/validate.h"
#include "cpu/data_path.h"

namespace snapmla::cpu {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

/// Keys of one request as real values; positions without a page are left out.
struct Sequence {
  std::vector<std::int64_t> positions;
  std::vector<double> keys;  // [n][576]
};

Sequence gather(const DecodeArgs& a, std::int64_t request) {
  Sequence sequence;
  const std::int64_t end = std::min<std::int64_t>(std::max(a.cache_seqlens[request], 0),
                                                  a.block_table.max_blocks * kPageTokens);
  sequence.positions.reserve(static_cast<std::size_t>(end));
  sequence.keys.reserve(static_cast<std::size_t>(end) * kQkDim);
  for (std::int64_t position = 0; position < end; ++position) {
    const std::int64_t page = a.block_table.page(request, position / kPageTokens);
    if (page < 0 || page >= a.cache.num_pages) {
      if (position % kPageTokens == 0) count_fault(a.status);
      continue;
    }
    const std::int64_t slot = page * kPageTokens + position % kPageTokens;
    const double scale = read_scale(*a.cache.scale_at(slot));
    sequence.positions.push_back(position);
    for (int d = 0; d < kKvLoraRank; ++d) {
      sequence.keys.push_back(e4m3_to_float(a.cache.content_at(slot)[d]) * scale);
    }
    for (int d = 0; d < kRopeDim; ++d) {
      sequence.keys.push_back(bf16_to_float(a.cache.rope_at(slot)[d]) * scale);
    }
  }
  return sequence;
}

void attend(const DecodeArgs& a, const Sequence& sequence, std::int64_t request, std::int64_t row) {
  const std::int64_t q = request * a.rows() + row;
  const double q_scale = read_scale(a.q_scale[q]);
  double query[kQkDim];
  for (int d = 0; d < kKvLoraRank; ++d) {
    query[d] = e4m3_to_float(a.q_codes[q * kKvLoraRank + d]) * q_scale;
  }
  for (int d = 0; d < kRopeDim; ++d) {
    query[kKvLoraRank + d] = bf16_to_float(a.q_rope[q * kRopeDim + d]) * q_scale;
  }

  const std::int64_t end = a.visible_end(request, row / a.h_q);
  std::size_t n = sequence.positions.size();
  while (n > 0 && sequence.positions[n - 1] >= end) --n;
  std::vector<double> logits(n);
  double max = -std::numeric_limits<double>::max();
  for (std::size_t j = 0; j < n; ++j) {
    double dot = 0;
    for (int d = 0; d < kQkDim; ++d) dot += query[d] * sequence.keys[j * kQkDim + d];
    logits[j] = dot * a.softmax_scale;
    max = max_ignoring_nan(max, logits[j]);
  }
  double sum = 0;
  double out[kKvLoraRank] = {};
  for (std::size_t j = 0; j < n; ++j) {
    const double weight = std::exp(logits[j] - max);
    sum += weight;
    for (int d = 0; d < kKvLoraRank; ++d) out[d] += weight * sequence.keys[j * kQkDim + d];
  }
  float result[kKvLoraRank];
  for (int d = 0; d < kKvLoraRank; ++d) {
    result[d] = sum == 0 ? 0.0f : static_cast<float>(out[d] / sum);
  }
  store_output(a.out, a.out.offset(request, row / a.h_q, row % a.h_q), result);
  if (a.lse) {
    *a.lse_at(request, row) = static_cast<float>(sum == 0 ? -kInf : max + std::log(sum));
  }
}

}  // namespace

void decode_reference(const DecodeArgs& a) {
  check_host_plan(a);
  const std::int32_t planned = reinterpret_cast<const ScheduleHeader*>(a.schedule)->b;
  for (std::int64_t request = 0; request < a.b; ++request) {
    const Sequence sequence = request < planned ? gather(a, request) : Sequence{};
    for (std::int64_t row = 0; row < a.rows(); ++row) attend(a, sequence, request, row);
  }
}

}  // namespace snapmla::cpu
