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

// Exact P (docs/numerics.md section 5): QK, P and PV are exact even in accumulators of 14 bits.
//
// A head reads two content selectors (-1 or 0), one RoPE level (0..-6, -6 most often, minus s) and
// the bias of 128 tokens; everything else that it reads cancels, and every dimension takes part:
//   content   0..31    selectors: -1 or 0
//             32..255  v * 2^s, read with weight 2a         -- pairs with dim + 256
//             288..511 2v * 2^s, read with weight -a
//             256..287 v * 2^s in pairs 16 apart, read with weights a, -a
//   RoPE      0..15    levels
//             16..61   integers in pairs 23 apart, read with weights a, -a
//             62, 63   bias, twice, read with weights 2, -1
// v is -1..2, one v of a token 7, so that S is 2^s / 32 exactly; s is 0..2. A query has one a = 7
// for the same reason. Logits are integers times ln 2, and y = x / ln 2 + log2 S = bias + level +
// selectors is within 8 powers of two in a block of 128 tokens. In units of 2^-s the |products| of
// QK sum to less than 2^13; few tokens have large P', so that P V needs no more than 14 bits
// either.
constexpr int kExactPairs = 224, kExactLevels = 16;

float exact_level(Random& random) {
  float level = -6;
  while (level < 0 && random.integer(0, 1) == 0) ++level;
  return level;
}

void fill_exact_token(float* kv, Random& random, std::int64_t position, int bias) {
  const int s = static_cast<int>(random.integer(0, 2));
  const float factor = std::ldexp(1.0f, s);
  for (int d = 0; d < 32; ++d) kv[d] = static_cast<float>(random.integer(-1, 0));
  for (int i = 0; i < kExactPairs; ++i) {
    const float v = i == position % kExactPairs ? 7.0f : static_cast<float>(random.integer(-1, 2));
    kv[32 + i] = v * factor;
    kv[288 + i] = 2 * v * factor;
  }
  for (int d = 256; d < 272; ++d) {
    kv[d] = kv[d + 16] = static_cast<float>(random.integer(-1, 2)) * factor;
  }
  float* rope = kv + kKvLoraRank;
  for (int d = 0; d < kExactLevels; ++d) rope[d] = exact_level(random) - static_cast<float>(s);
  for (int d = 16; d < 39; ++d) rope[d] = rope[d + 23] = static_cast<float>(random.integer(-3, 3));
  rope[62] = rope[63] = static_cast<float>(bias);
}

void fill_exact_query(float* q, Random& random) {
  std::fill(q, q + kQkDim, 0.0f);
  q[random.integer(0, 15)] = 1.0f;
  q[random.integer(16, 31)] = 1.0f;
  const std::int64_t largest = random.integer(0, kExactPairs - 1);
  for (int i = 0; i < kExactPairs; ++i) {
    const float a = i == largest ? 7.0f : static_cast<float>(random.integer(-1, 1));
    q[32 + i] = 2 * a;
    q[288 + i] = -a;
  }
  for (int d = 256; d < 272; ++d) {
    q[d] = static_cast<float>(random.integer(-1, 1));
    q[d + 16] = -q[d];
  }
  float* rope = q + kKvLoraRank;
  rope[random.integer(0, kExactLevels - 1)] = 1.0f;
  for (int d = 16; d < 39; ++d) {
    rope[d] = static_cast<float>(random.integer(-2, 2));
    rope[d + 23] = -rope[d];
  }
  rope[62] = 2.0f;
  rope[63] = -1.0f;
}

/// Of the 128 tokens from `position` on. Close together, so that each block counts; in every third
/// case the first three steps are so high that whatever a row has accumulated is rescaled.
int exact_bias(const Case& c, std::int64_t position, Random& random) {
  const std::int64_t step = c.seed % 3 == 0 ? std::min<std::int64_t>(position / 128, 3) : 0;
  return static_cast<int>(24 * step + random.integer(0, 3));
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
        if (position % kPlanBlockTokens == 0) bias = exact_bias(p.spec, position, random);
        fill_exact_token(content, random, position, bias);
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
