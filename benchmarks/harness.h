#pragma once

// Timing on a GPU: launches captured in a CUDA graph, replays timed by events, one JSON record a
// run. README.md has the method and the record's schema.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "snapmla/tensor.h"

namespace snapmla::bench {

void check_cuda(cudaError_t status, const char* what);
#define SNAPMLA_BENCH_CUDA(call) ::snapmla::bench::check_cuda((call), #call)

/// Device memory, freed with the object.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(std::int64_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;

  void* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  void upload(const void* from, std::int64_t bytes, std::int64_t offset = 0);
  void download(void* to, std::int64_t bytes, std::int64_t offset = 0) const;
  template <class T>
  static DeviceBuffer of(const std::vector<T>& values) {
    DeviceBuffer buffer(static_cast<std::int64_t>(values.size() * sizeof(T)));
    buffer.upload(values.data(), buffer.bytes());
    return buffer;
  }
  template <class T>
  std::vector<T> read(std::int64_t count) const {
    std::vector<T> values(count);
    download(values.data(), count * static_cast<std::int64_t>(sizeof(T)));
    return values;
  }

 private:
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

/// `count` bf16 values near normal(0, 1): one random block of 1 MiB, copied over and over. Timings
/// must not be taken on zeros, which draw less power.
DeviceBuffer random_bf16(std::int64_t count, std::uint64_t seed);

struct Options {
  bool check_only = false;
  bool quick = false;  ///< short windows: is it all right, not how fast is it
  std::string filter;  ///< part of a case name
  std::string out;     ///< file of the record; "" for none
  std::string command;
};
/// Reads the command line; prints usage and exits on --help or an unknown option.
Options parse_options(int argc, char** argv, const char* description);

struct Case {
  std::string name;
  std::string detail;      ///< shapes, one line
  std::int64_t bytes = 0;  ///< read plus written by one launch, each once; 0: not judged by it
  double flops = 0;
  double goal_us = 0;     ///< 0: none
  std::string roof_case;  ///< the case whose GB/s is the roof, for example a device copy
  int launches = 1;       ///< launches of one graph
  /// Enqueues launch i (of `launches`) on the stream. Launches use different buffers where a cold
  /// L2 is meant.
  std::function<void(int i, Stream)> enqueue;
  /// Empty, or what is wrong with the result.
  std::function<std::string()> check;
};

/// Checks and times the cases, prints a table, writes the record. Returns the exit code.
int run(const std::vector<std::function<Case()>>& cases, const Options& options,
        const char* program);

}  // namespace snapmla::bench
