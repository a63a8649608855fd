// The CUDA backends: which device, which kernels, in which order. Host code only.

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/tile_scheduler.h"
#include "cuda/device/check.h"
#include "cuda/sm90/decode_e4m3/launch.h"
#include "cuda/smxx/append_kv.h"
#include "cuda/smxx/combine.h"
#include "cuda/smxx/copy_tokens.h"
#include "cuda/smxx/fetch_dequant.h"
#include "cuda/smxx/merge.h"
#include "cuda/smxx/plan.h"
#include "cuda/smxx/quantize_query.h"
#include "cuda/smxx/reference.h"
#include "snapmla/error.h"

namespace snapmla {
namespace {

constexpr const char* kFallback = "use CPU tensors: backend cpu";
constexpr int kPBlock = 64;  // of the decode kernel; the plans of both backends are its plans

struct DeviceInfo {
  std::string name;
  int major = 0, minor = 0;
  int sm_count = 0;

  bool usable() const { return major == 9 && minor == 0; }
  std::string description() const {
    return fmt::format("{} (sm_{}{}, {} SMs)", name, major, minor, sm_count);
  }
};

/// The machine's devices, read once; `problem` says why there are none.
struct Devices {
  std::vector<DeviceInfo> list;
  std::string problem;
};

Devices query_devices() {
  Devices devices;
  int count = 0;
  cudaError_t status = cudaGetDeviceCount(&count);
  for (int i = 0; status == cudaSuccess && i < count; ++i) {
    cudaDeviceProp properties;
    status = cudaGetDeviceProperties(&properties, i);
    if (status == cudaSuccess) {
      devices.list.push_back(
          {properties.name, properties.major, properties.minor, properties.multiProcessorCount});
    }
  }
  if (status != cudaSuccess) {
    cudaGetLastError();  // ours to report, not the caller's to find
    devices.list.clear();
    devices.problem = fmt::format("{} ({})", cudaGetErrorString(status), cudaGetErrorName(status));
  } else if (count == 0) {
    devices.problem = "no CUDA device";
  }
  return devices;
}

const Devices& devices() {
  static const Devices devices = query_devices();
  return devices;
}

std::string needs_hopper(const std::string& found) {
  return fmt::format("{}; needs an NVIDIA Hopper GPU (sm_90: H100, H200, H20); {}", found,
                     kFallback);
}

/// Whether the kernels run on this device.
Support check_device(Device device) {
  const Devices& all = devices();
  if (device.index < 0 || static_cast<std::size_t>(device.index) >= all.list.size()) {
    const std::string found = all.problem.empty()
                                  ? fmt::format("this machine has {} CUDA devices", all.list.size())
                                  : all.problem;
    return {false, fmt::format("{}: {}", to_string(device), needs_hopper(found))};
  }
  const DeviceInfo& info = all.list[device.index];
  if (!info.usable()) {
    return {false,
            fmt::format("{}: {}", to_string(device), needs_hopper("found " + info.description()))};
  }
  return {true, ""};
}

/// Whether there is a device at all, and which.
Support first_usable_device() {
  const Devices& all = devices();
  if (all.list.empty()) return {false, needs_hopper(all.problem)};
  for (const DeviceInfo& info : all.list) {
    if (info.usable()) return {true, info.description()};
  }
  return {false, needs_hopper("found " + all.list.front().description())};
}

/// The device of the call's tensors, or Unsupported.
const DeviceInfo& require_device(Device device) {
  if (Support support = check_device(device); !support.ok) throw Unsupported(support.reason);
  return devices().list[device.index];
}

/// Where one operation is enqueued: the tensors' device made current, and the caller's stream.
struct Target {
  Target(Device device, Stream caller_stream)
      : info(require_device(device)),
        guard(device.index),
        stream(static_cast<cudaStream_t>(caller_stream.handle)),
        pdl(cuda::pdl_enabled()) {}

  const DeviceInfo& info;
  cuda::DeviceGuard guard;
  cudaStream_t stream;
  bool pdl;
};

/// What the CUDA backends share: they differ in decode alone.
class DeviceBackend : public Backend {
 public:
  DeviceType device_type() const override { return DeviceType::cuda; }

  Support available() const override {
    static const Support support = first_usable_device();
    return support;
  }

  int default_workers(Device device) const override { return require_device(device).sm_count; }
  int default_p_block() const override { return kPBlock; }

  Support supports_plan(const PlanOptions& options) const override {
    if (options.p_block == 0 || options.p_block == kPBlock) return {true, ""};
    return {false,
            fmt::format("options.p_block: P is quantized in blocks of {} tokens, not {}; use 0 or "
                        "{}, or the cpu backend",
                        kPBlock, options.p_block, kPBlock)};
  }
  Support supports(const DecodeProblem& problem) const override {
    if (problem.numerics != NumericsOptions{}) {
      return {false, "has no numerics options; use the cpu backend"};
    }
    if (Support support = check_device(problem.device); !support.ok) return support;
    return supports_plan(problem.plan);
  }

  void quantize_query(const QuantizeQueryArgs& args, Device device, Stream stream) const override {
    const Target target(device, stream);
    cuda::launch_quantize_query(args, target.stream, target.pdl);
  }
  void append_kv(const AppendArgs& args, Device device, Stream stream) const override {
    const Target target(device, stream);
    cuda::launch_append_kv(args, target.stream, target.pdl);
  }
  void fetch_dequant(const FetchArgs& args, Device device, Stream stream) const override {
    const Target target(device, stream);
    cuda::launch_fetch_dequant(args, target.stream, target.pdl, target.info.sm_count);
  }
  void copy_tokens(const CopyArgs& args, Device device, Stream stream) const override {
    const Target target(device, stream);
    cuda::launch_copy_tokens(args, target.stream, target.pdl);
  }
  void plan_decode(const PlanArgs& args, Device device, Stream stream) const override {
    const Target target(device, stream);
    cuda::launch_plan_decode(args, target.stream, target.pdl);
  }
  void merge_states(const MergeArgs& args, Device device, Stream stream) const override {
    const Target target(device, stream);
    cuda::launch_merge_states(args, target.stream, target.pdl);
  }
};

class CudaBackend final : public DeviceBackend {
 public:
  std::string_view name() const override { return "cuda"; }
  std::string_view description() const override { return "kernels for NVIDIA Hopper"; }
  void explain(const DecodeProblem& problem, Explanation& e) const override {
    // Per SM, of docs/kernels/sm90-decode-e4m3.md: 64 rows x 64 tokens, and the bytes of 64 tokens.
    constexpr double kBlockUs = 1.7, kTerabytesPerSecond = 4.4, kLaunchUs = 12;
    const double blocks = e.flops / (2.0 * kRowTile * kPageTokens * (kQkDim + kKvLoraRank));
    const auto sms = static_cast<double>(
        std::min<std::int64_t>(e.workers * e.row_tiles, require_device(problem.device).sm_count));
    const double padded = static_cast<double>(e.row_tiles * kRowTile) /
                          static_cast<double>(problem.s_q * problem.h_q);
    const double compute = blocks * padded * kBlockUs / sms;
    const double memory = static_cast<double>(e.cache_bytes) / (kTerabytesPerSecond * 1e6);
    const double work = std::max(compute, memory);
    e.kernel = cuda::sm90::decode_e4m3_variant(problem.s_q * problem.h_q);
    e.bound = work < kLaunchUs ? "latency" : compute > memory ? "compute" : "memory";
    e.estimated_us = work + kLaunchUs;
    e.basis =
        fmt::format("{:g} TB/s and {:g} us for 64 rows x 64 tokens on one SM, measured on an H200",
                    kTerabytesPerSecond, kBlockUs);
  }
  void decode(const DecodeArgs& args, Device device, Stream stream) const override {
    const Target target(device, stream);
    cuda::sm90::launch_decode_e4m3(args, target.stream, target.pdl);
    cuda::launch_combine(args, target.stream, target.pdl);
  }
};

class CudaReferenceBackend final : public DeviceBackend {
 public:
  std::string_view name() const override { return "cuda_reference"; }
  std::string_view description() const override {
    return "fp32 attention over the dequantized cache on the GPU, without tensor cores";
  }
  void explain(const DecodeProblem&, Explanation& e) const override {
    constexpr double kTflops = 5.0;
    e.kernel = "reference, fp32";
    e.bound = "compute";
    e.estimated_us = e.flops / (kTflops * 1e6);
    e.basis = fmt::format("{:g} TFLOP/s, assumed", kTflops);
  }
  void decode(const DecodeArgs& args, Device device, Stream stream) const override {
    const Target target(device, stream);
    cuda::launch_decode_reference(args, target.stream, target.pdl);
  }
};

}  // namespace

const Backend& cuda_backend() {
  static const CudaBackend backend;
  return backend;
}

const Backend& cuda_reference_backend() {
  static const CudaReferenceBackend backend;
  return backend;
}

}  // namespace snapmla
