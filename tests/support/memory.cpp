#include "support/memory.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace snapmla::test {
namespace {

constexpr std::uint8_t kGuardByte = 0xa5;
constexpr std::uint8_t kPoisonByte = 0xff;

class HostMemory final : public Memory {
 public:
  Device device() const override { return {}; }
  void* allocate(std::size_t bytes) override {
    return ::operator new (bytes, std::align_val_t{256});
  }
  void release(void* data) noexcept override { ::operator delete (data, std::align_val_t{256}); }
  void upload(void* to, const void* from, std::size_t bytes) override { copy(to, from, bytes); }
  void download(void* to, const void* from, std::size_t bytes) override { copy(to, from, bytes); }

 private:
  static void copy(void* to, const void* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
};

}  // namespace

Memory& host_memory() {
  static HostMemory memory;
  return memory;
}

Buffer::Buffer(Memory& memory, std::size_t bytes)
    : memory_(&memory), base_(memory.allocate(bytes + 2 * kGuardBytes)), bytes_(bytes) {
  const std::vector<std::uint8_t> guard(kGuardBytes, kGuardByte);
  memory_->upload(base_, guard.data(), kGuardBytes);
  memory_->upload(static_cast<char*>(data()) + bytes_, guard.data(), kGuardBytes);
  fill(kPoisonByte);
}

Buffer::~Buffer() {
  if (base_) memory_->release(base_);
}

void Buffer::fill(std::uint8_t byte) {
  const std::vector<std::uint8_t> chunk(std::min<std::size_t>(bytes_, 1 << 20), byte);
  for (std::size_t offset = 0; offset < bytes_; offset += chunk.size()) {
    upload(chunk.data(), std::min(chunk.size(), bytes_ - offset), offset);
  }
}

void Buffer::upload(const void* from, std::size_t bytes, std::size_t offset) {
  memory_->upload(static_cast<char*>(data()) + offset, from, bytes);
}

void Buffer::download(void* to, std::size_t bytes, std::size_t offset) const {
  memory_->download(to, static_cast<char*>(data()) + offset, bytes);
}

bool Buffer::guards_intact() const {
  std::vector<std::uint8_t> guard(kGuardBytes);
  for (const char* band :
       {static_cast<const char*>(base_), static_cast<const char*>(data()) + bytes_}) {
    memory_->download(guard.data(), band, kGuardBytes);
    if (std::any_of(guard.begin(), guard.end(), [](std::uint8_t g) { return g != kGuardByte; })) {
      return false;
    }
  }
  return true;
}

}  // namespace snapmla::test
