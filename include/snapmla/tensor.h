#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace snapmla {

/// Element types that cross the API. `u8` is accepted wherever `e4m3` is and means the same bits,
/// because NumPy, CuPy and some engines carry FP8 as bytes.
enum class DType : std::uint8_t { e4m3, u8, bf16, f32, i32, i64 };

/// Bytes of one element.
std::size_t dtype_bytes(DType dtype) noexcept;
/// "e4m3", "u8", "bf16", "f32", "i32" or "i64".
const char* dtype_name(DType dtype) noexcept;

enum class DeviceType : std::uint8_t { cpu, cuda };

struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

/// "cpu" or "cuda:0".
std::string to_string(Device device);

/// A stream to enqueue on: a cudaStream_t for CUDA tensors (null is the legacy default stream),
/// ignored for CPU tensors, whose operations finish before they return.
struct Stream {
  void* handle = nullptr;
};

/// A non-owning view of a strided tensor. The caller keeps the memory alive until the work on the
/// stream is done. An input is never written through its view, so views of constant data are made
/// with the same constructor. A default-constructed view means "not given".
struct TensorView {
  static constexpr int kMaxRank = 6;

  void* data = nullptr;
  DType dtype = DType::f32;
  int rank = -1;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank>
      strides{};  ///< in elements; 0 and negative are allowed in inputs
  Device device{};

  TensorView() = default;
  /// A contiguous (row-major) tensor.
  TensorView(const void* data, DType dtype, std::span<const std::int64_t> shape,
             Device device = {});
  TensorView(const void* data, DType dtype, std::initializer_list<std::int64_t> shape,
             Device device = {});
  /// A strided tensor; `strides` in elements, as many as `shape`.
  TensorView(const void* data, DType dtype, std::initializer_list<std::int64_t> shape,
             std::initializer_list<std::int64_t> strides, Device device = {});

  bool defined() const noexcept { return rank >= 0; }
  std::int64_t numel() const noexcept;
  /// Bytes that a contiguous tensor of this shape and dtype takes.
  std::int64_t bytes() const noexcept {
    return numel() * static_cast<std::int64_t>(dtype_bytes(dtype));
  }
  bool is_contiguous() const noexcept;
  /// The sub-view with dimension `dim` limited to [begin, end).
  TensorView slice(int dim, std::int64_t begin, std::int64_t end) const;
};

/// "bf16[4, 1, 16, 576] on cpu", for messages.
std::string to_string(const TensorView& tensor);

}  // namespace snapmla
