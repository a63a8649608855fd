#pragma once

// The decode problems that every backend runs (docs/numerics.md section 6). Lists of data: a test
// picks one, a Memory and a backend.

#include <vector>

#include "support/case.h"

namespace snapmla::test {

/// Every pair of values of heads, query length, lengths, splits, form, P block, page order, dtypes,
/// scale mode and padding occurs in some case. Sequences stay short: up to 8,192 for few rows.
std::vector<Case> pairwise_cases(Data data);

/// 8,192, 33,280 and 131,072 tokens, alone and beside short sequences, forced splits 1, 2, 3,
/// 8, 32. At most `max_rows` query rows a request.
std::vector<Case> long_cases(Data data, std::int64_t max_rows);

/// One case per kind of number that section 6 names.
std::vector<Case> content_cases();

}  // namespace snapmla::test
