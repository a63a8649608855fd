// One decode step of an MLA layer with an FP8 cache: two requests, 16 heads, one new token each.
// Prints the error against float64 attention over the same cache.

#include <snapmla/snapmla.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

using snapmla::DType;

int main() try {
  constexpr std::int64_t kBatch = 2, kQueries = 1, kHeads = 16, kPages = 8;
  const float softmax_scale = 1.0f / std::sqrt(192.0f);  // times the YaRN factor, if there is one

  // Your model gives these: latent and RoPE key of each token, absorbed queries. f32 or bf16.
  const std::vector<std::int32_t> lengths = {150, 70};
  std::mt19937 random(0);
  std::normal_distribution<float> normal;
  std::vector<float> kv((150 + 70) * snapmla::kQkDim);
  std::vector<float> q(kBatch * kQueries * kHeads * snapmla::kQkDim);
  for (float& x : kv) x = 0.5f + normal(random);
  for (float& x : q) x = normal(random);

  // A paged cache, 644 bytes per token. The caller owns all memory.
  std::vector<std::uint8_t> content(kPages * snapmla::kPageTokens * snapmla::kKvLoraRank);
  std::vector<float> scale(kPages * snapmla::kPageTokens);
  std::vector<std::uint16_t> rope(kPages * snapmla::kPageTokens * snapmla::kRopeDim);
  const snapmla::Cache cache = snapmla::Cache::from_planes(
      {content.data(), DType::e4m3, {kPages, snapmla::kPageTokens, snapmla::kKvLoraRank}},
      {scale.data(), DType::f32, {kPages, snapmla::kPageTokens}},
      {rope.data(), DType::bf16, {kPages, snapmla::kPageTokens, snapmla::kRopeDim}});

  // Request 0 owns pages 5, 2, 7 and request 1 pages 1, 4; -1 fills the row.
  const std::vector<std::int32_t> block_table = {5, 2, 7, 1, 4, -1};
  std::vector<std::int64_t> slots;
  for (std::int64_t request = 0; request < kBatch; ++request) {
    for (std::int64_t position = 0; position < lengths[request]; ++position) {
      const std::int64_t page = block_table[request * 3 + position / snapmla::kPageTokens];
      slots.push_back(page * snapmla::kPageTokens + position % snapmla::kPageTokens);
    }
  }
  const auto tokens = static_cast<std::int64_t>(slots.size());
  snapmla::append_kv(cache, snapmla::TensorView(kv.data(), DType::f32, {tokens, snapmla::kQkDim}),
                     {slots.data(), DType::i64, {tokens}});

  // Once per step, for all layers: spread the work of the batch.
  const snapmla::TensorView seqlens(lengths.data(), DType::i32, {kBatch});
  snapmla::PlanSpec spec;
  spec.b = kBatch;
  spec.rows = kQueries * kHeads;
  const snapmla::PlanSize size = snapmla::plan_size(spec);
  std::vector<std::int32_t> schedule(size.schedule_rows * size.schedule_cols);
  std::vector<std::int32_t> num_splits(size.num_splits);
  const snapmla::DecodePlan plan{
      {schedule.data(), DType::i32, {size.schedule_rows, size.schedule_cols}},
      {num_splits.data(), DType::i32, {size.num_splits}}};
  snapmla::plan_decode(seqlens, spec, {}, plan);

  // Per layer: quantize the query, attend.
  std::vector<std::uint8_t> codes(kBatch * kQueries * kHeads * snapmla::kKvLoraRank);
  std::vector<float> q_scale(kBatch * kQueries * kHeads);
  std::vector<std::uint16_t> q_rope(kBatch * kQueries * kHeads * snapmla::kRopeDim);
  const snapmla::QuantizedQuery query{
      {codes.data(), DType::e4m3, {kBatch, kQueries, kHeads, snapmla::kKvLoraRank}},
      {q_scale.data(), DType::f32, {kBatch, kQueries, kHeads}},
      {q_rope.data(), DType::bf16, {kBatch, kQueries, kHeads, snapmla::kRopeDim}}};
  snapmla::quantize_query(
      snapmla::TensorView(q.data(), DType::f32, {kBatch, kQueries, kHeads, snapmla::kQkDim}),
      query);

  std::vector<std::uint8_t> workspace(snapmla::workspace_bytes(spec));
  const auto decode = [&](std::vector<float>& out, std::vector<float>& lse) {
    out.resize(kBatch * kQueries * kHeads * snapmla::kKvLoraRank);
    lse.resize(kBatch * kHeads * kQueries);
    snapmla::decode(
        plan, query, cache, {block_table.data(), DType::i32, {kBatch, 3}}, seqlens, softmax_scale,
        /*causal=*/true, {out.data(), DType::f32, {kBatch, kQueries, kHeads, snapmla::kKvLoraRank}},
        {lse.data(), DType::f32, {kBatch, kHeads, kQueries}},
        {workspace.data(), DType::u8, {static_cast<std::int64_t>(workspace.size())}});
  };
  std::vector<float> out, lse;
  decode(out, lse);

  // The reference backend computes the same in float64: how far off is FP8?
  snapmla::force_backend("reference");
  std::vector<float> exact, exact_lse;
  decode(exact, exact_lse);
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    error += std::pow(out[i] - exact[i], 2);
    norm += std::pow(exact[i], 2);
  }
  const double relative = std::sqrt(error / norm);
  std::printf("relative L2 error %.1e, lse of the first row %.4f (exact %.4f)\n", relative, lse[0],
              exact_lse[0]);
  return relative < 2.5e-2 ? 0 : 1;
} catch (const snapmla::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
