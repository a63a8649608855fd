#pragma once

// Validated arguments, as backends receive them. Everything here is plain data that may be passed
// to a kernel by value. Strides of rows are in elements, strides of pages in bytes.

#include <cstdint>

#include "core/float_formats.h"
#include "snapmla/cache.h"
#include "snapmla/decode.h"
#include "snapmla/quantize.h"

namespace snapmla {

/// A tensor of up to four leading dimensions over dense rows.
struct Rows {
  void* data = nullptr;
  DType dtype = DType::bf16;
  std::int64_t stride[4] = {0, 0, 0, 0};

  SNAPMLA_HD std::int64_t offset(std::int64_t i, std::int64_t j = 0, std::int64_t k = 0,
                                 std::int64_t l = 0) const {
    return i * stride[0] + j * stride[1] + k * stride[2] + l * stride[3];
  }
};

/// int32 or int64 values, strided.
struct Indices {
  const void* data = nullptr;
  bool is_i64 = false;
  std::int64_t stride = 1;

  SNAPMLA_HD std::int64_t operator[](std::int64_t i) const {
    return is_i64 ? static_cast<const std::int64_t*>(data)[i * stride]
                  : static_cast<const std::int32_t*>(data)[i * stride];
  }
};

/// Both cache forms reduced to three base pointers with page strides in bytes.
struct CacheAccess {
  char* content = nullptr;  // page + token * 512
  char* rope = nullptr;     // page + token * 128
  char* scale = nullptr;    // page + token * 4
  std::int64_t content_page_stride = 0, rope_page_stride = 0, scale_page_stride = 0;
  std::int64_t num_pages = 0;

  SNAPMLA_HD bool has_slot(std::int64_t slot) const {
    return slot >= 0 && slot < num_pages * kPageTokens;
  }
  SNAPMLA_HD std::uint8_t* content_at(std::int64_t slot) const {
    return reinterpret_cast<std::uint8_t*>(content + (slot / kPageTokens) * content_page_stride +
                                           (slot % kPageTokens) * kKvLoraRank);
  }
  SNAPMLA_HD std::uint16_t* rope_at(std::int64_t slot) const {
    return reinterpret_cast<std::uint16_t*>(rope + (slot / kPageTokens) * rope_page_stride +
                                            (slot % kPageTokens) * (kRopeDim * 2));
  }
  SNAPMLA_HD float* scale_at(std::int64_t slot) const {
    return reinterpret_cast<float*>(scale + (slot / kPageTokens) * scale_page_stride +
                                    (slot % kPageTokens) * 4);
  }
};

struct BlockTable {
  const std::int32_t* data = nullptr;
  std::int64_t row_stride = 0;  // elements
  std::int64_t max_blocks = 0;

  SNAPMLA_HD std::int32_t page(std::int64_t request, std::int64_t block) const {
    return data[request * row_stride + block];
  }
};

struct QuantizeQueryArgs {
  Rows content, rope;                   // [b, s_q, h_q] rows of 512 and 64, bf16 or f32
  Rows out_codes, out_scale, out_rope;  // the same leading dimensions
  std::int64_t b = 0, s_q = 0, h_q = 0;
  ScaleMode mode = kDefaultScaleMode;
};

struct AppendArgs {
  CacheAccess cache;
  Rows content, rope;  // [T] rows
  Indices slots;
  std::int64_t tokens = 0;
  ScaleMode mode = kDefaultScaleMode;
  bool has_pad_slot = false;
  std::int64_t pad_slot = 0;
  std::int32_t* status = nullptr;  // may be null
};

struct FetchArgs {
  CacheAccess cache;
  Rows content, rope;  // [n] output rows, bf16 or f32
  std::int64_t rows = 0;
  bool by_ranges = false;
  Indices slots;                                                                 // by slots: [rows]
  BlockTable block_table;                                                        // by ranges
  const std::int32_t *starts = nullptr, *lengths = nullptr, *offsets = nullptr;  // [b]
  std::int64_t b = 0;
  std::int32_t* status = nullptr;
};

struct CopyArgs {
  CacheAccess cache;
  Indices src, dst;
  std::int64_t tokens = 0;
  std::int32_t* status = nullptr;
};

struct PlanArgs {
  const std::int32_t* cache_seqlens = nullptr;  // [b], dense
  PlanSpec spec;
  PlanOptions
      options;  // resolved: num_sms, p_block and, for batch-invariant plans, split_tokens set
  std::int32_t* schedule = nullptr;
  std::int32_t* num_splits = nullptr;
};

struct DecodeArgs {
  const std::int32_t* schedule = nullptr;
  const std::int32_t* num_splits = nullptr;
  std::int64_t schedule_rows = 0;
  // dense [b, rows] rows of 512, 1 and 64
  const std::uint8_t* q_codes = nullptr;
  const float* q_scale = nullptr;
  const std::uint16_t* q_rope = nullptr;
  std::int64_t b = 0, s_q = 0, h_q = 0;
  CacheAccess cache;
  BlockTable block_table;
  const std::int32_t* cache_seqlens = nullptr;
  float softmax_scale = 0;
  bool causal = false;
  Rows out;                                // [b, s_q, h_q] rows of 512, bf16 or f32
  float* lse = nullptr;                    // may be null
  std::int64_t lse_stride[3] = {0, 0, 0};  // b, h_q, s_q
  float* out_accum = nullptr;              // workspace: [slots, rows, 512]
  float* lse_accum = nullptr;              // workspace: [slots, rows], natural log
  std::int64_t slots = 0;                  // partial results that fit into the workspace
  std::int32_t* status = nullptr;
  NumericsOptions numerics;

  SNAPMLA_HD std::int64_t rows() const { return s_q * h_q; }
  /// Exclusive end of the positions that query token i of `request` sees, before the block table's
  /// width is applied; may be <= 0.
  SNAPMLA_HD std::int64_t visible_end(std::int64_t request, std::int64_t i) const {
    const std::int64_t len = cache_seqlens[request];
    return causal ? len - (s_q - 1 - i) : len;
  }
  SNAPMLA_HD float* lse_at(std::int64_t request, std::int64_t row) const {
    return lse + request * lse_stride[0] + (row % h_q) * lse_stride[1] +
           (row / h_q) * lse_stride[2];
  }
};

struct MergeArgs {
  Rows outs;                    // [n, b, s_q, h_q] rows of 512, bf16 or f32
  const float* lses = nullptr;  // [n, b, h_q, s_q]
  std::int64_t lses_stride[4] = {0, 0, 0, 0};
  Rows out;
  float* lse = nullptr;
  std::int64_t lse_stride[3] = {0, 0, 0};
  std::int64_t n = 0, b = 0, s_q = 0, h_q = 0;
};

}  // namespace snapmla
