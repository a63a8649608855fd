// NumericsOptions: the paper's chained form, and the narrow accumulator of docs/numerics.md
// section 4.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "cases/decode_cases.h"
#include "cpu/hopper_accumulator.h"
#include "support/compare.h"
#include "support/random.h"

namespace snapmla::test {
namespace {

using Form = NumericsOptions::Form;
using Accumulate = NumericsOptions::Accumulate;

NumericsOptions options(Form form, Accumulate accumulate, int qk_accumulators = 1) {
  NumericsOptions numerics;
  numerics.form = form;
  numerics.accumulate = accumulate;
  numerics.qk_accumulators = qk_accumulators;
  return numerics;
}

// --- the accumulator itself ----------------------------------------------------------------------

float accumulate(float start, const std::vector<float>& products) {
  return cpu::hopper_accumulate(start, products.data(), static_cast<int>(products.size()));
}

TEST(HopperAccumulator, StallsAtTwoToTheFourteen) {
  const std::vector<float> ones(32, 1.0f);
  EXPECT_EQ(accumulate(0x1p14f, ones), 0x1p14f);  // measured on an H200
  EXPECT_EQ(accumulate(0x1p13f, ones), 0x1p13f + 32);
  EXPECT_EQ(accumulate(0, ones), 32);
  EXPECT_EQ(accumulate(-0x1p14f, ones), -0x1p14f);
}

TEST(HopperAccumulator, TruncatesTowardsZero) {
  EXPECT_EQ(accumulate(0x1p13f, {0.999f}), 0x1p13f);
  EXPECT_EQ(accumulate(-0x1p13f, {-0.999f}), -0x1p13f);
  EXPECT_EQ(accumulate(0x1p13f, {1.999f}), 0x1p13f + 1);
  // The largest term may be a product, which then sets the grid for the accumulator.
  EXPECT_EQ(accumulate(0.75f, {0x1p13f}), 0x1p13f);
  // A sum that carries moves the grid: 2^14 + 1 needs 14 fraction bits.
  EXPECT_EQ(accumulate(0x1p14f - 1, {2.0f}), 0x1p14f);
}

TEST(HopperAccumulator, ExactWhereThirteenBitsAreEnough) {
  Random random(1);
  for (int i = 0; i < 2000; ++i) {
    std::vector<float> products(32);
    for (float& p : products) p = static_cast<float>(random.integer(-60, 60));
    const float start = static_cast<float>(random.integer(-4000, 4000));
    EXPECT_EQ(accumulate(start, products),
              std::accumulate(products.begin(), products.end(), start));
  }
}

TEST(HopperAccumulator, KeepsNaNAndInfinity) {
  EXPECT_TRUE(std::isnan(accumulate(1, {NAN, 2})));
  EXPECT_TRUE(std::isnan(accumulate(NAN, {0})));
  EXPECT_EQ(accumulate(1, {INFINITY}), INFINITY);
  EXPECT_EQ(accumulate(0, {0, 0}), 0);
}

// --- through decode ------------------------------------------------------------------------------

Case flat_case(std::int32_t length) {
  Case c;
  c.lengths = {length};
  c.h_q = 1;
  c.data = Data::with_mean;
  c.scale = ScaleMode::exact;
  c.plan.num_sms = 1;  // in place over the whole sequence
  return c;
}

TEST(Numerics, InPlaceAccumulationStallsWherePromotionDoesNot) {
  Pipeline pipeline(make_problem(flat_case(16384)));
  pipeline.append();
  pipeline.quantize();
  pipeline.plan();
  pipeline.decode();
  const Result exact = pipeline.result();
  const auto error = [&](const NumericsOptions& numerics) {
    pipeline.decode(numerics);
    return compare(pipeline.result().out, exact.out).relative_l2;
  };
  EXPECT_GT(error(options(Form::chained, Accumulate::hopper)), 0.1);
  EXPECT_LT(error(options(Form::log_domain, Accumulate::hopper)), 1e-3);
  EXPECT_LT(error(options(Form::chained, Accumulate::exact)), 5e-3);
}

TEST(Numerics, MoreQkAccumulatorsLoseLess) {
  Case c;
  c.lengths = {256};
  c.h_q = 8;
  c.softmax_scale = 1.0f / 24;
  Problem problem = make_problem(c);
  // Keys aligned with the query: every partial sum grows, the worst case for a narrow accumulator.
  for (std::int64_t h = 0; h < c.h_q; ++h) {
    for (int d = 0; d < kQkDim; ++d) problem.q[h * kQkDim + d] = problem.q[d];
  }
  Random random(3);
  for (std::int64_t t = 0; t < problem.tokens(); ++t) {
    for (int d = 0; d < kKvLoraRank; ++d) {
      problem.kv[t * kQkDim + d] =
          bf16_value(nearest_bf16(2 * problem.q[d] + 0.1f * random.normal()));
    }
  }
  Pipeline pipeline(problem);
  pipeline.append();
  pipeline.quantize();
  pipeline.plan();
  pipeline.decode();
  const Result exact = pipeline.result();
  double previous = INFINITY;
  for (int accumulators : {1, 2, 4}) {
    pipeline.decode(options(Form::log_domain, Accumulate::hopper, accumulators));
    const Result result = pipeline.result();
    double error = 0;
    for (std::size_t i = 0; i < exact.lse.size(); ++i) {
      EXPECT_LE(result.lse[i], exact.lse[i]) << "truncation goes towards zero";
      error += exact.lse[i] - result.lse[i];
    }
    EXPECT_LT(error, previous * 0.7) << accumulators << " accumulators";
    EXPECT_GT(error, 0) << accumulators;
    previous = error;
  }
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }

class Chained : public ::testing::TestWithParam<Case> {};

TEST_P(Chained, AgreesWithFloat64WithinTheErrorOfP) {
  const Problem problem = make_problem(GetParam());
  Pipeline pipeline(problem);
  pipeline.append();
  pipeline.quantize();
  pipeline.plan();
  const Attention expected = attend_stored(pipeline);
  // Tokens whose scale is tiny beside their block's have a P that rounds to 0: a sum of rounded
  // values loses them from the denominator.
  const bool scales_differ =
      problem.spec.data == Data::zero_content || problem.spec.data == Data::amplitudes_in_sequence;
  for (bool normalize : {false, true}) {
    if (normalize && scales_differ) continue;
    NumericsOptions numerics = options(Form::chained, Accumulate::exact);
    numerics.normalize_by_quantized_p = normalize;
    pipeline.decode(numerics);
    EXPECT_TRUE(within(pipeline.result(), expected, {3.2e-2, 1, 1e-4, kStrongLse}))
        << "normalize " << normalize << " " << to_string(GetParam());
  }
}

std::vector<Case> chained_cases() {
  std::vector<Case> cases = content_cases();
  std::erase_if(cases, [](const Case& c) { return c.data == Data::amplitudes_in_block; });
  const auto pairwise = pairwise_cases(Data::gaussian);
  for (std::size_t i = 0; i < pairwise.size(); i += 9) cases.push_back(pairwise[i]);
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Cases, Chained, ::testing::ValuesIn(chained_cases()), case_name);

// A block in which a query sees nothing must leave what it has: the P scale of such a block is
// meaningless, and rescaling by it overflows.
TEST(Numerics, ChainedSurvivesMaskedAndVanishingBlocks) {
  Case c;
  c.lengths = {66, 130};
  c.s_q = 4;  // query 0 of request 0 sees 63 tokens: its second block is masked
  c.h_q = 2;
  c.plan.p_block = 64;
  c.plan.num_sms = 1;
  Problem problem = make_problem(c);
  // A second block whose weights vanish beside the first's.
  for (std::int64_t t = problem.first_token[1]; t < problem.first_token[1] + 64; ++t) {
    problem.kv[t * kQkDim + kKvLoraRank] = 2048;
  }
  for (std::int64_t row = c.rows(); row < 2 * c.rows(); ++row) {
    problem.q[row * kQkDim + kKvLoraRank] = 2;
  }
  Pipeline pipeline(problem);
  pipeline.append();
  pipeline.quantize();
  pipeline.plan();
  const Attention expected = attend_stored(pipeline);
  for (Form form : {Form::log_domain, Form::chained}) {
    for (Accumulate accumulate : {Accumulate::exact, Accumulate::hopper}) {
      pipeline.decode(options(form, accumulate, 4));
      EXPECT_TRUE(within(pipeline.result(), expected, {3.2e-2, 1, 1e-4, kWeakLse}))
          << static_cast<int>(form) << static_cast<int>(accumulate);
    }
  }
}

TEST(Numerics, NormalizingByQuantizedPLeavesLseAndRemovesTheCommonError) {
  Case c = flat_case(2048);
  c.scale = ScaleMode::power_of_two;
  Pipeline pipeline(make_problem(c));
  pipeline.append();
  pipeline.quantize();
  pipeline.plan();
  const Attention expected = attend_stored(pipeline);
  pipeline.decode();
  const Result plain = pipeline.result();
  NumericsOptions numerics;
  numerics.normalize_by_quantized_p = true;
  pipeline.decode(numerics);
  const Result normalized = pipeline.result();
  EXPECT_EQ(plain.lse, normalized.lse);
  EXPECT_LE(compare(normalized.out, expected.out).relative_l2, 3e-3);
  EXPECT_LT(compare(normalized.out, expected.out).relative_l2,
            compare(plain.out, expected.out).relative_l2);
}

// Emulation with the exact-P data changes nothing: its sums fit the narrow accumulator.
TEST(Numerics, ExactDataSurvivesTheNarrowAccumulator) {
  for (std::size_t i : {2u, 11u, 30u}) {
    Case c = pairwise_cases(Data::exact_p)[i];
    c.h_q = std::min<std::int64_t>(c.h_q, 8);
    c.s_q = std::min<std::int64_t>(c.s_q, 2);
    Pipeline pipeline(make_problem(c));
    pipeline.append();
    pipeline.quantize();
    pipeline.plan();
    pipeline.decode();
    const Result exact = pipeline.result();
    for (int accumulators : {1, 2, 4}) {
      pipeline.decode(options(Form::log_domain, Accumulate::hopper, accumulators));
      const Result result = pipeline.result();
      // QK, and with it every lse, is exact; PV is promoted every block.
      EXPECT_EQ(result.lse, exact.lse) << accumulators << to_string(c);
      EXPECT_LE(compare(result.out, exact.out).relative_l2, 1e-4) << to_string(c);
    }
  }
}

}  // namespace
}  // namespace snapmla::test
