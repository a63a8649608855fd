#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "core/backend.h"
#include "core/tile_scheduler.h"
#include "cpu/data_path.h"
#include "cpu/fp8_pipeline.h"
#include "cpu/reference.h"

namespace snapmla {
namespace {

/// What the two CPU backends share: they differ in decode alone.
class HostBackend : public Backend {
 public:
  DeviceType device_type() const override { return DeviceType::cpu; }
  Support available() const override {
    return {true, fmt::format("{} threads", default_workers({}))};
  }
  int default_workers(Device) const override {
    return std::max(1u, std::thread::hardware_concurrency());
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
  static void estimate(Explanation& e, double gflops, const char* kernel) {
    e.kernel = kernel;
    e.bound = "compute";
    e.estimated_us = e.flops / (gflops * 1e3);
    e.basis = fmt::format("{:g} GFLOP/s, measured on one core of an AMD EPYC (Zen 4)", gflops);
  }
};

class CpuBackend final : public HostBackend {
 public:
  std::string_view name() const override { return "cpu"; }
  std::string_view description() const override {
    return "FP8 pipeline: e4m3 P per block, scale fusion, log-domain softmax";
  }
  Support supports(const DecodeProblem&) const override { return {true, ""}; }
  void explain(const DecodeProblem&, Explanation& e) const override {
    estimate(e, 5.0, "fp8_pipeline, plain loops");
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
  void explain(const DecodeProblem&, Explanation& e) const override {
    estimate(e, 1.0, "reference, double");
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
