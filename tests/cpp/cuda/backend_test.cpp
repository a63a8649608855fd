#include <string>

#include "device.h"
#include "snapmla/snapmla.h"
#include "support/pipeline.h"

namespace snapmla::test {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// These run with and without a GPU.
TEST(CudaBackendTest, ReasonNamesWhatIsNeededAndTheFallback) {
  for (const char* name : {"cuda", "cuda_reference"}) {
    const BackendInfo info = find_backend(name);
    EXPECT_EQ(info.device, DeviceType::cuda);
    if (info.available) {
      EXPECT_TRUE(contains(info.reason, "sm_90")) << info.reason;
    } else {
      EXPECT_TRUE(contains(info.reason, "sm_90")) << info.reason;
      EXPECT_TRUE(contains(info.reason, "backend cpu")) << info.reason;
    }
  }
}

TEST(CudaBackendTest, TensorsOnADeviceThatIsNotThereAreRefused) {
  const Device device{DeviceType::cuda, 99};
  try {
    plan_size({1, 16, 0, device});
    FAIL() << "device 99 was accepted";
  } catch (const Unsupported& error) {
    EXPECT_TRUE(contains(error.what(), "cuda:99") && contains(error.what(), "backend cpu"))
        << error.what();
  }
}

TEST(CudaBackendTest, NumericsOptionsAreRefusedWithTheReasonOfSupports) {
  DecodeProblem problem;
  problem.h_q = 16;
  problem.device = {DeviceType::cuda, 0};
  problem.numerics.form = NumericsOptions::Form::chained;
  for (const char* name : {"cuda", "cuda_reference"}) {
    EXPECT_FALSE(supports(problem, name).ok);
    EXPECT_FALSE(supports(problem, name).reason.empty());
  }
}

// The kernel has P blocks of 64 tokens: others must not be computed with 64 in silence.
TEST(CudaBackendTest, PBlockOf128IsRefused) {
  DecodeProblem problem;
  problem.h_q = 16;
  problem.max_seqlen = 1000;
  problem.device = {DeviceType::cuda, 0};
  problem.plan.p_block = 128;
  for (const char* name : {"cuda", "cuda_reference"}) {
    const Support support = supports(problem, name);
    EXPECT_FALSE(support.ok);
    if (find_backend(name).available) {
      EXPECT_TRUE(contains(support.reason, "options.p_block")) << support.reason;
    }
  }
}

class CudaErrorsTest : public CudaTest {};

TEST_F(CudaErrorsTest, PlansRefuseAPBlockOf128WithTheReasonOfSupports) {
  DecodeProblem problem;
  problem.h_q = 16;
  problem.max_seqlen = 1000;
  problem.device = device_memory().device();
  problem.plan.p_block = 128;
  const PlanSpec spec{1, 16, 1000, problem.device};
  for (const char* name : {"cuda", "cuda_reference"}) {
    ScopedBackend forced(name);
    const std::string reason = supports(problem, name).reason;
    const auto refused = [&](auto call) {
      try {
        call();
        ADD_FAILURE() << name << " accepted it";
      } catch (const Unsupported& error) {
        EXPECT_TRUE(contains(error.what(), reason)) << error.what();
      }
    };
    refused([&] { plan_size(spec, problem.plan); });
    refused([&] { workspace_bytes(spec, problem.plan); });
    refused([&] { plan_decode({}, spec, problem.plan, {}, {}); });
    refused([&] { explain(problem); });
    problem.plan.p_block = 0;
    EXPECT_EQ(explain(problem).p_block, 64);
    problem.plan.p_block = 128;
  }
}

TEST_F(CudaErrorsTest, FailedLaunchNamesTheKernelAndLeavesNoErrorBehind) {
  // A destroyed stream is the one argument that only CUDA can judge; use a legacy handle that names
  // none.
  DeviceMemory& memory = device_memory();
  Buffer cache_bytes(memory, kPackedPageBytes), slots(memory, 8);
  const Device device = memory.device();
  const Cache cache =
      Cache::from_pages(TensorView(cache_bytes.data(), DType::u8, {1, kPackedPageBytes}, device));
  cudaStream_t capturing;
  SNAPMLA_TEST_CUDA(cudaStreamCreateWithFlags(&capturing, cudaStreamNonBlocking));
  // A capture that another stream has invalidated makes every launch into it fail.
  SNAPMLA_TEST_CUDA(cudaStreamBeginCapture(capturing, cudaStreamCaptureModeThreadLocal));
  EXPECT_NE(cudaSuccess, cudaStreamSynchronize(capturing));
  cudaGetLastError();
  try {
    copy_tokens(cache, TensorView(slots.data(), DType::i64, {1}, device),
                TensorView(slots.data(), DType::i64, {1}, device), {}, {capturing});
    ADD_FAILURE() << "a launch into an invalidated capture did not throw";
  } catch (const DeviceError& error) {
    EXPECT_TRUE(contains(error.what(), "copy_tokens")) << error.what();
  }
  EXPECT_EQ(cudaSuccess, cudaGetLastError());
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(capturing, &graph);
  cudaGetLastError();
  SNAPMLA_TEST_CUDA(cudaStreamDestroy(capturing));
}

TEST_F(CudaErrorsTest, ReferenceExplainsItself) {
  DecodeProblem problem;
  problem.b = 2;
  problem.h_q = 16;
  problem.max_seqlen = 4096;
  problem.device = {DeviceType::cuda, 0};
  ScopedBackend forced("cuda_reference");
  const Explanation e = explain(problem);
  EXPECT_EQ(e.backend, "cuda_reference");
  EXPECT_GT(e.estimated_us, 0);
  EXPECT_FALSE(e.basis.empty());
}

}  // namespace
}  // namespace snapmla::test
