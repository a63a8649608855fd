// Faults that others met in MLA decode and paged FP8 caches, each with an input of ours that would
// show it here. The names carry the row of the project's fault list; decode_test, merge_test,
// data_path_test, cache_test and validate_test hold the rest.

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cases/decode_cases.h"
#include "support/compare.h"
#include "support/random.h"

namespace snapmla::test {
namespace {

constexpr Gate kPGate{3.2e-2, 1, 1e-4, kStrongLse};

/// Runs up to the plan, so that tests can change what decode sees.
std::unique_ptr<Pipeline> planned(const Problem& problem) {
  auto pipeline = std::make_unique<Pipeline>(problem);
  pipeline->append();
  pipeline->quantize();
  pipeline->plan();
  return pipeline;
}

Case base_case() {
  Case c;
  c.lengths = {300, 64, 1, 129};
  c.h_q = 64;
  return c;
}

TEST(Faults, B01_SoftmaxScaleIsUsedAsGiven) {
  Case c = base_case();
  c.h_q = 8;
  const Result by_default = run(make_problem(c));
  for (float scale : {0.1352f, 0.02f}) {
    c.softmax_scale = scale;
    const auto pipeline = planned(make_problem(c));
    pipeline->decode();
    const Result result = pipeline->result();
    EXPECT_TRUE(within(result, attend_stored(*pipeline), kPGate)) << scale;
    EXPECT_GT(compare(result.out, by_default.out).relative_l2, 0.05) << scale;
  }
}

// One token per sequence: the output is that token's content.
TEST(Faults, B02_SingleTokenComesBack) {
  Case c;
  c.lengths.assign(97, 1);
  c.h_q = 2;
  c.scale = ScaleMode::exact;
  Problem problem = make_problem(c);
  for (int j = 0; j < 97; ++j) problem.kv[j * kQkDim + j] = 448.0f + 2 * j;
  for (const char* backend : {"cpu", "reference"}) {
    ScopedBackend scope(backend);
    const auto pipeline = planned(problem);
    pipeline->decode();
    const Result result = pipeline->result();
    const Stored stored = pipeline->stored();
    for (std::int64_t r = 0; r < 97; ++r) {
      for (int d = 0; d < kKvLoraRank; ++d) {
        const float expected = stored.kv[r * kQkDim + d];
        ASSERT_NEAR(result.out[(r * 2 + 1) * kKvLoraRank + d], expected,
                    1e-6f * std::fabs(expected));
      }
    }
  }
}

TEST(Faults, B03_ZeroContentWithRope) {
  Case c;
  c.lengths = {200};
  c.h_q = 16;
  c.data = Data::zero_content;
  for (double amplitude : {1.0, 1e-10, 1e-20, 1e-30}) {
    Problem problem = make_problem(c);
    for (std::int64_t t = 0; t < 200; ++t) {
      for (int d = 0; d < kKvLoraRank; ++d) {
        float& x = problem.kv[t * kQkDim + d];
        x = bf16_value(nearest_bf16(static_cast<float>(x * amplitude)));
      }
    }
    for (const char* backend : {"cpu", "reference"}) {
      ScopedBackend scope(backend);
      const auto pipeline = planned(problem);
      pipeline->decode();
      const Result result = pipeline->result();
      EXPECT_TRUE(all_finite(result.out)) << backend << amplitude;
      EXPECT_TRUE(within(result, attend_stored(*pipeline), kPGate)) << backend << amplitude;
    }
  }
}

TEST(Faults, B06_ContentOverFiveDecadesAppendedInTwoTurns) {
  Case c;
  c.lengths = {1000, 1000};
  c.h_q = 20;
  c.data = Data::mixed_content;
  Problem whole = make_problem(c);
  Pipeline pipeline(whole);
  pipeline.append();
  pipeline.quantize();
  for (std::int32_t length : {700, 1000}) {
    pipeline.lengths_buffer().upload(std::vector<std::int32_t>(2, length).data(), 8);
    pipeline.plan();
    pipeline.decode();
    const Stored stored = pipeline.stored();
    Problem seen = whole;
    std::vector<float> kv;
    seen.first_token = {0, length, 2 * length};
    for (std::int64_t r = 0; r < 2; ++r) {
      kv.insert(kv.end(), stored.kv.begin() + r * 1000 * kQkDim,
                stored.kv.begin() + (r * 1000 + length) * kQkDim);
    }
    EXPECT_TRUE(within(pipeline.result(), attend(seen, stored.q, kv), kPGate)) << length;
  }
}

TEST(Faults, B08_CosineAndLseOverShapes) {
#ifdef SNAPMLA_SANITIZED
  const std::int64_t batches[] = {1, 5};
#else
  const std::int64_t batches[] = {1, 2, 3, 5, 8, 16, 33, 128};
#endif
  for (std::int64_t b : batches) {
    for (const auto& [length, h_q] :
         {std::pair{640, 32}, std::pair{2048, 16}, std::pair{8192, 8}}) {
      if (b * length * h_q > 2'000'000) continue;  // the CPU's share; a GPU runs all of them
      Case c;
      c.lengths.assign(b, length);
      c.h_q = h_q;
      c.data = Data::with_mean;
      c.plan.num_sms = 16;
      const auto pipeline = planned(make_problem(c));
      pipeline->decode();
      const Result result = pipeline->result();
      const Attention expected = attend_stored(*pipeline);
      EXPECT_GE(compare(result.out, expected.out).cosine, 0.9995) << to_string(c);
      EXPECT_TRUE(within(result, expected, kPGate)) << to_string(c);
    }
  }
}

TEST(Faults, B12_GarbageInThePadSlotStaysThere) {
  Case c;
  c.lengths = {70, 5};
  c.h_q = 4;
  const auto pipeline = planned(make_problem(c));
  pipeline->decode();
  const Result before = pipeline->result();
  const std::vector<float> garbage(3 * kQkDim, std::nanf(""));
  const Buffer kv = Buffer::of(host_memory(), garbage);
  const Buffer slots = Buffer::of(host_memory(), std::vector<std::int32_t>{0, 0, 0});
  append_kv(pipeline->cache(), TensorView(kv.data(), DType::f32, {3, kQkDim}),
            TensorView(slots.data(), DType::i32, {3}));
  pipeline->decode();
  EXPECT_TRUE(identical(pipeline->result(), before));
}

// Query rows (768) must not be used as an index of requests (256). The table has exactly 256 rows
// at the end of its allocation, where AddressSanitizer sees a read past it.
TEST(Faults, B13_BlockTableIsIndexedByRequest) {
  Case c;
#ifdef SNAPMLA_SANITIZED
  c.lengths.resize(64);
#else
  c.lengths.resize(256);
#endif
  Random random(13);
  for (auto& length : c.lengths) length = static_cast<std::int32_t>(random.integer(3, 130));
  c.s_q = 3;
  c.h_q = 8;
  c.plan.batch_invariant = true;
  const Problem problem = make_problem(c);
  const auto pipeline = planned(problem);
  const auto table = std::make_unique<std::int32_t[]>(problem.block_table.size());
  std::copy(problem.block_table.begin(), problem.block_table.end(), table.get());
  decode(pipeline->decode_plan(), pipeline->query(), pipeline->cache(),
         TensorView(table.get(), DType::i32, {c.b(), problem.max_blocks}), pipeline->lengths(),
         problem.softmax_scale, true, pipeline->out(), pipeline->lse(), pipeline->workspace());
  const Result all = pipeline->result();
  for (std::int64_t i = 0; i < 3; ++i) {  // three single-token calls with lengths L-2, L-1, L
    Problem one = problem;
    one.spec.s_q = 1;
    one.q.clear();
    for (std::int64_t r = 0; r < c.b(); ++r) {
      one.spec.lengths[r] -= static_cast<std::int32_t>(2 - i);
      const auto first = problem.q.begin() + (r * 3 + i) * 8 * kQkDim;
      one.q.insert(one.q.end(), first, first + 8 * kQkDim);
    }
    const Result single = run(one);
    for (std::int64_t r = 0; r < c.b(); ++r) {
      ASSERT_EQ(std::memcmp(&single.out[r * 8 * kKvLoraRank],
                            &all.out[(r * 3 + i) * 8 * kKvLoraRank], 8 * kKvLoraRank * 4),
                0)
          << "request " << r << " query " << i;
    }
  }
}

// B15, B16: head i of any call is head i of the 128-head call, for head counts that others fold
// wrongly.
TEST(Faults, B15_EveryHeadCountGivesTheSameHeads) {
  const std::int64_t heads[] = {1, 2, 4, 8, 12, 16, 20, 24, 32, 40, 48, 56, 57, 64, 72, 96, 128};
  for (std::int64_t s_q : {1, 2, 3, 4, 5, 8}) {
    Case c;
    c.lengths = {130, 9};
    c.s_q = s_q;
    c.h_q = 128;
    c.plan.batch_invariant = true;
    const Problem all = make_problem(c);
    const Result expected = run(all);
    int index = static_cast<int>(s_q);
    for (std::int64_t h_q : heads) {
      if (s_q > 1 && ++index % 3 != 0) continue;  // a third of the head counts for each s_q above 1
      Problem some = all;
      some.spec.h_q = h_q;
      some.q.clear();
      for (std::int64_t token = 0; token < 2 * s_q; ++token) {
        const auto first = all.q.begin() + token * 128 * kQkDim;
        some.q.insert(some.q.end(), first, first + h_q * kQkDim);
      }
      const Result result = run(some);
      for (std::int64_t token = 0; token < 2 * s_q; ++token) {
        ASSERT_EQ(std::memcmp(&result.out[token * h_q * kKvLoraRank],
                              &expected.out[token * 128 * kKvLoraRank], h_q * kKvLoraRank * 4),
                  0)
            << h_q << " heads, s_q " << s_q << ", token " << token;
      }
    }
  }
}

TEST(Faults, B16_TwelveHeads) {
  for (std::int64_t b : {1, 7}) {
    for (std::int64_t s_q : {1, 8}) {
      Case c;
      c.lengths.assign(b, 200);
      c.s_q = s_q;
      c.h_q = 12;
      c.data = Data::exact_p;
      const Problem problem = make_problem(c);
      EXPECT_TRUE(within(run(problem), attend_originals(problem), {})) << to_string(c);
    }
  }
}

// Buffers sized for a batch of 160 serve a batch of 9 and of 1.
TEST(Faults, B17_PlanBuffersOfALargerBatch) {
  Case c;
  c.lengths.assign(160, 40);
  c.h_q = 8;
  c.data = Data::exact_p;
  c.plan.num_sms = 12;
  const auto large = planned(make_problem(c));
  for (std::int64_t b : {9, 1}) {
    Case small = c;
    small.lengths.assign(b, 300);
    const Problem problem = make_problem(small);
    Pipeline pipeline(problem);
    pipeline.append();
    pipeline.quantize();
    DecodePlan plan = large->decode_plan();
    plan.num_splits = plan.num_splits.slice(0, 0, b + 1);
    plan_decode(pipeline.lengths(), problem.plan_spec(), small.plan, plan);
    decode(plan, pipeline.query(), pipeline.cache(), pipeline.block_table(), pipeline.lengths(),
           problem.softmax_scale, true, pipeline.out(), pipeline.lse(), large->workspace());
    EXPECT_TRUE(within(pipeline.result(), attend_originals(problem), {})) << b;
    EXPECT_TRUE(large->workspace_buffer().guards_intact());
  }
}

// The plan of a captured batch of 16, overwritten by one for 5: words past the sixth repeat the
// last.
TEST(Faults, B42_PlanOfASmallerBatchThanTheCall) {
  for (int splits : {0, 3}) {
    Case c;
    c.lengths.assign(16, 300);
    c.h_q = 4;
    c.data = Data::exact_p;
    c.plan.num_sms = 6;
    c.plan.forced_splits = splits;
    const Problem problem = make_problem(c);
    const auto pipeline = planned(problem);
    const Attention expected = attend_originals(problem);
    for (const char* backend : {"cpu", "reference"}) {
      ScopedBackend scope(backend);
      PlanSpec spec = problem.plan_spec();
      spec.b = 5;
      DecodePlan plan = pipeline->decode_plan();
      plan.num_splits = plan.num_splits.slice(0, 0, 6);
      plan_decode(pipeline->lengths().slice(0, 0, 5), spec, c.plan, plan);
      auto words = pipeline->num_splits_buffer().read<std::int32_t>();
      std::fill(words.begin() + 6, words.end(), words[5]);
      pipeline->num_splits_buffer().upload(words.data(), words.size() * 4);
      pipeline->out_buffer().fill(0xff);
      pipeline->lse_buffer().fill(0xff);
      pipeline->decode();
      const Result result = pipeline->result();
      Attention five = expected;
      std::fill(five.out.begin() + 5 * c.rows() * kKvLoraRank, five.out.end(), 0.0);
      std::fill(five.lse.begin() + 5 * c.rows(), five.lse.end(), -INFINITY);
      EXPECT_TRUE(within(result, five, {})) << backend << " forced " << splits;
    }
  }
}

// The other way round: the first five requests of a plan for 16.
TEST(Faults, B42_PlanOfALargerBatchThanTheCall) {
  for (int splits : {0, 3}) {
    Case c;
    c.lengths.assign(16, 300);
    c.h_q = 4;
    c.data = Data::exact_p;
    c.plan.num_sms = 6;
    c.plan.forced_splits = splits;
    const Problem problem = make_problem(c);
    const auto large = planned(problem);
    Problem five = problem.select({0, 1, 2, 3, 4});
    Pipeline pipeline(five);
    pipeline.append();
    pipeline.quantize();
    DecodePlan plan = large->decode_plan();
    plan.num_splits = plan.num_splits.slice(0, 0, 6);
    decode(plan, pipeline.query(), pipeline.cache(), pipeline.block_table(), pipeline.lengths(),
           five.softmax_scale, true, pipeline.out(), pipeline.lse(), large->workspace());
    EXPECT_TRUE(within(pipeline.result(), attend_originals(five), {})) << "forced " << splits;
  }
}

// lse as [b, s_q, h_q] in memory, out as [s_q, b, h_q, 512]; and no lse at all.
TEST(Faults, OutputStridesAreUsed) {
  Case c;
  c.lengths = {130, 40, 1};
  c.s_q = 2;
  c.h_q = 3;
  const Problem problem = make_problem(c);
  const std::int64_t b = c.b(), rows = b * c.rows();
  for (const char* backend : {"cpu", "reference"}) {
    ScopedBackend scope(backend);
    const auto pipeline = planned(problem);
    pipeline->decode();
    const Result expected = pipeline->result();
    for (bool with_lse : {true, false}) {
      Buffer out(host_memory(), rows * kKvLoraRank * 4), lse(host_memory(), rows * 4);
      TensorView lse_view;
      if (with_lse) lse_view = TensorView(lse.data(), DType::f32, {b, 3, 2}, {6, 1, 3});
      decode(pipeline->decode_plan(), pipeline->query(), pipeline->cache(), pipeline->block_table(),
             pipeline->lengths(), problem.softmax_scale, true,
             TensorView(out.data(), DType::f32, {b, 2, 3, kKvLoraRank},
                        {3 * kKvLoraRank, b * 3 * kKvLoraRank, kKvLoraRank, 1}),
             lse_view, pipeline->workspace());
      EXPECT_TRUE(out.guards_intact() && lse.guards_intact());
      const auto o = out.read<float>(), l = lse.read<float>();
      for (std::int64_t r = 0; r < b; ++r) {
        for (std::int64_t i = 0; i < 2; ++i) {
          for (std::int64_t h = 0; h < 3; ++h) {
            ASSERT_EQ(
                std::memcmp(&o[((i * b + r) * 3 + h) * kKvLoraRank],
                            &expected.out[((r * 2 + i) * 3 + h) * kKvLoraRank], kKvLoraRank * 4),
                0);
            if (with_lse) {
              ASSERT_EQ(l[(r * 2 + i) * 3 + h], expected.lse[(r * 3 + h) * 2 + i]);
            }
          }
        }
      }
    }
  }
}

// B18: workspace_bytes is what decode needs: exactly that many bytes between 4 KiB guards, for
// every way to plan. One byte less is refused by validation.
TEST(Faults, B18_WorkspaceIsNeverLeft) {
  for (int num_sms : {1, 2, 7, 132}) {
    for (int kind = 0; kind < 5; ++kind) {
      Case c;
      c.lengths = {1000, 0, 129, 2500, 1};
      c.s_q = 3;
      c.h_q = 5;
      c.data = Data::exact_p;
      c.plan.num_sms = num_sms;
      if (kind == 1) c.plan.forced_splits = 4;
      if (kind == 2) c.plan.forced_splits = 1;
      if (kind == 3) c.plan.split_tokens = 128;
      if (kind == 4) c.plan.batch_invariant = true;
      const Problem problem = make_problem(c);
      EXPECT_TRUE(within(run(problem), attend_originals(problem), {})) << to_string(c);
    }
  }
}

// A plan made with more splits than the workspace was sized for is an error and not an overrun.
TEST(Faults, B18_WorkspaceOfOtherOptionsIsRefused) {
  Case c;
  c.lengths = {4000, 4000};
  c.h_q = 2;
  c.plan.num_sms = 2;
  Problem problem = make_problem(c);
  const auto balanced = planned(problem);
  problem.spec.plan.forced_splits = 20;
  const auto forced = planned(problem);
  try {
    decode(forced->decode_plan(), forced->query(), forced->cache(), forced->block_table(),
           forced->lengths(), problem.softmax_scale, true, forced->out(), forced->lse(),
           balanced->workspace());
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.argument(), "workspace");
  }
  EXPECT_TRUE(balanced->workspace_buffer().guards_intact());
}

// More row tiles than processors: the number of workers must not become 0.
TEST(Faults, B19_MoreRowsThanWorkersCanShare) {
  Case c;
  c.lengths = {70};
  c.s_q = 67;
  c.h_q = 128;
  c.data = Data::exact_p;
  c.plan.num_sms = 132;  // 134 tiles of 64 rows
#ifdef SNAPMLA_SANITIZED
  c.h_q = 32;
  c.plan.num_sms = 33;
#endif
  EXPECT_EQ(plan_size(make_problem(c).plan_spec(), c.plan).schedule_rows, 2);
  const Problem problem = make_problem(c);
  EXPECT_TRUE(within(run(problem), attend_originals(problem), {})) << to_string(c);
}

TEST(Faults, B20_FourThousandQueryTokens) {
  Case c;
  c.lengths = {5};
  c.s_q = 4096;
  c.h_q = 4;
  c.causal = false;
  c.data = Data::exact_p;
  const Problem problem = make_problem(c);
  EXPECT_TRUE(within(run(problem), attend_originals(problem), {})) << to_string(c);
}

TEST(Faults, B21_BatchesBeyond4096) {
  for (std::int64_t b : {4095, 4096, 5000}) {
    Case c;
    c.lengths.resize(b);
    for (std::int64_t i = 0; i < b; ++i) c.lengths[i] = static_cast<std::int32_t>(1 + i % 3);
    c.h_q = 1;
    c.data = Data::exact_p;
    c.plan.num_sms = 132;
    const Problem problem = make_problem(c);
    EXPECT_TRUE(within(run(problem), attend_originals(problem), {})) << b;
  }
}

/// Zero pages on demand: a pool larger than the machine's memory, of which a few pages are touched.
class SparsePool {
 public:
  explicit SparsePool(std::int64_t bytes) : bytes_(static_cast<std::size_t>(bytes)) {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~SparsePool() {
    if (ok()) munmap(data_, bytes_);
  }
  bool ok() const { return data_ != MAP_FAILED; }
  void* data() const { return data_; }

 private:
  std::size_t bytes_;
  void* data_;
};

// 140,000 pages, a content plane of 4.6 GB: page * stride needs more than 32 bits.
TEST(Faults, B24_PageIdsBeyond32BitOffsets) {
  constexpr std::int64_t kPages = 140000;
  const SparsePool content(kPages * 64 * 512), rope(kPages * 64 * 128), scale(kPages * 64 * 4),
      packed(kPages * kPackedPageBytes);
  if (!content.ok() || !rope.ok() || !scale.ok() || !packed.ok()) {
    GTEST_SKIP() << "no address space for a sparse pool of 11 GB";
  }
  Case c;
  c.lengths = {130};
  c.h_q = 4;
  const Problem problem = make_problem(c);
  const auto small = planned(problem);
  small->decode();
  const Result expected = small->result();
  const Buffer kv = Buffer::of(host_memory(), problem.kv);
  for (const Cache& cache :
       {Cache::from_planes(TensorView(content.data(), DType::u8, {kPages, 64, 512}),
                           TensorView(scale.data(), DType::f32, {kPages, 64}),
                           TensorView(rope.data(), DType::bf16, {kPages, 64, 64})),
        Cache::from_pages(TensorView(packed.data(), DType::u8, {kPages, kPackedPageBytes}))}) {
    for (const std::vector<std::int32_t>& pages :
         {std::vector<std::int32_t>{5, 6, 7}, {65535, 65536, 65537}, {131071, 131072, 139999}}) {
      std::vector<std::int64_t> slots;
      for (std::int64_t t = 0; t < 130; ++t) slots.push_back(pages[t / 64] * 64LL + t % 64);
      const Buffer index = Buffer::of(host_memory(), slots);
      const TensorView slot_view(index.data(), DType::i64, {130});
      append_kv(cache, TensorView(kv.data(), DType::f32, {130, kQkDim}), slot_view);
      const Buffer table = Buffer::of(host_memory(), pages);
      for (const char* backend : {"cpu", "reference"}) {
        ScopedBackend scope(backend);
        const TensorView lse = small->lse();
        decode(small->decode_plan(), small->query(), cache,
               TensorView(table.data(), DType::i32, {1, 3}), small->lengths(),
               problem.softmax_scale, true, small->out(), lse, small->workspace());
        if (std::string(backend) == "cpu") {
          EXPECT_TRUE(identical(small->result(), expected)) << "pages from " << pages[0];
        } else {
          EXPECT_TRUE(within(small->result(), attend_stored(*small), {1e-6, 1, 1e-5, 0}));
        }
      }
      Buffer fetched(host_memory(), 130 * kQkDim * 4);
      fetch_dequant(cache, slot_view, TensorView(fetched.data(), DType::f32, {130, kQkDim}));
      EXPECT_EQ(fetched.read<float>(), small->stored().kv) << "pages from " << pages[0];
    }
  }
}

TEST(Faults, B27_EmptyRequestsBesideFullOnes) {
  Case c;
  c.lengths = {130, 0, 1, 64, 0, 65, 0, 0};
  c.h_q = 8;
  for (std::int64_t s_q : {1, 2}) {
    c.s_q = s_q;
    Problem problem = make_problem(c);
    for (std::int64_t r : {1, 4, 6, 7}) {
      std::fill_n(problem.block_table.begin() + r * problem.table_stride, problem.max_blocks, -1);
    }
    for (const char* backend : {"cpu", "reference"}) {
      ScopedBackend scope(backend);
      const auto pipeline = planned(problem);
      pipeline->decode();
      EXPECT_TRUE(within(pipeline->result(), attend_stored(*pipeline), kPGate)) << backend;
      EXPECT_EQ(pipeline->status(), 0) << "unowned table entries were counted";
    }
  }
}

// B29, B30: all that is not a valid token is NaN, Inf or 1e38, and so are out, lse and workspace
// before the call (every run() does that); half the requests are empty.
TEST(Faults, B29_PoisonBesideTheTokensStaysThere) {
  for (CacheForm form : {CacheForm::planes, CacheForm::packed}) {
    Case c;
    c.lengths = {65, 0, 700, 0, 1, 0};
    c.h_q = 8;
    c.form = form;
    c.plan.num_sms = 3;
    for (const char* backend : {"cpu", "reference"}) {
      ScopedBackend scope(backend);
      const Result result = run(make_problem(c));
      EXPECT_TRUE(all_finite(result.out)) << backend;
      for (std::int64_t r = 0; r < c.b(); ++r) {
        for (std::int64_t h = 0; h < c.h_q; ++h) {
          EXPECT_EQ(result.lse[r * c.h_q + h] == -INFINITY, c.lengths[r] == 0) << backend;
          EXPECT_FALSE(std::isnan(result.lse[r * c.h_q + h]));
        }
      }
    }
  }
}

// Pages exported as bytes, all planes scribbled over, imported under other ids.
TEST(Faults, B35_PagesMoveWithTheirScales) {
  for (CacheForm form : {CacheForm::planes, CacheForm::packed}) {
    Case c;
    c.lengths = {300};
    c.h_q = 4;
    c.form = form;
    c.page_stride = 64 * 656;
    Problem problem = make_problem(c);
    problem.num_pages += 8;
    const auto pipeline = planned(problem);
    pipeline->decode();
    const Result before = pipeline->result();
    const Cache cache = pipeline->cache();
    const LayoutDescription layout = describe_layout(form);
    const auto address = [&](const PlaneLayout& plane, std::int64_t page) {
      if (form == CacheForm::packed) {
        return static_cast<char*>(cache.pages.data) + page * cache.page_stride_bytes + plane.offset;
      }
      const TensorView& t = plane.name == "content" ? cache.content
                            : plane.name == "rope"  ? cache.rope
                                                    : cache.scale;
      return static_cast<char*>(t.data) + page * plane.page_bytes;
    };
    std::vector<std::vector<char>> exported;
    for (int block = 0; block < 5; ++block) {
      for (const PlaneLayout& plane : layout.planes) {
        char* from = address(plane, problem.block_table[block]);
        exported.emplace_back(from, from + plane.page_bytes);
      }
    }
    for (std::int64_t page = 0; page < problem.num_pages; ++page) {
      for (const PlaneLayout& plane : layout.planes) {
        std::memset(address(plane, page), 0x7f, static_cast<std::size_t>(plane.page_bytes));
      }
    }
    std::size_t part = 0;
    for (int block = 0; block < 5; ++block) {
      const std::int64_t page = problem.num_pages - 1 - block;
      problem.block_table[block] = static_cast<std::int32_t>(page);
      for (const PlaneLayout& plane : layout.planes) {
        std::memcpy(address(plane, page), exported[part].data(), exported[part].size());
        ++part;
      }
    }
    pipeline->block_table_buffer().upload(problem.block_table.data(),
                                          problem.block_table.size() * 4);
    pipeline->decode();
    EXPECT_TRUE(identical(pipeline->result(), before)) << cache_form_name(form);
  }
}

// No state outside the caller's tensors: new plan, workspace and outputs over the same cache.
TEST(Faults, B39_NothingIsHiddenBetweenCalls) {
  Case c;
  c.lengths = {300, 65};
  c.h_q = 4;
  c.plan.num_sms = 4;
  const Problem problem = make_problem(c);
  const auto first = planned(problem);
  first->decode();
  const Result expected = first->result();
  {  // something else in between
    Case other = c;
    other.scale = ScaleMode::exact;
    other.seed = 99;
    other.lengths = {2000};
    run(make_problem(other));
  }
  Pipeline second(problem);
  second.quantize();
  second.plan();
  decode(second.decode_plan(), second.query(), first->cache(), first->block_table(),
         second.lengths(), problem.softmax_scale, true, second.out(), second.lse(),
         second.workspace());
  EXPECT_TRUE(identical(second.result(), expected));
}

TEST(Faults, B44_PoisonedWorkspaceAndForcedSplits) {
  for (std::int64_t s_q : {1, 8}) {
    for (int splits : {1, 2, 3, 8, 16, 32}) {
      Case c;
      c.lengths = {65, 700};
      c.s_q = s_q;
      c.h_q = 2;
      c.plan.forced_splits = splits;
      c.plan.num_sms = 9;
      const auto pipeline = planned(make_problem(c));
      pipeline->decode();
      const Result first = pipeline->result();
      EXPECT_TRUE(within(first, attend_stored(*pipeline), kPGate)) << splits;
      for (int repeat = 0; repeat < 100; ++repeat) {
        if (repeat % 25 == 0) pipeline->workspace_buffer().fill(0xff);
        pipeline->decode();
        if (repeat % 25 == 0 || repeat == 99) {
          ASSERT_TRUE(identical(pipeline->result(), first)) << splits << " repeat " << repeat;
        }
      }
    }
  }
}

// A plan made for other lengths stays correct: a graph is replayed while sequences grow and shrink.
TEST(Faults, B40_LengthsChangeUnderAPlan) {
  for (int splits : {0, 3}) {
    Case c;
    c.lengths = {70, 1500, 5, 129};
    c.h_q = 4;
    c.data = Data::exact_p;
    c.plan.num_sms = 7;
    c.plan.forced_splits = splits;
    const Problem problem = make_problem(c);
    const Attention expected = attend_originals(problem);
    Pipeline pipeline(problem);
    pipeline.append();
    pipeline.quantize();
    for (const std::vector<std::int32_t>& planned_for :
         {std::vector<std::int32_t>{1, 1, 1, 1}, {2000, 1, 2000, 0}, {0, 128, 4000, 700}}) {
      pipeline.lengths_buffer().upload(planned_for.data(), 16);
      pipeline.plan();
      pipeline.lengths_buffer().upload(c.lengths.data(), 16);
      pipeline.out_buffer().fill(0xff);
      pipeline.decode();
      EXPECT_TRUE(within(pipeline.result(), expected, {})) << planned_for[0] << " " << splits;
    }
  }
}

// A table entry of a valid position that names no page: its tokens are left out, and counted.
TEST(Faults, PagesOutsideTheCacheAreLeftOutAndCounted) {
  Case c;
  c.lengths = {300, 64};
  c.h_q = 4;
  c.causal = false;
  for (std::int32_t bad : {-1, 1 << 30, -7}) {
    Problem problem = make_problem(c);
    const auto pipeline = planned(problem);
    Stored stored = pipeline->stored();
    // Without tokens 64..127 of request 0.
    Problem without = problem;
    without.first_token = {0, 236, 300};
    stored.kv.erase(stored.kv.begin() + 64 * kQkDim, stored.kv.begin() + 128 * kQkDim);
    const Attention expected = attend(without, stored.q, stored.kv);
    problem.block_table[1] = bad;
    pipeline->block_table_buffer().upload(problem.block_table.data(),
                                          problem.block_table.size() * 4);
    std::int64_t count = 0;
    for (const char* backend : {"cpu", "reference"}) {
      ScopedBackend scope(backend);
      pipeline->decode();
      EXPECT_TRUE(within(pipeline->result(), expected, kPGate)) << backend << " page " << bad;
      EXPECT_EQ(pipeline->status(), ++count) << backend;
    }
    NumericsOptions chained;  // the loops without vectors
    chained.form = NumericsOptions::Form::chained;
    pipeline->decode(chained);
    EXPECT_TRUE(within(pipeline->result(), expected, kPGate)) << "chained, page " << bad;
  }
}

// A length beyond the block table must not read past it.
TEST(Faults, LengthsBeyondTheBlockTable) {
  Case c;
  c.lengths = {128};
  c.h_q = 2;
  c.causal = false;
  const Problem problem = make_problem(c);
  const auto pipeline = planned(problem);
  pipeline->decode();
  const Result expected = pipeline->result();
  const auto table = std::make_unique<std::int32_t[]>(2);
  std::copy_n(problem.block_table.begin(), 2, table.get());
  for (const char* backend : {"cpu", "reference"}) {
    ScopedBackend scope(backend);
    pipeline->decode();
    const Result same = pipeline->result();
    for (std::int32_t length : {129, 100000, 0x7fffffff}) {
      pipeline->lengths_buffer().upload(&length, 4);
      decode(pipeline->decode_plan(), pipeline->query(), pipeline->cache(),
             TensorView(table.get(), DType::i32, {1, 2}), pipeline->lengths(),
             problem.softmax_scale, false, pipeline->out(), pipeline->lse(), pipeline->workspace());
      EXPECT_TRUE(identical(pipeline->result(), same)) << backend << " " << length;
    }
    const std::int32_t length = 128;
    pipeline->lengths_buffer().upload(&length, 4);
  }
}

// Garbage in every word of a plan that the host does not check: out is written somewhere inside, or
// the call is refused, but nothing else is touched.
TEST(Faults, GarbagePlansStayInside) {
  Case c;
  c.lengths = {300, 65, 1};
  c.h_q = 2;
  c.plan.num_sms = 4;
  const auto pipeline = planned(make_problem(c));
  const auto good = pipeline->schedule_buffer().read<std::int32_t>();
  for (int seed = 0; seed < 300; ++seed) {
    Random random(seed);
    auto words = good;
    for (std::size_t i = 5; i < words.size(); ++i) {
      const std::int32_t extremes[] = {0, -1, 1, 2, 0x7fffffff, -0x7fffffff - 1, 640, -128};
      if (random.integer(0, 2) == 0) words[i] = extremes[random.integer(0, 7)];
    }
    pipeline->schedule_buffer().upload(words.data(), words.size() * 4);
    try {
      pipeline->decode();
    } catch (const InvalidArgument&) {
    }
    pipeline->result();  // checks every guard band
    if (::testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST(Faults, NoRequests) {
  Case c;
  c.h_q = 3;
  for (const char* backend : {"cpu", "reference"}) {
    ScopedBackend scope(backend);
    const Result result = run(make_problem(c));
    EXPECT_TRUE(result.out.empty() && result.lse.empty());
  }
}

}  // namespace
}  // namespace snapmla::test
