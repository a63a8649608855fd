#include "accuracy_study.h"

#include <span>

#include "decode_run.h"
#include "exact_attention.h"

namespace snapmla::tools {
namespace {

std::vector<ErrorStats> by_head(const Capture& capture, const AttentionResult& actual,
                                const AttentionResult& expected) {
  std::vector<ErrorStats> heads(static_cast<std::size_t>(capture.h_q));
  for (std::int64_t row = 0; row < capture.s_q * capture.h_q; ++row) {
    const auto out = [&](const AttentionResult& result) {
      return std::span(result.out).subspan(row * kKvLoraRank, kKvLoraRank);
    };
    ErrorStats& stats = heads[row % capture.h_q];
    stats.add(out(actual), out(expected));
    stats.add_lse(std::span(actual.lse).subspan(row, 1), std::span(expected.lse).subspan(row, 1));
  }
  return heads;
}

}  // namespace

std::vector<SchemeResult> study_schemes(const Capture& capture,
                                        const std::function<void()>& on_step) {
  const AttentionResult exact = exact_attention(capture);
  on_step();
  std::vector<SchemeResult> results;
  for (const SchemeInfo& scheme : cache_schemes()) {
    SchemeResult result{&scheme, {}, {}, {}};
    result.cache.add(attend(apply_scheme(scheme, capture, Rounding::cache)), exact);
    on_step();
    const AttentionResult full = attend(apply_scheme(scheme, capture, Rounding::everything));
    result.everything.add(full, exact);
    result.per_head = by_head(capture, full, exact);
    results.push_back(std::move(result));
    on_step();
  }
  return results;
}

const std::vector<Pipeline>& pipelines() {
  using Form = NumericsOptions::Form;
  using Accumulate = NumericsOptions::Accumulate;
  static const std::vector<Pipeline> list = {
      {"block-local", "fp32 accumulation, P blocks of 64", {}, 64},
      {"block-local 128", "the same with P blocks of 128", {}, 128},
      {"power-of-two scales",
       "block-local, the cache with power-of-two scales",
       {},
       64,
       ScaleMode::power_of_two},
      {"quantized sum",
       "block-local, divided by the sum of quantized P",
       {Form::log_domain, Accumulate::exact, 1, true},
       64},
      {"chained",
       "the paper's form, fp32 accumulation",
       {Form::chained, Accumulate::exact, 1, false},
       64},
      {"promoted, QK x1",
       "block-local, Hopper's accumulator emulated, promoted every 64 tokens",
       {Form::log_domain, Accumulate::hopper, 1, false},
       64},
      {"promoted, QK x2",
       "the same with 2 QK accumulators",
       {Form::log_domain, Accumulate::hopper, 2, false},
       64},
      {"promoted, QK x4",
       "the same with 4 QK accumulators",
       {Form::log_domain, Accumulate::hopper, 4, false},
       64},
      {"promoted 128",
       "1 QK accumulator, promoted every 128 tokens",
       {Form::log_domain, Accumulate::hopper, 1, false},
       128},
      {"in place",
       "the paper's form accumulating in Hopper's accumulator, emulated",
       {Form::chained, Accumulate::hopper, 1, false},
       64},
  };
  return list;
}

std::vector<PipelineResult> study_pipelines(const Capture& capture,
                                            const std::function<void()>& on_step) {
  std::vector<PipelineResult> results;
  AttentionResult reference;
  ScaleMode reference_scale{};
  for (const Pipeline& pipeline : pipelines()) {
    RunOptions options;
    options.backend = "cpu";
    options.plan.num_sms = 1;  // unsplit
    options.plan.p_block = pipeline.p_block;
    options.numerics = pipeline.numerics;
    options.scale = pipeline.scale;
    options.repeats = 1;
    QuantizedCapture quantized(capture, options, choose_backend(capture, options));
    if (results.empty() || pipeline.scale != reference_scale) {  // other bytes
      reference = quantized.decode_reference();
      reference_scale = pipeline.scale;
    }
    PipelineResult result{&pipeline, {}};
    result.stats.add(quantized.decode(), reference);
    results.push_back(result);
    on_step();
  }
  return results;
}

}  // namespace snapmla::tools
