// Times everything around the decode kernel: append, quantize, fetch, plan, combine, merge.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>

#include "core/tile_scheduler.h"
#include "cuda/device/check.h"
#include "cuda/smxx/combine.h"
#include "harness.h"
#include "snapmla/snapmla.h"

namespace snapmla::bench {
namespace {

constexpr Device kDevice{DeviceType::cuda, 0};
constexpr std::int64_t kRowBytes = kQkDim * 2;  // bf16

/// Runs `call` with PDL on or off; the flag is read when a launch is enqueued or captured.
template <class Call>
void with_pdl(bool pdl, const Call& call) {
  cuda::set_pdl_enabled(pdl);
  call();
  cuda::set_pdl_enabled(true);
}

std::vector<std::int64_t> shuffled_slots(std::int64_t tokens) {
  // Pages in random order, tokens in order inside a page, as engines hand them out.
  std::vector<std::int64_t> pages((tokens + kPageTokens - 1) / kPageTokens);
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), std::mt19937_64(1));
  std::vector<std::int64_t> slots(tokens);
  for (std::int64_t t = 0; t < tokens; ++t) {
    slots[t] = pages[t / kPageTokens] * kPageTokens + t % kPageTokens;
  }
  return slots;
}

std::string differs(const char* what, const std::vector<std::uint8_t>& a,
                    const std::vector<std::uint8_t>& b) {
  return a == b ? std::string() : std::string(what) + " differ from the CPU backend's";
}

/// `sets` batches of `tokens` tokens, appended to distinct slots of one pool.
Case append_case(const std::string& name, std::int64_t tokens, int sets, double goal_us,
                 const std::string& roof, bool pdl = true, bool scattered = false) {
  struct State {
    DeviceBuffer kv, slots, pool;
    std::int64_t pages;
    Cache cache() const {
      return Cache::from_pages(
          TensorView(pool.data(), DType::u8, {pages, kPackedPageBytes}, kDevice));
    }
  };
  auto s = std::make_shared<State>();
  const std::int64_t total = tokens * sets;
  s->pages = (total + kPageTokens - 1) / kPageTokens;
  s->kv = random_bf16(total * kQkDim, 1);
  auto slots = shuffled_slots(total);
  // In a decode step every token goes to another page.
  if (scattered) std::shuffle(slots.begin(), slots.end(), std::mt19937_64(2));
  s->slots = DeviceBuffer::of(slots);
  s->pool = DeviceBuffer(s->pages * kPackedPageBytes);
  Case c;
  c.name = name;
  c.detail = std::to_string(tokens) + " tokens bf16 -> packed pages, cold L2";
  c.bytes = tokens * (kRowBytes + kTokenBytes + 8);
  c.goal_us = goal_us;
  c.roof_case = roof;
  c.launches = sets;
  c.enqueue = [=](int i, Stream stream) {
    with_pdl(pdl, [&] {
      append_kv(s->cache(),
                TensorView(s->kv.as<char>() + i * tokens * kRowBytes, DType::bf16, {tokens, kQkDim},
                           kDevice),
                TensorView(s->slots.as<std::int64_t>() + i * tokens, DType::i64, {tokens}, kDevice),
                {}, stream);
    });
  };
  c.check = [=]() -> std::string {
    const std::int64_t n = std::min<std::int64_t>(tokens, 512);
    const auto kv = s->kv.read<std::uint8_t>(n * kRowBytes);
    std::vector<std::uint8_t> expected(n * kTokenBytes + kPackedPageBytes), page(kPackedPageBytes);
    for (std::int64_t t = 0; t < n; ++t) {
      std::int64_t slot = slots[t] % kPageTokens;
      std::vector<std::uint8_t> host(kPackedPageBytes);
      append_kv(Cache::from_pages(TensorView(host.data(), DType::u8, {1, kPackedPageBytes})),
                TensorView(&kv[t * kRowBytes], DType::bf16, {1, kQkDim}),
                TensorView(&slot, DType::i64, {1}));
      s->pool.download(page.data(), kPackedPageBytes, slots[t] / kPageTokens * kPackedPageBytes);
      const auto same = [&](std::int64_t offset, std::int64_t bytes) {
        return std::memcmp(&host[offset], &page[offset], bytes) == 0;
      };
      if (!same(slot * kKvLoraRank, kKvLoraRank) ||
          !same(kPackedRopeOffset + slot * kRopeDim * 2, kRopeDim * 2) ||
          !same(kPackedScaleOffset + slot * 4, 4)) {
        return "token " + std::to_string(t) + " differs from the CPU backend's";
      }
    }
    return {};
  };
  return c;
}

Case quantize_case(const std::string& name, std::int64_t heads, int sets, double goal_us,
                   bool pdl = true) {
  constexpr std::int64_t kBatch = 128;
  struct State {
    DeviceBuffer q, codes, scale, rope;
  };
  auto s = std::make_shared<State>();
  const std::int64_t rows = kBatch * heads;
  s->q = random_bf16(sets * rows * kQkDim, 2);
  s->codes = DeviceBuffer(sets * rows * kKvLoraRank);
  s->scale = DeviceBuffer(sets * rows * 4);
  s->rope = DeviceBuffer(sets * rows * kRopeDim * 2);
  const auto output = [=](const void* codes, const void* scale, const void* rope, Device device) {
    return QuantizedQuery{TensorView(codes, DType::u8, {kBatch, 1, heads, kKvLoraRank}, device),
                          TensorView(scale, DType::f32, {kBatch, 1, heads}, device),
                          TensorView(rope, DType::bf16, {kBatch, 1, heads, kRopeDim}, device)};
  };
  Case c;
  c.name = name;
  c.detail = "128 x " + std::to_string(heads) + " rows of 576 bf16, cold L2";
  c.bytes = rows * (kRowBytes + kTokenBytes);
  c.goal_us = goal_us;
  c.launches = sets;
  c.enqueue = [=](int i, Stream stream) {
    with_pdl(pdl, [&] {
      quantize_query(
          TensorView(s->q.as<char>() + i * rows * kRowBytes, DType::bf16,
                     {kBatch, 1, heads, kQkDim}, kDevice),
          output(s->codes.as<char>() + i * rows * kKvLoraRank, s->scale.as<float>() + i * rows,
                 s->rope.as<char>() + i * rows * kRopeDim * 2, kDevice),
          {}, stream);
    });
  };
  c.check = [=]() -> std::string {
    const auto q = s->q.read<std::uint8_t>(rows * kRowBytes);
    std::vector<std::uint8_t> codes(rows * kKvLoraRank), scale(rows * 4), rope(rows * kRopeDim * 2);
    quantize_query(TensorView(q.data(), DType::bf16, {kBatch, 1, heads, kQkDim}),
                   output(codes.data(), scale.data(), rope.data(), {}));
    return differs("codes", s->codes.read<std::uint8_t>(rows * kKvLoraRank), codes) +
           differs("scales", s->scale.read<std::uint8_t>(rows * 4), scale) +
           differs("rope", s->rope.read<std::uint8_t>(rows * kRopeDim * 2), rope);
  };
  return c;
}

/// The roof: a device-to-device copy that reads and writes `bytes` in total.
Case copy_case(const std::string& name, std::int64_t bytes, int sets) {
  struct State {
    DeviceBuffer from, to;
  };
  auto s = std::make_shared<State>();
  const std::int64_t half = bytes / 2 / 256 * 256;
  s->from = random_bf16(sets * half / 2, 3);
  s->to = DeviceBuffer(sets * half);
  Case c;
  c.name = name;
  c.detail = "cudaMemcpyAsync device to device, read + written";
  c.bytes = 2 * half;
  c.launches = sets;
  c.enqueue = [=](int i, Stream stream) {
    SNAPMLA_BENCH_CUDA(cudaMemcpyAsync(s->to.as<char>() + i * half, s->from.as<char>() + i * half,
                                       half, cudaMemcpyDeviceToDevice,
                                       static_cast<cudaStream_t>(stream.handle)));
  };
  return c;
}

Case fetch_case(const std::string& name, std::int64_t tokens, bool by_ranges,
                const std::string& roof) {
  struct State {
    DeviceBuffer pool, slots, out, table, starts, lengths, offsets;
    std::int64_t pages, b, blocks;
    Cache cache() const {
      return Cache::from_pages(
          TensorView(pool.data(), DType::u8, {pages, kPackedPageBytes}, kDevice));
    }
  };
  auto s = std::make_shared<State>();
  s->pages = (tokens + kPageTokens - 1) / kPageTokens;
  s->pool = DeviceBuffer(s->pages * kPackedPageBytes);
  s->out = DeviceBuffer(tokens * kRowBytes);
  const auto slots = shuffled_slots(tokens);
  s->slots = DeviceBuffer::of(slots);
  {
    constexpr std::int64_t kPart = 65536;
    const DeviceBuffer kv = random_bf16(kPart * kQkDim, 4);
    for (std::int64_t t = 0; t < tokens; t += kPart) {
      const std::int64_t n = std::min(kPart, tokens - t);
      append_kv(s->cache(), TensorView(kv.data(), DType::bf16, {n, kQkDim}, kDevice),
                TensorView(s->slots.as<std::int64_t>() + t, DType::i64, {n}, kDevice));
    }
    SNAPMLA_BENCH_CUDA(cudaDeviceSynchronize());
  }
  // 16 requests of different lengths over the same pages.
  s->b = 16;
  std::vector<std::int32_t> starts(s->b, 0), lengths(s->b), offsets(s->b);
  std::int64_t pages_used = 0;
  std::vector<std::vector<std::int32_t>> tables(s->b);
  for (std::int64_t i = 0; i < s->b; ++i) {
    const std::int64_t end = s->pages * (i + 1) * (i + 2) / (s->b * (s->b + 1));
    offsets[i] = static_cast<std::int32_t>(pages_used * kPageTokens);
    for (; pages_used < end; ++pages_used) {
      tables[i].push_back(static_cast<std::int32_t>(slots[pages_used * kPageTokens] / kPageTokens));
    }
    lengths[i] = static_cast<std::int32_t>(
        std::min<std::int64_t>(pages_used * kPageTokens, tokens) - offsets[i]);
    s->blocks = std::max<std::int64_t>(i ? s->blocks : 0, tables[i].size());
  }
  std::vector<std::int32_t> table;
  for (auto& row : tables) {
    row.resize(s->blocks, -1);
    table.insert(table.end(), row.begin(), row.end());
  }
  s->table = DeviceBuffer::of(table);
  s->starts = DeviceBuffer::of(starts);
  s->lengths = DeviceBuffer::of(lengths);
  s->offsets = DeviceBuffer::of(offsets);
  Case c;
  c.name = name;
  c.detail = std::to_string(tokens) + " tokens, packed pages in random order -> bf16";
  c.bytes = tokens * (kTokenBytes + kRowBytes + (by_ranges ? 0 : 8));
  c.roof_case = roof;
  c.enqueue = [=](int, Stream stream) {
    const TensorView out(s->out.data(), DType::bf16, {tokens, kQkDim}, kDevice);
    if (by_ranges) {
      const auto vector = [&](const DeviceBuffer& buffer) {
        return TensorView(buffer.data(), DType::i32, {s->b}, kDevice);
      };
      fetch_dequant(s->cache(),
                    TokenRanges{TensorView(s->table.data(), DType::i32, {s->b, s->blocks}, kDevice),
                                vector(s->starts), vector(s->lengths), vector(s->offsets)},
                    out, {}, stream);
    } else {
      fetch_dequant(s->cache(), TensorView(s->slots.data(), DType::i64, {tokens}, kDevice), out, {},
                    stream);
    }
  };
  c.check = [=]() -> std::string {
    std::vector<std::uint8_t> page(kPackedPageBytes), actual(kPageTokens * kRowBytes);
    for (std::int64_t p : {std::int64_t{0}, s->pages / 2, s->pages - 2}) {
      const std::int64_t id = slots[p * kPageTokens] / kPageTokens;
      s->pool.download(page.data(), kPackedPageBytes, id * kPackedPageBytes);
      std::vector<std::int64_t> all(kPageTokens);
      std::iota(all.begin(), all.end(), 0);
      std::vector<std::uint8_t> expected(kPageTokens * kRowBytes);
      fetch_dequant(Cache::from_pages(TensorView(page.data(), DType::u8, {1, kPackedPageBytes})),
                    TensorView(all.data(), DType::i64, {kPageTokens}),
                    TensorView(expected.data(), DType::bf16, {kPageTokens, kQkDim}));
      s->out.download(actual.data(), kPageTokens * kRowBytes, p * kPageTokens * kRowBytes);
      if (actual != expected) return "tokens of page " + std::to_string(id) + " are wrong";
    }
    return {};
  };
  return c;
}

/// A plan and what belongs to it on the device.
struct Planned {
  PlanSpec spec;
  PlanOptions options;
  PlanSize size;
  std::vector<std::int32_t> lengths;
  DeviceBuffer seqlens, schedule, num_splits;

  Planned(std::vector<std::int32_t> lengths_, std::int64_t rows) : lengths(std::move(lengths_)) {
    spec = {static_cast<std::int64_t>(lengths.size()), rows, 131072, kDevice};
    size = plan_size(spec, options);
    seqlens = DeviceBuffer::of(lengths);
    schedule = DeviceBuffer(size.schedule_rows * size.schedule_cols * 4);
    num_splits = DeviceBuffer(size.num_splits * 4);
  }
  void enqueue(Stream stream) const {
    plan_decode(
        TensorView(seqlens.data(), DType::i32, {spec.b}, kDevice), spec, options,
        {TensorView(schedule.data(), DType::i32, {size.schedule_rows, size.schedule_cols}, kDevice),
         TensorView(num_splits.data(), DType::i32, {size.num_splits}, kDevice)},
        stream);
  }
};

std::vector<std::int32_t> ragged(std::int64_t b) {
  std::mt19937 generator(5);
  std::vector<std::int32_t> lengths(b);
  for (auto& length : lengths) length = static_cast<std::int32_t>(1 + generator() % 32768);
  return lengths;
}

Case plan_case(const std::string& name, std::vector<std::int32_t> lengths, double goal_us,
               bool pdl = true) {
  auto s = std::make_shared<Planned>(std::move(lengths), 64);
  Case c;
  c.name = name;
  c.detail = "b=" + std::to_string(s->spec.b) + ", " + std::to_string(s->size.schedule_rows - 1) +
             " workers, balanced";
  c.goal_us = goal_us;
  c.launches = 200;
  c.enqueue = [=](int, Stream stream) { with_pdl(pdl, [&] { s->enqueue(stream); }); };
  c.check = [=]() -> std::string {
    PlanOptions options = s->options;
    options.num_sms = static_cast<int>(s->size.schedule_rows - 1);
    options.p_block = s->schedule.read<std::int32_t>(2)[1];
    std::vector<std::int32_t> schedule(s->size.schedule_rows * s->size.schedule_cols),
        num_splits(s->size.num_splits);
    schedule_tiles(s->lengths.data(), make_schedule_header(s->spec, options), schedule.data(),
                   num_splits.data());
    const bool same =
        schedule == s->schedule.read<std::int32_t>(static_cast<std::int64_t>(schedule.size())) &&
        num_splits == s->num_splits.read<std::int32_t>(s->size.num_splits);
    return same ? "" : "words differ from the host planner's";
  };
  return c;
}

/// Partial results as a balanced plan makes them. Warm L2: the decode kernel has just written them.
Case combine_case(const std::string& name, std::vector<std::int32_t> lengths, std::int64_t rows,
                  double goal_us) {
  struct State {
    Planned plan;
    DeviceBuffer out_accum, lse_accum, out, lse;
    DecodeArgs args;
  };
  auto s = std::make_shared<State>(State{Planned(std::move(lengths), rows), {}, {}, {}, {}, {}});
  s->plan.enqueue({});
  const std::int64_t b = s->plan.spec.b;
  const auto splits = s->plan.num_splits.read<std::int32_t>(b + 1);
  const std::int64_t slots = splits[b];
  std::mt19937 generator(6);
  std::normal_distribution<float> normal;
  std::vector<float> partials(slots * rows * kKvLoraRank), lses(slots * rows);
  for (auto& v : lses) v = normal(generator);
  for (std::size_t i = 0; i < partials.size(); ++i) {
    partials[i] = i < (1 << 16) ? normal(generator) : partials[i - (1 << 16)];
  }
  s->out_accum = DeviceBuffer::of(partials);
  s->lse_accum = DeviceBuffer::of(lses);
  s->out = DeviceBuffer(b * rows * kKvLoraRank * 2);
  s->lse = DeviceBuffer(b * rows * 4);
  DecodeArgs& a = s->args;
  a.schedule = s->plan.schedule.as<std::int32_t>();
  a.schedule_rows = s->plan.size.schedule_rows;
  a.num_splits = s->plan.num_splits.as<std::int32_t>();
  a.b = b;
  a.s_q = 1;
  a.h_q = rows;
  a.out = {s->out.data(), DType::bf16, {rows * kKvLoraRank, 0, kKvLoraRank, 0}};
  a.lse = s->lse.as<float>();
  a.lse_stride[0] = rows;
  a.lse_stride[1] = 1;
  a.out_accum = s->out_accum.as<float>();
  a.lse_accum = s->lse_accum.as<float>();
  a.slots = slots;
  std::int64_t split_requests = 0;
  for (std::int64_t i = 0; i < b; ++i) split_requests += splits[i + 1] > splits[i];
  Case c;
  c.name = name;
  c.detail = std::to_string(b) + " requests x " + std::to_string(rows) + " rows, " +
             std::to_string(slots) + " partial results, warm L2";
  c.bytes = slots * rows * (kKvLoraRank + 1) * 4 + split_requests * rows * (kKvLoraRank * 2 + 4);
  c.goal_us = goal_us;
  c.launches = 100;
  c.enqueue = [=](int, Stream stream) {
    cuda::launch_combine(s->args, static_cast<cudaStream_t>(stream.handle), true);
  };
  c.check = [=]() -> std::string {
    const auto out = s->out.read<std::uint16_t>(b * rows * kKvLoraRank);
    for (std::int64_t i = 0; i < b; ++i) {
      if (splits[i + 1] - splits[i] < 2) continue;
      for (std::int64_t row = 0; row < rows; row += 7) {
        double sum = 0, expected = 0;
        for (std::int64_t slot = splits[i]; slot < splits[i + 1]; ++slot) {
          const double weight = std::exp(double{lses[slot * rows + row]});
          sum += weight;
          expected += weight * partials[(slot * rows + row) * kKvLoraRank + row];
        }
        const double actual = bf16_to_float(out[(i * rows + row) * kKvLoraRank + row]);
        if (!(std::fabs(actual - expected / sum) <= 1e-5 + std::fabs(expected / sum) / 200)) {
          return "request " + std::to_string(i) + " row " + std::to_string(row) + " is wrong";
        }
      }
    }
    return {};
  };
  return c;
}

Case merge_case(const std::string& name, std::int64_t n, std::int64_t b, std::int64_t heads) {
  struct State {
    DeviceBuffer outs, lses, out, lse;
  };
  auto s = std::make_shared<State>();
  const int sets = 8;
  const std::int64_t rows = b * heads;
  s->outs = random_bf16(sets * n * rows * kKvLoraRank, 7);
  std::vector<float> lses(n * rows);
  std::mt19937 generator(8);
  for (auto& v : lses) v = static_cast<float>(generator() % 1000) * 0.01f;
  s->lses = DeviceBuffer::of(lses);
  s->out = DeviceBuffer(sets * rows * kKvLoraRank * 2);
  s->lse = DeviceBuffer(rows * 4);
  Case c;
  c.name = name;
  c.detail = std::to_string(n) + " parts of " + std::to_string(b) + " x " + std::to_string(heads) +
             " rows, bf16, cold L2";
  c.bytes = (n + 1) * rows * (kKvLoraRank * 2 + 4);
  c.launches = sets;
  c.enqueue = [=](int i, Stream stream) {
    merge_states(TensorView(s->outs.as<std::uint16_t>() + i * n * rows * kKvLoraRank, DType::bf16,
                            {n, b, 1, heads, kKvLoraRank}, kDevice),
                 TensorView(s->lses.data(), DType::f32, {n, b, heads, 1}, kDevice),
                 TensorView(s->out.as<std::uint16_t>() + i * rows * kKvLoraRank, DType::bf16,
                            {b, 1, heads, kKvLoraRank}, kDevice),
                 TensorView(s->lse.data(), DType::f32, {b, heads, 1}, kDevice), stream);
  };
  c.check = [=]() -> std::string {
    const auto outs = s->outs.read<std::uint16_t>(n * rows * kKvLoraRank);
    const auto out = s->out.read<std::uint16_t>(rows * kKvLoraRank);
    for (std::int64_t row = 0; row < rows; row += 13) {
      double sum = 0, expected = 0;
      const std::int64_t d = row % kKvLoraRank;
      for (std::int64_t k = 0; k < n; ++k) {
        const double weight = std::exp(double{lses[k * rows + row]});
        sum += weight;
        expected += weight * bf16_to_float(outs[(k * rows + row) * kKvLoraRank + d]);
      }
      const double actual = bf16_to_float(out[row * kKvLoraRank + d]);
      if (!(std::fabs(actual - expected / sum) <= 1e-3 + std::fabs(expected / sum) / 200)) {
        return "row " + std::to_string(row) + " is wrong";
      }
    }
    return {};
  };
  return c;
}

/// The reference decode: what explain() bases its estimate on.
Case reference_case(const std::string& name, std::int64_t b, std::int64_t heads, std::int64_t kv) {
  struct State {
    Planned plan;
    DeviceBuffer pool, q, codes, scale, rope, table, workspace, out;
    std::int64_t pages;
  };
  auto s = std::make_shared<State>(
      State{Planned(std::vector<std::int32_t>(b, static_cast<std::int32_t>(kv)), heads),
            {},
            {},
            {},
            {},
            {},
            {},
            {},
            {},
            b * kv / kPageTokens});
  s->plan.enqueue({});
  s->pool = DeviceBuffer(s->pages * kPackedPageBytes);
  const Cache cache = Cache::from_pages(
      TensorView(s->pool.data(), DType::u8, {s->pages, kPackedPageBytes}, kDevice));
  {
    const DeviceBuffer tokens = random_bf16(b * kv * kQkDim, 9);
    const DeviceBuffer slots = DeviceBuffer::of(shuffled_slots(b * kv));
    append_kv(cache, TensorView(tokens.data(), DType::bf16, {b * kv, kQkDim}, kDevice),
              TensorView(slots.data(), DType::i64, {b * kv}, kDevice));
    SNAPMLA_BENCH_CUDA(cudaDeviceSynchronize());
  }
  s->q = random_bf16(b * heads * kQkDim, 10);
  s->codes = DeviceBuffer(b * heads * kKvLoraRank);
  s->scale = DeviceBuffer(b * heads * 4);
  s->rope = DeviceBuffer(b * heads * kRopeDim * 2);
  const QuantizedQuery query{
      TensorView(s->codes.data(), DType::u8, {b, 1, heads, kKvLoraRank}, kDevice),
      TensorView(s->scale.data(), DType::f32, {b, 1, heads}, kDevice),
      TensorView(s->rope.data(), DType::bf16, {b, 1, heads, kRopeDim}, kDevice)};
  quantize_query(TensorView(s->q.data(), DType::bf16, {b, 1, heads, kQkDim}, kDevice), query);
  std::vector<std::int32_t> table(s->pages);
  std::iota(table.begin(), table.end(), 0);
  s->table = DeviceBuffer::of(table);
  s->workspace = DeviceBuffer(workspace_bytes(s->plan.spec, s->plan.options));
  s->out = DeviceBuffer(b * heads * kKvLoraRank * 2);
  SNAPMLA_BENCH_CUDA(cudaDeviceSynchronize());
  Case c;
  c.name = name;
  c.detail = "b=" + std::to_string(b) + ", " + std::to_string(heads) + " heads, kv " +
             std::to_string(kv) + ", fp32 without tensor cores";
  c.flops = 2.0 * static_cast<double>(b * heads * kv) * (kQkDim + kKvLoraRank);
  c.enqueue = [=](int, Stream stream) {
    force_backend("cuda_reference");
    decode({TensorView(s->plan.schedule.data(), DType::i32,
                       {s->plan.size.schedule_rows, s->plan.size.schedule_cols}, kDevice),
            TensorView(s->plan.num_splits.data(), DType::i32, {b + 1}, kDevice)},
           query, cache, TensorView(s->table.data(), DType::i32, {b, kv / kPageTokens}, kDevice),
           TensorView(s->plan.seqlens.data(), DType::i32, {b}, kDevice), 1.0f / 24, true,
           TensorView(s->out.data(), DType::bf16, {b, 1, heads, kKvLoraRank}, kDevice), {},
           TensorView(s->workspace.data(), DType::u8, {s->workspace.bytes()}, kDevice), stream);
    force_backend("");
  };
  c.check = [=]() -> std::string {
    double norm = 0;
    for (std::uint16_t bits : s->out.read<std::uint16_t>(b * heads * kKvLoraRank)) {
      norm += bf16_to_float(bits) * bf16_to_float(bits);
    }
    return norm > 0 && std::isfinite(norm) ? "" : "output is zero or not finite";
  };
  return c;
}

}  // namespace
}  // namespace snapmla::bench

int main(int argc, char** argv) {
  using namespace snapmla::bench;
  const Options options = parse_options(
      argc, argv, "Times the data path of snapmla's CUDA backends: all but the decode kernel.");
  const snapmla::BackendInfo info = snapmla::find_backend("cuda");
  if (!info.available) {
    std::fprintf(stderr, "no usable CUDA device: %s\n", info.reason.c_str());
    return 77;
  }
  constexpr std::int64_t kBulkBytes = std::int64_t{65536} * (1152 + 644 + 8);
  constexpr std::int64_t kFetchBytes = std::int64_t{1000000} * (1152 + 644 + 8);
  try {
    return run(
        {
            [] { return append_case("append_kv/b128", 128, 1024, 3, "", true, true); },
            [] { return append_case("append_kv/b128/no_pdl", 128, 1024, 0, "", false, true); },
            [] { return quantize_case("quantize_query/b128_h16", 16, 64, 3); },
            [] { return quantize_case("quantize_query/b128_h16/no_pdl", 16, 64, 0, false); },
            [] { return quantize_case("quantize_query/b128_h128", 128, 16, 9); },
            [] { return plan_case("plan_decode/b128", ragged(128), 5); },
            [] { return plan_case("plan_decode/b128/no_pdl", ragged(128), 5, false); },
            [] { return plan_case("plan_decode/b1", {32768}, 5); },
            [] { return plan_case("plan_decode/b4096", ragged(4096), 0); },
            [] {
              return combine_case("combine/b32_rows128", std::vector<std::int32_t>(32, 32768), 128,
                                  0);
            },
            [] {
              return combine_case("combine/b32_rows16", std::vector<std::int32_t>(32, 32768), 16,
                                  0);
            },
            [] { return combine_case("combine/b1_rows16", {32768}, 16, 0); },
            [] { return combine_case("combine/b1_rows128", {32768}, 128, 0); },
            [] { return merge_case("merge_states/n8_b32_h128", 8, 32, 128); },
            [] { return merge_case("merge_states/n2_b32_h16", 2, 32, 16); },
            [=] { return copy_case("copy/bytes_of_append_65536", kBulkBytes, 4); },
            [] {
              return append_case("append_kv/t65536", 65536, 4, 0, "copy/bytes_of_append_65536");
            },
            [=] { return copy_case("copy/bytes_of_fetch_1000000", kFetchBytes, 1); },
            [] {
              return fetch_case("fetch_dequant/slots_1000000", 1000000, false,
                                "copy/bytes_of_fetch_1000000");
            },
            [] {
              return fetch_case("fetch_dequant/ranges_1000000", 1000000, true,
                                "copy/bytes_of_fetch_1000000");
            },
            [] { return reference_case("decode/cuda_reference", 16, 64, 4096); },
        },
        options, "bench_data_path");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
