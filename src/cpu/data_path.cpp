#include "cpu/data_path.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

namespace snapmla::cpu {
namespace {

float load(const Rows& rows, std::int64_t index) {
  return rows.dtype == DType::bf16
             ? bf16_to_float(static_cast<const std::uint16_t*>(rows.data)[index])
             : static_cast<const float*>(rows.data)[index];
}

void store(const Rows& rows, std::int64_t index, float value) {
  if (rows.dtype == DType::bf16) {
    static_cast<std::uint16_t*>(rows.data)[index] = bf16_from_float(value);
  } else {
    static_cast<float*>(rows.data)[index] = value;
  }
}

/// One token or query row, scale from its own content.
void quantize_row(const Rows& content, std::int64_t content_offset, const Rows& rope,
                  std::int64_t rope_offset, ScaleMode mode, std::uint8_t* codes, float* scale,
                  std::uint16_t* rope_out) {
  float amax = 0.0f;
  for (int d = 0; d < kKvLoraRank; ++d) {
    amax = max_ignoring_nan(amax, std::fabs(load(content, content_offset + d)));
  }
  const float s = scale_from_amax(amax, mode);
  const float inverse = 1.0f / s;
  for (int d = 0; d < kKvLoraRank; ++d) {
    codes[d] = e4m3_from_float(load(content, content_offset + d) * inverse);
  }
  for (int d = 0; d < kRopeDim; ++d) {
    rope_out[d] = bf16_from_float(load(rope, rope_offset + d) * inverse);
  }
  *scale = s;
}

}  // namespace

void count_fault(std::int32_t* status) {
  if (status) std::atomic_ref<std::int32_t>(*status).fetch_add(1, std::memory_order_relaxed);
}

void store_output(const Rows& out, std::int64_t offset, const float* values) {
  for (int d = 0; d < kKvLoraRank; ++d) store(out, offset + d, values[d]);
}

void quantize_query(const QuantizeQueryArgs& a) {
  for (std::int64_t i = 0; i < a.b; ++i) {
    for (std::int64_t j = 0; j < a.s_q; ++j) {
      for (std::int64_t h = 0; h < a.h_q; ++h) {
        quantize_row(a.content, a.content.offset(i, j, h), a.rope, a.rope.offset(i, j, h), a.mode,
                     static_cast<std::uint8_t*>(a.out_codes.data) + a.out_codes.offset(i, j, h),
                     static_cast<float*>(a.out_scale.data) + a.out_scale.offset(i, j, h),
                     static_cast<std::uint16_t*>(a.out_rope.data) + a.out_rope.offset(i, j, h));
      }
    }
  }
}

void append_kv(const AppendArgs& a) {
  for (std::int64_t t = 0; t < a.tokens; ++t) {
    const std::int64_t slot = a.slots[t];
    if (slot == -1 || (a.has_pad_slot && slot == a.pad_slot)) continue;
    if (!a.cache.has_slot(slot)) {
      count_fault(a.status);
      continue;
    }
    quantize_row(a.content, a.content.offset(t), a.rope, a.rope.offset(t), a.mode,
                 a.cache.content_at(slot), a.cache.scale_at(slot), a.cache.rope_at(slot));
  }
}

void fetch_dequant(const FetchArgs& a) {
  const auto fetch = [&](std::int64_t slot, std::int64_t row) {
    const bool valid = a.cache.has_slot(slot);
    if (!valid) count_fault(a.status);
    const float scale = valid ? read_scale(*a.cache.scale_at(slot)) : 0.0f;
    for (int d = 0; d < kKvLoraRank; ++d) {
      store(a.content, a.content.offset(row) + d,
            valid ? e4m3_to_float(a.cache.content_at(slot)[d]) * scale : 0.0f);
    }
    for (int d = 0; d < kRopeDim; ++d) {
      store(a.rope, a.rope.offset(row) + d,
            valid ? bf16_to_float(a.cache.rope_at(slot)[d]) * scale : 0.0f);
    }
  };
  if (!a.by_ranges) {
    for (std::int64_t row = 0; row < a.rows; ++row) fetch(a.slots[row], row);
    return;
  }
  for (std::int64_t i = 0; i < a.b; ++i) {
    for (std::int64_t k = 0; k < a.lengths[i]; ++k) {
      const std::int64_t row = a.offsets[i] + k;
      if (row < 0 || row >= a.rows) {
        count_fault(a.status);
        continue;
      }
      const std::int64_t position = a.starts[i] + k;
      const bool in_table = position >= 0 && position / kPageTokens < a.block_table.max_blocks;
      const std::int64_t page = in_table ? a.block_table.page(i, position / kPageTokens) : -1;
      fetch(page < 0 ? -1 : page * kPageTokens + position % kPageTokens, row);
    }
  }
}

void copy_tokens(const CopyArgs& a) {
  for (std::int64_t t = 0; t < a.tokens; ++t) {
    const std::int64_t src = a.src[t], dst = a.dst[t];
    if (!a.cache.has_slot(src) || !a.cache.has_slot(dst)) {
      if (src != -1 && dst != -1) count_fault(a.status);
      continue;
    }
    std::memmove(a.cache.content_at(dst), a.cache.content_at(src), kKvLoraRank);
    std::memmove(a.cache.rope_at(dst), a.cache.rope_at(src), kRopeDim * 2);
    *a.cache.scale_at(dst) = *a.cache.scale_at(src);
  }
}

void merge_states(const MergeArgs& a) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const auto lse_of = [&](std::int64_t n, std::int64_t i, std::int64_t j, std::int64_t h) {
    const float lse = a.lses[n * a.lses_stride[0] + i * a.lses_stride[1] + h * a.lses_stride[2] +
                             j * a.lses_stride[3]];
    return lse == kInf ? -kInf : lse;
  };
  for (std::int64_t i = 0; i < a.b; ++i) {
    for (std::int64_t j = 0; j < a.s_q; ++j) {
      for (std::int64_t h = 0; h < a.h_q; ++h) {
        float max = -std::numeric_limits<float>::max();
        for (std::int64_t n = 0; n < a.n; ++n) max = max_ignoring_nan(max, lse_of(n, i, j, h));
        float sum = 0.0f;
        float values[kKvLoraRank] = {};
        for (std::int64_t n = 0; n < a.n; ++n) {
          const float lse = lse_of(n, i, j, h);
          if (lse == -kInf) continue;  // an empty part's output may hold anything
          const float weight = std::exp(lse - max);
          sum += weight;
          for (int d = 0; d < kKvLoraRank; ++d) {
            values[d] += weight * load(a.outs, a.outs.offset(n, i, j, h) + d);
          }
        }
        const float norm = sum == 0.0f ? 0.0f : 1.0f / sum;
        for (float& value : values) value *= norm;
        store_output(a.out, a.out.offset(i, j, h), values);
        if (a.lse) {
          a.lse[i * a.lse_stride[0] + h * a.lse_stride[1] + j * a.lse_stride[2]] =
              sum == 0.0f ? -kInf : max + std::log(sum);
        }
      }
    }
  }
}

}  // namespace snapmla::cpu
