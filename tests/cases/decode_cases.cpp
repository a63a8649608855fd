#include "cases/decode_cases.h"

#include <algorithm>
#include <array>
#include <set>

#include "support/random.h"

namespace snapmla::test {
namespace {

const std::vector<std::int64_t> kHeads = {1, 2, 8, 12, 16, 20, 24, 40, 64, 128};
const std::vector<std::int64_t> kQueryLengths = {1, 2, 3, 4, 8};
const std::vector<std::vector<std::int32_t>> kLengths = {
    {0, 1, 63, 64}, {65, 127, 0, 128}, {129, 64}, {1, 640, 0}, {3, 385, 2}, {-5, 130, 0}};
const std::vector<int> kSplits = {0, 1, 2, 3, 8, 32};                            // 0: balanced
const std::vector<std::int64_t> kPageStrides = {0, kPackedPageBytes, 64 * 656};  // 0: planes

constexpr int kParameters = 11;
using Choice = std::array<int, kParameters>;
const Choice kLevels = {10, 5, 6, 6, 3, 2, 2, 2, 2, 2, 2};

Case make_case(const Choice& choice, Data data, int index) {
  Case c;
  c.name = std::string(data_name(data)) + "_" + std::to_string(index);
  c.data = data;
  c.h_q = kHeads[choice[0]];
  c.s_q = kQueryLengths[choice[1]];
  c.lengths = kLengths[choice[2]];
  c.plan.forced_splits = kSplits[choice[3]];
  c.plan.num_sms = 5;  // fewer workers than splits, and cuts in odd places
  if (kPageStrides[choice[4]] > 0) {
    c.form = CacheForm::packed;
    c.page_stride = kPageStrides[choice[4]];
  }
  c.plan.p_block = choice[5] ? 128 : 64;
  c.permuted = choice[6] == 0;
  c.causal = choice[7] == 0;
  c.in_dtype = choice[8] ? DType::f32 : DType::bf16;
  c.scale = choice[9] ? ScaleMode::power_of_two : ScaleMode::exact;
  c.padded = choice[10] == 0;
  c.seed = 1000 + index;
  return c;
}

/// Greedy all-pairs: each row covers as many uncovered pairs as the best of some random tries.
std::vector<Choice> pairwise_choices() {
  std::set<std::array<int, 4>> uncovered;  // parameter, value, parameter, value
  for (int p = 0; p < kParameters; ++p) {
    for (int q = p + 1; q < kParameters; ++q) {
      for (int v = 0; v < kLevels[p]; ++v) {
        for (int w = 0; w < kLevels[q]; ++w) uncovered.insert({p, v, q, w});
      }
    }
  }
  Random random(7);
  std::vector<Choice> choices;
  while (!uncovered.empty()) {
    Choice best{};
    int best_count = -1;
    for (int attempt = 0; attempt < 60; ++attempt) {
      Choice choice{};
      for (int p = 0; p < kParameters; ++p) {
        choice[p] = static_cast<int>(random.integer(0, kLevels[p] - 1));
      }
      // Start from a pair that is still open, so that the loop ends.
      const auto& open = *uncovered.begin();
      choice[open[0]] = open[1];
      choice[open[2]] = open[3];
      int count = 0;
      for (int p = 0; p < kParameters; ++p) {
        for (int q = p + 1; q < kParameters; ++q) {
          count += static_cast<int>(uncovered.count({p, choice[p], q, choice[q]}));
        }
      }
      if (count > best_count) {
        best_count = count;
        best = choice;
      }
    }
    for (int p = 0; p < kParameters; ++p) {
      for (int q = p + 1; q < kParameters; ++q) uncovered.erase({p, best[p], q, best[q]});
    }
    choices.push_back(best);
  }
  return choices;
}

}  // namespace

std::vector<Case> pairwise_cases(Data data) {
  std::vector<Case> cases;
  for (const Choice& choice : pairwise_choices()) {
    cases.push_back(make_case(choice, data, static_cast<int>(cases.size())));
  }
  return cases;
}

std::vector<Case> long_cases(Data data, std::int64_t max_rows) {
  struct Shape {
    std::vector<std::int32_t> lengths;
    std::int64_t s_q, h_q;
    int splits, num_sms, p_block;
  };
  const std::vector<Shape> shapes = {
      {{8192, 0, 65}, 1, 8, 0, 16, 64},  {{8192}, 4, 2, 3, 4, 128},
      {{1, 8192, 129}, 2, 4, 32, 7, 64}, {{33280}, 1, 8, 0, 132, 128},
      {{64, 33280}, 2, 2, 8, 16, 64},    {{131072}, 1, 4, 1, 1, 64},
      {{131072, 63}, 1, 2, 0, 132, 128}, {{0, 131072}, 2, 1, 2, 3, 64},
  };
  std::vector<Case> cases;
  for (const Shape& shape : shapes) {
    if (shape.s_q * shape.h_q > max_rows) continue;
    Case c;
    c.name = std::string(data_name(data)) + "_long_" + std::to_string(cases.size());
    c.data = data;
    c.lengths = shape.lengths;
    c.s_q = shape.s_q;
    c.h_q = shape.h_q;
    c.plan.forced_splits = shape.splits;
    c.plan.num_sms = shape.num_sms;
    c.plan.p_block = shape.p_block;
    c.form = cases.size() % 2 ? CacheForm::packed : CacheForm::planes;
    c.seed = 2000 + cases.size();
    cases.push_back(c);
  }
  return cases;
}

std::vector<Case> content_cases() {
  std::vector<Case> cases;
  for (Data data : {Data::gaussian, Data::with_mean, Data::peaked, Data::equal_keys,
                    Data::zero_content, Data::amplitudes_in_block, Data::amplitudes_in_sequence,
                    Data::mixed_content, Data::rope_outliers, Data::large_rope, Data::small_rope}) {
    for (int p_block : {64, 128}) {
      Case c;
      c.name = std::string(data_name(data)) + "_p" + std::to_string(p_block);
      c.data = data;
      c.lengths = {200, 1, 0, 1500, 64};
      c.s_q = p_block == 64 ? 1 : 2;
      c.h_q = 8;
      c.plan.p_block = p_block;
      c.plan.num_sms = 6;
      c.form = p_block == 64 ? CacheForm::planes : CacheForm::packed;
      c.seed = 3000 + static_cast<int>(data);
      cases.push_back(c);
    }
  }
  return cases;
}

}  // namespace snapmla::test
