#include "buffer.h"

#include <cstring>
#include <string>
#include <utility>

#include "snapmla/error.h"

#ifdef SNAPMLA_TOOLS_CUDA
#include <cuda_runtime_api.h>
#endif

namespace snapmla::tools {
namespace {

#ifdef SNAPMLA_TOOLS_CUDA
void check_cuda(cudaError_t status, const char* call) {
  if (status != cudaSuccess) {
    throw DeviceError(std::string(call) + ": " + cudaGetErrorString(status));
  }
}
#else
[[noreturn]] void throw_no_cuda() {
  throw Unsupported("this build has no CUDA: build with nvcc (preset sm90)");
}
#endif

}  // namespace

Buffer::Buffer(std::int64_t bytes, Device device) : bytes_(bytes), device_(device) {
  if (device.type == DeviceType::cpu) {
    host_.resize(static_cast<std::size_t>(bytes));
    data_ = host_.data();
    return;
  }
#ifdef SNAPMLA_TOOLS_CUDA
  check_cuda(cudaSetDevice(device.index), "cudaSetDevice");
  check_cuda(cudaMalloc(&data_, static_cast<std::size_t>(bytes)), "cudaMalloc");
#else
  throw_no_cuda();
#endif
}

Buffer::~Buffer() {
#ifdef SNAPMLA_TOOLS_CUDA
  if (device_.type == DeviceType::cuda && data_) cudaFree(data_);
#endif
}

Buffer::Buffer(Buffer&& other) noexcept
    : host_(std::move(other.host_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      device_(other.device_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(host_, other.host_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(device_, other.device_);
  return *this;
}

Buffer Buffer::copy_to(Device device) const {
  Buffer copy(bytes_, device);
  if (device_.type == DeviceType::cpu) {
    copy.upload(data_);
  } else if (device.type == DeviceType::cpu) {
    download(copy.data_);
  } else {
    copy.upload(to_vector<std::byte>().data());
  }
  return copy;
}

void Buffer::fill(std::uint8_t byte) {
  if (bytes_ == 0) return;
  if (device_.type == DeviceType::cpu) {
    std::memset(data_, byte, static_cast<std::size_t>(bytes_));
    return;
  }
#ifdef SNAPMLA_TOOLS_CUDA
  check_cuda(cudaMemset(data_, byte, static_cast<std::size_t>(bytes_)), "cudaMemset");
#endif
}

void Buffer::upload(const void* host) {
  if (bytes_ == 0) return;
  if (device_.type == DeviceType::cpu) {
    std::memcpy(data_, host, static_cast<std::size_t>(bytes_));
    return;
  }
#ifdef SNAPMLA_TOOLS_CUDA
  check_cuda(cudaMemcpy(data_, host, static_cast<std::size_t>(bytes_), cudaMemcpyHostToDevice),
             "cudaMemcpy");
#endif
}

void Buffer::download(void* host) const {
  if (bytes_ == 0) return;
  if (device_.type == DeviceType::cpu) {
    std::memcpy(host, data_, static_cast<std::size_t>(bytes_));
    return;
  }
#ifdef SNAPMLA_TOOLS_CUDA
  check_cuda(cudaMemcpy(host, data_, static_cast<std::size_t>(bytes_), cudaMemcpyDeviceToHost),
             "cudaMemcpy");
#endif
}

void synchronize(Device device) {
  if (device.type == DeviceType::cpu) return;
#ifdef SNAPMLA_TOOLS_CUDA
  check_cuda(cudaSetDevice(device.index), "cudaSetDevice");
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
#else
  throw_no_cuda();
#endif
}

}  // namespace snapmla::tools
