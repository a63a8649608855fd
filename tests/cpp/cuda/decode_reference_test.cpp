// cuda_reference against the CPU oracle, on the problems that every backend runs.

#include <set>

#include "cases/decode_cases.h"
#include "device.h"
#include "support/compare.h"

namespace snapmla::test {
namespace {

/// fp32 against double. A logit of 1e6, as RoPE outliers make, carries an error of 0.1 in fp32.
Gate fp32_gate(const Case& c) {
  Gate gate;
  gate.out = c.out_dtype == DType::bf16 ? 3e-3 : 1e-4;
  gate.lse = 1e-4;
  gate.lse_of_logit = 0x1p-18;
  return gate;
}

class CudaReferenceTest : public CudaTest {
 protected:
  static void check(Case c) {
    c.plan.p_block = 0;
    SCOPED_TRACE(to_string(c));
    ScopedBackend forced("cuda_reference");
    Pipeline pipeline(make_problem(c), device_memory());
    pipeline.append();
    pipeline.quantize();
    pipeline.plan();
    pipeline.decode();
    const Result result = pipeline.result();
    const Attention expected = attend_stored(pipeline);
    EXPECT_TRUE(within(result, expected, fp32_gate(c)));
    EXPECT_TRUE(all_finite(result.out));
    EXPECT_EQ(pipeline.status(), 0);
  }
};

TEST_F(CudaReferenceTest, PairwiseCases) {
  for (const Case& c : pairwise_cases(Data::gaussian)) check(c);
}

TEST_F(CudaReferenceTest, ExactPCases) {
  for (const Case& c : pairwise_cases(Data::exact_p)) check(c);
}

TEST_F(CudaReferenceTest, LongCases) {
  for (const Case& c : long_cases(Data::with_mean, 8)) check(c);
}

TEST_F(CudaReferenceTest, KindsOfContent) {
  // Where fp32 leaves double behind: logits beyond 1e5, and products beyond 1e38.
  const std::set<Data> finite_only = {Data::amplitudes_in_block, Data::amplitudes_in_sequence,
                                      Data::rope_outliers, Data::large_rope};
  for (Case c : content_cases()) {
    c.plan.p_block = 0;
    if (!finite_only.count(c.data)) {
      check(c);
      continue;
    }
    ScopedBackend forced("cuda_reference");
    const Result result = run(make_problem(c), device_memory());
    EXPECT_TRUE(all_finite(result.out)) << to_string(c);
  }
}

// bugs.md B13, B19: more row tiles than SMs; the bottom-right aligned mask with several queries.
TEST_F(CudaReferenceTest, ManyQueryTokens) {
  Case c;
  c.name = "many_query_tokens";
  c.lengths = {100, 3, 0};
  c.s_q = 67;
  c.h_q = 128;
  c.form = CacheForm::packed;
  check(c);
}

TEST_F(CudaReferenceTest, PagesThatDoNotExistAreLeftOutAndCounted) {
  Case c;
  c.name = "bad_pages";
  c.lengths = {300, 130, 64};
  c.h_q = 4;
  Problem problem = make_problem(c);
  const auto decode_with_holes = [&](Memory& memory, const char* backend) {
    ScopedBackend forced(backend);
    Pipeline pipeline(problem, memory);
    pipeline.append();
    pipeline.quantize();
    pipeline.plan();
    std::vector<std::int32_t> table = problem.block_table;
    table[1] = -1;
    table[problem.table_stride] = static_cast<std::int32_t>(problem.num_pages);
    table[2 * problem.table_stride] = -5;  // the only page: an empty row
    pipeline.block_table_buffer().upload(table.data(), table.size() * 4);
    pipeline.decode();
    EXPECT_EQ(pipeline.status(), 3);
    return pipeline.result();
  };
  const Result expected = decode_with_holes(host_memory(), "reference");
  const Result actual = decode_with_holes(device_memory(), "cuda_reference");
  const Difference out = compare(actual.out, expected.out);
  EXPECT_LE(out.relative_l2, 2e-5);
  EXPECT_TRUE(compare(actual.lse, expected.lse).same_nonfinite);
}

// NaN in a query row stays in its row; NaN in a token reaches its own request alone.
TEST_F(CudaReferenceTest, NanStaysWhereItBelongs) {
  Case c;
  c.name = "nan";
  c.lengths = {150, 80};
  c.h_q = 3;
  Problem problem = make_problem(c);
  problem.q[1 * kQkDim + 7] = std::numeric_limits<float>::quiet_NaN();  // request 0, head 1
  problem.kv[(problem.first_token[1] + 3) * kQkDim + 9] =
      std::numeric_limits<float>::quiet_NaN();  // request 1
  const auto decode_with = [&](Memory& memory, const char* backend) {
    ScopedBackend forced(backend);
    return run(problem, memory);
  };
  const Result expected = decode_with(host_memory(), "reference");
  const Result actual = decode_with(device_memory(), "cuda_reference");
  EXPECT_TRUE(compare(actual.out, expected.out).same_nonfinite);
  EXPECT_TRUE(compare(actual.lse, expected.lse).same_nonfinite);
}

}  // namespace
}  // namespace snapmla::test
