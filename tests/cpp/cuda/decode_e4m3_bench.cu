// Variants of the FP8 decode kernel side by side: `accuracy [capture.bin]` and `time [filter]`.

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/validate.h"
#include "cuda/device/check.h"
#include "cuda/sm90/decode_e4m3/launch.cuh"
#include "cuda/sm90/decode_e4m3/launch.h"
#include "cuda/smxx/combine.h"
#include "device.h"
#include "support/compare.h"

namespace snapmla::test {
namespace {

using cuda::check_cuda;
using Launch = void (*)(const DecodeArgs&, cudaStream_t, bool);

struct Variant {
  const char* name;
  Launch launch;
};

template <int kRows>
void launch_config(const DecodeArgs& args, cudaStream_t stream, bool pdl) {
  cuda::sm90::launch_variant<cuda::sm90::Config<kRows>>(args, stream, pdl);
}

/// The first is what the library takes. Put the variants of an experiment here.
const std::vector<Variant> kVariants = {
    {"default", cuda::sm90::launch_decode_e4m3},
    {"rows64", launch_config<64>},
    {"rows32", launch_config<32>},
    {"rows16", launch_config<16>},
};

DecodeArgs decode_args(Pipeline& pipeline) {
  const Case& c = pipeline.problem().spec;
  return validate_decode(pipeline.decode_plan(), pipeline.query(), pipeline.cache(),
                         pipeline.block_table(), pipeline.lengths(),
                         pipeline.problem().softmax_scale, c.causal, pipeline.out(), pipeline.lse(),
                         pipeline.workspace(), {})
      .args;
}

void report_accuracy(const char* name, const Problem& problem) {
  force_backend("cuda");
  Pipeline pipeline(problem, device_memory());
  pipeline.append();
  pipeline.quantize();
  pipeline.plan();
  const Attention exact = attend_stored(pipeline);
  force_backend("cpu");
  const Result pipeline_fp8 = run(problem);
  force_backend("cuda");
  for (const Variant& variant : kVariants) {
    const DecodeArgs args = decode_args(pipeline);
    pipeline.out_buffer().fill(0xff);
    variant.launch(args, device_memory().cuda_stream(), true);
    cuda::launch_combine(args, device_memory().cuda_stream(), true);
    const Result result = pipeline.result();
    double lse = 0, bias = 0, lse_cpu = 0;
    for (std::size_t i = 0; i < result.lse.size(); ++i) {
      lse = std::max(lse, std::fabs(result.lse[i] - exact.lse[i]));
      bias += (result.lse[i] - exact.lse[i]) / result.lse.size();
      lse_cpu = std::max(lse_cpu, double(std::fabs(result.lse[i] - pipeline_fp8.lse[i])));
    }
    const Difference d = compare(result.out, exact.out);
    std::printf(
        "ACC %-14s %-8s out vs float64 %.3e (1-cos %.2e, norm %.5f), vs cpu fp8 %.3e; lse max %.3e "
        "mean %+.3e, vs cpu %.3e; cpu vs float64 %.3e; max|logit| %.1f\n",
        name, variant.name, d.relative_l2, 1 - d.cosine, d.norm_ratio,
        compare(result.out, pipeline_fp8.out).relative_l2, lse, bias, lse_cpu,
        compare(pipeline_fp8.out, exact.out).relative_l2, exact.max_logit);
  }
  std::fflush(stdout);
}

/// Raw bytes: c_kv [2048][512], k_pe [2048][64], q_nope [2][16][512], q_pe [2][16][64], all bf16.
Problem capture_problem(const char* path) {
  constexpr int kTokens = 2048, kRows = 32;
  std::vector<std::uint16_t> raw((kTokens + kRows) * kQkDim);
  std::FILE* file = std::fopen(path, "rb");
  if (!file || std::fread(raw.data(), 2, raw.size(), file) != raw.size()) {
    std::printf("can't read %s\n", path);
    std::exit(1);
  }
  std::fclose(file);
  Case c;
  c.name = "capture";
  c.lengths = {kTokens};
  c.s_q = 2;
  c.h_q = 16;
  c.softmax_scale = 0.08838834764831845f;
  Problem p = make_problem(c);
  const std::uint16_t* from = raw.data();
  const auto fill = [&](std::vector<float>& to, int rows, int offset, int width) {
    for (int r = 0; r < rows; ++r) {
      for (int d = 0; d < width; ++d) to[r * kQkDim + offset + d] = bf16_value(*from++);
    }
  };
  fill(p.kv, kTokens, 0, kKvLoraRank);
  fill(p.kv, kTokens, kKvLoraRank, kRopeDim);
  fill(p.q, kRows, 0, kKvLoraRank);
  fill(p.q, kRows, kKvLoraRank, kRopeDim);
  return p;
}

void accuracy(int argc, char** argv) {
  Case c;
  c.lengths = {4096};
  c.h_q = 32;
  c.name = "gaussian";
  report_accuracy("gaussian", make_problem(c));
  c.data = Data::with_mean;
  report_accuracy("with_mean", make_problem(c));
  // Aligned: every key is the query direction times 0.5..1.5 plus noise.
  c.data = Data::gaussian;
  Problem p = make_problem(c);
  for (float& q : p.q) q = bf16_to_float(bf16_from_float(0.15f * std::fabs(q)));
  for (float& k : p.kv) k = bf16_to_float(bf16_from_float(std::fabs(k)));
  report_accuracy("aligned", p);
  for (int i = 0; i < argc; ++i) report_accuracy(argv[i], capture_problem(argv[i]));
}

// ---------------------------------------------------------------------------------------------

__device__ std::uint32_t hash32(std::uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

/// mode 0: e4m3 codes with exponents that random data has, 1: bf16 near 1, 2: f32 scales in
/// [0.5, 1.5]
__global__ void fill_kernel(std::uint32_t* data, std::size_t words, int mode, std::uint32_t seed) {
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words; i += stride) {
    const std::uint32_t h = hash32(static_cast<std::uint32_t>(i * 2654435761u + (i >> 32)) + seed);
    data[i] = mode == 0   ? (h & 0x9f9f9f9fu) | 0x20202020u
              : mode == 1 ? (h & 0x81ff81ffu) | 0x3e003e00u
                          : __float_as_uint(0.5f + (h & 0xffff) / 65536.0f);
  }
}

struct Pool {
  static constexpr std::int64_t kPages = 110000;  // 4.5 GB
  char *content, *rope, *scale;
  std::vector<std::int32_t> order;

  Pool() {
    const auto make = [](std::size_t bytes, int mode) {
      void* data = nullptr;
      check_cuda(cudaMalloc(&data, bytes), "cudaMalloc");
      fill_kernel<<<1056, 512>>>(static_cast<std::uint32_t*>(data), bytes / 4, mode, mode * 77 + 1);
      return static_cast<char*>(data);
    };
    content = make(kPages * kPageTokens * 512, 0);
    rope = make(kPages * kPageTokens * 128, 1);
    scale = make(kPages * kPageTokens * 4, 2);
    check_cuda(cudaDeviceSynchronize(), "fill");
    order.resize(kPages);
    for (std::int64_t i = 0; i < kPages; ++i) order[i] = static_cast<std::int32_t>(i);
    std::shuffle(order.begin(), order.end(), std::mt19937(7));
  }
  Cache cache() const {
    const Device device{DeviceType::cuda, 0};
    return Cache::from_planes(TensorView(content, DType::u8, {kPages, 64, 512}, device),
                              TensorView(scale, DType::f32, {kPages, 64}, device),
                              TensorView(rope, DType::bf16, {kPages, 64, 64}, device));
  }
};

struct TimeCase {
  int b, h, q, kv;
  bool ragged;
};

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

/// once: plain launches for a profiler instead of timing.
void time_case(const Pool& pool, const TimeCase& t, const Variant& variant, bool once = false) {
  force_backend("cuda");
  DeviceMemory& memory = device_memory();
  const Device device = memory.device();
  const std::int64_t rows = std::int64_t{t.q} * t.h;
  std::vector<std::int32_t> lengths(t.b, t.kv);
  std::mt19937 rng(5);
  if (t.ragged) {
    for (auto& length : lengths) length = static_cast<std::int32_t>(rng() % t.kv + 1);
  }
  std::int64_t pages = 0;
  double tokens = 0;
  const std::int64_t max_blocks = (t.kv + 63) / 64;
  for (int length : lengths) {
    pages += (length + 63) / 64;
    tokens += length;
  }
  const int calls = static_cast<int>(
      std::clamp<std::int64_t>((std::int64_t{1300} << 20) / (pages * kPackedPageBytes) + 1, 3, 60));
  std::vector<Buffer> tables;
  std::size_t next = 0;
  for (int i = 0; i < calls; ++i) {
    std::vector<std::int32_t> table(t.b * max_blocks, -1);
    for (int r = 0; r < t.b; ++r) {
      for (int p = 0; p < (lengths[r] + 63) / 64; ++p) {
        table[r * max_blocks + p] = pool.order[next++ % pool.order.size()];
      }
    }
    tables.push_back(Buffer::of(memory, table));
  }
  const auto filled = [&](std::size_t bytes, int mode) {
    Buffer buffer(memory, bytes);
    fill_kernel<<<256, 256>>>(static_cast<std::uint32_t*>(buffer.data()), bytes / 4, mode, 99);
    check_cuda(cudaDeviceSynchronize(), "fill");
    return buffer;
  };
  Buffer codes = filled(t.b * rows * 512, 0), rope = filled(t.b * rows * 128, 1),
         q_scale = filled(t.b * rows * 4, 2), out(memory, t.b * rows * 1024),
         lse(memory, t.b * rows * 4);
  Buffer seqlens = Buffer::of(memory, lengths);
  const PlanSpec spec{t.b, rows, t.kv, device};
  const PlanSize size = plan_size(spec);
  Buffer schedule(memory, size.schedule_rows * size.schedule_cols * 4),
      splits(memory, size.num_splits * 4), workspace(memory, workspace_bytes(spec));
  const DecodePlan plan{
      TensorView(schedule.data(), DType::i32, {size.schedule_rows, size.schedule_cols}, device),
      TensorView(splits.data(), DType::i32, {size.num_splits}, device)};
  const TensorView lengths_view(seqlens.data(), DType::i32, {t.b}, device);
  plan_decode(lengths_view, spec, {}, plan, memory.stream());
  memory.synchronize();
  QuantizedQuery query{TensorView(codes.data(), DType::u8, {t.b, t.q, t.h, 512}, device),
                       TensorView(q_scale.data(), DType::f32, {t.b, t.q, t.h}, device),
                       TensorView(rope.data(), DType::bf16, {t.b, t.q, t.h, 64}, device)};
  std::vector<DecodeArgs> args;
  for (Buffer& table : tables) {
    args.push_back(
        validate_decode(plan, query, pool.cache(),
                        TensorView(table.data(), DType::i32, {t.b, max_blocks}, device),
                        lengths_view, 0.001f, true,
                        TensorView(out.data(), DType::bf16, {t.b, t.q, t.h, 512}, device),
                        TensorView(lse.data(), DType::f32, {t.b, t.h, t.q}, device),
                        TensorView(workspace.data(), DType::u8,
                                   {static_cast<std::int64_t>(workspace.bytes())}, device),
                        {})
            .args);
  }
  cudaStream_t stream = memory.cuda_stream();
  if (once) {
    for (const DecodeArgs& a : args) variant.launch(a, stream, false);
    memory.synchronize();
    return;
  }
  const auto make_graph = [&](bool combine) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (const DecodeArgs& a : args) {
      variant.launch(a, stream, true);
      if (combine) cuda::launch_combine(a, stream, true);
    }
    check_cuda(cudaStreamEndCapture(stream, &graph), "capture");
    check_cuda(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    cudaGraphDestroy(graph);
    return exec;
  };
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  const auto replay = [&](cudaGraphExec_t exec) {
    cudaEventRecord(begin, stream);
    check_cuda(cudaGraphLaunch(exec, stream), "graph launch");
    cudaEventRecord(end, stream);
    check_cuda(cudaEventSynchronize(end), "graph");
    float ms;
    cudaEventElapsedTime(&ms, begin, end);
    return double{ms} * 1e3 / calls;
  };
  cudaGraphExec_t whole = make_graph(true), main_only = make_graph(false);
  replay(whole);
  std::vector<double> burst, sustained;
  for (int i = 0; i < 4; ++i) {
    usleep(15000);
    burst.push_back(replay(whole));
  }
  double total = 0;
  while (total < 0.45e6) {
    const double us = replay(whole);
    total += us * calls;
    sustained.push_back(us);
  }
  std::vector<double> main_times;
  for (int i = 0; i < 10; ++i) main_times.push_back(replay(main_only));
  const double us = median(sustained), flops = 2.0 * rows * tokens * (576 + 512);
  std::printf(
      "TIME b=%-3d h=%-3d q=%d kv=%-6d%s %-8s %8.1f us (burst %8.1f, main only %8.1f)  %6.0f GB/s "
      "%6.0f TFLOPS\n",
      t.b, t.h, t.q, t.kv, t.ragged ? " ragged" : "", variant.name, us, median(burst),
      median(main_times), tokens * kTokenBytes / us / 1e3, flops / us / 1e6);
  std::fflush(stdout);
  cudaGraphExecDestroy(whole);
  cudaGraphExecDestroy(main_only);
}

void once(int heads) {
  const Pool pool;
  time_case(pool, {32, heads, 1, 32768, false}, kVariants[0], true);
}

void time_all(const char* filter) {
  const Pool pool;
  const std::vector<TimeCase> cases = {
      {32, 64, 1, 32768, false},  {32, 128, 1, 32768, false}, {32, 16, 1, 32768, false},
      {32, 32, 1, 32768, false},  {32, 128, 2, 32768, false}, {1, 16, 1, 32768, false},
      {1, 128, 1, 32768, false},  {8, 16, 1, 32768, false},   {8, 128, 1, 32768, false},
      {128, 16, 1, 1024, false},  {128, 64, 1, 1024, false},  {128, 128, 1, 1024, false},
      {128, 128, 1, 4096, false}, {32, 64, 1, 32768, true},   {32, 128, 1, 32768, true}};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    for (const Variant& variant : kVariants) {
      const bool is_default = std::strcmp(variant.name, "default") == 0;
      if (!is_default && std::strstr(filter, variant.name) == nullptr) continue;
      time_case(pool, cases[i], variant);
    }
  }
}

}  // namespace
}  // namespace snapmla::test

int main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  try {
    if (command == "accuracy") {
      snapmla::test::accuracy(argc - 2, argv + 2);
    } else if (command == "once") {
      snapmla::test::once(argc > 2 ? std::atoi(argv[2]) : 64);
    } else if (command == "time") {
      snapmla::test::time_all(argc > 2 ? argv[2] : "");
    } else {
      std::printf("usage: %s accuracy [capture.bin] | time [variants] | once [heads]\n", argv[0]);
      return 2;
    }
  } catch (const std::exception& error) {
    std::printf("failed: %s\n", error.what());
    return 1;
  }
}
