#pragma once

// A decode problem as data: what tests/cases lists and every backend runs.

#include <cstdint>
#include <string>
#include <vector>

#include "snapmla/snapmla.h"

namespace snapmla::test {

/// What the numbers of a problem look like.
enum class Data {
  gaussian,      ///< content and RoPE of unit variance, queries 0.7: logits of a few units
  with_mean,     ///< values with a mean of 1 per dimension and nearly flat attention
  peaked,        ///< logits of tens: a few tokens carry each row
  exact_p,       ///< quantization, QK and P are exact: every backend must equal float64 to 1e-4
  equal_keys,    ///< all keys of a request are the same
  zero_content,  ///< some tokens and queries have zero content and RoPE of +-3
  amplitudes_in_block,     ///< content from 1e-30 to 1e30 in one block (finite is what matters)
  amplitudes_in_sequence,  ///< content from 1e-9 to 1e12 in one sequence
  mixed_content,           ///< content from 1e-3 to 300, token by token (bugs.md B06)
  rope_outliers,           ///< RoPE of 1e3 with content within +-10 (the paper's Figure 3)
  large_rope,              ///< content 0.01 with RoPE 50
  small_rope,              ///< content 50 with RoPE 0.01
};
const char* data_name(Data data);

struct Case {
  std::string name;
  std::vector<std::int32_t> lengths;  ///< one a request; negative counts as 0
  std::int64_t s_q = 1;
  std::int64_t h_q = 16;
  Data data = Data::gaussian;
  float softmax_scale = 1.0f / 24.0f;  ///< 576^-0.5; Data::exact_p sets its own
  bool causal = true;
  CacheForm form = CacheForm::planes;
  std::int64_t page_stride = kPackedPageBytes;  ///< packed form
  bool permuted = true;                         ///< pages in random order
  bool padded = false;                          ///< gaps between rows of out, lse, block table
  ScaleMode scale = kDefaultScaleMode;
  DType in_dtype = DType::bf16;
  DType out_dtype = DType::f32;
  PlanOptions plan;
  std::int64_t plan_max_seqlen = 0;  ///< 0: the longest of `lengths`
  std::uint64_t seed = 1;

  std::int64_t b() const { return static_cast<std::int64_t>(lengths.size()); }
  std::int64_t rows() const { return s_q * h_q; }
};

/// All fields in one line: with the seed, enough to repeat a failure.
std::string to_string(const Case& c);

inline void PrintTo(const Case& c, std::ostream* os) { *os << to_string(c); }

}  // namespace snapmla::test
