#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "core/backend.h"
#include "core/tile_scheduler.h"
#include "cpu/data_path.h"
#include "cpu/fp8_pipeline.h"
#include "cpu/reference.h"
#include "cpu/tile.h"

namespace snapmla {
namespace {

/// What the two CPU backends share: they differ in decode alone.
class HostBackend : public Backend {
 public:
  DeviceType device_type() const override { return DeviceType::cpu; }
  Support available() const override {
    static const Support support{true, fmt::format("{} threads", default_workers({}))};
    return support;
  }
  int default_workers(Device) const override {
    // Asked by every call, and a system call.
    static const int workers = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    return workers;
  }
  int default_p_block() const override { return 64; }

  void quantize_query(const QuantizeQueryArgs& args, Device, Stream) const override {
    cpu::quantize_query(args);
  }
  void append_kv(const AppendArgs& args, Device, Stream) const override { cpu::append_kv(args); }
  void fetch_dequant(const FetchArgs& args, Device, Stream) const override {
    cpu::fetch_dequant(args);
  }
  void copy_tokens(const CopyArgs& args, Device, Stream) const override { cpu::copy_tokens(args); }
  void plan_decode(const PlanArgs& args, Device, Stream) const override {
    schedule_tiles(args.cache_seqlens, make_schedule_header(args.spec, args.options), args.schedule,
                   args.num_splits);
  }
  void merge_states(const MergeArgs& args, Device, Stream) const override {
    cpu::merge_states(args);
  }

 protected:
  /// `threads` that compute at `gflops` each, and decode the cache in the time of `decode_rows`
  /// rows.
  static void estimate(Explanation& e, const DecodeProblem& problem, std::string kernel,
                       double gflops, std::int64_t threads, double decode_rows) {
    const auto rows = static_cast<double>(problem.s_q * problem.h_q);
    e.kernel = std::move(kernel);
    e.bound = "compute";
    e.estimated_us = e.flops * (1 + decode_rows / rows) /
                     (gflops * 1e3 * static_cast<double>(std::max<std::int64_t>(threads, 1)));
    e.basis = fmt::format("{:g} GFLOP/s on each of {} threads, measured on an AMD EPYC (Zen 4)",
                          gflops, threads);
  }
};

class CpuBackend final : public HostBackend {
 public:
  std::string_view name() const override { return "cpu"; }
  std::string_view description() const override {
    return "FP8 pipeline: e4m3 P per block, scale fusion, log-domain softmax";
  }
  Support supports(const DecodeProblem&) const override { return {true, ""}; }
  void explain(const DecodeProblem& problem, Explanation& e) const override {
    const cpu::Kernels& kernels = cpu::choose_kernels(problem.numerics);
    const bool plain = &kernels == &cpu::plain_kernels();
    const std::int64_t threads =
        std::min<std::int64_t>(default_workers({}), e.workers * e.row_tiles);
    estimate(e, problem, fmt::format("fp8_pipeline, {}", kernels.name), plain ? 5 : 60, threads, 4);
  }
  void decode(const DecodeArgs& args, Device, Stream) const override { cpu::decode_fp8(args); }
};

class ReferenceBackend final : public HostBackend {
 public:
  std::string_view name() const override { return "reference"; }
  std::string_view description() const override {
    return "float64 attention over the dequantized cache: the oracle";
  }
  Support supports(const DecodeProblem& problem) const override {
    if (problem.numerics != NumericsOptions{}) {
      return {false, "has no numerics options; use the cpu backend"};
    }
    return {true, ""};
  }
  void explain(const DecodeProblem& problem, Explanation& e) const override {
    estimate(e, problem, "reference, double", 1, 1, 0);
  }
  void decode(const DecodeArgs& args, Device, Stream) const override {
    cpu::decode_reference(args);
  }
};

}  // namespace

const Backend& cpu_backend() {
  static const CpuBackend backend;
  return backend;
}

const Backend& reference_backend() {
  static const ReferenceBackend backend;
  return backend;
}

}  // namespace snapmla
