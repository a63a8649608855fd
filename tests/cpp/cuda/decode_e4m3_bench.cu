// Variants of the FP8 decode kernel side by side. Not a test and not the benchmark: a tool for work
// on the kernel, and for what only variants can show.

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
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

namespace snapmla::cuda::sm90 {

/// What the kernel would compute if the tensor core accumulated the output over all blocks, as the
/// SnapMLA paper's Algorithm 1 reads. Only here, to show what its 14 bits do to long sequences.
struct InPlaceConfig : Config<64> {};

template <>
__device__ void run_pv<InPlaceConfig>(const Params& params, SharedStorage<InPlaceConfig>& smem,
                                      int group) {
  using C = InPlaceConfig;
  constexpr int kPairs = C::kRows / 8;
  Barriers<C>& barriers = smem.barriers;
  const int warp = threadIdx.x / kWarpSize % 4, lane = lane_id(), t = lane % 4;
  const std::uint32_t lane_offset = value_lane_offset(group, warp, lane);
  unsigned k = 0;
  for (unsigned n = 0;; ++n) {
    ptx::mbarrier_wait(&barriers.chunk_full[n % 2], n / 2 % 2);
    if (smem.chunks[n % 2].request < 0) return;
    const int blocks = smem.chunks[n % 2].blocks;
    Output<C> o = {};
    float unit[2 * kPairs];  // O of a row is this times o: the P scale of its latest block
    for (float& u : unit) u = 1.0f;
#pragma unroll 1
    for (int i = 0; i < blocks; ++i, ++k) {
      const unsigned stage = k % C::kStages, slot = k % C::kPSlots;
      ptx::mbarrier_wait(&barriers.kv_full[stage], k / C::kStages % 2);
      ptx::mbarrier_wait(&barriers.p_full[slot], k / C::kPSlots % 2);
      const BlockFactors<C>& factors = smem.factors[slot];
      const float *add = factors.add + t * BlockFactors<C>::Order::kStride,
                  *keep = factors.keep + t * BlockFactors<C>::Order::kStride;
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float ratio = i == 0 ? 1.0f : keep[2 * j + c] * unit[2 * j + c] / add[2 * j + c];
          unit[2 * j + c] = add[2 * j + c];
#pragma unroll
          for (int q = 0; q < kSlices; ++q) {
            o[q][4 * j + c] *= ratio;
            o[q][4 * j + 2 + c] *= ratio;
          }
        }
      }
      const std::uint64_t p =
          ptx::smem_descriptor(ptx::shared_address(smem.p[slot / 2])) + slot % 2 * 4;
#pragma unroll
      for (int slice = 0; slice < kSlices; ++slice) {
        ValueFragments a;
        load_value_pairs<0>(ptx::shared_address(smem.kv[stage]), lane_offset, slice, a);
        load_value_pairs<1>(ptx::shared_address(smem.kv[stage]), lane_offset, slice, a);
        separate_columns(a);
        ptx::pin(o[slice]);
        ptx::wgmma_fence();
        ptx::wgmma_e4m3_rs(o[slice], a[0], p, 1);
        ptx::wgmma_e4m3_rs(o[slice], a[1], p + 2, 1);
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        ptx::pin(o[slice]);
      }
      __syncwarp();
      warp_arrive<C>(&barriers.kv_empty[stage], lane);
      warp_arrive<C>(&barriers.p_empty[slot], lane);
    }
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
#pragma unroll
        for (int q = 0; q < kSlices; ++q) {
          o[q][4 * j + c] *= unit[2 * j + c];
          o[q][4 * j + 2 + c] *= unit[2 * j + c];
        }
      }
    }
    ptx::mbarrier_wait(&barriers.rows_full[n % 2], n / 2 % 2);
    write_output<C>(params.args, smem.chunks[n % 2].slot >= 0, smem.rows[n % 2], group, o);
    __syncwarp();
    warp_arrive<C>(&barriers.chunk_empty[n % 2], lane);
  }
}

}  // namespace snapmla::cuda::sm90

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

/// For racecheck, which doesn't follow the order that __syncwarp() makes through an elected lane.
template <int kRows>
struct EveryLaneConfig : cuda::sm90::Config<kRows> {
  static constexpr bool kEveryLaneArrives = true;
};

void launch_every_lane(const DecodeArgs& args, cudaStream_t stream, bool pdl) {
  using cuda::sm90::launch_variant;
  if (args.rows() <= 16) return launch_variant<EveryLaneConfig<16>>(args, stream, pdl);
  if (args.rows() <= 32) return launch_variant<EveryLaneConfig<32>>(args, stream, pdl);
  launch_variant<EveryLaneConfig<64>>(args, stream, pdl);
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

/// Small cases for compute-sanitizer: all three widths, two row tiles, splits, a partial block.
int sanitize(const std::string& variant) {
  int failed = 0;
  for (std::int64_t heads : {16, 24, 64, 128}) {
    Case c;
    c.name = "sanitize";
    c.lengths = {500, 0, 130, 64};
    c.h_q = heads;
    c.data = Data::exact_p;
    c.plan.num_sms = 4;
    force_backend("cuda");
    Pipeline pipeline(make_problem(c), device_memory());
    pipeline.append();
    pipeline.quantize();
    pipeline.plan();
    const DecodeArgs args = decode_args(pipeline);
    (variant == "every_lane" ? launch_every_lane : cuda::sm90::launch_decode_e4m3)(
        args, device_memory().cuda_stream(), true);
    cuda::launch_combine(args, device_memory().cuda_stream(), true);
    const double error = compare(pipeline.result().out, attend_stored(pipeline).out).relative_l2;
    std::printf("SANITIZE %-10s heads %-3d out vs float64 %.2e\n", variant.c_str(),
                static_cast<int>(heads), error);
    failed += !(error <= 1e-4);
  }
  return failed;
}

/// Unsplit sequences of growing length: the kernel beside accumulation in place. Writes a record.
void lengths(const char* record) {
  std::FILE* file = record ? std::fopen(record, "w") : nullptr;
  if (file) {
    const char* commit = std::getenv("SNAPMLA_COMMIT");
    cudaDeviceProp gpu;
    check_cuda(cudaGetDeviceProperties(&gpu, 0), "cudaGetDeviceProperties");
    const std::time_t now = std::time(nullptr);
    char date[32];
    std::strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
    std::fprintf(file,
                 "{\n  \"schema\": \"snapmla.accuracy.v1\",\n  \"program\": "
                 "\"decode_e4m3_bench lengths\",\n  \"date\": \"%s\",\n  \"commit\": "
                 "\"%s\",\n  \"gpu\": \"%s\",\n  \"heads\": 4,\n  \"splits\": 1,\n  "
                 "\"reference\": \"float64 over the stored values\",\n  \"cases\": [",
                 date, commit ? commit : "unknown", gpu.name);
  }
  struct Kind {
    const char* name;
    Data data;
    float q_factor;
  };
  const Kind kinds[] = {{"mean_flat", Data::with_mean, 1},
                        {"mean_peaked", Data::with_mean, 200},
                        {"zero_mean_flat", Data::gaussian, 0.03f},
                        {"zero_mean_peaked", Data::gaussian, 4}};
  bool first = true;
  for (const Kind& kind : kinds) {
    for (int length = 1024; length <= 131072; length *= 2) {
      Case c;
      c.name = kind.name;
      c.lengths = {length};
      c.h_q = 4;
      c.data = kind.data;
      c.plan.forced_splits = 1;
      Problem problem = make_problem(c);
      for (float& q : problem.q) q = bf16_to_float(bf16_from_float(q * kind.q_factor));
      force_backend("cuda");
      Pipeline pipeline(problem, device_memory());
      pipeline.append();
      pipeline.quantize();
      pipeline.plan();
      const Attention exact = attend_stored(pipeline);
      const DecodeArgs args = decode_args(pipeline);
      Difference difference[2];
      for (int v = 0; v < 2; ++v) {
        pipeline.out_buffer().fill(0xff);
        (v ? cuda::sm90::launch_variant<cuda::sm90::InPlaceConfig>
           : cuda::sm90::launch_decode_e4m3)(args, device_memory().cuda_stream(), true);
        difference[v] = compare(pipeline.result().out, exact.out);
      }
      std::printf("LENGTH %-17s %6d ours %.2e (norm %.5f)  in place %.2e (norm %.5f)\n", kind.name,
                  length, difference[0].relative_l2, difference[0].norm_ratio,
                  difference[1].relative_l2, difference[1].norm_ratio);
      std::fflush(stdout);
      if (file) {
        std::fprintf(file,
                     "%s\n    {\"values\": \"%s\", \"tokens\": %d, \"relative_l2\": %.4e, "
                     "\"norm_ratio\": %.6f, \"one_minus_cosine\": %.3e, \"in_place\": "
                     "{\"relative_l2\": %.4e, \"norm_ratio\": %.6f, \"one_minus_cosine\": "
                     "%.3e}}",
                     first ? "" : ",", kind.name, length, difference[0].relative_l2,
                     difference[0].norm_ratio, 1 - difference[0].cosine, difference[1].relative_l2,
                     difference[1].norm_ratio, 1 - difference[1].cosine);
      }
      first = false;
    }
  }
  if (file) {
    std::fprintf(file, "\n  ]\n}\n");
    std::fclose(file);
  }
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
    } else if (command == "lengths") {
      snapmla::test::lengths(argc > 2 ? argv[2] : nullptr);
    } else if (command == "sanitize") {
      return snapmla::test::sanitize(argc > 2 ? argv[2] : "default");
    } else if (command == "once") {
      snapmla::test::once(argc > 2 ? std::atoi(argv[2]) : 64);
    } else if (command == "time") {
      snapmla::test::time_all(argc > 2 ? argv[2] : "");
    } else {
      std::printf(
          "usage: %s COMMAND\n"
          "  time [VARIANTS]        the default variant and those named, over the shapes of the "
          "doc\n"
          "  accuracy [CAPTURE...]  variants against float64 and the CPU pipeline\n"
          "  lengths [RECORD.json]  error by sequence length, beside accumulation in place\n"
          "  sanitize [every_lane]  small cases, for compute-sanitizer\n"
          "  once [HEADS]           plain launches, for a profiler\n",
          argv[0]);
      return 2;
    }
  } catch (const std::exception& error) {
    std::printf("failed: %s\n", error.what());
    return 1;
  }
}
