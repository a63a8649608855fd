// Streams, CUDA graphs and programmatic dependent launch.

#include <numeric>
#include <vector>

#include "cuda/device/check.h"
#include "device.h"
#include "support/compare.h"
#include "support/random.h"

namespace snapmla::test {
namespace {

/// A decode step in the order of an engine: append the last token of each request, plan, quantize,
/// decode. All buffers are made once, so that the step can be captured.
class Step {
 public:
  explicit Step(const Case& c) : memory_(device_memory()), pipeline_(make_problem(c), memory_) {
    const Problem& p = pipeline_.problem();
    pipeline_.append();
    std::vector<float> rows;
    std::vector<std::int64_t> slots;
    for (std::int64_t i = 0; i < c.b(); ++i) {
      if (p.first_token[i] == p.first_token[i + 1]) continue;
      const std::int64_t last = p.first_token[i + 1] - 1;
      rows.insert(rows.end(), p.kv.begin() + last * kQkDim, p.kv.begin() + (last + 1) * kQkDim);
      slots.push_back(p.slots[last]);
    }
    tokens_ = static_cast<std::int64_t>(slots.size());
    kv_ = Buffer::of(memory_, encode(rows, DType::bf16));
    slots_ = Buffer::of(memory_, slots);
  }

  void append() {
    AppendOptions options;
    options.scale = pipeline_.problem().spec.scale;
    append_kv(pipeline_.cache(),
              TensorView(kv_.data(), DType::bf16, {tokens_, kQkDim}, memory_.device()),
              TensorView(slots_.data(), DType::i64, {tokens_}, memory_.device()), options,
              memory_.stream());
  }
  void enqueue() {
    append();
    pipeline_.plan();
    pipeline_.quantize();
    pipeline_.decode();
  }
  void poison_outputs() {
    pipeline_.out_buffer().fill(0xff);
    pipeline_.lse_buffer().fill(0xff);
    pipeline_.workspace_buffer().fill(0xff);
  }
  Pipeline& pipeline() { return pipeline_; }
  Result result() { return pipeline_.result(); }

 private:
  DeviceMemory& memory_;
  Pipeline pipeline_;
  Buffer kv_, slots_;
  std::int64_t tokens_ = 0;
};

Case step_case() {
  Case c;
  c.name = "step";
  c.lengths = {70, 400, 5, 129};
  c.h_q = 16;
  c.in_dtype = DType::bf16;
  c.form = CacheForm::packed;
  return c;
}

/// What `enqueue` puts on the test's stream, as an executable graph.
class Graph {
 public:
  template <class Enqueue>
  explicit Graph(const Enqueue& enqueue) {
    const cudaStream_t stream = device_memory().cuda_stream();
    EXPECT_EQ(cudaSuccess, cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    enqueue();
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaSuccess, cudaStreamEndCapture(stream, &graph));
    EXPECT_EQ(cudaSuccess, cudaGraphInstantiate(&exec_, graph, 0));
    EXPECT_EQ(cudaSuccess, cudaGraphDestroy(graph));
  }
  ~Graph() { cudaGraphExecDestroy(exec_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void replay() { EXPECT_EQ(cudaSuccess, cudaGraphLaunch(exec_, device_memory().cuda_stream())); }

 private:
  cudaGraphExec_t exec_ = nullptr;
};

class CudaStreamTest : public CudaTest {
 protected:
  CudaStreamTest() : forced_("cuda_reference") {}
  ~CudaStreamTest() override { cuda::set_pdl_enabled(true); }

 private:
  ScopedBackend forced_;
};

// bugs.md B43: 1,000 replays, with and without programmatic dependent launch, give the same bits.
TEST_F(CudaStreamTest, ThousandReplaysGiveTheSameBitsWithAndWithoutPdl) {
  cuda::set_pdl_enabled(false);
  Step eager(step_case());
  eager.enqueue();
  const Result expected = eager.result();
  for (bool pdl : {false, true}) {
    cuda::set_pdl_enabled(pdl);
    Step step(step_case());
    Graph graph([&] { step.enqueue(); });
    for (int i = 0; i < 1000; ++i) {
      if (i % 100 == 0) step.poison_outputs();
      graph.replay();
      ASSERT_TRUE(identical(step.result(), expected)) << "replay " << i << ", pdl " << pdl;
    }
  }
}

// A whole chain of steps without a pause between them: with PDL each kernel starts while its
// predecessor runs, and a missing wait would show as a wrong row sooner or later.
TEST_F(CudaStreamTest, BackToBackStepsDoNotOvertakeEachOther) {
  Step step(step_case());
  step.enqueue();
  const Result expected = step.result();
  Graph graph([&] {
    for (int i = 0; i < 20; ++i) step.enqueue();
  });
  for (int i = 0; i < 50; ++i) {
    step.poison_outputs();
    for (int k = 0; k < 5; ++k) graph.replay();
    ASSERT_TRUE(identical(step.result(), expected)) << "round " << i;
  }
}

// bugs.md B40: captured at length 1, replayed with growing lengths in the captured buffers.
TEST_F(CudaStreamTest, GraphFollowsLengthsThatGrow) {
  Case c = step_case();
  c.lengths = {70, 1200, 5, 129};
  Step step(c);
  std::vector<std::int32_t> lengths(4, 1);
  step.pipeline().lengths_buffer().upload(lengths.data(), 16);
  Graph graph([&] { step.enqueue(); });
  Step eager(c);
  for (int i = 0; i < 200; ++i) {
    for (std::size_t r = 0; r < lengths.size(); ++r) {
      lengths[r] = std::min(c.lengths[r], std::max(lengths[r], c.lengths[r] - 200 + i));
    }
    step.pipeline().lengths_buffer().upload(lengths.data(), 16);
    eager.pipeline().lengths_buffer().upload(lengths.data(), 16);
    step.poison_outputs();
    graph.replay();
    eager.enqueue();
    ASSERT_TRUE(identical(step.result(), eager.result())) << "step " << i;
  }
}

// bugs.md B42: a plan for 5 requests in the buffers of a graph for 16; the tail of num_splits holds
// the last value.
TEST_F(CudaStreamTest, PlanForAShorterBatchEmptiesTheRest) {
  Case c;
  c.name = "shorter_batch";
  c.lengths = {130, 64, 700, 1, 300, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5};
  c.h_q = 8;
  Step step(c);
  step.enqueue();
  const Result full = step.result();
  Graph decode_only([&] { step.pipeline().decode(); });

  Pipeline& p = step.pipeline();
  PlanSpec spec = p.problem().plan_spec(p.memory().device());
  spec.b = 5;
  const DecodePlan plan = p.decode_plan();
  plan_decode(p.lengths().slice(0, 0, 5), spec, c.plan,
              {plan.schedule, plan.num_splits.slice(0, 0, 6)}, p.memory().stream());
  auto splits = p.num_splits_buffer().read<std::int32_t>();
  std::fill(splits.begin() + 6, splits.end(), splits[5]);
  p.num_splits_buffer().upload(splits.data(), splits.size() * 4);
  step.poison_outputs();
  decode_only.replay();
  const Result shorter = step.result();
  for (std::int64_t i = 0; i < 16; ++i) {
    const Result rows = rows_of(shorter, c, i);
    if (i < 5) {
      EXPECT_TRUE(identical(rows, rows_of(full, c, i))) << "request " << i;
      continue;
    }
    for (float v : rows.out) ASSERT_EQ(v, 0.0f) << "request " << i;
    for (float v : rows.lse) ASSERT_EQ(v, -std::numeric_limits<float>::infinity());
  }
}

// bugs.md B49: everything stays on the caller's stream, behind a producer that takes its time.
TEST_F(CudaStreamTest, OperationsWaitForTheProducerOnTheirStream) {
  DeviceMemory& memory = device_memory();
  Step step(step_case());
  step.enqueue();
  const Result expected = step.result();
  Pipeline& p = step.pipeline();
  const auto lengths = p.problem().spec.lengths;
  for (bool pdl : {false, true}) {
    cuda::set_pdl_enabled(pdl);
    // The lengths arrive after 20 ms; before that they say that there is nothing.
    Buffer staged = Buffer::of(memory, lengths);
    p.lengths_buffer().fill(0);
    step.poison_outputs();
    spin(memory.cuda_stream(), 20);
    SNAPMLA_TEST_CUDA(cudaMemcpyAsync(p.lengths_buffer().data(), staged.data(), staged.bytes(),
                                      cudaMemcpyDeviceToDevice, memory.cuda_stream()));
    step.enqueue();
    EXPECT_TRUE(identical(step.result(), expected)) << "pdl " << pdl;
  }
}

// bugs.md B43: the planner on a side stream, ordered by an event alone.
TEST_F(CudaStreamTest, PlannerOnASideStream) {
  DeviceMemory& memory = device_memory();
  Step step(step_case());
  step.enqueue();
  const Result expected = step.result();
  Pipeline& p = step.pipeline();
  cudaStream_t side;
  cudaEvent_t planned;
  SNAPMLA_TEST_CUDA(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  SNAPMLA_TEST_CUDA(cudaEventCreateWithFlags(&planned, cudaEventDisableTiming));
  Graph decode_only([&] { p.decode(); });
  for (int i = 0; i < 20; ++i) {
    p.schedule_buffer().fill(0);  // a plan of nothing
    step.poison_outputs();
    spin(side, 2);
    plan_decode(p.lengths(), p.problem().plan_spec(memory.device()), p.problem().spec.plan,
                p.decode_plan(), {side});
    SNAPMLA_TEST_CUDA(cudaEventRecord(planned, side));
    SNAPMLA_TEST_CUDA(cudaStreamWaitEvent(memory.cuda_stream(), planned));
    decode_only.replay();
    ASSERT_TRUE(identical(step.result(), expected)) << "round " << i;
  }
  cudaEventDestroy(planned);
  cudaStreamDestroy(side);
}

// bugs.md B38: appended on one stream, exported on another behind an event.
TEST_F(CudaStreamTest, ExportBehindAnEventSeesTheAppendedBytes) {
  DeviceMemory& memory = device_memory();
  const Device device = memory.device();
  constexpr std::int64_t kTokens = 640;
  Random random(3);
  std::vector<float> values(kTokens * kQkDim);
  for (auto& v : values) v = random.normal();
  std::vector<std::int32_t> slots(kTokens);
  std::iota(slots.begin(), slots.end(), 0);
  Buffer kv = Buffer::of(memory, values), slot_buffer = Buffer::of(memory, slots);
  const auto append = [&](const Cache& cache, Stream stream) {
    append_kv(cache, TensorView(kv.data(), DType::f32, {kTokens, kQkDim}, device),
              TensorView(slot_buffer.data(), DType::i32, {kTokens}, device), {}, stream);
  };
  CacheBuffers expected(memory, CacheForm::packed, 10), pool(memory, CacheForm::packed, 10);
  append(expected.cache(), memory.stream());
  cudaStream_t writer;
  cudaEvent_t written;
  SNAPMLA_TEST_CUDA(cudaStreamCreateWithFlags(&writer, cudaStreamNonBlocking));
  SNAPMLA_TEST_CUDA(cudaEventCreateWithFlags(&written, cudaEventDisableTiming));
  spin(writer, 20);
  append(pool.cache(), {writer});
  SNAPMLA_TEST_CUDA(cudaEventRecord(written, writer));
  SNAPMLA_TEST_CUDA(cudaStreamWaitEvent(memory.cuda_stream(), written));
  EXPECT_EQ(pool.all_bytes(), expected.all_bytes());
  cudaEventDestroy(written);
  cudaStreamDestroy(writer);
}

TEST_F(CudaStreamTest, TheCallersDeviceStaysCurrent) {
  int before = -1, after = -1;
  SNAPMLA_TEST_CUDA(cudaGetDevice(&before));
  Step step(step_case());
  step.enqueue();
  SNAPMLA_TEST_CUDA(cudaGetDevice(&after));
  EXPECT_EQ(before, after);
}

}  // namespace
}  // namespace snapmla::test
