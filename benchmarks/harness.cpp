#include "harness.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <random>
#include <stdexcept>
#include <thread>
#include <utility>

namespace snapmla::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// The observed SM clock, through NVML where the driver brings it.
class ClockReader {
 public:
  ClockReader() {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (library == nullptr) return;
    const auto init = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
    const auto by_bus = reinterpret_cast<int (*)(const char*, void**)>(
        dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2"));
    read_ =
        reinterpret_cast<int (*)(void*, int, unsigned*)>(dlsym(library, "nvmlDeviceGetClockInfo"));
    char bus[64] = "";
    cudaDeviceGetPCIBusId(bus, sizeof(bus), 0);
    if (!init || !by_bus || !read_ || init() != 0 || by_bus(bus, &device_) != 0) read_ = nullptr;
  }
  /// MHz; 0 where unknown.
  unsigned sm_mhz() const { return read(1); }
  unsigned memory_mhz() const { return read(2); }

 private:
  unsigned read(int kind) const {
    unsigned mhz = 0;
    return read_ != nullptr && read_(device_, kind, &mhz) == 0 ? mhz : 0;
  }
  int (*read_)(void*, int, unsigned*) = nullptr;
  void* device_ = nullptr;
};

std::string output_of(const char* command) {
  std::string text;
  if (FILE* pipe = popen(command, "r")) {
    char line[512];
    while (std::fgets(line, sizeof(line), pipe)) text += line;
    pclose(pipe);
  }
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.pop_back();
  return text;
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    if (c == '\n') {
      result += "\\n";
    } else {
      result += c;
    }
  }
  return result + "\"";
}

struct Timing {
  double median_us = 0, p10_us = 0, p90_us = 0;
  int samples = 0;
  unsigned sm_mhz = 0;  // lowest seen
};

Timing summarize(std::vector<double> us, unsigned sm_mhz) {
  std::sort(us.begin(), us.end());
  const auto at = [&](double q) {
    return us[static_cast<std::size_t>(q * static_cast<double>(us.size() - 1) + 0.5)];
  };
  return {at(0.5), at(0.1), at(0.9), static_cast<int>(us.size()), sm_mhz};
}

class GraphTimer {
 public:
  GraphTimer(const Case& c, cudaStream_t stream) : stream_(stream), launches_(c.launches) {
    SNAPMLA_BENCH_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < c.launches; ++i) c.enqueue(i, {stream});
    cudaGraph_t graph = nullptr;
    SNAPMLA_BENCH_CUDA(cudaStreamEndCapture(stream, &graph));
    SNAPMLA_BENCH_CUDA(cudaGraphInstantiate(&exec_, graph, 0));
    SNAPMLA_BENCH_CUDA(cudaGraphDestroy(graph));
    SNAPMLA_BENCH_CUDA(cudaEventCreate(&begin_));
    SNAPMLA_BENCH_CUDA(cudaEventCreate(&end_));
  }
  ~GraphTimer() {
    cudaGraphExecDestroy(exec_);
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  GraphTimer(const GraphTimer&) = delete;
  GraphTimer& operator=(const GraphTimer&) = delete;

  /// Replays for `warm_up` seconds, then for `window` seconds, each replay timed.
  Timing measure(double warm_up, double window, const ClockReader& clock) {
    for (const auto start = Clock::now(); seconds_since(start) < warm_up;) replay();
    std::vector<double> us;
    unsigned mhz = 0;
    double next_clock = 0;
    for (const auto start = Clock::now(); us.size() < 5 || seconds_since(start) < window;) {
      us.push_back(replay());
      if (seconds_since(start) >= next_clock) {
        // Read while the device is busy.
        SNAPMLA_BENCH_CUDA(cudaGraphLaunch(exec_, stream_));
        const unsigned now = clock.sm_mhz();
        if (now != 0 && (mhz == 0 || now < mhz)) mhz = now;
        next_clock += 0.05;
      }
    }
    return summarize(std::move(us), mhz);
  }

 private:
  /// Microseconds per launch.
  double replay() {
    SNAPMLA_BENCH_CUDA(cudaEventRecord(begin_, stream_));
    SNAPMLA_BENCH_CUDA(cudaGraphLaunch(exec_, stream_));
    SNAPMLA_BENCH_CUDA(cudaEventRecord(end_, stream_));
    SNAPMLA_BENCH_CUDA(cudaEventSynchronize(end_));
    float ms = 0;
    SNAPMLA_BENCH_CUDA(cudaEventElapsedTime(&ms, begin_, end_));
    return ms * 1e3 / launches_;
  }

  cudaStream_t stream_;
  int launches_;
  cudaGraphExec_t exec_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

struct Line {
  Case c;
  Timing burst, sustained;
  std::string error;
};

double gbps(std::int64_t bytes, double us) { return static_cast<double>(bytes) / us * 1e-3; }

std::string json_timing(const Case& c, const Timing& t, double roof_gbps) {
  std::string json = fmt::format(
      R"({{"median_us": {:.4f}, "p10_us": {:.4f}, "p90_us": {:.4f}, "samples": {}, "sm_clock_mhz": {})",
      t.median_us, t.p10_us, t.p90_us, t.samples, t.sm_mhz);
  if (c.bytes > 0) json += fmt::format(R"(, "gb_per_s": {:.1f})", gbps(c.bytes, t.median_us));
  if (c.flops > 0) json += fmt::format(R"(, "tflops": {:.3f})", c.flops / t.median_us * 1e-6);
  if (roof_gbps > 0 && c.bytes > 0) {
    json += fmt::format(R"(, "share_of_roof": {:.4f})", gbps(c.bytes, t.median_us) / roof_gbps);
  }
  return json + "}";
}

}  // namespace

void check_cuda(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    throw std::runtime_error(fmt::format("{}: {}", what, cudaGetErrorString(status)));
  }
}

DeviceBuffer::DeviceBuffer(std::int64_t bytes) : bytes_(bytes) {
  SNAPMLA_BENCH_CUDA(
      cudaMalloc(&data_, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1))));
}
DeviceBuffer::~DeviceBuffer() { cudaFree(data_); }
DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}
void DeviceBuffer::upload(const void* from, std::int64_t bytes, std::int64_t offset) {
  SNAPMLA_BENCH_CUDA(cudaMemcpy(as<char>() + offset, from, bytes, cudaMemcpyHostToDevice));
}
void DeviceBuffer::download(void* to, std::int64_t bytes, std::int64_t offset) const {
  SNAPMLA_BENCH_CUDA(cudaDeviceSynchronize());
  SNAPMLA_BENCH_CUDA(cudaMemcpy(to, as<char>() + offset, bytes, cudaMemcpyDeviceToHost));
}

DeviceBuffer random_bf16(std::int64_t count, std::uint64_t seed) {
  constexpr std::int64_t kBlock = 1 << 19;
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> block(std::min(count, kBlock));
  for (auto& bits : block) {
    const float value = normal(generator);
    std::uint32_t u;
    std::memcpy(&u, &value, 4);
    bits = static_cast<std::uint16_t>(u >> 16);
  }
  DeviceBuffer buffer(count * 2);
  buffer.upload(block.data(), static_cast<std::int64_t>(block.size()) * 2);
  // Doubling copies.
  for (std::int64_t done = static_cast<std::int64_t>(block.size()); done < count; done *= 2) {
    SNAPMLA_BENCH_CUDA(cudaMemcpy(buffer.as<std::uint16_t>() + done, buffer.data(),
                                  std::min(done, count - done) * 2, cudaMemcpyDeviceToDevice));
  }
  return buffer;
}

Options parse_options(int argc, char** argv, const char* description) {
  Options options;
  for (int i = 0; i < argc; ++i) options.command.append(i ? " " : "").append(argv[i]);
  const auto value = [&](int& i) -> std::string {
    if (i + 1 < argc) return argv[++i];
    std::fprintf(stderr, "%s needs a value\n", argv[i]);
    std::exit(2);
  };
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--check") {
      options.check_only = true;
    } else if (arg == "--quick") {
      options.quick = true;
    } else if (arg == "--filter") {
      options.filter = value(i);
    } else if (arg == "--out") {
      options.out = value(i);
    } else {
      std::fprintf(arg == "--help" ? stdout : stderr,
                   "%s\nusage: %s [--check] [--quick] [--filter TEXT] [--out FILE.json]\n"
                   "  --check   verify results only\n"
                   "  --quick   short windows\n"
                   "  --filter  cases whose name contains TEXT\n"
                   "  --out     write a record\n",
                   description, argv[0]);
      std::exit(arg == "--help" ? 0 : 2);
    }
  }
  return options;
}

int run(const std::vector<std::function<Case()>>& cases, const Options& options,
        const char* program) {
  cudaDeviceProp device;
  SNAPMLA_BENCH_CUDA(cudaSetDevice(0));
  SNAPMLA_BENCH_CUDA(cudaGetDeviceProperties(&device, 0));
  int driver = 0, runtime = 0;
  SNAPMLA_BENCH_CUDA(cudaDriverGetVersion(&driver));
  SNAPMLA_BENCH_CUDA(cudaRuntimeGetVersion(&runtime));
  cudaStream_t stream;
  SNAPMLA_BENCH_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const ClockReader clock;
  const std::string smi = output_of(
      "nvidia-smi -i 0 --query-gpu=driver_version,pstate,clocks.sm,clocks.mem,clocks.max.sm,"
      "clocks.max.mem,power.limit --format=csv,noheader 2>/dev/null");

  std::vector<Line> lines;
  std::map<std::string, double> gbps_of;  // sustained
  bool failed = false;
  for (const auto& make : cases) {
    Line line{make(), {}, {}, {}};
    Case& c = line.c;
    if (c.name.find(options.filter) == std::string::npos) continue;
    try {
      for (int i = 0; i < c.launches; ++i) c.enqueue(i, {stream});
      SNAPMLA_BENCH_CUDA(cudaStreamSynchronize(stream));
      if (c.check) line.error = c.check();
      if (line.error.empty() && !options.check_only) {
        GraphTimer timer(c, stream);
        std::this_thread::sleep_for(std::chrono::milliseconds(options.quick ? 5 : 100));
        line.burst = timer.measure(0.002, options.quick ? 0.005 : 0.02, clock);
        line.sustained =
            timer.measure(options.quick ? 0.01 : 0.4, options.quick ? 0.02 : 0.45, clock);
        if (c.bytes > 0) gbps_of[c.name] = gbps(c.bytes, line.sustained.median_us);
      }
    } catch (const std::exception& error) {
      line.error = error.what();
    }
    failed = failed || !line.error.empty();
    // The buffers live in the closures: free them before the next case takes its own.
    c.enqueue = nullptr;
    c.check = nullptr;
    std::fprintf(stderr, "  %-40s %s\n", c.name.c_str(),
                 line.error.empty() ? "ok" : line.error.c_str());
    lines.push_back(std::move(line));
  }
  SNAPMLA_BENCH_CUDA(cudaStreamDestroy(stream));

  const auto roof_of = [&](const Case& c) {
    const auto found = gbps_of.find(c.roof_case);
    return found == gbps_of.end() ? 0.0 : found->second;
  };
  const std::time_t now = std::time(nullptr);
  char date[32];
  std::strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  if (!options.out.empty() && !options.check_only) {
    const char* commit = std::getenv("SNAPMLA_COMMIT");
    std::string json = fmt::format(
        "{{\n  \"schema\": \"snapmla.bench.v1\",\n  \"program\": {},\n  \"date\": {},\n"
        "  \"commit\": {},\n  \"command\": {},\n  \"gpu\": {},\n  \"sms\": {},\n  \"l2_bytes\": "
        "{},\n"
        "  \"cuda_driver\": {},\n  \"cuda_runtime\": {},\n  \"nvidia_smi\": {},\n  \"cases\": [",
        quoted(program), quoted(date), quoted(commit ? commit : SNAPMLA_BUILD_COMMIT),
        quoted(options.command), quoted(device.name), device.multiProcessorCount,
        device.l2CacheSize, driver, runtime, quoted(smi));
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const Case& c = lines[i].c;
      json += fmt::format(
          "{}\n    {{\"name\": {}, \"detail\": {}, \"bytes\": {}, \"flops\": {:.0f}, \"goal_us\": "
          "{}, "
          "\"roof\": {}, \"launches\": {}, \"error\": {}",
          i ? "," : "", quoted(c.name), quoted(c.detail), c.bytes, c.flops, c.goal_us,
          quoted(c.roof_case), c.launches, quoted(lines[i].error));
      if (lines[i].error.empty()) {
        json += fmt::format(",\n     \"burst\": {},\n     \"sustained\": {}",
                            json_timing(c, lines[i].burst, roof_of(c)),
                            json_timing(c, lines[i].sustained, roof_of(c)));
      }
      json += "}";
    }
    json += "\n  ]\n}\n";
    FILE* file = std::fopen(options.out.c_str(), "w");
    if (file == nullptr || std::fputs(json.c_str(), file) < 0 || std::fclose(file) != 0) {
      std::fprintf(stderr, "cannot write %s\n", options.out.c_str());
      failed = true;
    }
  }

  fmt::print("{} on {}, {} ({}), median us per launch in a graph\n", program, device.name, smi,
             date);
  if (options.check_only) {
    for (const Line& line : lines) {
      fmt::print("{:<40} {}\n", line.c.name, line.error.empty() ? "correct" : line.error);
    }
    return failed ? 1 : 0;
  }
  fmt::print("{:<40} {:>9} {:>9} {:>17} {:>8} {:>7} {:>7} {:>6}  {}\n", "case", "burst",
             "sustained", "p10..p90", "GB/s", "% roof", "goal", "MHz", "");
  for (const Line& line : lines) {
    const Case& c = line.c;
    if (!line.error.empty()) {
      fmt::print("{:<40} FAILED: {}\n", c.name, line.error);
      continue;
    }
    const Timing& t = line.sustained;
    const double rate = c.bytes > 0 ? gbps(c.bytes, t.median_us) : 0;
    fmt::print("{:<40} {:>9.2f} {:>9.2f} {:>8.2f}..{:<8.2f} {:>7} {:>7} {:>7} {:>6}  {}\n", c.name,
               line.burst.median_us, t.median_us, t.p10_us, t.p90_us,
               rate > 0 ? fmt::format("{:.0f}", rate) : "",
               roof_of(c) > 0 ? fmt::format("{:.1f}", 100 * rate / roof_of(c)) : "",
               c.goal_us > 0 ? fmt::format("{:g}", c.goal_us) : "", t.sm_mhz,
               c.flops > 0 ? fmt::format("{:.2f} TFLOPS", c.flops / t.median_us * 1e-6) : "");
  }
  return failed ? 1 : 0;
}

}  // namespace snapmla::bench
