// The cpu backend's decode over sequence lengths and heads (Google Benchmark).

#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <cstdint>
#include <random>
#include <vector>

#include "cpu/tile.h"
#include "snapmla/snapmla.h"

namespace snapmla {
namespace {

double max_resident_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

/// One request of `tokens` tokens and `heads` heads, quantized and in a packed cache.
struct Step {
  Step(std::int64_t heads, std::int64_t tokens) : h_q(heads), blocks((tokens + 63) / 64) {
    std::mt19937 random(1);
    const auto fill = [&](std::vector<std::uint16_t>& values, std::int64_t count) {
      values.resize(static_cast<std::size_t>(count));
      for (auto& bits : values) {  // BF16 in +-[1, 2)
        const auto draw = random();
        bits = static_cast<std::uint16_t>(0x3f80u | (draw & 0x7fu) | (draw & 0x8000u));
      }
    };
    pages.resize(static_cast<std::size_t>(blocks) * kPackedPageBytes);
    cache = Cache::from_pages({pages.data(), DType::u8, {blocks, kPackedPageBytes}});
    std::vector<std::uint16_t> values;
    std::vector<std::int32_t> slots(kPageTokens);
    for (std::int64_t page = 0; page < blocks; ++page) {
      fill(values, kPageTokens * kQkDim);
      for (int i = 0; i < kPageTokens; ++i) {
        slots[i] = static_cast<std::int32_t>(page * kPageTokens + i);
      }
      append_kv(cache, TensorView(values.data(), DType::bf16, {kPageTokens, kQkDim}),
                {slots.data(), DType::i32, {kPageTokens}});
      block_table.push_back(static_cast<std::int32_t>(page));
    }
    codes.resize(static_cast<std::size_t>(heads) * kKvLoraRank);
    scale.resize(static_cast<std::size_t>(heads));
    rope.resize(static_cast<std::size_t>(heads) * kRopeDim);
    query = {{codes.data(), DType::e4m3, {1, 1, heads, kKvLoraRank}},
             {scale.data(), DType::f32, {1, 1, heads}},
             {rope.data(), DType::bf16, {1, 1, heads, kRopeDim}}};
    fill(values, heads * kQkDim);
    quantize_query(TensorView(values.data(), DType::bf16, {1, 1, heads, kQkDim}), query);

    seqlen = static_cast<std::int32_t>(tokens);
    const PlanSpec spec{1, heads, 0, {}};
    const PlanSize size = plan_size(spec);
    schedule.resize(static_cast<std::size_t>(size.schedule_rows * size.schedule_cols));
    num_splits.resize(2);
    plan = {{schedule.data(), DType::i32, {size.schedule_rows, size.schedule_cols}},
            {num_splits.data(), DType::i32, {2}}};
    plan_decode({&seqlen, DType::i32, {1}}, spec, {}, plan);
    workspace.resize(static_cast<std::size_t>(workspace_bytes(spec)) / 4);
    out.resize(static_cast<std::size_t>(heads) * kKvLoraRank);
  }

  void run() {
    decode(plan, query, cache, {block_table.data(), DType::i32, {1, blocks}},
           {&seqlen, DType::i32, {1}}, 0.0721687836f, true,
           {out.data(), DType::f32, {1, 1, h_q, kKvLoraRank}}, {},
           {workspace.data(), DType::f32, {static_cast<std::int64_t>(workspace.size())}});
  }

  std::int64_t h_q, blocks;
  std::int32_t seqlen;
  std::vector<std::uint8_t> pages, codes;
  std::vector<std::uint16_t> rope;
  std::vector<float> scale, out, workspace;
  std::vector<std::int32_t> block_table, schedule, num_splits;
  Cache cache;
  QuantizedQuery query;
  DecodePlan plan;
};

void BM_decode(benchmark::State& state) {
  Step step(state.range(0), state.range(1));
  const double resident = max_resident_mib();
  for (auto _ : state) {
    step.run();
    benchmark::DoNotOptimize(step.out.data());
  }
  const double pairs = static_cast<double>(state.range(0) * state.range(1));
  state.counters["GFLOP/s"] = benchmark::Counter(pairs * 2 * (kQkDim + kKvLoraRank) * 1e-9,
                                                 benchmark::Counter::kIsIterationInvariantRate);
  state.counters["extra_MiB"] = max_resident_mib() - resident;
  state.SetLabel(cpu::simd_kernels() ? cpu::simd_kernels()->name : "plain");
}

BENCHMARK(BM_decode)
    ->ArgNames({"heads", "tokens"})
    ->Args({16, 32768})
    ->Args({16, 4096})
    ->Args({16, 8192})
    ->Args({16, 16384})
    ->Args({16, 65536})
    ->Args({16, 131072})
    ->Args({1, 32768})
    ->Args({64, 32768})
    ->Args({128, 32768})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace snapmla

BENCHMARK_MAIN();
