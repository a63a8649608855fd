#pragma once

// The C side of `type(tensor).__dlpack_c_exchange_api__` (DLPack 1.2 and later): a capsule named
// "dlpack_exchange_api" with a table of functions that read a tensor without making Python objects.
// https://dmlc.github.io/dlpack/latest/python_spec.html. Only what a consumer calls has a type
// here.

#include <nanobind/ndarray.h>

#include <cstdint>

namespace snapmla::python {

struct DlpackExchangeApi {
  static constexpr const char* kAttribute = "__dlpack_c_exchange_api__";
  static constexpr const char* kCapsule = "dlpack_exchange_api";
  static constexpr std::uint32_t kMajorVersion = 1;

  std::uint32_t major_version, minor_version;
  DlpackExchangeApi* previous;  ///< a table of an older major version, or null
  void* managed_tensor_allocator;
  void* managed_tensor_from_py_object;
  void* managed_tensor_to_py_object;
  /// Fills `out` with borrowed data, valid while the tensor is; may be null. Not 0: a Python error.
  int (*dltensor_from_py_object)(void* py_object, nanobind::dlpack::dltensor* out);
  /// The stream that the library works on in this thread. Not 0: a Python error.
  int (*current_work_stream)(std::int32_t device_type, std::int32_t device_id, void** out);
};
static_assert(sizeof(DlpackExchangeApi) == 16 + 5 * sizeof(void*));

}  // namespace snapmla::python
