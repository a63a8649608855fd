#pragma once

#include <cstdint>
#include <vector>

#include "support/case.h"

namespace snapmla::test {

/// A case with its numbers, on the host. Everything follows from the case's fields and seed.
struct Problem {
  Case spec;
  float softmax_scale = 0;
  std::vector<float> q;   ///< [b, s_q, h_q, 576], representable in bf16
  std::vector<float> kv;  ///< [tokens, 576] of all requests in order, representable in bf16
  std::vector<std::int64_t> first_token;  ///< [b + 1]: rows of kv of each request
  std::vector<std::int64_t> slots;        ///< [tokens]
  std::vector<std::int32_t> block_table;  ///< [b, table_stride]; tails hold -1 and 2^31 - 1
  std::int64_t max_blocks = 0;
  std::int64_t table_stride = 0;
  std::int64_t num_pages = 0;  ///< page 0 and some others belong to no request

  std::int64_t tokens() const { return first_token.back(); }
  PlanSpec plan_spec(Device device = {}) const;
  /// The same problem with only these requests.
  Problem select(const std::vector<std::int64_t>& requests) const;
};

Problem make_problem(const Case& c);

/// Gives the problem's pages other ids ("contiguous", reversed or random), data untouched.
enum class PageOrder { contiguous, reversed, random };
void assign_pages(Problem& problem, PageOrder order, std::uint64_t seed);

}  // namespace snapmla::test
