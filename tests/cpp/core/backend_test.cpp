#include "snapmla/backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "snapmla/error.h"
#include "support/pipeline.h"

namespace snapmla {
namespace {

DecodeProblem cpu_problem() {
  DecodeProblem problem;
  problem.b = 4;
  problem.s_q = 2;
  problem.h_q = 16;
  problem.max_seqlen = 4096;
  return problem;
}

TEST(Backends, CpuBackendsAreAlwaysThere) {
  const auto backends = list_backends();
  const auto has = [&](std::string_view name) {
    return std::any_of(backends.begin(), backends.end(), [&](const BackendInfo& info) {
      return info.name == name && info.available;
    });
  };
  EXPECT_TRUE(has("cpu"));
  EXPECT_TRUE(has("reference"));
  for (const BackendInfo& info : backends) {
    EXPECT_FALSE(info.description.empty()) << info.name;
    EXPECT_FALSE(info.reason.empty()) << info.name;
  }
}

TEST(Backends, UnknownNameListsTheKnownOnes) {
  for (const auto& call : {+[] { find_backend("fpu"); }, +[] { force_backend("fpu"); },
                           +[] { (void)supports(cpu_problem(), "fpu"); }}) {
    try {
      call();
      FAIL() << "accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.argument(), "backend");
      EXPECT_NE(error.rule().find("cpu"), std::string::npos);
      EXPECT_NE(error.rule().find("reference"), std::string::npos);
      EXPECT_NE(error.value().find("fpu"), std::string::npos);
    }
  }
  EXPECT_EQ(forced_backend(), "");
}

TEST(Backends, ForcedBackendIsUsedAndNothingFallsBack) {
  EXPECT_EQ(explain(cpu_problem()).backend, "cpu");
  {
    test::ScopedBackend scope("reference");
    EXPECT_EQ(forced_backend(), "reference");
    const Explanation explanation = explain(cpu_problem());
    EXPECT_EQ(explanation.backend, "reference");
    DecodeProblem problem = cpu_problem();
    problem.numerics.form = NumericsOptions::Form::chained;
    const Support support = supports(problem);
    EXPECT_FALSE(support.ok);
    EXPECT_NE(support.reason.find("numerics"), std::string::npos) << support.reason;
    EXPECT_THROW(explain(problem), Unsupported);
  }
  EXPECT_EQ(forced_backend(), "");
}

TEST(Backends, SupportsGivesTheReasonThatDecodeThrows) {
  test::Case c;
  c.lengths = {5};
  c.h_q = 1;
  test::Pipeline pipeline(test::make_problem(c));
  pipeline.append();
  pipeline.quantize();
  pipeline.plan();
  test::ScopedBackend scope("reference");
  NumericsOptions numerics;
  numerics.qk_accumulators = 2;
  DecodeProblem problem;
  problem.h_q = 1;
  problem.out_dtype = DType::f32;
  problem.numerics = numerics;
  try {
    pipeline.decode(numerics);
    FAIL() << "accepted";
  } catch (const Unsupported& error) {
    EXPECT_EQ(std::string(error.what()), supports(problem).reason);
    EXPECT_NE(std::string(error.what()).find(supports(problem, "reference").reason),
              std::string::npos);
  }
  // Nothing was written.
  for (std::uint8_t byte : pipeline.out_buffer().read<std::uint8_t>()) ASSERT_EQ(byte, 0xff);
}

TEST(Backends, CudaTensorsWithoutACudaBackendSayHowToGetOne) {
  bool has_cuda = false;
  for (const BackendInfo& info : list_backends()) {
    has_cuda = has_cuda || (info.device == DeviceType::cuda && info.available);
  }
  if (has_cuda) GTEST_SKIP() << "this machine has a CUDA backend";
  DecodeProblem problem = cpu_problem();
  problem.device = {DeviceType::cuda, 0};
  const Support support = supports(problem);
  EXPECT_FALSE(support.ok);
  EXPECT_NE(support.reason.find("cuda:0"), std::string::npos) << support.reason;
  EXPECT_THROW(explain(problem), Unsupported);
  EXPECT_THROW(plan_size({1, 16, 1, problem.device}), Unsupported);
  test::ScopedBackend scope("cpu");
  EXPECT_FALSE(supports(problem).ok);
}

// B53: what was chosen, and why, can be asked.
TEST(Backends, B53_ExplainSaysWhatWouldRun) {
  DecodeProblem problem = cpu_problem();
  problem.plan.num_sms = 8;
  const Explanation e = explain(problem);
  EXPECT_EQ(e.backend, "cpu");
  EXPECT_FALSE(e.kernel.empty());
  EXPECT_EQ(e.row_tiles, 1);
  EXPECT_EQ(e.workers, 8);
  EXPECT_EQ(e.p_block, 64);
  EXPECT_GE(e.splits, 2);
  EXPECT_EQ(e.workspace_bytes, workspace_bytes({4, 32, 4096, {}}, problem.plan));
  EXPECT_EQ(e.cache_bytes, 4 * 4096 * 644);
  EXPECT_DOUBLE_EQ(e.flops, 2.0 * 32 * 4 * 4096 * 1088);
  EXPECT_GT(e.estimated_us, 0);
  EXPECT_FALSE(e.bound.empty());
  EXPECT_FALSE(e.basis.empty());
  problem.plan.forced_splits = 5;
  EXPECT_EQ(explain(problem).splits, 5);
  problem.plan = {};
  problem.plan.batch_invariant = true;
  EXPECT_EQ(explain(problem).splits, 2);
}

TEST(Backends, ProblemsAreValidated) {
  const auto refuses = [](auto&& change, const char* argument) {
    DecodeProblem problem = cpu_problem();
    change(problem);
    for (const auto& call : {+[](const DecodeProblem& p) { explain(p); }}) {
      try {
        call(problem);
        ADD_FAILURE() << argument << " accepted";
      } catch (const InvalidArgument& error) {
        EXPECT_EQ(error.argument(), argument);
      }
    }
  };
  refuses([](auto& p) { p.b = -1; }, "problem.b");
  refuses([](auto& p) { p.s_q = 0; }, "problem.s_q");
  refuses([](auto& p) { p.h_q = 0; }, "problem.h_q");
  refuses([](auto& p) { p.max_seqlen = -1; }, "problem.max_seqlen");
  refuses([](auto& p) { p.out_dtype = DType::u8; }, "problem.out_dtype");
  refuses([](auto& p) { p.numerics.qk_accumulators = 3; }, "numerics.qk_accumulators");
  refuses([](auto& p) { p.plan.p_block = 32; }, "options.p_block");
  refuses(
      [](auto& p) {
        p.s_q = std::int64_t{1} << 40;
        p.h_q = std::int64_t{1} << 40;
      },
      "problem.s_q");
  refuses([](auto& p) { p.h_q = std::int64_t{1} << 40; }, "problem.h_q");
}

TEST(Backends, ExplainSurvivesTheLargestNumbers) {
  DecodeProblem problem = cpu_problem();
  problem.b = 1000000;
  problem.max_seqlen = 0x7fffffff;
  problem.h_q = 1;
  problem.s_q = 1;
  const Explanation e = explain(problem);
  EXPECT_GT(e.cache_bytes, 0);
  EXPECT_GT(e.flops, 0);
}

}  // namespace
}  // namespace snapmla
