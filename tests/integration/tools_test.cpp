// The parts of the command line tool that its commands share.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <limits>

#include "capture.h"
#include "decode_run.h"
#include "error_stats.h"
#include "exact_attention.h"
#include "safetensors.h"
#include "snapmla/error.h"
#include "table.h"

namespace snapmla::tools {
namespace {

namespace fs = std::filesystem;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

std::uint16_t bf16(float value) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
}

TEST(ErrorStats, FollowsTheDefinitions) {
  ErrorStats stats;
  stats.add(std::vector<double>{3, 4}, std::vector<double>{3, 0});
  EXPECT_DOUBLE_EQ(stats.relative_l2(), 4.0 / 3);
  EXPECT_DOUBLE_EQ(stats.one_minus_cosine(), 1 - 3.0 / 5);
  EXPECT_DOUBLE_EQ(stats.rmse(), std::sqrt(8.0));
}

TEST(ErrorStats, AddsUpAsOneTensor) {
  ErrorStats parts, whole;
  parts.add(std::vector<double>{1}, std::vector<double>{2});
  parts.add(std::vector<double>{5, 6}, std::vector<double>{5, 7});
  whole.add(std::vector<double>{1, 5, 6}, std::vector<double>{2, 5, 7});
  EXPECT_DOUBLE_EQ(parts.relative_l2(), whole.relative_l2());
  EXPECT_DOUBLE_EQ(parts.rmse(), whole.rmse());
}

TEST(ErrorStats, EqualIsZeroEvenForZeros) {
  ErrorStats stats;
  stats.add(std::vector<double>{0, 0}, std::vector<double>{0, 0});
  stats.add_lse(std::vector<double>{-kInf}, std::vector<double>{-kInf});
  EXPECT_EQ(stats.relative_l2(), 0);
  EXPECT_EQ(stats.one_minus_cosine(), 0);
  EXPECT_EQ(stats.max_lse_error(), 0);
  EXPECT_TRUE(kGateVsDequantized.holds(stats));
}

TEST(ErrorStats, NanFailsEveryGate) {
  ErrorStats stats;
  stats.add(std::vector<double>{kNan, 1}, std::vector<double>{1, 1});
  EXPECT_FALSE(kGateVsDequantized.holds(stats));
  EXPECT_FALSE(kGateVsBf16.holds(stats));
}

TEST(ErrorStats, LseErrorKeepsNan) {
  ErrorStats stats;
  stats.add_lse(std::vector<double>{1, kNan, 5}, std::vector<double>{1, 1, 1});
  EXPECT_TRUE(std::isnan(stats.max_lse_error()));
}

TEST(ErrorStats, RefusesDifferentSizes) {
  ErrorStats stats;
  EXPECT_THROW(stats.add(std::vector<double>{1}, std::vector<double>{1, 2}), InvalidArgument);
}

// Two tokens, two queries, one head; the numbers below are worked out by hand.
Capture two_tokens() {
  Capture capture;
  capture.tokens = 2;
  capture.s_q = 2;
  capture.h_q = 1;
  capture.softmax_scale = 0.5f;
  capture.content.assign(2 * 512, bf16(0));
  capture.rope.assign(2 * 64, bf16(0));
  capture.q_nope.assign(2 * 512, bf16(0));
  capture.q_rope.assign(2 * 64, bf16(0));
  capture.content[0] = bf16(1);        // token 0 is (1, 0, ...)
  capture.content[512 + 1] = bf16(4);  // token 1 is (0, 4, 0, ...)
  capture.rope[64] = bf16(3);
  for (int query = 0; query < 2; ++query) {
    capture.q_nope[query * 512 + 1] = bf16(2);
    capture.q_rope[query * 64] = bf16(-2);
  }
  return capture;
}

TEST(ExactAttention, MatchesAHandComputedCaseWithCausalMask) {
  const AttentionResult result = exact_attention(two_tokens());
  // Query 0 sees token 0 alone, whose score is 0.
  EXPECT_DOUBLE_EQ(result.out[0], 1);
  EXPECT_DOUBLE_EQ(result.out[1], 0);
  EXPECT_DOUBLE_EQ(result.lse[0], 0);
  // Query 1 sees scores 0 and (2 * 4 - 2 * 3) * 0.5 = 1.
  const double e = std::exp(1.0);
  EXPECT_NEAR(result.out[512], 1 / (1 + e), 1e-15);
  EXPECT_NEAR(result.out[513], 4 * e / (1 + e), 1e-15);
  EXPECT_NEAR(result.lse[1], std::log(1 + e), 1e-15);
}

TEST(QuantizedCapture, ReferenceOverTheCacheAgreesWithExactAttention) {
  // One nonzero value per token: its code is exactly 448 times a scale of amax / 448.
  const Capture capture = two_tokens();
  for (CacheForm form : {CacheForm::planes, CacheForm::packed}) {
    RunOptions options;
    options.form = form;
    const QuantizedCapture quantized(capture, options, choose_backend(capture, options));
    ErrorStats stats;
    stats.add(quantized.decode_reference(), exact_attention(capture));
    EXPECT_LT(stats.relative_l2(), 1e-2) << cache_form_name(form);  // RoPE / S rounds to BF16
    EXPECT_LT(stats.max_lse_error(), 2e-2) << cache_form_name(form);
  }
}

TEST(QuantizedCapture, LeavesTheForcedBackendAsItWas) {
  const Capture capture = two_tokens();
  force_backend("cpu");
  RunOptions options;
  options.backend = "reference";
  QuantizedCapture quantized(capture, options, choose_backend(capture, options));
  quantized.decode();
  EXPECT_EQ(forced_backend(), "cpu");
  force_backend("");
}

TEST(ChooseBackend, SaysWhyTheRequestedOneIsNoUse) {
  DecodeProblem problem;
  problem.h_q = 16;
  problem.numerics.form = NumericsOptions::Form::chained;
  EXPECT_EQ(choose_backend(problem, "").name, "cpu");
  try {
    choose_backend(problem, "reference");
    FAIL() << "no exception";
  } catch (const Unsupported& error) {
    EXPECT_NE(std::string(error.what()).find("reference: has no numerics options"),
              std::string::npos)
        << error.what();
  }
  EXPECT_THROW(choose_backend(problem, "nope"), InvalidArgument);
}

TEST(CaptureLabels, UsesLayersOnlyWhereTheyTellCapturesApart) {
  using Names = std::vector<std::string>;
  const std::vector<fs::path> paths = {"x/a.safetensors", "x/b.safetensors"};
  EXPECT_EQ(capture_labels(paths, {"1", "2"}), (Names{"1", "2"}));
  EXPECT_EQ(capture_labels(paths, {"1", "1"}), (Names{"a", "b"}));
  EXPECT_EQ(capture_labels(paths, {"1", ""}), (Names{"a", "b"}));
}

TEST(Table, AlignsColumnsAndSpansGroups) {
  Table table({{"name", Align::left}, {"a", Align::right, "both"}, {"b", Align::right, "both"}});
  table.add_row({"x", "1", "22222"});
  table.add_rule();
  table.add_row({"longer", "333", "4"});
  EXPECT_EQ(table.render(),
            "        -- both --\n"
            "name      a      b\n"
            "------  ---  -----\n"
            "x         1  22222\n"
            "------  ---  -----\n"
            "longer  333      4\n");
}

TEST(Format, UsesFittingUnits) {
  EXPECT_EQ(format_time(12.34), "12.3 us");
  EXPECT_EQ(format_time(4567), "4.57 ms");
  EXPECT_EQ(format_time(7.891e6), "7.89 s");
  EXPECT_EQ(format_bytes(644), "644 B");
  EXPECT_EQ(format_bytes(41216), "40.25 KiB");
  EXPECT_EQ(format_bytes(644.0 * 1024 * 1024), "644.00 MiB");
}

}  // namespace
}  // namespace snapmla::tools
