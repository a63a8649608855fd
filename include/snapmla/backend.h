#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "snapmla/cache.h"
#include "snapmla/decode.h"

namespace snapmla {

/// A backend as this machine sees it.
struct BackendInfo {
  std::string name;  ///< what force_backend() takes
  std::string description;
  DeviceType device = DeviceType::cpu;  ///< the tensors it works on
  bool available = false;
  std::string reason;  ///< the device found, or why it can't be used here and what to use instead
};

/// All compiled-in backends, in the order in which automatic selection asks them.
std::vector<BackendInfo> list_backends();

/// The backend of that name; InvalidArgument lists the known names otherwise.
BackendInfo find_backend(std::string_view name);

/// Makes every following call of this process use one backend; "" returns to automatic selection.
/// A call whose tensors or problem the forced backend can't serve throws; nothing falls back.
void force_backend(std::string_view name);

/// The forced backend's name, or "".
std::string forced_backend();

/// A decode call described by its sizes.
struct DecodeProblem {
  std::int64_t b = 1;
  std::int64_t s_q = 1;
  std::int64_t h_q = 0;
  std::int64_t max_seqlen = 0;  ///< longest sequence; only explain() needs it
  CacheForm form = CacheForm::planes;
  DType out_dtype = DType::bf16;
  Device device{};
  PlanOptions plan;
  NumericsOptions numerics;
};

struct Support {
  bool ok = false;
  std::string reason;  ///< empty when ok
};

/// Whether `backend` can run the problem on this machine. decode() throws the same reason.
Support supports(const DecodeProblem& problem, std::string_view backend);
/// The same for the backend that a call would use.
Support supports(const DecodeProblem& problem);

/// What a decode call would do. Times are estimates from measured limits, not measurements.
struct Explanation {
  std::string backend;
  std::string kernel;                    ///< the code path within the backend
  std::vector<std::string> passed_over;  ///< "name: reason" of backends asked before
  std::int64_t row_tiles = 0;            ///< 64-row tiles per request
  std::int64_t workers = 0;
  int p_block = 0;
  std::int64_t splits = 0;  ///< parts of the longest sequence when all b are that long
  std::int64_t workspace_bytes = 0;
  std::int64_t cache_bytes = 0;  ///< cache bytes read once
  double flops = 0;              ///< 2 * rows * tokens * (576 + 512)
  std::string bound;             ///< "memory", "compute" or "latency"
  double estimated_us = 0;
  std::string basis;  ///< the limits behind the estimate
};

Explanation explain(const DecodeProblem& problem);

}  // namespace snapmla
