#include "support/pipeline.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace snapmla::test {
namespace {

constexpr std::int64_t kContentBytes = kPageTokens * kKvLoraRank;
constexpr std::int64_t kRopeBytes = kPageTokens * kRopeDim * 2;
constexpr std::int64_t kScaleBytes = kPageTokens * 4;

// Poison for the three parts of one page.
const std::vector<std::uint8_t>& content_poison() {
  static const std::vector<std::uint8_t> bytes(kContentBytes, 0x7f);
  return bytes;
}
const std::vector<std::uint16_t>& rope_poison() {
  static const std::vector<std::uint16_t> values = [] {
    std::vector<std::uint16_t> v(kPageTokens * kRopeDim);
    constexpr std::uint16_t kinds[] = {0x7f80, 0xff80, 0x7fc0};  // Inf, -Inf, NaN
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = kinds[i % 3];
    return v;
  }();
  return values;
}
const std::vector<float>& scale_poison() {
  static const std::vector<float> values = [] {
    std::vector<float> v(kPageTokens);
    const float kinds[] = {std::numeric_limits<float>::quiet_NaN(),
                           std::numeric_limits<float>::infinity(), 1e38f};
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = kinds[i % 3];
    return v;
  }();
  return values;
}

}  // namespace

std::vector<std::uint8_t> encode(const std::vector<float>& values, DType dtype) {
  std::vector<std::uint8_t> bytes(values.size() * dtype_bytes(dtype));
  if (dtype == DType::f32) {
    if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::memcpy(&bytes[2 * i], reinterpret_cast<const char*>(&values[i]) + 2, 2);  // bf16 already
  }
  return bytes;
}

CacheBuffers::CacheBuffers(Memory& memory, CacheForm form, std::int64_t num_pages,
                           std::int64_t page_stride)
    : memory_(&memory), form_(form), num_pages_(num_pages), page_stride_(page_stride) {
  if (form == CacheForm::planes) {
    content_ = Buffer(memory, num_pages * kContentBytes);
    rope_ = Buffer(memory, num_pages * kRopeBytes);
    scale_ = Buffer(memory, num_pages * kScaleBytes);
    for (std::int64_t page = 0; page < num_pages; ++page) {
      content_.upload(content_poison().data(), kContentBytes, page * kContentBytes);
      rope_.upload(rope_poison().data(), kRopeBytes, page * kRopeBytes);
      scale_.upload(scale_poison().data(), kScaleBytes, page * kScaleBytes);
    }
    return;
  }
  pages_ = Buffer(memory, num_pages * page_stride);  // the gaps keep 0xff
  for (std::int64_t page = 0; page < num_pages; ++page) {
    pages_.upload(content_poison().data(), kContentBytes, page * page_stride);
    pages_.upload(rope_poison().data(), kRopeBytes, page * page_stride + 32768);
    pages_.upload(scale_poison().data(), kScaleBytes, page * page_stride + 40960);
  }
}

Cache CacheBuffers::cache() const {
  const Device device = memory_->device();
  if (form_ == CacheForm::planes) {
    return Cache::from_planes(
        TensorView(content_.data(), DType::e4m3, {num_pages_, kPageTokens, kKvLoraRank}, device),
        TensorView(scale_.data(), DType::f32, {num_pages_, kPageTokens}, device),
        TensorView(rope_.data(), DType::bf16, {num_pages_, kPageTokens, kRopeDim}, device));
  }
  return Cache::from_pages(
      TensorView(pages_.data(), DType::u8, {num_pages_, page_stride_}, device));
}

bool CacheBuffers::guards_intact() const {
  if (form_ == CacheForm::packed) return pages_.guards_intact();
  return content_.guards_intact() && rope_.guards_intact() && scale_.guards_intact();
}

std::vector<std::uint8_t> CacheBuffers::token_bytes(std::int64_t slot) const {
  return tokens_bytes({slot});
}

std::vector<std::uint8_t> CacheBuffers::tokens_bytes(const std::vector<std::int64_t>& slots) const {
  std::vector<std::uint8_t> all = all_bytes();
  std::vector<std::uint8_t> bytes(slots.size() * kTokenBytes);
  const bool packed = form_ == CacheForm::packed;
  const std::int64_t content_base = 0;
  const std::int64_t rope_base = packed ? 32768 : num_pages_ * kContentBytes;
  const std::int64_t scale_base = packed ? 40960 : num_pages_ * (kContentBytes + kRopeBytes);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const std::int64_t page = slots[i] / kPageTokens, offset = slots[i] % kPageTokens;
    std::uint8_t* to = &bytes[i * kTokenBytes];
    std::memcpy(to,
                &all[content_base + page * (packed ? page_stride_ : kContentBytes) + offset * 512],
                512);
    std::memcpy(to + 512,
                &all[rope_base + page * (packed ? page_stride_ : kRopeBytes) + offset * 128], 128);
    std::memcpy(to + 640,
                &all[scale_base + page * (packed ? page_stride_ : kScaleBytes) + offset * 4], 4);
  }
  return bytes;
}

std::vector<std::uint8_t> CacheBuffers::all_bytes() const {
  if (form_ == CacheForm::packed) return pages_.read<std::uint8_t>();
  std::vector<std::uint8_t> bytes = content_.read<std::uint8_t>();
  for (const Buffer* buffer : {&rope_, &scale_}) {
    const auto part = buffer->read<std::uint8_t>();
    bytes.insert(bytes.end(), part.begin(), part.end());
  }
  return bytes;
}

Pipeline::Pipeline(const Problem& problem, Memory& memory)
    : problem_(problem),
      memory_(memory),
      cache_(memory, problem.spec.form, problem.num_pages, problem.spec.page_stride) {
  const Case& c = problem_.spec;
  const std::int64_t rows = c.b() * c.rows();
  kv_ = Buffer::of(memory, encode(problem_.kv, c.in_dtype));
  slots_ = Buffer::of(memory, problem_.slots);
  q_ = Buffer::of(memory, encode(problem_.q, c.in_dtype));
  codes_ = Buffer(memory, rows * kKvLoraRank);
  q_scale_ = Buffer(memory, rows * 4);
  q_rope_ = Buffer(memory, rows * kRopeDim * 2);
  block_table_ = Buffer::of(memory, problem_.block_table);
  lengths_ = Buffer::of(memory, c.lengths);

  const PlanSpec spec = problem_.plan_spec(memory.device());
  plan_size_ = plan_size(spec, c.plan);
  schedule_ = Buffer(memory, plan_size_.schedule_rows * plan_size_.schedule_cols * 4);
  num_splits_ = Buffer(memory, plan_size_.num_splits * 4);
  workspace_ = Buffer(memory, workspace_bytes(spec, c.plan));

  out_row_ = kKvLoraRank + (c.padded ? 16 : 0);
  lse_stride_ = c.s_q + (c.padded ? 1 : 0);
  out_ = Buffer(memory, rows * out_row_ * dtype_bytes(c.out_dtype));
  lse_ = Buffer(memory, c.b() * c.h_q * lse_stride_ * 4);
  status_ = Buffer::of(memory, std::vector<std::int32_t>{0});
}

void Pipeline::append() {
  const Case& c = problem_.spec;
  const Device device = memory_.device();
  AppendOptions options;
  options.scale = c.scale;
  options.status = TensorView(status_.data(), DType::i32, {1}, device);
  const std::int64_t n = problem_.tokens();
  append_kv(cache(), TensorView(kv_.data(), c.in_dtype, {n, kQkDim}, device),
            TensorView(slots_.data(), DType::i64, {n}, device), options, memory_.stream());
  EXPECT_EQ(status(), 0) << to_string(c);
}

void Pipeline::quantize() {
  const Case& c = problem_.spec;
  quantize_query(TensorView(q_.data(), c.in_dtype, {c.b(), c.s_q, c.h_q, kQkDim}, memory_.device()),
                 query(), {c.scale}, memory_.stream());
}

void Pipeline::plan() {
  plan_decode(lengths(), problem_.plan_spec(memory_.device()), problem_.spec.plan, decode_plan(),
              memory_.stream());
}

void Pipeline::decode(const NumericsOptions& numerics) {
  DecodeOptions options;
  options.numerics = numerics;
  options.status = TensorView(status_.data(), DType::i32, {1}, memory_.device());
  snapmla::decode(decode_plan(), query(), cache(), block_table(), lengths(), problem_.softmax_scale,
                  problem_.spec.causal, out(), lse(), workspace(), memory_.stream(), options);
}

QuantizedQuery Pipeline::query() const {
  const Case& c = problem_.spec;
  const Device device = memory_.device();
  return {TensorView(codes_.data(), DType::e4m3, {c.b(), c.s_q, c.h_q, kKvLoraRank}, device),
          TensorView(q_scale_.data(), DType::f32, {c.b(), c.s_q, c.h_q}, device),
          TensorView(q_rope_.data(), DType::bf16, {c.b(), c.s_q, c.h_q, kRopeDim}, device)};
}

DecodePlan Pipeline::decode_plan() const {
  const Device device = memory_.device();
  return {TensorView(schedule_.data(), DType::i32,
                     {plan_size_.schedule_rows, plan_size_.schedule_cols}, device),
          TensorView(num_splits_.data(), DType::i32, {plan_size_.num_splits}, device)};
}

TensorView Pipeline::block_table() const {
  return TensorView(block_table_.data(), DType::i32, {problem_.spec.b(), problem_.max_blocks},
                    {problem_.table_stride, 1}, memory_.device());
}

TensorView Pipeline::lengths() const {
  return TensorView(lengths_.data(), DType::i32, {problem_.spec.b()}, memory_.device());
}

TensorView Pipeline::out() const {
  const Case& c = problem_.spec;
  return TensorView(out_.data(), c.out_dtype, {c.b(), c.s_q, c.h_q, kKvLoraRank},
                    {c.rows() * out_row_, c.h_q * out_row_, out_row_, 1}, memory_.device());
}

TensorView Pipeline::lse() const {
  const Case& c = problem_.spec;
  return TensorView(lse_.data(), DType::f32, {c.b(), c.h_q, c.s_q},
                    {c.h_q * lse_stride_, lse_stride_, 1}, memory_.device());
}

TensorView Pipeline::workspace() const {
  return TensorView(workspace_.data(), DType::u8, {static_cast<std::int64_t>(workspace_.bytes())},
                    memory_.device());
}

void Pipeline::check_guards() const {
  EXPECT_TRUE(cache_.guards_intact()) << "cache guard bands were written";
  const std::pair<const Buffer*, const char*> buffers[] = {{&kv_, "kv"},
                                                           {&q_, "q"},
                                                           {&codes_, "codes"},
                                                           {&q_scale_, "q_scale"},
                                                           {&q_rope_, "q_rope"},
                                                           {&block_table_, "block_table"},
                                                           {&lengths_, "lengths"},
                                                           {&schedule_, "schedule"},
                                                           {&workspace_, "workspace"},
                                                           {&num_splits_, "num_splits"},
                                                           {&out_, "out"},
                                                           {&lse_, "lse"}};
  for (const auto& [buffer, name] : buffers) {
    EXPECT_TRUE(buffer->guards_intact())
        << "guard bands of " << name << " were written; " << to_string(problem_.spec);
  }
}

Result Pipeline::result() {
  check_guards();
  const Case& c = problem_.spec;
  Result result;
  const std::size_t width = dtype_bytes(c.out_dtype);
  const auto bytes = out_.read<std::uint8_t>();
  result.out.reserve(c.b() * c.rows() * kKvLoraRank);
  bool gap_written = false;
  for (std::int64_t row = 0; row < c.b() * c.rows(); ++row) {
    const std::uint8_t* from = &bytes[row * out_row_ * width];
    for (std::int64_t d = 0; d < out_row_; ++d, from += width) {
      if (d >= kKvLoraRank) {
        for (std::size_t i = 0; i < width; ++i) gap_written = gap_written || from[i] != 0xff;
      } else if (width == 2) {
        std::uint16_t bits;
        std::memcpy(&bits, from, 2);
        result.out.push_back(bf16_value(bits));
      } else {
        float value;
        std::memcpy(&value, from, 4);
        result.out.push_back(value);
      }
    }
  }
  const auto lse = lse_.read<float>();
  for (std::size_t i = 0; i < lse.size(); ++i) {
    if (static_cast<std::int64_t>(i) % lse_stride_ < c.s_q) {
      result.lse.push_back(lse[i]);
    } else {
      std::uint32_t bits;
      std::memcpy(&bits, &lse[i], 4);
      gap_written = gap_written || bits != 0xffffffffu;
    }
  }
  EXPECT_FALSE(gap_written) << "gaps between rows of out or lse were written; " << to_string(c);
  return result;
}

Stored Pipeline::stored() const {
  const Case& c = problem_.spec;
  Stored stored;
  const auto bytes = cache_.tokens_bytes(problem_.slots);
  stored.kv.resize(problem_.tokens() * kQkDim);
  for (std::int64_t t = 0; t < problem_.tokens(); ++t) {
    const std::uint8_t* token = &bytes[t * kTokenBytes];
    float scale;
    std::memcpy(&scale, token + 640, 4);
    float* to = &stored.kv[t * kQkDim];
    for (int d = 0; d < kKvLoraRank; ++d) to[d] = e4m3_value(token[d]) * scale;
    for (int d = 0; d < kRopeDim; ++d) {
      std::uint16_t bits;
      std::memcpy(&bits, token + 512 + 2 * d, 2);
      to[kKvLoraRank + d] = bf16_value(bits) * scale;
    }
  }
  const auto codes = codes_.read<std::uint8_t>();
  const auto scales = q_scale_.read<float>();
  const auto rope = q_rope_.read<std::uint16_t>();
  const std::int64_t rows = c.b() * c.rows();
  stored.q.resize(rows * kQkDim);
  for (std::int64_t row = 0; row < rows; ++row) {
    float* to = &stored.q[row * kQkDim];
    for (int d = 0; d < kKvLoraRank; ++d) {
      to[d] = e4m3_value(codes[row * kKvLoraRank + d]) * scales[row];
    }
    for (int d = 0; d < kRopeDim; ++d) {
      to[kKvLoraRank + d] = bf16_value(rope[row * kRopeDim + d]) * scales[row];
    }
  }
  return stored;
}

Result run(const Problem& problem, Memory& memory, const NumericsOptions& numerics) {
  Pipeline pipeline(problem, memory);
  pipeline.append();
  pipeline.quantize();
  pipeline.plan();
  pipeline.decode(numerics);
  return pipeline.result();
}

}  // namespace snapmla::test
