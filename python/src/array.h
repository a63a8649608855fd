#pragma once

// Arrays and streams of any library, as the core wants them.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>
#include <vector>

#include "dlpack_exchange.h"
#include "snapmla/snapmla.h"

namespace snapmla::python {

namespace nb = nanobind;

enum class Access { read, write };

/// A caller's array: a view, and what keeps the view valid while the caller holds the array itself.
struct Array {
  TensorView view;
  nb::ndarray<nb::ro> import;              ///< unused on the fast path
  const DlpackExchangeApi* api = nullptr;  ///< of the array's library, where it has one
};

/// Reads a DLPack array: through the library's C table where it has one (0.1 us), else by an import
/// as nb::ndarray (2 us). Arrays of ml_dtypes, which DLPack exporters refuse, are read as bits.
/// Throws InvalidArgument naming `argument`, for arrays that can't be written too.
Array to_array(nb::handle object, const char* argument, Access access = Access::read);
/// The same; None gives an undefined view.
Array to_optional_array(nb::handle object, const char* argument, Access access = Access::read);

/// `stream` as the caller gave it: an integer, an object with __cuda_stream__, cuda_stream or ptr,
/// or None: the current stream of the array's library, where it tells it.
Stream to_stream(nb::handle stream, Device device, const DlpackExchangeApi* api);

/// "cpu", "cuda" or "cuda:1", or anything that prints as one of these.
Device to_device(nb::handle device);

/// "f32" or "bf16".
DType to_float_dtype(const std::string& name, const char* argument);

/// A new array of the library and device of `like`, not initialized.
nb::object new_array(nb::handle like, const std::vector<std::int64_t>& shape, DType dtype);

}  // namespace snapmla::python
