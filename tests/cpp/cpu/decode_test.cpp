// The cases of docs/numerics.md section 6 on the CPU backends, with the gates of section 5.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "cases/decode_cases.h"
#include "core/float_formats.h"
#include "support/compare.h"
#include "support/random.h"

namespace snapmla::test {
namespace {

std::string case_name(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }

/// Every third case where programs run under sanitizers.
std::vector<Case> thinned(std::vector<Case> cases) {
#ifdef SNAPMLA_SANITIZED
  std::vector<Case> kept;
  for (std::size_t i = 0; i < cases.size(); i += 3) kept.push_back(cases[i]);
  return kept;
#else
  return cases;
#endif
}

/// The reference keeps a sequence in double: 600 MB at 131,072 tokens.
bool fits_reference(const Problem& problem) { return problem.tokens() <= 40000; }

// --- exact data: the test that bites -------------------------------------------------------------

class ExactP : public ::testing::TestWithParam<Case> {};

TEST_P(ExactP, EveryBackendEqualsFloat64) {
  const Problem problem = make_problem(GetParam());
  const Attention expected = attend_originals(problem);
  for (const char* backend : {"cpu", "reference"}) {
    if (std::string(backend) == "reference" && !fits_reference(problem)) continue;
    ScopedBackend scope(backend);
    EXPECT_TRUE(within(run(problem), expected, {})) << backend << " " << to_string(GetParam());
  }
}

INSTANTIATE_TEST_SUITE_P(Pairwise, ExactP,
                         ::testing::ValuesIn(thinned(pairwise_cases(Data::exact_p))), case_name);
#ifdef SNAPMLA_SANITIZED
INSTANTIATE_TEST_SUITE_P(Long, ExactP, ::testing::Values(long_cases(Data::exact_p, 8)[1]),
                         case_name);
#else
INSTANTIATE_TEST_SUITE_P(Long, ExactP, ::testing::ValuesIn(long_cases(Data::exact_p, 8)),
                         case_name);
#endif

// bf16 output is the f32 output, rounded once.
TEST(ExactPBf16, OutputIsRoundedOnce) {
  Case c = pairwise_cases(Data::exact_p)[3];
  const Result f32 = run(make_problem(c));
  c.out_dtype = DType::bf16;
  const Result bf16 = run(make_problem(c));
  ASSERT_EQ(bf16.out.size(), f32.out.size());
  for (std::size_t i = 0; i < f32.out.size(); ++i) {
    ASSERT_EQ(bf16.out[i], bf16_to_float(bf16_from_float(f32.out[i]))) << i << to_string(c);
  }
}

// --- what FP8 P costs ----------------------------------------------------------------------------

/// float64 on the dequantized inputs. Flat attention over zero-mean values is e4m3's own rounding.
Gate p_gate(const Problem& problem) {
  Gate gate;
  gate.lse_of_logit = kStrongLse;
  gate.out = 3.2e-2;
  if (problem.spec.data == Data::with_mean) {
    bool is_long = true;
    for (std::int32_t length : problem.spec.lengths) is_long = is_long && length >= 1024;
    gate.out = is_long ? 3e-3 : 2.5e-2;
    gate.norm = is_long ? 5e-3 : 4e-2;
  }
  return gate;
}

/// The reference does nothing but round its float64 results to f32.
constexpr Gate kReferenceGate{1e-6, 1e-6, 1e-6, 0x1p-23};

class Float64 : public ::testing::TestWithParam<Case> {};

TEST_P(Float64, OnTheDequantizedInputs) {
  const Problem problem = make_problem(GetParam());
  Pipeline pipeline(problem);
  pipeline.append();
  pipeline.quantize();
  pipeline.plan();
  const Attention expected = attend_stored(pipeline);
  pipeline.decode();
  EXPECT_TRUE(within(pipeline.result(), expected, p_gate(problem))) << to_string(GetParam());
  if (!fits_reference(problem)) return;
  ScopedBackend scope("reference");
  pipeline.decode();
  EXPECT_TRUE(within(pipeline.result(), expected, kReferenceGate)) << to_string(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Gaussian, Float64,
                         ::testing::ValuesIn(thinned(pairwise_cases(Data::gaussian))), case_name);
INSTANTIATE_TEST_SUITE_P(WithMean, Float64,
                         ::testing::ValuesIn(thinned(pairwise_cases(Data::with_mean))), case_name);
INSTANTIATE_TEST_SUITE_P(Content, Float64, ::testing::ValuesIn(thinned(content_cases())),
                         case_name);
#ifndef SNAPMLA_SANITIZED
INSTANTIATE_TEST_SUITE_P(Long, Float64, ::testing::ValuesIn(long_cases(Data::gaussian, 4)),
                         case_name);

// 131,072 tokens, values with a mean, one worker and no split: the sum must not drift.
TEST(Drift, B05_ValuesWithAMeanAt131072TokensUnsplit) {
  for (ScaleMode mode : {ScaleMode::exact, ScaleMode::power_of_two}) {
    Case c;
    c.lengths = {131072};
    c.h_q = 2;
    c.data = Data::with_mean;
    c.scale = mode;
    c.plan.num_sms = 1;
    const Problem problem = make_problem(c);
    Pipeline pipeline(problem);
    pipeline.append();
    pipeline.quantize();
    pipeline.plan();
    const Attention expected = attend_stored(pipeline);
    EXPECT_EQ(pipeline.num_splits_buffer().read<std::int32_t>()[1], 0) << "the plan splits";
    const Gate gate = p_gate(problem);
    NumericsOptions numerics;
    numerics.normalize_by_quantized_p = true;
    pipeline.decode(numerics);
    EXPECT_TRUE(within(pipeline.result(), expected, gate)) << to_string(c);
    pipeline.decode();
    // Power-of-two scales of such tokens are all equal. Where attention is flat too, every p of a
    // block lies in the same interval of e4m3 and rounds the same way, which no length averages
    // out: up to 2^-5 unless the sum is made of the rounded values too. Scales that differ a little
    // from token to token dither it.
    Gate one_sided = gate;
    if (mode == ScaleMode::power_of_two) one_sided.out = one_sided.norm = 0x1p-5;
    EXPECT_TRUE(within(pipeline.result(), expected, one_sided)) << to_string(c);
  }
}
#endif

// All logits equal; value dim 0 is 1 and dim 1 alternates: the answers are 1 and 0 at any length,
// and with one token of logit +12 they are known too.
TEST(Drift, B05_ExactAnswersDoNotGrowWorseWithLength) {
#ifdef SNAPMLA_SANITIZED
  const std::int32_t lengths[] = {64, 4096};
#else
  const std::int32_t lengths[] = {64, 4096, 131072};
#endif
  for (std::int32_t length : lengths) {
    for (bool needle : {false, true}) {
      Case c;
      c.lengths = {length};
      c.h_q = 1;
      c.softmax_scale = 1;
      c.plan.num_sms = 1;
      Problem problem = make_problem(c);
      std::fill(problem.q.begin(), problem.q.end(), 0.0f);
      std::fill(problem.kv.begin(), problem.kv.end(), 0.0f);
      problem.q[kKvLoraRank] = 1;
      for (std::int64_t t = 0; t < length; ++t) {
        problem.kv[t * kQkDim] = 1;
        problem.kv[t * kQkDim + 1] = t % 2 ? -1.0f : 1.0f;
      }
      const std::int64_t at = length / 3 * 2;
      if (needle) problem.kv[at * kQkDim + kKvLoraRank] = 12;
      const Result result = run(problem);
      const double e12 = std::exp(12.0);
      const double dim1 = needle ? (e12 - 1) * (at % 2 ? -1 : 1) / (length - 1 + e12) : 0;
      EXPECT_NEAR(result.out[0], 1, needle ? 2e-2 : 1e-4) << length;  // P = e^-12 is a subnormal
      EXPECT_NEAR(result.out[1], dim1, needle ? 2e-2 : 1e-4) << length;
      EXPECT_NEAR(result.lse[0], std::log(length - 1 + (needle ? e12 : 1)), 1e-4) << length;
    }
  }
}

// --- what must be bit for bit the same -----------------------------------------------------------

TEST(Bitwise, RepeatedRunsInPoisonedMemory) {
  for (std::size_t i : {0u, 7u, 20u}) {
    const Problem problem = make_problem(pairwise_cases(Data::gaussian)[i]);
    const Result first = run(problem);
    for (int repeat = 0; repeat < 3; ++repeat) {
      EXPECT_TRUE(identical(run(problem), first)) << to_string(problem.spec);
    }
  }
}

// B25: the result must not depend on where pages lie.
TEST(Bitwise, B25_PageOrderDoesNotMatter) {
  Case c;
  c.lengths = {130, 64, 1, 700, 65, 3, 0, 257};
  c.h_q = 8;
  c.permuted = false;
  c.plan.num_sms = 4;
  for (const char* backend : {"cpu", "reference"}) {
    ScopedBackend scope(backend);
    Problem problem = make_problem(c);
    const Result contiguous = run(problem);
    for (PageOrder order : {PageOrder::reversed, PageOrder::random}) {
      assign_pages(problem, order, 5);
      EXPECT_TRUE(identical(run(problem), contiguous)) << backend;
    }
    // Pages of all requests interleaved: request r's k-th page is next to request r+1's.
    assign_pages(problem, PageOrder::contiguous, 0);
    for (std::int64_t r = 0; r < c.b(); ++r) {
      for (std::int64_t t = problem.first_token[r]; t < problem.first_token[r + 1]; ++t) {
        const std::int64_t position = t - problem.first_token[r];
        const std::int64_t page = 1 + position / 64 * c.b() + r;
        problem.block_table[r * problem.table_stride + position / 64] =
            static_cast<std::int32_t>(page);
        problem.slots[t] = page * 64 + position % 64;
      }
    }
    problem.num_pages = 1 + 12 * c.b();
    EXPECT_TRUE(identical(run(problem), contiguous)) << backend;
  }
}

TEST(Bitwise, CacheFormsAgree) {
  Case c;
  c.lengths = {200, 0, 65};
  c.s_q = 2;
  const Result planes = run(make_problem(c));
  for (std::int64_t stride : {std::int64_t{kPackedPageBytes}, std::int64_t{64 * 656}}) {
    c.form = CacheForm::packed;
    c.page_stride = stride;
    EXPECT_TRUE(identical(run(make_problem(c)), planes)) << stride;
  }
}

// B45: a batch-invariant row is the same whatever its batch mates.
TEST(BatchInvariant, B45_RowAloneAndWithNeighbours) {
#ifdef SNAPMLA_SANITIZED
  const int neighbours[] = {1, 7};
  const double longest = 3000;
#else
  const int neighbours[] = {1, 7, 63, 127};
  const double longest = 40000;
#endif
  for (std::int32_t length : {5000, 2048, 130}) {
    Case c;
    c.data = Data::with_mean;
    c.h_q = 2;
    c.plan.batch_invariant = true;
    c.plan.num_sms = 13;
    c.plan_max_seqlen = 40000;
    Random random(length);
    c.lengths = {length};
    const Problem alone = make_problem(c);
    const Result expected = run(alone);
    for (int n : neighbours) {
      Case many = c;
      for (int i = 0; i < n; ++i) {
        // A few long ones are enough; 127 of 40,000 tokens would take minutes.
        const double limit = i < 2 ? longest : 600;
        many.lengths.push_back(static_cast<std::int32_t>(random.log_uniform(1, limit)));
      }
      many.permuted = true;
      many.plan.num_sms = 7 + n;
      const Problem problem = make_problem(many);
      // make_problem gives request 0 the same numbers in both.
      EXPECT_TRUE(identical(rows_of(run(problem), many, 0), expected)) << to_string(many);
    }
  }
}

// B45: query i of a causal s_q = 4 call is the s_q = 1 call with the length that it sees.
TEST(BatchInvariant, B45_VerifyRowsEqualSingleRows) {
  for (std::int32_t length : {2, 66, 2050, 4098}) {
    Case c;
    c.lengths = {length};
    c.s_q = 4;
    c.h_q = 3;
    c.plan.batch_invariant = true;
    c.plan_max_seqlen = 8192;
    const Problem problem = make_problem(c);
    const Result all = run(problem);
    for (std::int64_t i = 0; i < c.s_q; ++i) {
      Problem one = problem;
      one.spec.s_q = 1;
      const std::int32_t seen = std::max(length - static_cast<std::int32_t>(c.s_q - 1 - i), 0);
      one.spec.lengths = {seen};
      one.q.assign(problem.q.begin() + i * c.h_q * kQkDim,
                   problem.q.begin() + (i + 1) * c.h_q * kQkDim);
      const Result single = run(one);
      for (std::int64_t h = 0; h < c.h_q; ++h) {
        EXPECT_EQ(single.lse[h], all.lse[h * c.s_q + i]) << length << " query " << i;
        for (int d = 0; d < kKvLoraRank; ++d) {
          ASSERT_EQ(single.out[h * kKvLoraRank + d], all.out[(i * c.h_q + h) * kKvLoraRank + d])
              << length << " query " << i << " head " << h << " dim " << d;
        }
      }
    }
  }
}

// P of a block depends on nothing outside the block: splits change the order of fp32 sums only.
TEST(Splits, AgreeTo1em5) {
  for (Data data : {Data::gaussian, Data::peaked, Data::with_mean}) {
    for (int p_block : {64, 128}) {
      Case c;
      c.lengths = {65, 700, 3000, 0};
      c.h_q = 4;
      c.s_q = 2;
      c.data = data;
      c.plan.p_block = p_block;
      c.plan.num_sms = 1;
      Problem problem = make_problem(c);
      const Result unsplit = run(problem);
      for (int splits : {1, 2, 3, 8, 16, 32}) {
        problem.spec.plan.forced_splits = splits;
        problem.spec.plan.num_sms = 5;
        const Result split = run(problem);
        EXPECT_LE(compare(split.out, unsplit.out).relative_l2, 1e-5)
            << splits << " " << to_string(problem.spec);
        for (std::size_t i = 0; i < split.lse.size(); ++i) {
          if (std::isfinite(unsplit.lse[i])) {
            EXPECT_NEAR(split.lse[i], unsplit.lse[i], 1e-5 * (1 + std::fabs(unsplit.lse[i])));
          } else {
            EXPECT_EQ(split.lse[i], unsplit.lse[i]);
          }
        }
      }
    }
  }
}

// --- finite, whatever the amplitude --------------------------------------------------------------

TEST(Amplitudes, ContentFrom1em30To1e30IsFinite) {
  for (int p_block : {64, 128}) {
    Case c;
    c.lengths = {64, 128, 500};
    c.data = Data::amplitudes_in_block;
    c.plan.p_block = p_block;
    for (const char* backend : {"cpu", "reference"}) {
      ScopedBackend scope(backend);
      const Result result = run(make_problem(c));
      EXPECT_TRUE(all_finite(result.out)) << backend;
      EXPECT_TRUE(all_finite(result.lse)) << backend;
    }
  }
}

// Foreign caches may hold any scale: zero-filled pools and denormals are read as 2^-100.
TEST(Amplitudes, ZeroFilledPoolGivesFiniteResults) {
  Case c;
  c.lengths = {100, 3};
  c.form = CacheForm::packed;
  Pipeline pipeline(make_problem(c));
  pipeline.quantize();
  pipeline.plan();
  auto cache = pipeline.cache();
  std::memset(cache.pages.data, 0, static_cast<std::size_t>(cache.pages.bytes()));
  for (const char* backend : {"cpu", "reference"}) {
    ScopedBackend scope(backend);
    pipeline.decode();
    const Result result = pipeline.result();
    for (float value : result.out) ASSERT_EQ(value, 0.0f) << backend;
    for (std::int64_t h = 0; h < c.h_q; ++h) {
      EXPECT_NEAR(result.lse[h], std::log(100.0), 1e-4) << backend;
      EXPECT_NEAR(result.lse[c.h_q + h], std::log(3.0), 1e-4) << backend;
    }
  }
}

// --- NaN goes where it must and nowhere else -----------------------------------------------------

TEST(NaN, InAQueryReachesItsRowOnly) {
  Case c;
  c.lengths = {200, 70};
  c.s_q = 2;
  c.h_q = 4;
  c.plan.forced_splits = 2;
  Problem problem = make_problem(c);
  for (const char* backend : {"cpu", "reference"}) {
    ScopedBackend scope(backend);
    problem.q = make_problem(c).q;
    const Result clean = run(problem);
    for (int dim : {3, kKvLoraRank + 5}) {  // content, RoPE
      problem.q = make_problem(c).q;
      const std::int64_t bad_row = 5;  // request 0, query 1, head 1
      problem.q[bad_row * kQkDim + dim] = std::nanf("");
      const Result result = run(problem);
      for (std::int64_t row = 0; row < c.b() * c.rows(); ++row) {
        for (int d = 0; d < kKvLoraRank; ++d) {
          const float value = result.out[row * kKvLoraRank + d];
          if (row == bad_row) {
            ASSERT_TRUE(std::isnan(value)) << backend << " dim " << dim << " out " << d;
          } else {
            ASSERT_EQ(value, clean.out[row * kKvLoraRank + d]) << backend << " row " << row;
          }
        }
      }
      for (std::int64_t h = 0; h < c.h_q; ++h) {
        EXPECT_EQ(std::isnan(result.lse[h * c.s_q + 1]), h == 1) << backend;
        EXPECT_FALSE(std::isnan(result.lse[h * c.s_q])) << backend;
      }
    }
  }
}

TEST(NaN, InATokenReachesTheQueriesThatSeeItAndNoOtherRequest) {
  Case c;
  c.lengths = {200, 300};
  c.h_q = 4;
  for (int splits : {1, 3}) {
    for (const char* backend : {"cpu", "reference"}) {
      ScopedBackend scope(backend);
      c.plan.forced_splits = splits;
      Problem problem = make_problem(c);
      const Result clean = run(problem);
      problem.kv[150 * kQkDim + 9] = std::nanf("");
      const Result result = run(problem);
      EXPECT_TRUE(identical(rows_of(result, c, 1), rows_of(clean, c, 1))) << backend;
      const Result poisoned = rows_of(result, c, 0);
      for (float value : poisoned.out) ASSERT_TRUE(std::isnan(value)) << backend << splits;
      for (float value : poisoned.lse) ASSERT_TRUE(std::isnan(value)) << backend << splits;
    }
  }
}

// The last token is not visible to earlier queries: their lse and attention weights are untouched.
TEST(NaN, InTheLastTokenLeavesLseOfEarlierQueries) {
  Case c;
  c.lengths = {66};
  c.s_q = 3;
  c.h_q = 2;
  for (const char* backend : {"cpu", "reference"}) {
    ScopedBackend scope(backend);
    Problem problem = make_problem(c);
    const Result clean = run(problem);
    problem.kv[65 * kQkDim + 9] = std::nanf("");
    const Result result = run(problem);
    for (std::int64_t h = 0; h < c.h_q; ++h) {
      EXPECT_EQ(result.lse[h * 3 + 0], clean.lse[h * 3 + 0]) << backend;
      EXPECT_EQ(result.lse[h * 3 + 1], clean.lse[h * 3 + 1]) << backend;
      EXPECT_TRUE(std::isnan(result.lse[h * 3 + 2])) << backend;
    }
  }
}

// --- softmax scale, causality --------------------------------------------------------------------

TEST(Causal, RowsThatSeeNothingAreEmpty) {
  Case c;
  c.lengths = {1, 2, 3, 0, 8};
  c.s_q = 4;
  c.h_q = 2;
  for (const char* backend : {"cpu", "reference"}) {
    ScopedBackend scope(backend);
    const Result result = run(make_problem(c));
    for (std::int64_t r = 0; r < c.b(); ++r) {
      for (std::int64_t i = 0; i < c.s_q; ++i) {
        const bool empty = c.lengths[r] - (c.s_q - 1 - i) <= 0;
        for (std::int64_t h = 0; h < c.h_q; ++h) {
          EXPECT_EQ(result.lse[(r * c.h_q + h) * c.s_q + i] == -INFINITY, empty) << r << " " << i;
          const float out = result.out[((r * c.s_q + i) * c.h_q + h) * kKvLoraRank];
          EXPECT_EQ(out == 0.0f, empty) << backend << " request " << r << " query " << i;
        }
      }
    }
  }
}

TEST(SoftmaxScale, ZeroAndNegativeAreJustNumbers) {
  for (float scale : {0.0f, -0.05f}) {
    Case c;
    c.lengths = {300, 5};
    c.h_q = 2;
    c.softmax_scale = scale;
    Pipeline pipeline(make_problem(c));
    pipeline.append();
    pipeline.quantize();
    pipeline.plan();
    pipeline.decode();
    EXPECT_TRUE(within(pipeline.result(), attend_stored(pipeline), p_gate(pipeline.problem())))
        << scale;
  }
}

}  // namespace
}  // namespace snapmla::test
