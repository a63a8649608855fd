#include "decode_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <random>

namespace snapmla::tools {
namespace {

// Pages of the pool that belong to nobody; they must never be read.
constexpr std::int64_t kForeignPages = 3;

template <class Call>
double time_us(Device device, Call&& call) {
  synchronize(device);
  const auto begin = std::chrono::steady_clock::now();
  call();
  synchronize(device);
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
      .count();
}

/// The first `count` of `total` page ids in random order, the same on every platform.
std::vector<std::int32_t> random_pages(std::int64_t count, std::int64_t total, std::int64_t seed) {
  std::vector<std::int32_t> pages(static_cast<std::size_t>(total));
  std::iota(pages.begin(), pages.end(), 0);
  std::mt19937_64 random(static_cast<std::uint64_t>(seed));
  for (std::size_t i = pages.size() - 1; i > 0; --i) std::swap(pages[i], pages[random() % (i + 1)]);
  pages.resize(static_cast<std::size_t>(count));
  return pages;
}

}  // namespace

BackendInfo choose_backend(DecodeProblem problem, const std::string& requested) {
  std::vector<BackendInfo> candidates = list_backends();
  if (!requested.empty()) candidates = {find_backend(requested)};
  std::string reasons;
  for (const BackendInfo& candidate : candidates) {
    problem.device = {candidate.device, 0};
    Support support{candidate.available, candidate.reason};
    if (support.ok) support = supports(problem, candidate.name);
    if (support.ok) return candidate;
    reasons += fmt::format("; {}: {}", candidate.name, support.reason);
  }
  throw Unsupported(fmt::format("no backend can run this{}", reasons));
}

BackendInfo choose_backend(const Capture& capture, const RunOptions& options) {
  DecodeProblem problem;
  problem.s_q = capture.s_q;
  problem.h_q = capture.h_q;
  problem.max_seqlen = capture.tokens;
  problem.form = options.form;
  problem.out_dtype = DType::f32;
  problem.plan = options.plan;
  problem.numerics = options.numerics;
  return choose_backend(problem, options.backend);
}

QuantizedCapture::Tensors QuantizedCapture::Tensors::copy_to(Device device) const {
  return {codes.copy_to(device),   q_scale.copy_to(device),     q_rope.copy_to(device),
          content.copy_to(device), scale.copy_to(device),       rope.copy_to(device),
          pool.copy_to(device),    block_table.copy_to(device), cache_seqlens.copy_to(device)};
}

QuantizedCapture::QuantizedCapture(const Capture& capture, const RunOptions& options,
                                   const BackendInfo& backend)
    : tokens_(capture.tokens),
      s_q_(capture.s_q),
      h_q_(capture.h_q),
      softmax_scale_(capture.softmax_scale),
      options_(options),
      backend_(backend.name) {
  const Device device{backend.device, 0};
  const ForcedBackend forced(backend_);
  const std::int64_t blocks = (tokens_ + kPageTokens - 1) / kPageTokens;
  pages_ = blocks + kForeignPages;

  const std::int64_t rows = s_q_ * h_q_;
  Tensors& t = tensors_;
  t.codes = Buffer(rows * kKvLoraRank, device);
  t.q_scale = Buffer(rows * 4, device);
  t.q_rope = Buffer(rows * kRopeDim * 2, device);
  const bool packed = options.form == CacheForm::packed;
  t.content = Buffer(packed ? 0 : pages_ * kPageTokens * kKvLoraRank, device);
  t.scale = Buffer(packed ? 0 : pages_ * kPageTokens * 4, device);
  t.rope = Buffer(packed ? 0 : pages_ * kPageTokens * kRopeDim * 2, device);
  t.pool = Buffer(packed ? pages_ * kPackedPageBytes : 0, device);
  for (Buffer* buffer : {&t.content, &t.scale, &t.rope, &t.pool}) buffer->fill(0xff);

  const std::vector<std::int32_t> block_table = random_pages(blocks, pages_, options.seed);
  t.block_table = Buffer::from(block_table, device);
  t.cache_seqlens = Buffer::from(std::vector{static_cast<std::int32_t>(tokens_)}, device);
  std::vector<std::int64_t> slots;
  for (std::int64_t position = 0; position < tokens_; ++position) {
    slots.push_back(std::int64_t{block_table[position / kPageTokens]} * kPageTokens +
                    position % kPageTokens);
  }

  const Buffer q_nope = Buffer::from(capture.q_nope, device);
  const Buffer q_rope = Buffer::from(capture.q_rope, device);
  times_.quantize_query_us = time_us(device, [&] {
    quantize_query({q_nope.view(DType::bf16, {1, s_q_, h_q_, kKvLoraRank}),
                    q_rope.view(DType::bf16, {1, s_q_, h_q_, kRopeDim})},
                   query(t), {options.scale});
  });

  const Buffer content = Buffer::from(capture.content, device);
  const Buffer rope = Buffer::from(capture.rope, device);
  const Buffer slot_buffer = Buffer::from(slots, device);
  AppendOptions append;
  append.scale = options.scale;
  times_.append_kv_us = time_us(device, [&] {
    append_kv(cache(t),
              {content.view(DType::bf16, {tokens_, kKvLoraRank}),
               rope.view(DType::bf16, {tokens_, kRopeDim})},
              slot_buffer.view(DType::i64, {tokens_}), append);
  });
}

AttentionResult QuantizedCapture::decode() {
  const ForcedBackend forced(backend_);
  return attend(tensors_, options_.plan, options_.numerics, options_.repeats, &times_);
}

AttentionResult QuantizedCapture::decode_reference() const {
  const ForcedBackend forced("reference");
  if (tensors_.device().type == DeviceType::cpu) return attend(tensors_, {}, {}, 1, nullptr);
  return attend(tensors_.copy_to({DeviceType::cpu, 0}), {}, {}, 1, nullptr);
}

QuantizedQuery QuantizedCapture::query(const Tensors& t) const {
  return {t.codes.view(DType::e4m3, {1, s_q_, h_q_, kKvLoraRank}),
          t.q_scale.view(DType::f32, {1, s_q_, h_q_}),
          t.q_rope.view(DType::bf16, {1, s_q_, h_q_, kRopeDim})};
}

Cache QuantizedCapture::cache(const Tensors& t) const {
  if (options_.form == CacheForm::packed) {
    return Cache::from_pages(t.pool.view(DType::u8, {pages_, kPackedPageBytes}));
  }
  return Cache::from_planes(t.content.view(DType::e4m3, {pages_, kPageTokens, kKvLoraRank}),
                            t.scale.view(DType::f32, {pages_, kPageTokens}),
                            t.rope.view(DType::bf16, {pages_, kPageTokens, kRopeDim}));
}

AttentionResult QuantizedCapture::attend(const Tensors& t, const PlanOptions& plan_options,
                                         const NumericsOptions& numerics, int repeats,
                                         StepTimes* times) const {
  const Device device = t.device();
  const PlanSpec spec{1, s_q_ * h_q_, tokens_, device};
  const PlanSize size = plan_size(spec, plan_options);
  const Buffer schedule(size.schedule_rows * size.schedule_cols * 4, device);
  const Buffer num_splits(size.num_splits * 4, device);
  const DecodePlan plan{schedule.view(DType::i32, {size.schedule_rows, size.schedule_cols}),
                        num_splits.view(DType::i32, {size.num_splits})};
  const TensorView cache_seqlens = t.cache_seqlens.view(DType::i32, {1});
  const double plan_us =
      time_us(device, [&] { plan_decode(cache_seqlens, spec, plan_options, plan); });

  // The same starting values as for the pool: a row that decode() leaves out shows as NaN.
  Buffer out(s_q_ * h_q_ * kKvLoraRank * 4, device), lse(s_q_ * h_q_ * 4, device);
  Buffer workspace(workspace_bytes(spec, plan_options), device);
  for (Buffer* buffer : {&out, &lse, &workspace}) buffer->fill(0xff);
  const TensorView lse_view(lse.data(), DType::f32, {1, h_q_, s_q_}, {h_q_ * s_q_, 1, h_q_},
                            device);
  const TensorView block_table = t.block_table.view(DType::i32, {1, t.block_table.bytes() / 4});
  DecodeOptions options;
  options.numerics = numerics;
  double decode_us = std::numeric_limits<double>::infinity();
  for (int i = 0; i < repeats; ++i) {
    decode_us = std::min(
        decode_us, time_us(device, [&] {
          snapmla::decode(plan, query(t), cache(t), block_table, cache_seqlens, softmax_scale_,
                          /*causal=*/true, out.view(DType::f32, {1, s_q_, h_q_, kKvLoraRank}),
                          lse_view, workspace.view(DType::u8, {workspace.bytes()}), {}, options);
        }));
  }
  if (times) {
    times->plan_decode_us = plan_us;
    times->decode_us = decode_us;
  }
  const std::vector<float> out_values = out.to_vector<float>(), lse_values = lse.to_vector<float>();
  return {{out_values.begin(), out_values.end()}, {lse_values.begin(), lse_values.end()}};
}

}  // namespace snapmla::tools
