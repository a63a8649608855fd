#include "snapmla/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>

#include "core/check.h"
#include "snapmla/error.h"

namespace snapmla {

std::size_t dtype_bytes(DType dtype) noexcept {
  switch (dtype) {
    case DType::e4m3:
    case DType::u8:
      return 1;
    case DType::bf16:
      return 2;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::i64:
      return 8;
  }
  return 1;
}

const char* dtype_name(DType dtype) noexcept {
  switch (dtype) {
    case DType::e4m3:
      return "e4m3";
    case DType::u8:
      return "u8";
    case DType::bf16:
      return "bf16";
    case DType::f32:
      return "f32";
    case DType::i32:
      return "i32";
    case DType::i64:
      return "i64";
  }
  return "unknown";
}

std::string to_string(Device device) {
  return device.type == DeviceType::cpu ? "cpu" : fmt::format("cuda:{}", device.index);
}

TensorView::TensorView(const void* data_, DType dtype_, std::span<const std::int64_t> shape_,
                       Device device_)
    : data(const_cast<void*>(data_)), dtype(dtype_), device(device_) {
  SNAPMLA_CHECK(shape_.size() <= kMaxRank, "shape", fmt::format("at most {} dimensions", kMaxRank),
                shape_.size());
  constexpr std::int64_t kMaxBytes = std::numeric_limits<std::int64_t>::max();
  rank = static_cast<int>(shape_.size());
  std::int64_t stride = 1;
  for (int d = rank - 1; d >= 0; --d) {
    SNAPMLA_CHECK(shape_[d] >= 0, "shape", "no negative dimension", shape_[d]);
    // Every size and offset that is computed from the shape must fit into 63 bits.
    SNAPMLA_CHECK(shape_[d] == 0 || stride <= kMaxBytes / 8 / shape_[d], "shape",
                  "less than 2^63 bytes", shape_[d]);
    shape[d] = shape_[d];
    strides[d] = stride;
    stride *= shape_[d];
  }
}

TensorView::TensorView(const void* data_, DType dtype_, std::initializer_list<std::int64_t> shape_,
                       Device device_)
    : TensorView(data_, dtype_, std::span<const std::int64_t>(shape_.begin(), shape_.size()),
                 device_) {}

TensorView::TensorView(const void* data_, DType dtype_, std::initializer_list<std::int64_t> shape_,
                       std::initializer_list<std::int64_t> strides_, Device device_)
    : TensorView(data_, dtype_, shape_, device_) {
  SNAPMLA_CHECK(strides_.size() == shape_.size(), "strides",
                fmt::format("{} values", shape_.size()), strides_.size());
  std::copy(strides_.begin(), strides_.end(), strides.begin());
}

std::int64_t TensorView::numel() const noexcept {
  std::int64_t n = rank < 0 ? 0 : 1;
  for (int d = 0; d < rank; ++d) n *= shape[d];
  return n;
}

bool TensorView::is_contiguous() const noexcept {
  if (numel() == 0) return true;
  std::int64_t stride = 1;
  for (int d = rank - 1; d >= 0; --d) {
    if (shape[d] != 1 && strides[d] != stride) return false;
    stride *= shape[d];
  }
  return true;
}

TensorView TensorView::slice(int dim, std::int64_t begin, std::int64_t end) const {
  SNAPMLA_CHECK(dim >= 0 && dim < rank, "dim", fmt::format("0 <= dim < {}", rank), dim);
  SNAPMLA_CHECK(begin >= 0 && begin <= end && end <= shape[dim], "slice",
                fmt::format("0 <= begin <= end <= {}", shape[dim]),
                fmt::format("[{}, {})", begin, end));
  TensorView view = *this;
  view.shape[dim] = end - begin;
  view.data = static_cast<char*>(data) +
              begin * strides[dim] * static_cast<std::int64_t>(dtype_bytes(dtype));
  return view;
}

std::string to_string(const TensorView& tensor) {
  if (!tensor.defined()) return "no tensor";
  return fmt::format("{}[{}] on {}", dtype_name(tensor.dtype),
                     fmt::join(tensor.shape.begin(), tensor.shape.begin() + tensor.rank, ", "),
                     to_string(tensor.device));
}

}  // namespace snapmla
