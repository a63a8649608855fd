// Reads one decode problem as raw binary, runs the library on it and writes every intermediate
// result: what check_pipeline.py compares with its own. Little-endian throughout.
//
// in:  i32 tokens, s_q, h_q, power_of_two;  f32 softmax_scale;  bf16 kv [tokens, 576];
//      bf16 q [s_q, h_q, 576]
// out: u8 q_codes [s_q, h_q, 512];  f32 q_scale [s_q, h_q];  bf16 q_rope [s_q, h_q, 64];
//      u8 pages [ceil(tokens / 64), 41216], page i holding tokens 64 i..;
//      then for the backends cpu and reference: f32 out [s_q, h_q, 512], f32 lse [h_q, s_q]

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "snapmla/snapmla.h"

namespace {

template <class T>
std::vector<T> read(std::ifstream& in, std::int64_t n) {
  std::vector<T> values(static_cast<std::size_t>(n));
  in.read(reinterpret_cast<char*>(values.data()), n * static_cast<std::int64_t>(sizeof(T)));
  if (!in) throw std::runtime_error("input is too short");
  return values;
}

template <class T>
void write(std::ofstream& out, const std::vector<T>& values) {
  out.write(reinterpret_cast<const char*>(values.data()),
            static_cast<std::streamsize>(values.size() * sizeof(T)));
}

void run(const char* in_path, const char* out_path) {
  using namespace snapmla;
  std::ifstream in(in_path, std::ios::binary);
  std::ofstream out_file(out_path, std::ios::binary);
  const auto header = read<std::int32_t>(in, 4);
  const float softmax_scale = read<float>(in, 1)[0];
  const std::int64_t tokens = header[0], s_q = header[1], h_q = header[2], rows = s_q * h_q;
  const ScaleMode mode = header[3] ? ScaleMode::power_of_two : ScaleMode::exact;
  const auto kv = read<std::uint16_t>(in, tokens * kQkDim);
  const auto q = read<std::uint16_t>(in, rows * kQkDim);

  const std::int64_t num_pages = (tokens + kPageTokens - 1) / kPageTokens;
  std::vector<std::uint8_t> pages(static_cast<std::size_t>(num_pages * kPackedPageBytes), 0);
  const Cache cache =
      Cache::from_pages(TensorView(pages.data(), DType::u8, {num_pages, kPackedPageBytes}));
  std::vector<std::int64_t> slots(static_cast<std::size_t>(tokens));
  std::iota(slots.begin(), slots.end(), 0);
  AppendOptions append;
  append.scale = mode;
  append_kv(cache, TensorView(kv.data(), DType::bf16, {tokens, kQkDim}),
            TensorView(slots.data(), DType::i64, {tokens}), append);

  std::vector<std::uint8_t> codes(static_cast<std::size_t>(rows * kKvLoraRank));
  std::vector<float> scale(static_cast<std::size_t>(rows));
  std::vector<std::uint16_t> rope(static_cast<std::size_t>(rows * kRopeDim));
  const QuantizedQuery query{TensorView(codes.data(), DType::e4m3, {1, s_q, h_q, kKvLoraRank}),
                             TensorView(scale.data(), DType::f32, {1, s_q, h_q}),
                             TensorView(rope.data(), DType::bf16, {1, s_q, h_q, kRopeDim})};
  quantize_query(TensorView(q.data(), DType::bf16, {1, s_q, h_q, kQkDim}), query, {mode});
  write(out_file, codes);
  write(out_file, scale);
  write(out_file, rope);
  write(out_file, pages);

  std::vector<std::int32_t> table(static_cast<std::size_t>(num_pages));
  std::iota(table.begin(), table.end(), 0);
  const std::vector<std::int32_t> length = {static_cast<std::int32_t>(tokens)};
  const TensorView lengths(length.data(), DType::i32, {1});
  for (const char* backend : {"cpu", "reference"}) {
    force_backend(backend);
    const PlanSpec spec{1, rows, tokens, {}};
    const PlanSize size = plan_size(spec);
    std::vector<std::int32_t> schedule(
        static_cast<std::size_t>(size.schedule_rows * size.schedule_cols));
    std::vector<std::int32_t> num_splits(static_cast<std::size_t>(size.num_splits));
    const DecodePlan plan{
        TensorView(schedule.data(), DType::i32, {size.schedule_rows, size.schedule_cols}),
        TensorView(num_splits.data(), DType::i32, {size.num_splits})};
    plan_decode(lengths, spec, {}, plan);
    const std::int64_t bytes = workspace_bytes(spec);
    std::vector<std::max_align_t> workspace(
        static_cast<std::size_t>(bytes) / sizeof(std::max_align_t) + 1);
    std::vector<float> out(static_cast<std::size_t>(rows * kKvLoraRank));
    std::vector<float> lse(static_cast<std::size_t>(rows));
    decode(plan, query, cache, TensorView(table.data(), DType::i32, {1, num_pages}), lengths,
           softmax_scale, /*causal=*/true,
           TensorView(out.data(), DType::f32, {1, s_q, h_q, kKvLoraRank}),
           TensorView(lse.data(), DType::f32, {1, h_q, s_q}),
           TensorView(workspace.data(), DType::u8, {bytes}));
    write(out_file, out);
    write(out_file, lse);
  }
  if (!out_file.flush()) throw std::runtime_error("can't write the output");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: dump_pipeline IN OUT\n");
    return 2;
  }
  try {
    run(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dump_pipeline: %s\n", error.what());
    return 1;
  }
  return 0;
}
