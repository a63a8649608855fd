#include "support/problem.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <sstream>

#include "core/float_formats.h"
#include "support/random.h"

namespace snapmla::test {
namespace {

constexpr float kLn2 = 0.6931471805599453f;

float to_bf16(double value) { return bf16_to_float(bf16_from_float(static_cast<float>(value))); }

void fill(float* values, int n, Random& random, double amplitude, double mean = 0) {
  for (int d = 0; d < n; ++d) values[d] = to_bf16(mean + amplitude * random.normal());
}

// Exact P (docs/numerics.md section 5). In units of real content:
//   dims 0..31     selectors, -1, 0 or 1: each head reads four of them with weight +-1
//   dim 32         a bias of 0..12 shared by 128 tokens, read by every head: the running max moves
//   dims 33..255   v * 2^s, read with weight 2a          -- cancels with dim + 256: every dimension
//   dims 289..511  2v * 2^s, read with weight -a         -- of QK takes part, and none is redundant
//   dims 256..288  v * 2^s, not read
// RoPE: selectors too. Logits are integers times ln 2 within +-6 of the block's bias, s is 0..3, so
// y = x / ln 2 + log2(S) spans at most 15 in a block, and 448 * 2^-15 is still exact in e4m3. Codes
// have at most four significant bits; partial sums of QK stay below 2^13 in units of one.
void fill_exact_token(float* kv, Random& random, int bias) {
  const float factor = std::ldexp(1.0f, static_cast<int>(random.integer(0, 3)));
  for (int d = 0; d < 32; ++d) kv[d] = static_cast<float>(random.integer(-1, 1));
  kv[32] = static_cast<float>(bias);
  for (int d = 33; d < 256; ++d) {
    const float v = static_cast<float>(random.integer(-3, 7));
    kv[d] = v * factor;
    kv[d + 256] = 2 * v * factor;
  }
  for (int d = 256; d < 289; ++d) kv[d] = static_cast<float>(random.integer(-3, 7)) * factor;
  kv[300] = 14.0f * factor;  // the same amax, so that S is a power of two times `factor` exactly
  kv[44] = 7.0f * factor;
  for (int d = 0; d < kRopeDim; ++d) {
    kv[kKvLoraRank + d] = static_cast<float>(random.integer(-1, 1));
  }
}

void fill_exact_query(float* q, Random& random) {
  std::fill(q, q + kQkDim, 0.0f);
  for (int i = 0; i < 4; ++i) q[8 * i + random.integer(0, 7)] = random.integer(0, 1) ? 1.0f : -1.0f;
  q[32] = 1.0f;
  for (int d = 33; d < 256; ++d) {
    const float a = static_cast<float>(random.integer(-1, 1));
    q[d] = 2 * a;
    q[d + 256] = -a;
  }
  q[kKvLoraRank + random.integer(0, 31)] = 1.0f;
  q[kKvLoraRank + random.integer(32, 63)] = -1.0f;
}

void fill_tokens(Problem& p, std::int64_t request, Random& random) {
  const Data data = p.spec.data;
  int bias = 0;
  for (std::int64_t t = p.first_token[request]; t < p.first_token[request + 1]; ++t) {
    const std::int64_t position = t - p.first_token[request];
    float* content = &p.kv[t * kQkDim];
    float* rope = content + kKvLoraRank;
    double amplitude = 1, rope_amplitude = 1, mean = 0;
    switch (data) {
      case Data::exact_p:
        if (position % kPlanBlockTokens == 0) bias = static_cast<int>(random.integer(0, 12));
        fill_exact_token(content, random, bias);
        continue;
      case Data::equal_keys:
        if (position > 0) {
          std::copy(content - kQkDim, content, content);
          continue;
        }
        break;
      case Data::gaussian:
        break;
      case Data::with_mean:
        amplitude = 0.5;
        mean = 1;
        break;
      case Data::peaked:
        amplitude = rope_amplitude = 4;
        break;
      case Data::zero_content:
        if (position == 0 || position % 64 == 63 || position % 64 == 7) {
          std::fill(content, content + kKvLoraRank, 0.0f);
          for (int d = 0; d < kRopeDim; ++d) rope[d] = random.integer(0, 1) ? 3.0f : -3.0f;
          continue;
        }
        break;
      case Data::amplitudes_in_block:
        amplitude = random.log_uniform(1e-30, 1e30);
        break;
      case Data::amplitudes_in_sequence:
        amplitude = random.log_uniform(1e-9, 1e12);
        rope_amplitude = 0.1;
        break;
      case Data::mixed_content:
        amplitude = random.log_uniform(1e-3, 300) / 3;
        break;
      case Data::rope_outliers:
        fill(content, kKvLoraRank, random, 3);
        for (int d = 0; d < kKvLoraRank; ++d) content[d] = std::clamp(content[d], -10.0f, 10.0f);
        fill(rope, kRopeDim, random, 1);
        for (int i = 0; i < 3; ++i)
          rope[random.integer(0, 63)] = random.integer(0, 1) ? 1e3f : -1e3f;
        continue;
      case Data::large_rope:
        amplitude = 0.01;
        rope_amplitude = 50;
        break;
      case Data::small_rope:
        amplitude = 50;
        rope_amplitude = 0.01;
        break;
    }
    fill(content, kKvLoraRank, random, amplitude, mean);
    fill(rope, kRopeDim, random, rope_amplitude);
  }
}

void fill_queries(Problem& p, std::int64_t request, Random& random) {
  for (std::int64_t row = 0; row < p.spec.rows(); ++row) {
    float* q = &p.q[(request * p.spec.rows() + row) * kQkDim];
    double amplitude = 0.7, rope_amplitude = 0.7;
    switch (p.spec.data) {
      case Data::exact_p:
        fill_exact_query(q, random);
        continue;
      case Data::with_mean:
        amplitude = rope_amplitude = 0.02;
        break;
      case Data::amplitudes_in_sequence:
        amplitude = 1e-13;  // logits within a few units although content reaches 1e12
        rope_amplitude = 0.1;
        break;
      case Data::mixed_content:
        amplitude = 0.01;
        break;
      case Data::zero_content:
        if (row % 5 == 0) {
          std::fill(q, q + kKvLoraRank, 0.0f);
          for (int d = 0; d < kRopeDim; ++d) {
            q[kKvLoraRank + d] = random.integer(0, 1) ? 3.0f : -3.0f;
          }
          continue;
        }
        break;
      case Data::rope_outliers:
        rope_amplitude = 0.01;
        break;
      case Data::large_rope:
        rope_amplitude = 0.02;
        break;
      case Data::small_rope:
        amplitude = 0.02;
        break;
      default:
        break;
    }
    fill(q, kKvLoraRank, random, amplitude);
    fill(q + kKvLoraRank, kRopeDim, random, rope_amplitude);
  }
}

std::int64_t blocks_of(const Problem& p, std::int64_t request) {
  const std::int64_t tokens = p.first_token[request + 1] - p.first_token[request];
  return (tokens + kPageTokens - 1) / kPageTokens;
}

}  // namespace

const char* data_name(Data data) {
  switch (data) {
    case Data::gaussian:
      return "gaussian";
    case Data::with_mean:
      return "with_mean";
    case Data::peaked:
      return "peaked";
    case Data::exact_p:
      return "exact_p";
    case Data::equal_keys:
      return "equal_keys";
    case Data::zero_content:
      return "zero_content";
    case Data::amplitudes_in_block:
      return "amplitudes_in_block";
    case Data::amplitudes_in_sequence:
      return "amplitudes_in_sequence";
    case Data::mixed_content:
      return "mixed_content";
    case Data::rope_outliers:
      return "rope_outliers";
    case Data::large_rope:
      return "large_rope";
    case Data::small_rope:
      return "small_rope";
  }
  return "unknown";
}

std::string to_string(const Case& c) {
  std::ostringstream s;
  s << "Case{name=" << c.name << " seed=" << c.seed << " lengths=";
  for (std::size_t i = 0; i < c.lengths.size() && i < 12; ++i) {
    s << (i ? "," : "") << c.lengths[i];
  }
  if (c.lengths.size() > 12) s << ",...(" << c.lengths.size() << ")";
  s << " s_q=" << c.s_q << " h_q=" << c.h_q << " data=" << data_name(c.data)
    << " softmax_scale=" << c.softmax_scale << " causal=" << c.causal
    << " form=" << cache_form_name(c.form);
  if (c.form == CacheForm::packed) s << " page_stride=" << c.page_stride;
  s << " permuted=" << c.permuted << " padded=" << c.padded << " scale=" << scale_mode_name(c.scale)
    << " in=" << dtype_name(c.in_dtype) << " out=" << dtype_name(c.out_dtype)
    << " plan={invariant=" << c.plan.batch_invariant << " forced=" << c.plan.forced_splits
    << " split_tokens=" << c.plan.split_tokens << " num_sms=" << c.plan.num_sms
    << " p_block=" << c.plan.p_block << "}}";
  return s.str();
}

PlanSpec Problem::plan_spec(Device device) const {
  std::int64_t longest = spec.plan_max_seqlen;
  if (longest == 0) {
    longest = 1;
    for (std::int32_t length : spec.lengths) longest = std::max<std::int64_t>(longest, length);
  }
  return {spec.b(), spec.rows(), longest, device};
}

Problem make_problem(const Case& c) {
  Problem p;
  p.spec = c;
  p.softmax_scale = c.data == Data::exact_p ? kLn2 : c.softmax_scale;
  p.first_token = {0};
  for (std::int32_t length : c.lengths) {
    p.first_token.push_back(p.first_token.back() + std::max(length, 0));
  }
  p.kv.resize(p.tokens() * kQkDim);
  p.q.resize(c.b() * c.rows() * kQkDim);
  for (std::int64_t request = 0; request < c.b(); ++request) {
    // A stream of its own for every request, so that its numbers don't depend on its neighbours.
    Random tokens(c.seed * 1000003 + request * 2), queries(c.seed * 1000003 + request * 2 + 1);
    fill_tokens(p, request, tokens);
    fill_queries(p, request, queries);
  }
  assign_pages(p, c.permuted ? PageOrder::random : PageOrder::contiguous, c.seed);
  return p;
}

void assign_pages(Problem& p, PageOrder order, std::uint64_t seed) {
  std::int64_t owned = 0;
  p.max_blocks = 1;
  for (std::int64_t request = 0; request < p.spec.b(); ++request) {
    owned += blocks_of(p, request);
    p.max_blocks = std::max(p.max_blocks, blocks_of(p, request) + 1);
  }
  p.num_pages = 1 + owned + 2 + owned / 4;
  std::vector<std::int64_t> pages(p.num_pages - 1);
  std::iota(pages.begin(), pages.end(), 1);
  if (order == PageOrder::reversed) std::reverse(pages.begin(), pages.end());
  if (order == PageOrder::random) Random(seed ^ 0x5eed).shuffle(pages);

  p.table_stride = p.max_blocks + (p.spec.padded ? 3 : 0);
  p.block_table.assign(p.spec.b() * p.table_stride, -1);
  for (std::size_t i = 1; i < p.block_table.size(); i += 2) {
    p.block_table[i] = std::numeric_limits<std::int32_t>::max();
  }
  p.slots.resize(p.tokens());
  std::size_t next = 0;
  for (std::int64_t request = 0; request < p.spec.b(); ++request) {
    for (std::int64_t t = p.first_token[request]; t < p.first_token[request + 1]; ++t) {
      const std::int64_t position = t - p.first_token[request];
      std::int32_t& page = p.block_table[request * p.table_stride + position / kPageTokens];
      if (position % kPageTokens == 0) page = static_cast<std::int32_t>(pages[next++]);
      p.slots[t] = page * std::int64_t{kPageTokens} + position % kPageTokens;
    }
  }
}

Problem Problem::select(const std::vector<std::int64_t>& requests) const {
  Problem p = *this;
  p.spec.lengths.clear();
  p.q.clear();
  p.kv.clear();
  p.first_token = {0};
  const std::int64_t q_size = spec.rows() * kQkDim;
  for (std::int64_t r : requests) {
    p.spec.lengths.push_back(spec.lengths[r]);
    p.q.insert(p.q.end(), q.begin() + r * q_size, q.begin() + (r + 1) * q_size);
    p.kv.insert(p.kv.end(), kv.begin() + first_token[r] * kQkDim,
                kv.begin() + first_token[r + 1] * kQkDim);
    p.first_token.push_back(p.first_token.back() + first_token[r + 1] - first_token[r]);
  }
  assign_pages(p, spec.permuted ? PageOrder::random : PageOrder::contiguous, spec.seed + 77);
  return p;
}

}  // namespace snapmla::test
