#include "array.h"

#include <nanobind/stl/string.h>

#include <unordered_map>

namespace snapmla::python {
namespace {

namespace dlpack = nb::dlpack;

constexpr std::int32_t kDlCpu = nb::device::cpu::value;
constexpr std::int32_t kDlCuda = nb::device::cuda::value;

std::string kind_of(nb::handle object) { return nb::inst_name(object).c_str(); }

/// str(object)
std::string text(nb::handle object) {
  const nb::object string = nb::steal(PyObject_Str(object.ptr()));
  if (!string.is_valid()) nb::raise_python_error();
  return nb::cast<std::string>(string);
}

[[noreturn]] void throw_no_array(nb::handle object, const char* argument) {
  throw InvalidArgument(argument, "an array with DLPack (NumPy, PyTorch, CuPy, JAX)",
                        kind_of(object));
}

/// The table of the array's type, or null. Types that have one are kept: their addresses are keys.
const DlpackExchangeApi* exchange_api(nb::handle object) {
  static PyTypeObject* last_type = nullptr;
  static const DlpackExchangeApi* last_api = nullptr;
  static auto& known = *new std::unordered_map<PyTypeObject*, const DlpackExchangeApi*>;

  PyTypeObject* type = Py_TYPE(object.ptr());
  if (type == last_type) return last_api;
  if (const auto found = known.find(type); found != known.end()) {
    last_type = type;
    last_api = found->second;
    return last_api;
  }
  const nb::object capsule = nb::getattr(nb::handle(reinterpret_cast<PyObject*>(type)),
                                         DlpackExchangeApi::kAttribute, nb::none());
  if (!PyCapsule_IsValid(capsule.ptr(), DlpackExchangeApi::kCapsule)) return nullptr;
  auto* api = static_cast<const DlpackExchangeApi*>(
      PyCapsule_GetPointer(capsule.ptr(), DlpackExchangeApi::kCapsule));
  while (api && api->major_version != DlpackExchangeApi::kMajorVersion) api = api->previous;
  if (!api || !api->dltensor_from_py_object) return nullptr;
  Py_INCREF(type);
  known.emplace(type, api);
  last_type = type;
  last_api = api;
  return api;
}

DType to_dtype(dlpack::dtype dtype, const char* argument) {
  using Code = dlpack::dtype_code;
  const auto is = [&](Code code, int bits) {
    return dtype ==
           dlpack::dtype{static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(bits), 1};
  };
  if (is(Code::Float8_E4M3FN, 8)) return DType::e4m3;
  if (is(Code::UInt, 8)) return DType::u8;
  if (is(Code::Bfloat, 16) || is(Code::UInt, 16)) return DType::bf16;
  if (is(Code::Float, 32)) return DType::f32;
  if (is(Code::Int, 32)) return DType::i32;
  if (is(Code::Int, 64)) return DType::i64;
  static constexpr const char* kNames[] = {"int",    "uint",    "float", "opaque",
                                           "bfloat", "complex", "bool"};
  std::string got = dtype.code < std::size(kNames)
                        ? kNames[dtype.code]
                        : "float8 (DLPack code " + std::to_string(dtype.code) + ")";
  if (dtype.code < 6) got += std::to_string(dtype.bits);
  if (dtype.lanes != 1) got += " x " + std::to_string(dtype.lanes);
  throw InvalidArgument(argument,
                        "elements of e4m3, uint8 (e4m3 bits), bf16, uint16 (bf16 bits), float32, "
                        "int32 or int64",
                        got);
}

Device to_device(std::int32_t type, std::int32_t index, const char* argument) {
  if (type == kDlCpu || type == nb::device::cuda_host::value) return {DeviceType::cpu, 0};
  if (type == kDlCuda || type == nb::device::cuda_managed::value) return {DeviceType::cuda, index};
  throw InvalidArgument(argument, "an array in CPU or CUDA memory",
                        "DLPack device type " + std::to_string(type));
}

void check_rank(std::int64_t rank, const char* argument) {
  if (rank > TensorView::kMaxRank) {
    throw InvalidArgument(argument,
                          "at most " + std::to_string(TensorView::kMaxRank) + " dimensions",
                          std::to_string(rank));
  }
}

Array from_dltensor(const dlpack::dltensor& tensor, const char* argument) {
  Array array;
  check_rank(tensor.ndim, argument);
  TensorView& view = array.view;
  view.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  view.dtype = to_dtype(tensor.dtype, argument);
  view.device = to_device(tensor.device.device_type, tensor.device.device_id, argument);
  view.rank = tensor.ndim;
  std::int64_t dense = 1;
  for (int d = tensor.ndim - 1; d >= 0; --d) {
    view.shape[d] = tensor.shape[d];
    view.strides[d] = tensor.strides ? tensor.strides[d] : dense;
    dense *= tensor.shape[d];
  }
  return array;
}

Array from_ndarray(nb::ndarray<nb::ro> import, const char* argument) {
  Array array;
  check_rank(static_cast<std::int64_t>(import.ndim()), argument);
  TensorView& view = array.view;
  view.data = const_cast<void*>(import.data());
  view.dtype = to_dtype(import.dtype(), argument);
  view.device = to_device(import.device_type(), import.device_id(), argument);
  view.rank = static_cast<int>(import.ndim());
  for (int d = 0; d < view.rank; ++d) {
    view.shape[d] = static_cast<std::int64_t>(import.shape(d));
    view.strides[d] = import.stride(d);
  }
  array.import = std::move(import);
  return array;
}

/// Reads an array with nanobind, or gives an invalid one.
nb::ndarray<nb::ro> import_array(nb::handle object, Access access) {
  if (access == Access::write) {
    nb::ndarray<> writable;
    if (nb::try_cast(object, writable)) return nb::ndarray<nb::ro>(std::move(writable));
  } else {
    nb::ndarray<nb::ro> import;
    if (nb::try_cast(object, import)) return import;
  }
  PyErr_Clear();  // of an exporter that refused
  return {};
}

}  // namespace

Array to_array(nb::handle object, const char* argument, Access access) {
  if (const DlpackExchangeApi* api = exchange_api(object)) {
    dlpack::dltensor tensor;
    if (api->dltensor_from_py_object(object.ptr(), &tensor) != 0) {
      nb::python_error error;
      throw InvalidArgument(argument, "a tensor that can be read through DLPack", error.what());
    }
    Array array = from_dltensor(tensor, argument);
    array.api = api;
    return array;
  }
  nb::ndarray<nb::ro> import = import_array(object, access);
  if (!import.is_valid() && nb::hasattr(object, "dtype") && nb::hasattr(object, "view")) {
    // ml_dtypes: no DLPack, no buffer protocol; the same memory as integers has both.
    const std::string dtype = text(object.attr("dtype"));
    const char* bits = dtype == "bfloat16"        ? "uint16"
                       : dtype == "float8_e4m3fn" ? "uint8"
                                                  : nullptr;
    if (bits) import = import_array(object.attr("view")(bits), access);
  }
  if (!import.is_valid()) {
    if (access == Access::write && import_array(object, Access::read).is_valid()) {
      throw InvalidArgument(argument, "an array that can be written",
                            "a read-only " + kind_of(object));
    }
    if (nb::hasattr(object, "dtype") && nb::hasattr(object, "shape")) {
      throw InvalidArgument(argument,
                            "an array that exports DLPack, with native byte order and strides of "
                            "whole elements",
                            kind_of(object) + " of " + text(object.attr("dtype")));
    }
    throw_no_array(object, argument);
  }
  return from_ndarray(std::move(import), argument);
}

Array to_optional_array(nb::handle object, const char* argument, Access access) {
  return object.is_none() ? Array{} : to_array(object, argument, access);
}

Stream to_stream(nb::handle stream, Device device, const DlpackExchangeApi* api) {
  if (device.type == DeviceType::cpu) return {};
  if (stream.is_none()) {
    if (!api || !api->current_work_stream) {
      throw InvalidArgument("stream",
                            "a CUDA stream (this array library does not tell its current one; 0 is "
                            "the default stream)",
                            "None");
    }
    void* current = nullptr;
    if (api->current_work_stream(kDlCuda, device.index, &current) != 0) nb::raise_python_error();
    return {current};
  }
  nb::object handle = nb::borrow(stream);
  if (nb::hasattr(stream, "__cuda_stream__")) {
    handle = stream.attr("__cuda_stream__")()[1];
  } else if (nb::hasattr(stream, "cuda_stream")) {
    handle = stream.attr("cuda_stream");
  } else if (nb::hasattr(stream, "ptr")) {
    handle = stream.attr("ptr");
  }
  std::uintptr_t address = 0;
  if (PyBool_Check(handle.ptr()) || !nb::try_cast(handle, address)) {
    throw InvalidArgument("stream",
                          "a cudaStream_t as an integer, or an object with __cuda_stream__, "
                          "cuda_stream or ptr",
                          kind_of(stream));
  }
  return {reinterpret_cast<void*>(address)};
}

Device to_device(nb::handle device) {
  const std::string name = text(device);
  if (name == "cpu") return {};
  if (name == "cuda") return {DeviceType::cuda, 0};
  if (name.size() > 5 && name.size() <= 8 && name.starts_with("cuda:") &&
      name.find_first_not_of("0123456789", 5) == std::string::npos) {
    return {DeviceType::cuda, std::stoi(name.substr(5))};
  }
  throw InvalidArgument("device", "\"cpu\", \"cuda\" or \"cuda:<index>\"", name);
}

DType to_float_dtype(const std::string& name, const char* argument) {
  if (name == "f32") return DType::f32;
  if (name == "bf16") return DType::bf16;
  throw InvalidArgument(argument, "\"f32\" or \"bf16\"", '"' + name + '"');
}

nb::object new_array(nb::handle like, const std::vector<std::int64_t>& shape, DType dtype) {
  static const nb::object& empty =
      *new nb::object(nb::module_::import_("snapmla._allocate").attr("empty"));
  nb::object dims = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(shape.size())));
  for (std::size_t d = 0; d < shape.size(); ++d) {
    PyTuple_SET_ITEM(dims.ptr(), static_cast<Py_ssize_t>(d), PyLong_FromLongLong(shape[d]));
  }
  return empty(like, dims, dtype_name(dtype));
}

}  // namespace snapmla::python
