// Times decode as an engine calls it (the kernel and the merging of parts), over the shapes that
// docs/kernels/sm90-decode-e4m3.md compares with other kernels.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>

#include "core/float_formats.h"
#include "harness.h"
#include "snapmla/snapmla.h"

namespace snapmla::bench {
namespace {

constexpr Device kDevice{DeviceType::cuda, 0};
constexpr std::int64_t kPoolPages = 110000;  // 4.5 GB
/// The cache bytes that the launches of one graph read before a page repeats.
constexpr std::int64_t kColdBytes = std::int64_t{1300} << 20;

/// Device memory holding one random block of 1 MiB over and over.
template <class T, class Make>
DeviceBuffer random_buffer(std::int64_t bytes, const Make& make) {
  std::vector<T> block(std::min<std::int64_t>(bytes, 1 << 20) / sizeof(T));
  for (T& value : block) value = make();
  DeviceBuffer buffer(bytes);
  const auto block_bytes = static_cast<std::int64_t>(block.size() * sizeof(T));
  buffer.upload(block.data(), block_bytes);
  for (std::int64_t done = block_bytes; done < bytes; done *= 2) {
    SNAPMLA_BENCH_CUDA(cudaMemcpy(buffer.as<char>() + done, buffer.data(),
                                  std::min(done, bytes - done), cudaMemcpyDeviceToDevice));
  }
  return buffer;
}

/// Real values near normal(0, 1), stored with scales around 1 / 100: logits of a few units.
struct StoredRows {
  DeviceBuffer codes, rope, scale;

  StoredRows(std::int64_t rows, unsigned seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> uniform(0.5f, 1.5f);
    codes = random_buffer<std::uint8_t>(rows * kKvLoraRank,
                                        [&] { return e4m3_from_float(100 * normal(generator)); });
    rope = random_buffer<std::uint16_t>(rows * kRopeDim * 2,
                                        [&] { return bf16_from_float(100 * normal(generator)); });
    scale = random_buffer<float>(rows * 4, [&] { return uniform(generator) / 100; });
  }
};

struct Pool : StoredRows {
  std::vector<std::int32_t> order;

  Pool() : StoredRows(kPoolPages * kPageTokens, 1), order(kPoolPages) {
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(7));
  }
  Cache cache() const {
    return Cache::from_planes(
        TensorView(codes.data(), DType::u8, {kPoolPages, kPageTokens, kKvLoraRank}, kDevice),
        TensorView(scale.data(), DType::f32, {kPoolPages, kPageTokens}, kDevice),
        TensorView(rope.data(), DType::bf16, {kPoolPages, kPageTokens, kRopeDim}, kDevice));
  }
};

struct Shape {
  std::int64_t b, h_q, s_q, kv;
  double goal_us;  // 0: none
  bool ragged = false;

  std::int64_t rows() const { return s_q * h_q; }
};

/// Everything that the launches of one case read and write; launch i has block table i.
struct Call {
  Shape shape;
  std::shared_ptr<Pool> pool;
  std::vector<std::int32_t> lengths;
  std::int64_t max_blocks = 0;
  StoredRows query;
  DeviceBuffer seqlens, out, expected, lse, schedule, num_splits, workspace;
  std::vector<DeviceBuffer> tables;
  PlanSize size;

  Call(const Shape& s, std::shared_ptr<Pool> the_pool)
      : shape(s), pool(std::move(the_pool)), query(s.b * s.rows(), 2) {
    lengths.assign(s.b, static_cast<std::int32_t>(s.kv));
    std::mt19937 random(5);
    if (s.ragged) {
      for (auto& length : lengths) length = static_cast<std::int32_t>(random() % s.kv + 1);
    }
    max_blocks = (s.kv + kPageTokens - 1) / kPageTokens;
    seqlens = DeviceBuffer::of(lengths);
    out = DeviceBuffer(s.b * s.rows() * kKvLoraRank * 2);
    expected = DeviceBuffer(out.bytes());
    lse = DeviceBuffer(s.b * s.rows() * 4);

    std::size_t next = 0;
    const std::int64_t launches =
        std::clamp<std::int64_t>(kColdBytes / (tokens() * kTokenBytes) + 1, 3, 60);
    for (std::int64_t i = 0; i < launches; ++i) {
      std::vector<std::int32_t> table(s.b * max_blocks, -1);
      for (std::int64_t r = 0; r < s.b; ++r) {
        for (std::int64_t block = 0; block * kPageTokens < lengths[r]; ++block) {
          table[r * max_blocks + block] = pool->order[next++ % pool->order.size()];
        }
      }
      tables.push_back(DeviceBuffer::of(table));
    }

    const PlanSpec spec{s.b, s.rows(), s.kv, kDevice};
    size = plan_size(spec);
    schedule = DeviceBuffer(size.schedule_rows * size.schedule_cols * 4);
    num_splits = DeviceBuffer(size.num_splits * 4);
    workspace = DeviceBuffer(workspace_bytes(spec));
    plan_decode(lengths_view(), spec, {}, plan());
    SNAPMLA_BENCH_CUDA(cudaDeviceSynchronize());
  }

  std::int64_t tokens() const {
    return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  }
  TensorView lengths_view() const {
    return TensorView(seqlens.data(), DType::i32, {shape.b}, kDevice);
  }
  DecodePlan plan() const {
    return {
        TensorView(schedule.data(), DType::i32, {size.schedule_rows, size.schedule_cols}, kDevice),
        TensorView(num_splits.data(), DType::i32, {size.num_splits}, kDevice)};
  }
  void enqueue(std::int64_t i, Stream stream, const DeviceBuffer& to) const {
    const Shape& s = shape;
    decode(plan(),
           {TensorView(query.codes.data(), DType::u8, {s.b, s.s_q, s.h_q, kKvLoraRank}, kDevice),
            TensorView(query.scale.data(), DType::f32, {s.b, s.s_q, s.h_q}, kDevice),
            TensorView(query.rope.data(), DType::bf16, {s.b, s.s_q, s.h_q, kRopeDim}, kDevice)},
           pool->cache(), TensorView(tables[i].data(), DType::i32, {s.b, max_blocks}, kDevice),
           lengths_view(), 1.0f / 24, true,
           TensorView(to.data(), DType::bf16, {s.b, s.s_q, s.h_q, kKvLoraRank}, kDevice),
           TensorView(lse.data(), DType::f32, {s.b, s.h_q, s.s_q}, kDevice),
           TensorView(workspace.data(), DType::u8, {workspace.bytes()}, kDevice), stream);
  }
  /// Against fp32 attention on the same cache: what P in e4m3 costs on zero-mean values.
  std::string check() const {
    SNAPMLA_BENCH_CUDA(cudaMemset(out.data(), 0xff, out.bytes()));
    enqueue(0, {}, out);
    force_backend("cuda_reference");
    enqueue(0, {}, expected);
    force_backend("");
    const auto actual = out.read<std::uint16_t>(out.bytes() / 2),
               reference = expected.read<std::uint16_t>(out.bytes() / 2);
    double error = 0, norm = 0;
    for (std::size_t i = 0; i < actual.size(); ++i) {
      const double e = bf16_to_float(reference[i]), a = bf16_to_float(actual[i]);
      error += (a - e) * (a - e);
      norm += e * e;
    }
    const double relative = std::sqrt(error / norm);
    return relative <= 4e-2 ? "" : fmt::format("relative L2 error {:.3g}", relative);
  }
};

std::string shape_name(const Shape& s) {
  const std::string queries = s.s_q > 1 ? fmt::format("x{}", s.s_q) : "";
  return fmt::format("decode/b{}_h{}{}_{}{}", s.b, s.h_q, queries, s.ragged ? "ragged" : "kv",
                     s.kv);
}

Case decode_case(const Shape& s, const std::shared_ptr<Pool>& pool) {
  auto call = std::make_shared<Call>(s, pool);
  Case c;
  c.name = shape_name(s);
  c.detail = fmt::format(
      "batch {}, {} heads, s_q {}, {} {}, bf16 out, balanced plan, shuffled 64-token pages, cold "
      "L2",
      s.b, s.h_q, s.s_q, s.ragged ? "lengths uniform in 1 to" : "kv", s.kv);
  c.bytes = call->tokens() * kTokenBytes;  // the cache, once; the rest is small
  c.flops = 2.0 * static_cast<double>(s.rows() * call->tokens()) * (kQkDim + kKvLoraRank);
  c.goal_us = s.goal_us;
  c.launches = static_cast<int>(call->tables.size());
  c.enqueue = [call](int i, Stream stream) { call->enqueue(i, stream, call->out); };
  c.check = [call] { return call->check(); };
  return c;
}

}  // namespace
}  // namespace snapmla::bench

int main(int argc, char** argv) {
  using namespace snapmla::bench;
  const Options options = parse_options(argc, argv, "Times decode on a GPU.");
  try {
    SNAPMLA_BENCH_CUDA(cudaSetDevice(0));
    const auto pool = std::make_shared<Pool>();
    const std::vector<Shape> shapes = {
        {32, 16, 1, 32768, 195},      {32, 32, 1, 32768, 195},       {32, 64, 1, 32768, 205},
        {32, 128, 1, 32768, 380},     {32, 128, 2, 32768, 750},      {32, 16, 1, 131072, 0},
        {32, 128, 1, 131072, 0},      {1, 16, 1, 32768, 20},         {1, 128, 1, 32768, 25},
        {8, 16, 1, 32768, 0},         {8, 128, 1, 32768, 0},         {128, 16, 1, 1024, 26},
        {128, 64, 1, 1024, 0},        {128, 128, 1, 1024, 45},       {128, 128, 1, 4096, 0},
        {32, 64, 1, 32768, 95, true}, {32, 128, 1, 32768, 140, true}};
    std::vector<std::function<Case()>> cases;
    for (const Shape& shape : shapes) {
      if (shape_name(shape).find(options.filter) == std::string::npos) continue;
      cases.push_back([shape, pool] { return decode_case(shape, pool); });
    }
    return run(cases, options, "bench_decode");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
