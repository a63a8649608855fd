#pragma once

// Where test tensors live. Tests are written against Memory, so the same cases run on host memory
// and, with another Memory, on a device.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "snapmla/tensor.h"

namespace snapmla::test {

class Memory {
 public:
  virtual ~Memory() = default;
  virtual Device device() const = 0;
  virtual Stream stream() const { return {}; }
  /// At least 256-byte aligned.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* data) noexcept = 0;
  /// Both finish before they return, and start after everything enqueued on stream().
  virtual void upload(void* to, const void* from, std::size_t bytes) = 0;
  virtual void download(void* to, const void* from, std::size_t bytes) = 0;
};

/// Host memory, for the CPU backends.
Memory& host_memory();

/// Bytes in a Memory between two guard bands of 4 KiB, which must come back untouched. A new buffer
/// is filled with 0xff: NaN as f32, bf16 and e4m3, -1 as an integer.
class Buffer {
 public:
  static constexpr std::size_t kGuardBytes = 4096;

  Buffer() = default;
  Buffer(Memory& memory, std::size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }

  void* data() const { return base_ ? static_cast<char*>(base_) + kGuardBytes : nullptr; }
  std::size_t bytes() const { return bytes_; }
  void fill(std::uint8_t byte);
  void upload(const void* from, std::size_t bytes, std::size_t offset = 0);
  void download(void* to, std::size_t bytes, std::size_t offset = 0) const;
  /// A new buffer that holds `values`.
  template <class T>
  static Buffer of(Memory& memory, const std::vector<T>& values) {
    Buffer buffer(memory, values.size() * sizeof(T));
    buffer.upload(values.data(), values.size() * sizeof(T));
    return buffer;
  }
  template <class T>
  std::vector<T> read() const {
    std::vector<T> values(bytes_ / sizeof(T));
    download(values.data(), values.size() * sizeof(T));
    return values;
  }
  /// Whether both bands are as they were made.
  bool guards_intact() const;
  Device device() const { return memory_->device(); }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
  }

  Memory* memory_ = nullptr;
  void* base_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace snapmla::test
