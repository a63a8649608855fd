#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "snapmla/tensor.h"

namespace snapmla::tools {

/// Memory on a device. The library owns no memory, so programs that use it do.
class Buffer {
 public:
  Buffer() = default;
  /// Uninitialized on CUDA, zero on the CPU.
  Buffer(std::int64_t bytes, Device device);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  template <class T>
  static Buffer from(const std::vector<T>& values, Device device) {
    Buffer buffer(static_cast<std::int64_t>(values.size() * sizeof(T)), device);
    buffer.upload(values.data());
    return buffer;
  }

  template <class T>
  std::vector<T> to_vector() const {
    std::vector<T> values(static_cast<std::size_t>(bytes_) / sizeof(T));
    download(values.data());
    return values;
  }

  Buffer copy_to(Device device) const;
  /// Sets every byte.
  void fill(std::uint8_t byte);

  /// A contiguous tensor over the whole buffer, or over its beginning.
  TensorView view(DType dtype, std::initializer_list<std::int64_t> shape) const {
    return {data_, dtype, shape, device_};
  }

  std::int64_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  void* data() const { return data_; }

 private:
  void upload(const void* host);
  void download(void* host) const;

  std::vector<std::byte> host_;  // the memory of a CPU buffer
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
  Device device_{};
};

/// Waits for all work on the device; what a CPU call started has ended already.
void synchronize(Device device);

}  // namespace snapmla::tools
