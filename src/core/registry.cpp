#include <fmt/format.h>

#include <atomic>

#include "core/backend.h"
#include "core/check.h"
#include "core/validate.h"

namespace snapmla {
namespace {

std::atomic<const Backend*>& forced() {
  static std::atomic<const Backend*> backend{nullptr};
  return backend;
}

std::string known_names() {
  std::string names;
  for (const Backend* backend : all_backends()) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", backend->name());
  }
  return names;
}

const Backend& backend_named(std::string_view name) {
  for (const Backend* backend : all_backends()) {
    if (backend->name() == name) return *backend;
  }
  throw InvalidArgument("backend", "one of " + known_names(), fmt::format("'{}'", name));
}

const char* device_type_name(DeviceType type) { return type == DeviceType::cpu ? "cpu" : "cuda"; }

Support check_support(const Backend& backend, const DecodeProblem& problem) {
  if (backend.device_type() != problem.device.type) {
    return {false, fmt::format("works on {} tensors, not on {}",
                               device_type_name(backend.device_type()), to_string(problem.device))};
  }
  if (Support support = backend.available(); !support.ok) return support;
  return backend.supports(problem);
}

[[noreturn]] void throw_no_backend(Device device) {
  std::string reasons;
  for (const Backend* backend : all_backends()) {
    if (backend->device_type() == device.type) {
      reasons += fmt::format("; {}: {}", backend->name(), backend->available().reason);
    }
  }
  if (reasons.empty()) {
    reasons = "; this build has no CUDA backend: build with nvcc (preset sm90), or use CPU tensors";
  }
  throw Unsupported(fmt::format("no backend for tensors on {}{}", to_string(device), reasons));
}

}  // namespace

const std::vector<const Backend*>& all_backends() {
  static const std::vector<const Backend*> backends = {
#ifdef SNAPMLA_WITH_CUDA
      &cuda_backend(),
      &cuda_reference_backend(),
#endif
      &cpu_backend(),
      &reference_backend(),
  };
  return backends;
}

const Backend& select_backend(Device device) {
  if (const Backend* backend = forced().load()) {
    SNAPMLA_CHECK(backend->device_type() == device.type, "backend",
                  fmt::format("a backend for tensors on {}", to_string(device)), backend->name());
    if (Support support = backend->available(); !support.ok) {
      throw Unsupported(fmt::format("backend {}: {}", backend->name(), support.reason));
    }
    return *backend;
  }
  for (const Backend* backend : all_backends()) {
    if (backend->device_type() == device.type && backend->available().ok) return *backend;
  }
  throw_no_backend(device);
}

const Backend& select_backend(const DecodeProblem& problem) {
  if (const Backend* backend = forced().load()) {
    if (Support support = check_support(*backend, problem); !support.ok) {
      throw Unsupported(fmt::format("backend {}: {}", backend->name(), support.reason));
    }
    return *backend;
  }
  std::string reasons;
  for (const Backend* backend : all_backends()) {
    if (backend->device_type() != problem.device.type) continue;
    const Support support = check_support(*backend, problem);
    if (support.ok) return *backend;
    reasons += fmt::format("; {}: {}", backend->name(), support.reason);
  }
  if (reasons.empty()) throw_no_backend(problem.device);
  throw Unsupported(fmt::format("no backend supports this decode call on {}{}",
                                to_string(problem.device), reasons));
}

std::vector<BackendInfo> list_backends() {
  std::vector<BackendInfo> infos;
  for (const Backend* backend : all_backends()) {
    infos.push_back(find_backend(backend->name()));
  }
  return infos;
}

BackendInfo find_backend(std::string_view name) {
  const Backend& backend = backend_named(name);
  const Support support = backend.available();
  return {std::string(backend.name()), std::string(backend.description()), backend.device_type(),
          support.ok, support.reason};
}

void force_backend(std::string_view name) {
  forced().store(name.empty() ? nullptr : &backend_named(name));
}

std::string forced_backend() {
  const Backend* backend = forced().load();
  return backend ? std::string(backend->name()) : std::string();
}

Support supports(const DecodeProblem& problem, std::string_view backend) {
  validate_problem(problem);
  return check_support(backend_named(backend), problem);
}

Support supports(const DecodeProblem& problem) {
  validate_problem(problem);
  try {
    select_backend(problem);
    return {true, ""};
  } catch (const Unsupported& error) {
    return {false, error.what()};
  }
}

}  // namespace snapmla
