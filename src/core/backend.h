#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "core/ops.h"
#include "snapmla/backend.h"

namespace snapmla {

/// What every backend implements. Arguments arrive validated; a backend refuses what it can't do in
/// supports() and nowhere else.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;
  virtual std::string_view description() const = 0;
  virtual DeviceType device_type() const = 0;
  /// Whether this machine can run it at all; the reason then names the device found.
  virtual Support available() const = 0;
  /// Whether it can run this decode problem, given that it is available.
  virtual Support supports(const DecodeProblem& problem) const = 0;
  /// Whether it can decode with a plan of these (resolved) options. supports() and the planning
  /// calls give the same reason.
  virtual Support supports_plan(const PlanOptions&) const { return {true, ""}; }
  /// The code path that decode() takes, and an estimate of its time, for explain().
  virtual void explain(const DecodeProblem& problem, Explanation& explanation) const = 0;

  /// Workers a plan is spread over when the caller names none.
  virtual int default_workers(Device device) const = 0;
  virtual int default_p_block() const = 0;

  virtual void quantize_query(const QuantizeQueryArgs& args, Device device,
                              Stream stream) const = 0;
  virtual void append_kv(const AppendArgs& args, Device device, Stream stream) const = 0;
  virtual void fetch_dequant(const FetchArgs& args, Device device, Stream stream) const = 0;
  virtual void copy_tokens(const CopyArgs& args, Device device, Stream stream) const = 0;
  virtual void plan_decode(const PlanArgs& args, Device device, Stream stream) const = 0;
  virtual void decode(const DecodeArgs& args, Device device, Stream stream) const = 0;
  virtual void merge_states(const MergeArgs& args, Device device, Stream stream) const = 0;
};

/// Every compiled-in backend, in order of preference.
const std::vector<const Backend*>& all_backends();

/// The backend for tensors of this device: the forced one, or the first available.
const Backend& select_backend(Device device);
/// The backend for a decode problem: the forced one, or the first that supports it. Throws
/// Unsupported with every candidate's reason.
const Backend& select_backend(const DecodeProblem& problem);

const Backend& cpu_backend();
const Backend& reference_backend();
#ifdef SNAPMLA_WITH_CUDA
const Backend& cuda_backend();
const Backend& cuda_reference_backend();
#endif

}  // namespace snapmla
