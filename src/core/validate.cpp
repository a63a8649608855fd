#include "core/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "core/tile_scheduler.h"

namespace snapmla {
namespace {

constexpr std::int64_t kAny = -1;
// CUDA kernels read and write rows 16 bytes at a time.
constexpr std::int64_t kRowAlignment = 16;

/// A shape; kAny stands for any size. No heap: every call checks a dozen of them.
class Dims {
 public:
  Dims(std::initializer_list<std::int64_t> dims) {
    for (std::int64_t dim : dims) push_back(dim);
  }
  void push_back(std::int64_t dim) { dims_[size_++] = dim; }
  std::size_t size() const { return size_; }
  std::int64_t operator[](std::size_t d) const { return dims_[d]; }
  std::int64_t& operator[](std::size_t d) { return dims_[d]; }

 private:
  std::array<std::int64_t, TensorView::kMaxRank> dims_{};
  std::size_t size_ = 0;
};

std::string describe(const Dims& dims) {
  std::string text = "[";
  for (std::size_t d = 0; d < dims.size(); ++d) {
    text += d ? ", " : "";
    text += dims[d] == kAny ? "*" : std::to_string(dims[d]);
  }
  return text + "]";
}

bool fits(const TensorView& t, const Dims& dims) {
  if (t.rank != static_cast<int>(dims.size())) return false;
  for (std::size_t d = 0; d < dims.size(); ++d) {
    if (t.shape[d] < 0 || (dims[d] != kAny && t.shape[d] != dims[d])) return false;
  }
  return true;
}

/// Also bounds the strides, so that no offset computed from them overflows.
void check_shape(const TensorView& t, std::string_view name, const Dims& dims) {
  SNAPMLA_CHECK(t.defined(), name, "a tensor of shape " + describe(dims), "no tensor");
  SNAPMLA_CHECK(fits(t, dims), name, "shape " + describe(dims), to_string(t));
  constexpr std::int64_t kMaxSpan = std::int64_t{1} << 56;  // elements
  for (int d = 0; d < t.rank; ++d) {
    const std::int64_t limit = kMaxSpan / std::max<std::int64_t>(t.shape[d], 1);
    SNAPMLA_CHECK(t.strides[d] >= -limit && t.strides[d] <= limit, name,
                  "strides that span less than 2^56 elements",
                  fmt::format("stride {} in dimension {}", t.strides[d], d));
  }
  SNAPMLA_CHECK(t.data != nullptr || t.numel() == 0, name, "a data pointer", "null");
}

std::string describe(std::initializer_list<DType> dtypes) {
  std::string text;
  for (DType dtype : dtypes) {
    text += text.empty() ? "" : " or ";
    text += dtype_name(dtype);
  }
  return text;
}

void check_dtype(const TensorView& t, std::string_view name, std::initializer_list<DType> allowed) {
  const bool ok =
      t.defined() && std::find(allowed.begin(), allowed.end(), t.dtype) != allowed.end();
  SNAPMLA_CHECK(ok, name, "dtype " + describe(allowed),
                t.defined() ? dtype_name(t.dtype) : "no tensor");
}

void check_device(const TensorView& t, std::string_view name, Device device) {
  // There is one CPU, whatever index its tensors carry.
  const bool same = t.device.type == device.type &&
                    (device.type == DeviceType::cpu || t.device.index == device.index);
  SNAPMLA_CHECK(same, name, "a tensor on " + to_string(device), to_string(t.device));
}

void check_aligned(const TensorView& t, std::string_view name, std::int64_t bytes) {
  SNAPMLA_CHECK(reinterpret_cast<std::uintptr_t>(t.data) % bytes == 0, name,
                fmt::format("a {}-byte aligned address", bytes),
                fmt::format("0x{:x}", reinterpret_cast<std::uintptr_t>(t.data)));
}

std::int64_t element_bytes(const TensorView& t) {
  return static_cast<std::int64_t>(dtype_bytes(t.dtype));
}

/// No element of a tensor that is written may have two indices: each stride must step over all that
/// the smaller ones reach.
void check_no_overlap(const TensorView& t, std::string_view name) {
  if (t.numel() == 0) return;
  std::vector<std::pair<std::int64_t, std::int64_t>> dims;  // |stride|, shape
  for (int d = 0; d < t.rank; ++d) {
    if (t.shape[d] > 1) dims.emplace_back(std::abs(t.strides[d]), t.shape[d]);
  }
  std::sort(dims.begin(), dims.end());
  std::int64_t extent = 1;
  for (const auto& [stride, shape] : dims) {
    SNAPMLA_CHECK(stride >= extent, name,
                  "strides with which no two elements overlap, as it is written",
                  fmt::format("stride {} over {} elements", stride, extent));
    extent += stride * (shape - 1);
  }
}

/// Leading dimensions strided, last one dense; on CUDA every row must start 16-byte aligned.
Rows check_rows(const TensorView& t, std::string_view name, bool written = false) {
  const int last = t.rank - 1;
  SNAPMLA_CHECK(t.shape[last] <= 1 || t.strides[last] == 1, name, "a dense last dimension",
                fmt::format("stride {}", t.strides[last]));
  Rows rows;
  rows.data = t.data;
  rows.dtype = t.dtype;
  for (int d = 0; d < last; ++d) {
    rows.stride[d] = t.shape[d] > 1 ? t.strides[d] : 0;
    if (t.device.type == DeviceType::cuda) {
      SNAPMLA_CHECK(rows.stride[d] * element_bytes(t) % kRowAlignment == 0, name,
                    fmt::format("strides that are multiples of {} bytes on CUDA", kRowAlignment),
                    fmt::format("stride {} in dimension {}", rows.stride[d], d));
    }
  }
  check_aligned(t, name, t.device.type == DeviceType::cuda ? kRowAlignment : element_bytes(t));
  if (written) check_no_overlap(t, name);
  return rows;
}

/// One 576-wide tensor or two of 512 and 64. `lead` has the leading dimensions.
struct SplitRows {
  Rows content, rope;
  Device device;
  Dims lead;
};

SplitRows check_content_rope(const ContentRope& t, std::string_view joined_name,
                             std::string_view content_name, std::string_view rope_name, Dims lead,
                             bool written = false) {
  const auto with = [](Dims dims, std::int64_t width) {
    dims.push_back(width);
    return dims;
  };
  TensorView content = t.content, rope = t.rope;
  if (t.joined.defined()) {
    check_shape(t.joined, joined_name, with(lead, kQkDim));
    content = t.joined.slice(t.joined.rank - 1, 0, kKvLoraRank);
    rope = t.joined.slice(t.joined.rank - 1, kKvLoraRank, kQkDim);
    content_name = rope_name = joined_name;
  }
  check_shape(content, content_name, with(lead, kKvLoraRank));
  for (std::size_t d = 0; d < lead.size(); ++d) lead[d] = content.shape[d];
  check_shape(rope, rope_name, with(lead, kRopeDim));
  check_dtype(content, content_name, {DType::bf16, DType::f32});
  check_dtype(rope, rope_name, {content.dtype});
  check_device(rope, rope_name, content.device);
  return {check_rows(content, content_name, written), check_rows(rope, rope_name, written),
          content.device, lead};
}

/// A vector of int32 or int64.
Indices check_indices(const TensorView& t, std::string_view name, Device device,
                      std::int64_t length) {
  check_shape(t, name, {length});
  check_dtype(t, name, {DType::i32, DType::i64});
  check_device(t, name, device);
  check_aligned(t, name, element_bytes(t));
  return {t.data, t.dtype == DType::i64, t.strides[0]};
}

/// A dense int32 vector.
const std::int32_t* check_int_vector(const TensorView& t, std::string_view name, Device device,
                                     std::int64_t length) {
  check_shape(t, name, {length});
  check_dtype(t, name, {DType::i32});
  check_device(t, name, device);
  SNAPMLA_CHECK(t.is_contiguous(), name, "a contiguous tensor",
                fmt::format("stride {}", t.strides[0]));
  check_aligned(t, name, 4);
  return static_cast<const std::int32_t*>(t.data);
}

std::int32_t* check_status(const TensorView& t, std::string_view name, Device device) {
  if (!t.defined()) return nullptr;
  return const_cast<std::int32_t*>(check_int_vector(t, name, device, 1));
}

char* check_plane(const TensorView& t, std::string_view name, std::int64_t num_pages,
                  std::int64_t width, Device device, std::int64_t& page_stride) {
  // A page of the plane: [64] for the scale (width 0), [64, width] otherwise, dense.
  Dims dims = {num_pages, kPageTokens};
  if (width > 0) dims.push_back(width);
  check_shape(t, name, dims);
  check_device(t, name, device);
  const std::int64_t row = width > 0 ? width : 1;
  SNAPMLA_CHECK(t.strides[1] == row && (width == 0 || t.strides[2] == 1), name,
                "pages that are contiguous inside (a sliced or padded token row is not supported)",
                fmt::format("token stride {}", t.strides[1]));
  page_stride = t.strides[0] * element_bytes(t);
  SNAPMLA_CHECK(num_pages <= 1 || page_stride >= row * kPageTokens * element_bytes(t), name,
                "a page stride of at least one page", fmt::format("{} bytes", page_stride));
  SNAPMLA_CHECK(page_stride % kRowAlignment == 0, name,
                fmt::format("a page stride that is a multiple of {} bytes", kRowAlignment),
                fmt::format("{} bytes", page_stride));
  check_aligned(t, name, kRowAlignment);
  return static_cast<char*>(t.data);
}

CacheAccess check_cache(const Cache& cache, Device device) {
  CacheAccess access;
  if (cache.form == CacheForm::planes) {
    check_shape(cache.content, "cache.content", {kAny, kPageTokens, kKvLoraRank});
    const std::int64_t n = cache.content.shape[0];
    SNAPMLA_CHECK(
        cache.content.dtype == DType::e4m3 || cache.content.dtype == DType::u8, "cache.content",
        "dtype e4m3 or u8 (FP8 content; a bf16 plane means the engine runs without an FP8 cache: "
        "pass --kv-cache-dtype fp8_e4m3)",
        dtype_name(cache.content.dtype));
    SNAPMLA_CHECK(cache.num_pages == n, "cache.num_pages", fmt::format("{}", n), cache.num_pages);
    access.content = check_plane(cache.content, "cache.content", n, kKvLoraRank, device,
                                 access.content_page_stride);
    check_dtype(cache.scale, "cache.scale", {DType::f32});
    access.scale = check_plane(cache.scale, "cache.scale", n, 0, device, access.scale_page_stride);
    check_dtype(cache.rope, "cache.rope", {DType::bf16});
    access.rope =
        check_plane(cache.rope, "cache.rope", n, kRopeDim, device, access.rope_page_stride);
    access.num_pages = n;
  } else {
    check_shape(cache.pages, "cache.pages", {kAny, kAny});
    check_dtype(cache.pages, "cache.pages", {DType::u8, DType::e4m3});
    check_device(cache.pages, "cache.pages", device);
    SNAPMLA_CHECK(cache.pages.shape[1] >= kPackedPageBytes, "cache.pages",
                  fmt::format("at least {} bytes per page", kPackedPageBytes),
                  cache.pages.shape[1]);
    SNAPMLA_CHECK(cache.pages.strides[1] == 1, "cache.pages", "dense pages",
                  fmt::format("stride {} in dimension 1", cache.pages.strides[1]));
    SNAPMLA_CHECK(cache.num_pages == cache.pages.shape[0], "cache.num_pages",
                  fmt::format("{}", cache.pages.shape[0]), cache.num_pages);
    SNAPMLA_CHECK(cache.num_pages <= 1 || cache.page_stride_bytes >= kPackedPageBytes,
                  "cache.page_stride_bytes", fmt::format("at least {}", kPackedPageBytes),
                  cache.page_stride_bytes);
    SNAPMLA_CHECK(cache.page_stride_bytes % kRowAlignment == 0, "cache.page_stride_bytes",
                  fmt::format("a multiple of {}", kRowAlignment), cache.page_stride_bytes);
    check_aligned(cache.pages, "cache.pages", kRowAlignment);
    char* base = static_cast<char*>(cache.pages.data);
    access.content = base + kPackedContentOffset;
    access.rope = base + kPackedRopeOffset;
    access.scale = base + kPackedScaleOffset;
    access.content_page_stride = access.rope_page_stride = access.scale_page_stride =
        cache.page_stride_bytes;
    access.num_pages = cache.num_pages;
  }
  SNAPMLA_CHECK(access.num_pages <= std::numeric_limits<std::int32_t>::max(), "cache.num_pages",
                "at most 2^31 - 1 pages", access.num_pages);
  return access;
}

Device cache_device(const Cache& cache) {
  return cache.form == CacheForm::planes ? cache.content.device : cache.pages.device;
}

BlockTable check_block_table(const TensorView& t, std::string_view name, Device device,
                             std::int64_t b) {
  check_shape(t, name, {b, kAny});
  check_dtype(t, name, {DType::i32});
  check_device(t, name, device);
  SNAPMLA_CHECK(t.shape[1] <= 1 || t.strides[1] == 1, name, "dense rows",
                fmt::format("stride {} in dimension 1", t.strides[1]));
  check_aligned(t, name, 4);
  return {static_cast<const std::int32_t*>(t.data), t.strides[0], t.shape[1]};
}

void check_query(const QuantizedQuery& query, std::string_view prefix, const Dims& lead,
                 Device device) {
  const std::string codes = fmt::format("{}.codes", prefix);
  const std::string scale = fmt::format("{}.scale", prefix);
  const std::string rope = fmt::format("{}.rope", prefix);
  check_shape(query.codes, codes, {lead[0], lead[1], lead[2], kKvLoraRank});
  const Dims actual = {query.codes.shape[0], query.codes.shape[1], query.codes.shape[2]};
  check_shape(query.scale, scale, actual);
  check_shape(query.rope, rope, {actual[0], actual[1], actual[2], kRopeDim});
  check_dtype(query.codes, codes, {DType::e4m3, DType::u8});
  check_dtype(query.scale, scale, {DType::f32});
  check_dtype(query.rope, rope, {DType::bf16});
  check_device(query.codes, codes, device);
  check_device(query.scale, scale, device);
  check_device(query.rope, rope, device);
}

void check_output(const TensorView& out, const Dims& lead, Device device, Rows& rows) {
  check_shape(out, "out", {lead[0], lead[1], lead[2], kKvLoraRank});
  check_dtype(out, "out", {DType::bf16, DType::f32});
  check_device(out, "out", device);
  rows = check_rows(out, "out", /*written=*/true);
}

float* check_lse(const TensorView& lse, const Dims& lead, Device device, std::int64_t stride[3]) {
  if (!lse.defined()) return nullptr;
  check_shape(lse, "lse", {lead[0], lead[2], lead[1]});
  check_dtype(lse, "lse", {DType::f32});
  check_device(lse, "lse", device);
  check_aligned(lse, "lse", 4);
  check_no_overlap(lse, "lse");
  for (int d = 0; d < 3; ++d) {
    stride[d] = lse.strides[d];
  }
  return static_cast<float*>(lse.data);
}

}  // namespace

Validated<QuantizeQueryArgs> validate_quantize_query(const ContentRope& q,
                                                     const QuantizedQuery& out,
                                                     const QuantizeOptions& options) {
  const SplitRows rows = check_content_rope(q, "q", "q_nope", "q_rope", {kAny, kAny, kAny});
  check_query(out, "out", rows.lead, rows.device);
  QuantizeQueryArgs args;
  args.content = rows.content;
  args.rope = rows.rope;
  args.out_codes = check_rows(out.codes, "out.codes", true);
  args.out_rope = check_rows(out.rope, "out.rope", true);
  args.out_scale.data = out.scale.data;
  args.out_scale.dtype = DType::f32;
  check_aligned(out.scale, "out.scale", 4);
  check_no_overlap(out.scale, "out.scale");
  for (int d = 0; d < 3; ++d) {
    args.out_scale.stride[d] = out.scale.strides[d];
  }
  args.b = rows.lead[0];
  args.s_q = rows.lead[1];
  args.h_q = rows.lead[2];
  args.mode = options.scale;
  return {args, rows.device};
}

Validated<AppendArgs> validate_append(const Cache& cache, const ContentRope& kv,
                                      const TensorView& slots, const AppendOptions& options) {
  const Device device = cache_device(cache);
  AppendArgs args;
  args.cache = check_cache(cache, device);
  const SplitRows rows = check_content_rope(kv, "kv", "content", "rope", {kAny});
  SNAPMLA_CHECK(rows.device == device, kv.joined.defined() ? "kv" : "content",
                "a tensor on " + to_string(device), to_string(rows.device));
  args.content = rows.content;
  args.rope = rows.rope;
  args.tokens = rows.lead[0];
  args.slots = check_indices(slots, "slots", device, args.tokens);
  args.mode = options.scale;
  args.has_pad_slot = options.pad_slot.has_value();
  args.pad_slot = options.pad_slot.value_or(0);
  args.status = check_status(options.status, "options.status", device);
  return {args, device};
}

Validated<FetchArgs> validate_fetch(const Cache& cache, const TensorView& slots,
                                    const ContentRope& out, const TensorView& status) {
  const Device device = cache_device(cache);
  FetchArgs args;
  args.cache = check_cache(cache, device);
  const SplitRows rows = check_content_rope(out, "out", "out.content", "out.rope", {kAny}, true);
  SNAPMLA_CHECK(rows.device == device, "out", "a tensor on " + to_string(device),
                to_string(rows.device));
  args.content = rows.content;
  args.rope = rows.rope;
  args.rows = rows.lead[0];
  args.slots = check_indices(slots, "slots", device, args.rows);
  args.status = check_status(status, "status", device);
  return {args, device};
}

Validated<FetchArgs> validate_fetch(const Cache& cache, const TokenRanges& ranges,
                                    const ContentRope& out, const TensorView& status) {
  const Device device = cache_device(cache);
  FetchArgs args;
  args.by_ranges = true;
  args.cache = check_cache(cache, device);
  const SplitRows rows = check_content_rope(out, "out", "out.content", "out.rope", {kAny}, true);
  SNAPMLA_CHECK(rows.device == device, "out", "a tensor on " + to_string(device),
                to_string(rows.device));
  args.content = rows.content;
  args.rope = rows.rope;
  args.rows = rows.lead[0];
  args.block_table = check_block_table(ranges.block_table, "ranges.block_table", device, kAny);
  args.b = ranges.block_table.shape[0];
  args.starts = check_int_vector(ranges.starts, "ranges.starts", device, args.b);
  args.lengths = check_int_vector(ranges.lengths, "ranges.lengths", device, args.b);
  args.offsets = check_int_vector(ranges.offsets, "ranges.offsets", device, args.b);
  args.status = check_status(status, "status", device);
  return {args, device};
}

Validated<CopyArgs> validate_copy(const Cache& cache, const TensorView& src, const TensorView& dst,
                                  const TensorView& status) {
  const Device device = cache_device(cache);
  CopyArgs args;
  args.cache = check_cache(cache, device);
  args.src = check_indices(src, "src", device, kAny);
  args.tokens = src.shape[0];
  args.dst = check_indices(dst, "dst", device, args.tokens);
  args.status = check_status(status, "status", device);
  return {args, device};
}

PlanOptions resolve_plan_options(const PlanSpec& spec, const PlanOptions& options, int workers,
                                 int p_block) {
  constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();
  SNAPMLA_CHECK(spec.b >= 0 && spec.b < kInt32Max, "spec.b", "0 <= b < 2^31 - 1", spec.b);
  SNAPMLA_CHECK(spec.rows >= 1 && spec.rows <= kInt32Max, "spec.rows", "1 <= s_q * h_q <= 2^31 - 1",
                spec.rows);
  SNAPMLA_CHECK(spec.max_seqlen >= 0 && spec.max_seqlen <= kInt32Max, "spec.max_seqlen",
                "0 <= max_seqlen <= 2^31 - 1", spec.max_seqlen);
  SNAPMLA_CHECK(options.forced_splits >= 0, "options.forced_splits",
                "0 or a positive number of splits", options.forced_splits);
  SNAPMLA_CHECK(options.split_tokens >= 0 && options.split_tokens % kPlanBlockTokens == 0,
                "options.split_tokens",
                fmt::format("0 or a positive multiple of {}", kPlanBlockTokens),
                options.split_tokens);
  SNAPMLA_CHECK(options.forced_splits == 0 || options.split_tokens == 0, "options.forced_splits",
                "0 together with split_tokens", options.forced_splits);
  SNAPMLA_CHECK(options.forced_splits == 0 || !options.batch_invariant, "options.forced_splits",
                "0 in a batch-invariant plan (its splits have a fixed length: set split_tokens)",
                options.forced_splits);
  SNAPMLA_CHECK(
      (options.split_tokens == 0 && !options.batch_invariant) || spec.max_seqlen > 0 || spec.b == 0,
      "spec.max_seqlen", "an upper bound of cache_seqlens, as splits have a fixed length in tokens",
      spec.max_seqlen);
  SNAPMLA_CHECK(options.num_sms >= 0 && options.num_sms <= (1 << 20), "options.num_sms",
                "0 or a number of workers up to 2^20", options.num_sms);
  SNAPMLA_CHECK(options.p_block == 0 || options.p_block == 64 || options.p_block == 128,
                "options.p_block", "0, 64 or 128", options.p_block);
  PlanOptions resolved = options;
  if (resolved.num_sms == 0) resolved.num_sms = workers;
  if (resolved.p_block == 0) resolved.p_block = p_block;
  const std::int64_t partials = max_partial_results(make_schedule_header(spec, resolved));
  SNAPMLA_CHECK(partials <= kInt32Max, "options", "fewer than 2^31 partial results (b * splits)",
                partials);
  SNAPMLA_CHECK(
      partials <= std::numeric_limits<std::int64_t>::max() / partial_result_bytes(spec.rows),
      "options", "a workspace of less than 2^63 bytes (partial results * rows * 2052)", partials);
  return resolved;
}

Validated<PlanArgs> validate_plan(const TensorView& cache_seqlens, const PlanSpec& spec,
                                  const PlanOptions& resolved, const DecodePlan& plan) {
  PlanArgs args;
  args.spec = spec;
  args.options = resolved;
  args.cache_seqlens = check_int_vector(cache_seqlens, "cache_seqlens", spec.device, spec.b);
  const std::int64_t rows = plan_workers(spec.rows, resolved.num_sms) + 1;
  check_shape(plan.schedule, "plan.schedule", {rows, kScheduleCols});
  check_dtype(plan.schedule, "plan.schedule", {DType::i32});
  check_device(plan.schedule, "plan.schedule", spec.device);
  SNAPMLA_CHECK(plan.schedule.is_contiguous(), "plan.schedule", "a contiguous tensor",
                fmt::format("row stride {}", plan.schedule.strides[0]));
  check_aligned(plan.schedule, "plan.schedule", 4);
  args.schedule = static_cast<std::int32_t*>(plan.schedule.data);
  args.num_splits = const_cast<std::int32_t*>(
      check_int_vector(plan.num_splits, "plan.num_splits", spec.device, spec.b + 1));
  return {args, spec.device};
}

void validate_numerics(const NumericsOptions& numerics) {
  SNAPMLA_CHECK(numerics.qk_accumulators == 1 || numerics.qk_accumulators == 2 ||
                    numerics.qk_accumulators == 4,
                "numerics.qk_accumulators", "1, 2 or 4", numerics.qk_accumulators);
}

void validate_problem(const DecodeProblem& problem) {
  constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();
  SNAPMLA_CHECK(problem.b >= 0 && problem.b < kInt32Max, "problem.b", "0 <= b < 2^31 - 1",
                problem.b);
  SNAPMLA_CHECK(problem.s_q >= 1 && problem.s_q <= kInt32Max, "problem.s_q", "1 <= s_q < 2^31",
                problem.s_q);
  SNAPMLA_CHECK(problem.h_q >= 1 && problem.h_q <= kInt32Max / problem.s_q, "problem.h_q",
                "h_q >= 1 and s_q * h_q < 2^31", problem.h_q);
  SNAPMLA_CHECK(problem.max_seqlen >= 0 && problem.max_seqlen <= kInt32Max, "problem.max_seqlen",
                "0 <= max_seqlen < 2^31", problem.max_seqlen);
  SNAPMLA_CHECK(problem.b * problem.max_seqlen < (std::int64_t{1} << 53), "problem.b",
                "b * max_seqlen < 2^53", problem.b);
  SNAPMLA_CHECK(problem.out_dtype == DType::bf16 || problem.out_dtype == DType::f32,
                "problem.out_dtype", "bf16 or f32", dtype_name(problem.out_dtype));
  validate_numerics(problem.numerics);
}

Validated<DecodeArgs> validate_decode(const DecodePlan& plan, const QuantizedQuery& query,
                                      const Cache& cache, const TensorView& block_table,
                                      const TensorView& cache_seqlens, float softmax_scale,
                                      bool causal, const TensorView& out, const TensorView& lse,
                                      const TensorView& workspace, const DecodeOptions& options) {
  const Device device = cache_device(cache);
  DecodeArgs args;
  args.cache = check_cache(cache, device);
  check_query(query, "query", {kAny, kAny, kAny}, device);
  const Dims lead = {query.codes.shape[0], query.codes.shape[1], query.codes.shape[2]};
  for (const auto& [tensor, name] :
       {std::pair{&query.codes, "query.codes"}, std::pair{&query.scale, "query.scale"},
        std::pair{&query.rope, "query.rope"}}) {
    SNAPMLA_CHECK(tensor->is_contiguous(), name, "a contiguous tensor",
                  to_string(*tensor) + " with strides");
    const bool is_scale = tensor == &query.scale;
    check_aligned(*tensor, name, is_scale ? 4 : kRowAlignment);
  }
  args.b = lead[0];
  args.s_q = lead[1];
  args.h_q = lead[2];
  SNAPMLA_CHECK(args.s_q >= 1 && args.h_q >= 1, "query.codes", "s_q >= 1 and h_q >= 1",
                to_string(query.codes));
  SNAPMLA_CHECK(args.rows() <= std::numeric_limits<std::int32_t>::max(), "query.codes",
                "s_q * h_q < 2^31", args.rows());
  args.q_codes = static_cast<const std::uint8_t*>(query.codes.data);
  args.q_scale = static_cast<const float*>(query.scale.data);
  args.q_rope = static_cast<const std::uint16_t*>(query.rope.data);

  check_shape(plan.schedule, "plan.schedule", {kAny, kScheduleCols});
  check_dtype(plan.schedule, "plan.schedule", {DType::i32});
  check_device(plan.schedule, "plan.schedule", device);
  SNAPMLA_CHECK(plan.schedule.is_contiguous(), "plan.schedule", "a contiguous tensor",
                fmt::format("row stride {}", plan.schedule.strides[0]));
  SNAPMLA_CHECK(plan.schedule.shape[0] >= 2, "plan.schedule", "at least 2 rows",
                plan.schedule.shape[0]);
  check_aligned(plan.schedule, "plan.schedule", 4);
  args.schedule = static_cast<const std::int32_t*>(plan.schedule.data);
  args.schedule_rows = plan.schedule.shape[0];
  args.num_splits = check_int_vector(plan.num_splits, "plan.num_splits", device, args.b + 1);

  args.block_table = check_block_table(block_table, "block_table", device, args.b);
  args.cache_seqlens = check_int_vector(cache_seqlens, "cache_seqlens", device, args.b);
  SNAPMLA_CHECK(std::isfinite(softmax_scale), "softmax_scale", "a finite number", softmax_scale);
  args.softmax_scale = softmax_scale;
  args.causal = causal;
  check_output(out, lead, device, args.out);
  args.lse = check_lse(lse, lead, device, args.lse_stride);

  std::int64_t available = 0;
  if (workspace.defined()) {
    check_device(workspace, "workspace", device);
    SNAPMLA_CHECK(workspace.is_contiguous(), "workspace", "a contiguous tensor",
                  to_string(workspace));
    check_aligned(workspace, "workspace", kRowAlignment);
    available = workspace.bytes();
    SNAPMLA_CHECK(available == 0 || workspace.data != nullptr, "workspace", "a data pointer",
                  "null");
  }
  // The least that workspace_bytes() gives for a schedule of this size. Plans with fixed splits may
  // need more; where the header can be read that is checked too, elsewhere slots are clamped.
  const std::int64_t needed =
      partial_result_bytes(args.rows()) * balanced_partial_results(args.schedule_rows - 1);
  SNAPMLA_CHECK(available >= needed, "workspace",
                fmt::format("workspace_bytes(spec, options), at least {} bytes", needed),
                fmt::format("{} bytes", available));
  args.slots = available / partial_result_bytes(args.rows());
  args.out_accum = static_cast<float*>(workspace.data);
  args.lse_accum =
      args.slots > 0 ? args.out_accum + args.slots * args.rows() * kKvLoraRank : nullptr;
  args.status = check_status(options.status, "options.status", device);
  validate_numerics(options.numerics);
  args.numerics = options.numerics;
  return {args, device};
}

void check_host_plan(const DecodeArgs& a) {
  const auto& header = *reinterpret_cast<const ScheduleHeader*>(a.schedule);
  SNAPMLA_CHECK(header.version == kPlanVersion, "plan.schedule",
                fmt::format("version {} in word 0 (made by plan_decode)", kPlanVersion),
                header.version);
  SNAPMLA_CHECK(header.p_block == 64 || header.p_block == 128, "plan.schedule",
                "a P block of 64 or 128 in word 1", header.p_block);
  SNAPMLA_CHECK(header.workers == a.schedule_rows - 1, "plan.schedule",
                fmt::format("{} workers, as it has {} rows", a.schedule_rows - 1, a.schedule_rows),
                header.workers);
  SNAPMLA_CHECK(header.rows == a.rows(), "plan.schedule",
                fmt::format("a plan for rows = s_q * h_q = {}", a.rows()), header.rows);
  const std::int64_t requests = std::min<std::int64_t>(header.b, a.b);
  SNAPMLA_CHECK(requests >= 0, "plan.schedule", "a number of requests in word 3", header.b);
  SNAPMLA_CHECK(a.num_splits[0] == 0, "plan.num_splits", "0 as its first word", a.num_splits[0]);
  for (std::int64_t i = 0; i < requests; ++i) {
    SNAPMLA_CHECK(a.num_splits[i] <= a.num_splits[i + 1], "plan.num_splits", "no decrease",
                  fmt::format("{} then {}", a.num_splits[i], a.num_splits[i + 1]));
  }
  const std::int64_t used = requests > 0 ? a.num_splits[requests] : 0;
  SNAPMLA_CHECK(
      used <= a.slots, "workspace",
      fmt::format("{} bytes for the {} partial results of this plan (workspace_bytes with the "
                  "plan's own options)",
                  used * partial_result_bytes(a.rows()), used),
      fmt::format("room for {}", a.slots));
}

Validated<MergeArgs> validate_merge(const TensorView& outs, const TensorView& lses,
                                    const TensorView& out, const TensorView& lse) {
  check_shape(outs, "outs", {kAny, kAny, kAny, kAny, kKvLoraRank});
  check_dtype(outs, "outs", {DType::bf16, DType::f32});
  const Device device = outs.device;
  MergeArgs args;
  args.outs = check_rows(outs, "outs");
  args.n = outs.shape[0];
  const Dims lead = {outs.shape[1], outs.shape[2], outs.shape[3]};
  check_shape(lses, "lses", {args.n, lead[0], lead[2], lead[1]});
  check_dtype(lses, "lses", {DType::f32});
  check_device(lses, "lses", device);
  check_aligned(lses, "lses", 4);
  for (int d = 0; d < 4; ++d) args.lses_stride[d] = lses.strides[d];
  args.lses = static_cast<const float*>(lses.data);
  args.b = lead[0];
  args.s_q = lead[1];
  args.h_q = lead[2];
  check_output(out, lead, device, args.out);
  args.lse = check_lse(lse, lead, device, args.lse_stride);
  return {args, device};
}

}  // namespace snapmla
