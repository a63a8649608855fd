// Every rule of src/core/validate.cpp: the error names argument, rule and value, and nothing is
// written.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "snapmla/snapmla.h"
#include "support/memory.h"

namespace snapmla {
namespace {

using test::Buffer;

constexpr std::int64_t kB = 2, kSq = 2, kHq = 3, kTokens = 5, kPages = 4, kBlocks = 2;
const Device kCuda{DeviceType::cuda, 0};

/// One valid call of every operation; tests change one thing.
struct Calls {
  std::vector<Buffer> buffers;

  TensorView tensor(DType dtype, std::initializer_list<std::int64_t> shape) {
    TensorView view(nullptr, dtype, shape);
    buffers.emplace_back(test::host_memory(), static_cast<std::size_t>(view.bytes()));
    view.data = buffers.back().data();
    return view;
  }
  TensorView ints(std::initializer_list<std::int32_t> values) {
    const std::vector<std::int32_t> v(values);
    TensorView view(nullptr, DType::i32, {static_cast<std::int64_t>(v.size())});
    buffers.push_back(Buffer::of(test::host_memory(), v));
    view.data = buffers.back().data();
    return view;
  }

  Cache planes =
      Cache::from_planes(tensor(DType::u8, {kPages, 64, 512}), tensor(DType::f32, {kPages, 64}),
                         tensor(DType::bf16, {kPages, 64, 64}));
  Cache packed = Cache::from_pages(tensor(DType::u8, {kPages, kPackedPageBytes}));
  Cache cache = planes;

  ContentRope q{tensor(DType::bf16, {kB, kSq, kHq, 576})};
  ContentRope q_two{tensor(DType::f32, {kB, kSq, kHq, 512}),
                    tensor(DType::f32, {kB, kSq, kHq, 64})};
  QuantizedQuery query{tensor(DType::e4m3, {kB, kSq, kHq, 512}), tensor(DType::f32, {kB, kSq, kHq}),
                       tensor(DType::bf16, {kB, kSq, kHq, 64})};
  QuantizeOptions quantize_options;

  ContentRope kv{tensor(DType::bf16, {kTokens, 576})};
  ContentRope kv_two{tensor(DType::bf16, {kTokens, 512}), tensor(DType::bf16, {kTokens, 64})};
  TensorView slots = ints({0, 1, 2, 3, 4});
  TensorView dst = ints({64, 65, 66, 67, 68});
  AppendOptions append_options;
  TensorView status = ints({0});
  ContentRope fetched{tensor(DType::f32, {kTokens, 576})};

  TensorView block_table = [this] {
    TensorView t = ints({0, 1, 2, 3});
    return TensorView(t.data, DType::i32, {kB, kBlocks});
  }();
  TokenRanges ranges{block_table, ints({0, 0}), ints({2, 2}), ints({0, 2})};

  PlanSpec spec{kB, kSq* kHq, 100, {}};
  PlanOptions options = [] {
    PlanOptions o;
    o.num_sms = 3;
    return o;
  }();
  TensorView lengths = ints({70, 5});
  DecodePlan plan{tensor(DType::i32, {4, 8}), tensor(DType::i32, {kB + 1})};

  float softmax_scale = 0.05f;
  TensorView out = tensor(DType::f32, {kB, kSq, kHq, 512});
  TensorView lse = tensor(DType::f32, {kB, kHq, kSq});
  TensorView workspace = tensor(DType::u8, {4 * kSq * kHq * 513 * 4});
  DecodeOptions decode_options;

  TensorView outs = tensor(DType::f32, {2, kB, kSq, kHq, 512});
  TensorView lses = tensor(DType::f32, {2, kB, kHq, kSq});

  Calls() {
    // Inputs that are read become numbers.
    for (TensorView* t : {&q.joined, &q_two.content, &q_two.rope, &kv.joined, &kv_two.content,
                          &kv_two.rope, &outs, &lses}) {
      std::memset(t->data, 0, static_cast<std::size_t>(t->bytes()));
    }
  }

  void do_quantize() { quantize_query(q, query, quantize_options); }
  void do_append() { append_kv(cache, kv, slots, append_options); }
  void do_fetch() { fetch_dequant(cache, slots, fetched, status); }
  void do_fetch_ranges() { fetch_dequant(cache, ranges, fetched, status); }
  void do_copy() { copy_tokens(cache, slots, dst, status); }
  void do_plan() { plan_decode(lengths, spec, options, plan); }
  void do_decode() {
    decode(plan, query, cache, block_table, lengths, softmax_scale, true, out, lse, workspace, {},
           decode_options);
  }
  void do_merge() { merge_states(outs, lses, out, lse); }

  std::vector<std::vector<std::uint8_t>> contents() const {
    std::vector<std::vector<std::uint8_t>> all;
    for (const Buffer& buffer : buffers) all.push_back(buffer.read<std::uint8_t>());
    return all;
  }
};

using Change = std::function<void(Calls&)>;
using Call = void (Calls::*)();

void expect_refused(Call call, const Change& change, const std::string& argument,
                    const std::string& rule, const std::string& value = "") {
  Calls calls;
  calls.do_append();
  calls.do_quantize();
  calls.do_plan();
  change(calls);
  const auto before = calls.contents();
  SCOPED_TRACE(argument + ": expected " + rule);
  try {
    (calls.*call)();
    ADD_FAILURE() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.argument(), argument) << error.what();
    EXPECT_NE(error.rule().find(rule), std::string::npos) << error.what();
    EXPECT_NE(error.value().find(value), std::string::npos) << error.what();
    EXPECT_EQ(std::string(error.what()),
              error.argument() + ": expected " + error.rule() + ", got " + error.value());
  }
  EXPECT_EQ(calls.contents(), before) << "something was written";
  for (const Buffer& buffer : calls.buffers) EXPECT_TRUE(buffer.guards_intact());
}

TEST(Validate, ValidCallsPass) {
  Calls calls;
  calls.do_quantize();
  calls.q = calls.q_two;
  calls.do_quantize();
  calls.do_append();
  calls.kv = calls.kv_two;
  calls.do_append();
  calls.do_fetch();
  calls.do_fetch_ranges();
  calls.do_copy();
  calls.do_plan();
  calls.do_decode();
  calls.do_merge();
  calls.cache = calls.packed;
  calls.do_append();
  calls.do_fetch();
  calls.do_copy();
  calls.do_decode();
  for (const Buffer& buffer : calls.buffers) EXPECT_TRUE(buffer.guards_intact());
}

TEST(Validate, Cache) {
  const auto refused = [](const Change& change, const std::string& argument,
                          const std::string& rule, const std::string& value = "") {
    for (Call call : {&Calls::do_append, &Calls::do_fetch, &Calls::do_fetch_ranges, &Calls::do_copy,
                      &Calls::do_decode}) {
      expect_refused(call, change, argument, rule, value);
    }
  };
  refused([](Calls& c) { c.cache.content = {}; }, "cache.content",
          "a tensor of shape [*, 64, 512]");
  refused([](Calls& c) { c.cache.content.data = nullptr; }, "cache.content", "data pointer",
          "null");
  refused([](Calls& c) { c.cache.content.shape[1] = 32; }, "cache.content", "shape [*, 64, 512]",
          "[4, 32, 512]");
  refused([](Calls& c) { c.cache.content.dtype = DType::bf16; }, "cache.content",
          "--kv-cache-dtype",
          "bf16");  // B52
  refused([](Calls& c) { c.cache.num_pages = 5; }, "cache.num_pages", "4", "5");
  refused([](Calls& c) { c.cache.num_pages = -1; }, "cache.num_pages", "4", "-1");
  refused([](Calls& c) { c.cache.content.strides[1] = 576; }, "cache.content", "contiguous inside",
          "576");  // B34: [..., :512] of a 576-wide buffer
  refused([](Calls& c) { c.cache.content.strides[2] = 2; }, "cache.content", "contiguous inside");
  refused([](Calls& c) { c.cache.content.strides[0] = 0; }, "cache.content", "at least one page",
          "0");
  refused([](Calls& c) { c.cache.content.strides[0] = -32768; }, "cache.content",
          "at least one page", "-32768");
  refused([](Calls& c) { c.cache.content.strides[0] += 8; }, "cache.content", "multiple of 16",
          "32776");
  refused([](Calls& c) { c.cache.content.data = static_cast<char*>(c.cache.content.data) + 1; },
          "cache.content", "16-byte aligned");
  refused([](Calls& c) { c.cache.scale = {}; }, "cache.scale", "dtype f32", "no tensor");
  refused([](Calls& c) { c.cache.scale.dtype = DType::bf16; }, "cache.scale", "dtype f32", "bf16");
  refused([](Calls& c) { c.cache.scale.shape[0] = 3; }, "cache.scale", "shape [4, 64]", "[3, 64]");
  refused([](Calls& c) { c.cache.scale.device = kCuda; }, "cache.scale", "on cpu", "cuda:0");
  refused([](Calls& c) { c.cache.rope.dtype = DType::f32; }, "cache.rope", "dtype bf16", "f32");
  refused([](Calls& c) { c.cache.rope = {}; }, "cache.rope", "dtype bf16", "no tensor");
  refused([](Calls& c) { c.cache.rope.shape[2] = 32; }, "cache.rope", "shape [4, 64, 64]");

  const auto packed = [&](const Change& change, const std::string& argument,
                          const std::string& rule, const std::string& value = "") {
    refused(
        [&](Calls& c) {
          c.cache = c.packed;
          change(c);
        },
        argument, rule, value);
  };
  packed([](Calls& c) { c.cache.pages = {}; }, "cache.pages", "a tensor of shape [*, *]");
  packed([](Calls& c) { c.cache.pages.dtype = DType::i32; }, "cache.pages", "dtype u8 or e4m3",
         "i32");
  packed([](Calls& c) { c.cache.pages.shape[1] = 41215; }, "cache.pages", "at least 41216",
         "41215");
  packed([](Calls& c) { c.cache.pages.strides[1] = 2; }, "cache.pages", "dense", "2");
  packed([](Calls& c) { c.cache.num_pages = 5; }, "cache.num_pages", "4", "5");
  packed([](Calls& c) { c.cache.page_stride_bytes = 41200; }, "cache.page_stride_bytes",
         "at least 41216", "41200");
  packed([](Calls& c) { c.cache.page_stride_bytes = 41220; }, "cache.page_stride_bytes",
         "multiple of 16", "41220");
  packed([](Calls& c) { c.cache.pages.data = static_cast<char*>(c.cache.pages.data) + 8; },
         "cache.pages", "16-byte aligned");
}

TEST(Validate, QuantizeQuery) {
  const auto refused = [](const Change& change, const std::string& argument,
                          const std::string& rule, const std::string& value = "") {
    expect_refused(&Calls::do_quantize, change, argument, rule, value);
  };
  refused([](Calls& c) { c.q = {}; }, "q_nope", "a tensor of shape");
  refused([](Calls& c) { c.q.joined.shape[3] = 575; }, "q", "shape [*, *, *, 576]", "575");
  refused([](Calls& c) { c.q.joined.rank = 3; }, "q", "shape [*, *, *, 576]");
  refused([](Calls& c) { c.q.joined.dtype = DType::e4m3; }, "q", "dtype bf16 or f32", "e4m3");
  refused([](Calls& c) { c.q.joined.strides[3] = 2; }, "q", "dense last dimension", "2");
  refused([](Calls& c) { c.q.joined.data = nullptr; }, "q", "data pointer", "null");
  refused([](Calls& c) { c.q.joined.data = static_cast<char*>(c.q.joined.data) + 1; }, "q",
          "2-byte aligned");
  refused(
      [](Calls& c) {
        c.q = c.q_two;
        c.q.rope = {};
      },
      "q_rope", "a tensor of shape");
  refused(
      [](Calls& c) {
        c.q = c.q_two;
        c.q.rope.shape[0] = 1;
      },
      "q_rope", "shape [2, 2, 3, 64]");
  refused(
      [](Calls& c) {
        c.q = c.q_two;
        c.q.rope.dtype = DType::bf16;
      },
      "q_rope", "dtype f32", "bf16");
  refused(
      [](Calls& c) {
        c.q = c.q_two;
        c.q.rope.device = kCuda;
      },
      "q_rope", "on cpu", "cuda:0");
  refused(
      [](Calls& c) {
        c.q = c.q_two;
        c.q.content.strides[3] = 0;
      },
      "q_nope", "dense");
  refused([](Calls& c) { c.query.codes.shape[1] = 1; }, "out.codes", "shape [2, 2, 3, 512]");
  refused([](Calls& c) { c.query.codes.dtype = DType::bf16; }, "out.codes", "dtype e4m3 or u8");
  refused([](Calls& c) { c.query.codes.strides[0] = 0; }, "out.codes", "no two elements overlap");
  refused([](Calls& c) { c.query.codes.device = kCuda; }, "out.codes", "on cpu");
  refused([](Calls& c) { c.query.scale = {}; }, "out.scale", "a tensor of shape [2, 2, 3]");
  refused([](Calls& c) { c.query.scale.dtype = DType::bf16; }, "out.scale", "dtype f32");
  refused([](Calls& c) { c.query.scale.strides[2] = 0; }, "out.scale", "no two elements overlap");
  refused([](Calls& c) { c.query.scale.data = static_cast<char*>(c.query.scale.data) + 2; },
          "out.scale", "4-byte aligned");
  refused([](Calls& c) { c.query.rope.dtype = DType::f32; }, "out.rope", "dtype bf16");
  refused([](Calls& c) { c.query.rope.strides[3] = 2; }, "out.rope", "dense last dimension");
  refused([](Calls& c) { c.query.rope.strides[1] = 0; }, "out.rope", "no two elements overlap");
}

TEST(Validate, Append) {
  const auto refused = [](const Change& change, const std::string& argument,
                          const std::string& rule, const std::string& value = "") {
    expect_refused(&Calls::do_append, change, argument, rule, value);
  };
  refused([](Calls& c) { c.kv.joined.shape[1] = 512; }, "kv", "shape [*, 576]", "512");
  refused([](Calls& c) { c.kv.joined.dtype = DType::u8; }, "kv", "dtype bf16 or f32", "u8");
  refused([](Calls& c) { c.kv.joined.device = kCuda; }, "kv", "on cpu", "cuda:0");
  refused(
      [](Calls& c) {
        c.kv = c.kv_two;
        c.kv.rope.shape[0] = 4;
      },
      "rope", "shape [5, 64]");
  refused(
      [](Calls& c) {
        c.kv = c.kv_two;
        c.kv.content.device = c.kv.rope.device = kCuda;
      },
      "content", "on cpu", "cuda:0");
  refused([](Calls& c) { c.slots = {}; }, "slots", "a tensor of shape [5]");
  refused([](Calls& c) { c.slots.shape[0] = 4; }, "slots", "shape [5]", "[4]");
  refused([](Calls& c) { c.slots.dtype = DType::f32; }, "slots", "dtype i32 or i64", "f32");
  refused([](Calls& c) { c.slots.device = kCuda; }, "slots", "on cpu", "cuda:0");
  refused([](Calls& c) { c.slots.data = static_cast<char*>(c.slots.data) + 2; }, "slots",
          "4-byte aligned");
  refused([](Calls& c) { c.append_options.status = c.dst; }, "options.status", "shape [1]", "[5]");
  refused(
      [](Calls& c) {
        c.append_options.status = c.status;
        c.append_options.status.dtype = DType::i64;
      },
      "options.status", "dtype i32", "i64");
}

TEST(Validate, FetchAndCopy) {
  expect_refused(
      &Calls::do_fetch, [](Calls& c) { c.fetched.joined.strides[0] = 0; }, "out",
      "no two elements overlap");
  expect_refused(
      &Calls::do_fetch, [](Calls& c) { c.fetched.joined.dtype = DType::e4m3; }, "out",
      "dtype bf16 or f32", "e4m3");
  expect_refused(
      &Calls::do_fetch, [](Calls& c) { c.fetched = {}; }, "out.content", "a tensor");
  expect_refused(
      &Calls::do_fetch, [](Calls& c) { c.fetched.joined.device = kCuda; }, "out", "on cpu",
      "cuda:0");
  expect_refused(
      &Calls::do_fetch, [](Calls& c) { c.slots.shape[0] = 4; }, "slots", "shape [5]");
  expect_refused(
      &Calls::do_fetch, [](Calls& c) { c.status.dtype = DType::f32; }, "status", "dtype i32");
  const auto ranges = [](const Change& change, const std::string& argument, const std::string& rule,
                         const std::string& value = "") {
    expect_refused(&Calls::do_fetch_ranges, change, argument, rule, value);
  };
  ranges([](Calls& c) { c.ranges.block_table = {}; }, "ranges.block_table", "a tensor");
  ranges([](Calls& c) { c.ranges.block_table.dtype = DType::i64; }, "ranges.block_table",
         "dtype i32", "i64");
  ranges([](Calls& c) { c.ranges.starts.shape[0] = 1; }, "ranges.starts", "shape [2]", "[1]");
  ranges([](Calls& c) { c.ranges.lengths = {}; }, "ranges.lengths", "a tensor of shape [2]");
  ranges([](Calls& c) { c.ranges.offsets.strides[0] = 2; }, "ranges.offsets", "contiguous", "2");
  const auto copy = [](const Change& change, const std::string& argument, const std::string& rule) {
    expect_refused(&Calls::do_copy, change, argument, rule);
  };
  copy([](Calls& c) { c.slots = {}; }, "src", "a tensor of shape [*]");
  copy([](Calls& c) { c.dst.shape[0] = 4; }, "dst", "shape [5]");
  copy([](Calls& c) { c.dst.dtype = DType::bf16; }, "dst", "dtype i32 or i64");
  copy([](Calls& c) { c.status = c.lengths; }, "status", "shape [1]");
}

TEST(Validate, Plan) {
  const auto refused = [](const Change& change, const std::string& argument,
                          const std::string& rule, const std::string& value = "") {
    expect_refused(&Calls::do_plan, change, argument, rule, value);
  };
  refused([](Calls& c) { c.spec.b = -1; }, "spec.b", "0 <= b", "-1");
  refused([](Calls& c) { c.spec.b = 0x7fffffff; }, "spec.b", "b < 2^31 - 1", "2147483647");
  refused([](Calls& c) { c.spec.rows = 0; }, "spec.rows", "1 <= s_q * h_q", "0");
  refused([](Calls& c) { c.spec.rows = std::int64_t{1} << 31; }, "spec.rows", "2^31 - 1");
  refused([](Calls& c) { c.spec.max_seqlen = -1; }, "spec.max_seqlen", "0 <= max_seqlen", "-1");
  refused([](Calls& c) { c.spec.max_seqlen = std::int64_t{1} << 31; }, "spec.max_seqlen",
          "2^31 - 1");
  refused([](Calls& c) { c.options.forced_splits = -1; }, "options.forced_splits",
          "0 or a positive", "-1");
  refused([](Calls& c) { c.options.split_tokens = 64; }, "options.split_tokens", "multiple of 128",
          "64");
  refused([](Calls& c) { c.options.split_tokens = -128; }, "options.split_tokens", "positive",
          "-128");
  refused(
      [](Calls& c) {
        c.options.forced_splits = 2;
        c.options.split_tokens = 128;
      },
      "options.forced_splits", "0 together with split_tokens", "2");
  refused(
      [](Calls& c) {
        c.options.forced_splits = 2;
        c.options.batch_invariant = true;
      },
      "options.forced_splits", "batch-invariant", "2");
  refused(
      [](Calls& c) {
        c.options.batch_invariant = true;
        c.spec.max_seqlen = 0;
      },
      "spec.max_seqlen", "upper bound", "0");
  refused([](Calls& c) { c.options.num_sms = -1; }, "options.num_sms", "workers", "-1");
  refused([](Calls& c) { c.options.num_sms = (1 << 20) + 1; }, "options.num_sms", "2^20");
  refused([](Calls& c) { c.options.p_block = 96; }, "options.p_block", "0, 64 or 128", "96");
  refused(
      [](Calls& c) {
        c.spec.b = 0x7ffffffe;
        c.options.forced_splits = 1000;
      },
      "options", "partial results");
  // 2^31 rows and 2^21 partial results: the workspace size itself leaves 63 bits.
  refused(
      [](Calls& c) {
        c.spec.rows = 0x7fffffff;
        c.spec.b = 0x7ffffffe;
        c.options.forced_splits = 1;
        c.options.num_sms = 0;
        c.options.forced_splits = 0;
        c.options.split_tokens = 0x7fffff80;
        c.spec.max_seqlen = 1;
      },
      "cache_seqlens", "shape [2147483646]");
  refused([](Calls& c) { c.lengths = {}; }, "cache_seqlens", "a tensor of shape [2]");
  refused([](Calls& c) { c.lengths.shape[0] = 1; }, "cache_seqlens", "shape [2]", "[1]");
  refused([](Calls& c) { c.lengths.dtype = DType::i64; }, "cache_seqlens", "dtype i32", "i64");
  refused([](Calls& c) { c.lengths.strides[0] = 0; }, "cache_seqlens", "contiguous");
  refused([](Calls& c) { c.lengths.device = kCuda; }, "cache_seqlens", "on cpu", "cuda:0");
  refused([](Calls& c) { c.plan.schedule.shape[0] = 3; }, "plan.schedule", "shape [4, 8]",
          "[3, 8]");
  refused([](Calls& c) { c.plan.schedule.dtype = DType::f32; }, "plan.schedule", "dtype i32");
  refused([](Calls& c) { c.plan.schedule.strides[0] = 16; }, "plan.schedule", "contiguous", "16");
  refused([](Calls& c) { c.plan.schedule.data = static_cast<char*>(c.plan.schedule.data) + 1; },
          "plan.schedule", "4-byte aligned");
  refused([](Calls& c) { c.plan.num_splits = {}; }, "plan.num_splits", "a tensor of shape [3]");
  refused([](Calls& c) { c.plan.num_splits.shape[0] = 2; }, "plan.num_splits", "shape [3]", "[2]");
}

TEST(Validate, PlanSizesThatOverflowAreRefused) {
  PlanSpec spec{1 << 20, 0x7fffffff, 1, {}};
  PlanOptions options;
  options.forced_splits = 1024;
  EXPECT_THROW(workspace_bytes(spec, options), InvalidArgument);
  EXPECT_THROW(plan_size(spec, options), InvalidArgument);
}

TEST(Validate, Decode) {
  const auto refused = [](const Change& change, const std::string& argument,
                          const std::string& rule, const std::string& value = "") {
    expect_refused(&Calls::do_decode, change, argument, rule, value);
  };
  refused([](Calls& c) { c.query.codes = {}; }, "query.codes", "a tensor of shape");
  refused([](Calls& c) { c.query.codes.shape[3] = 576; }, "query.codes", "shape [*, *, *, 512]");
  refused([](Calls& c) { c.query.codes.dtype = DType::bf16; }, "query.codes", "dtype e4m3 or u8",
          "bf16");
  refused([](Calls& c) { c.query.codes.strides[0] *= 2; }, "query.codes", "contiguous");
  refused([](Calls& c) { c.query.scale.dtype = DType::bf16; }, "query.scale", "dtype f32", "bf16");
  refused([](Calls& c) { c.query.scale.shape[2] = 2; }, "query.scale", "shape [2, 2, 3]");
  refused([](Calls& c) { c.query.rope.dtype = DType::e4m3; }, "query.rope", "dtype bf16", "e4m3");
  refused([](Calls& c) { c.query.rope.device = kCuda; }, "query.rope", "on cpu", "cuda:0");
  refused([](Calls& c) { c.query.codes.data = static_cast<char*>(c.query.codes.data) + 8; },
          "query.codes", "16-byte aligned");
  refused(
      [](Calls& c) { c.query.codes.shape[1] = c.query.scale.shape[1] = c.query.rope.shape[1] = 0; },
      "query.codes", "s_q >= 1");
  refused([](Calls& c) { c.plan = {}; }, "plan.schedule", "a tensor of shape [*, 8]");
  refused([](Calls& c) { c.plan.schedule.shape[0] = 1; }, "plan.schedule", "at least 2 rows", "1");
  refused([](Calls& c) { c.plan.schedule.dtype = DType::f32; }, "plan.schedule", "dtype i32");
  refused([](Calls& c) { c.plan.num_splits.shape[0] = 2; }, "plan.num_splits", "shape [3]", "[2]");
  refused([](Calls& c) { c.block_table = {}; }, "block_table", "a tensor of shape [2, *]");
  refused([](Calls& c) { c.block_table.shape[0] = 1; }, "block_table", "shape [2, *]", "[1, 2]");
  refused([](Calls& c) { c.block_table.dtype = DType::i64; }, "block_table", "dtype i32", "i64");
  refused([](Calls& c) { c.block_table.strides[1] = 2; }, "block_table", "dense rows", "2");
  refused([](Calls& c) { c.lengths.shape[0] = 1; }, "cache_seqlens", "shape [2]", "[1]");
  refused([](Calls& c) { c.lengths.dtype = DType::i64; }, "cache_seqlens", "dtype i32", "i64");
  for (float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    refused([bad](Calls& c) { c.softmax_scale = bad; }, "softmax_scale", "finite");
  }
  refused([](Calls& c) { c.out = {}; }, "out", "a tensor of shape [2, 2, 3, 512]");
  refused([](Calls& c) { c.out.dtype = DType::e4m3; }, "out", "dtype bf16 or f32", "e4m3");
  refused([](Calls& c) { c.out.shape[3] = 576; }, "out", "shape [2, 2, 3, 512]", "576");
  refused([](Calls& c) { c.out.strides[2] = 0; }, "out", "no two elements overlap");
  refused([](Calls& c) { c.out.strides[3] = 2; }, "out", "dense last dimension");
  refused([](Calls& c) { c.out.device = kCuda; }, "out", "on cpu", "cuda:0");
  refused([](Calls& c) { c.out.data = nullptr; }, "out", "data pointer", "null");
  refused(
      [](Calls& c) {
        c.lse.shape[1] = 2;
        c.lse.shape[2] = 3;
      },
      "lse", "shape [2, 3, 2]", "[2, 2, 3]");
  refused([](Calls& c) { c.lse.dtype = DType::bf16; }, "lse", "dtype f32", "bf16");
  refused([](Calls& c) { c.lse.strides[0] = 0; }, "lse", "no two elements overlap");
  refused([](Calls& c) { c.workspace = {}; }, "workspace", "workspace_bytes", "0 bytes");
  refused([](Calls& c) { c.workspace.shape[0] -= 1; }, "workspace", "workspace_bytes");
  refused([](Calls& c) { c.workspace.data = static_cast<char*>(c.workspace.data) + 4; },
          "workspace", "16-byte aligned");
  refused([](Calls& c) { c.workspace.device = kCuda; }, "workspace", "on cpu", "cuda:0");
  refused([](Calls& c) { c.decode_options.status = c.lengths; }, "options.status", "shape [1]");
  refused([](Calls& c) { c.decode_options.numerics.qk_accumulators = 0; },
          "numerics.qk_accumulators", "1, 2 or 4", "0");
}

// What the cpu and the reference backend can read of a plan is checked there.
TEST(Validate, DecodeRefusesForeignPlans) {
  for (const char* backend : {"cpu", "reference"}) {
    SCOPED_TRACE(backend);
    force_backend(backend);
    const auto word = [](Calls& c, int i) -> std::int32_t& {
      return static_cast<std::int32_t*>(c.plan.schedule.data)[i];
    };
    const auto splits = [](Calls& c, int i) -> std::int32_t& {
      return static_cast<std::int32_t*>(c.plan.num_splits.data)[i];
    };
    const auto refused = [](const Change& change, const std::string& argument,
                            const std::string& rule, const std::string& value = "") {
      expect_refused(&Calls::do_decode, change, argument, rule, value);
    };
    refused([&](Calls& c) { word(c, 0) = 2; }, "plan.schedule", "version 1", "2");
    refused([&](Calls& c) { word(c, 1) = 32; }, "plan.schedule", "P block", "32");
    refused([&](Calls& c) { word(c, 2) = 7; }, "plan.schedule", "3 workers", "7");
    refused([&](Calls& c) { word(c, 4) = 12; }, "plan.schedule", "rows = s_q * h_q = 6", "12");
    refused([&](Calls& c) { word(c, 3) = -4; }, "plan.schedule", "requests", "-4");
    refused([&](Calls& c) { splits(c, 0) = 1; }, "plan.num_splits", "0 as its first word", "1");
    refused(
        [&](Calls& c) {
          splits(c, 1) = 3;
          splits(c, 2) = 2;
        },
        "plan.num_splits", "no decrease", "3 then 2");
    refused([&](Calls& c) { splits(c, 1) = splits(c, 2) = 1000; }, "workspace", "1000 partial",
            "room for 4");
    force_backend("");
  }
}

TEST(Validate, Merge) {
  const auto refused = [](const Change& change, const std::string& argument,
                          const std::string& rule, const std::string& value = "") {
    expect_refused(&Calls::do_merge, change, argument, rule, value);
  };
  refused([](Calls& c) { c.outs = {}; }, "outs", "a tensor of shape");
  refused([](Calls& c) { c.outs.dtype = DType::u8; }, "outs", "dtype bf16 or f32", "u8");
  refused([](Calls& c) { c.outs.strides[4] = 2; }, "outs", "dense last dimension");
  refused([](Calls& c) { c.lses.shape[0] = 1; }, "lses", "shape [2, 2, 3, 2]", "[1, 2, 3, 2]");
  refused([](Calls& c) { c.lses.dtype = DType::bf16; }, "lses", "dtype f32");
  refused([](Calls& c) { c.lses.device = kCuda; }, "lses", "on cpu", "cuda:0");
  refused([](Calls& c) { c.out.shape[0] = 1; }, "out", "shape [2, 2, 3, 512]");
  refused([](Calls& c) { c.out.strides[1] = 0; }, "out", "no two elements overlap");
  refused([](Calls& c) { c.lse.shape[2] = 1; }, "lse", "shape [2, 3, 2]");
}

}  // namespace
}  // namespace snapmla
