#pragma once

#include <cstdint>
#include <optional>

#include "snapmla/cache.h"
#include "snapmla/tensor.h"

namespace snapmla {

/// How a token's (or a query row's) scale is made from amax = max |content|, NaN not counted:
///   exact         S = max(amax / 448, 2^-40)
///   power_of_two  the power of two with 232 < amax / S <= 464 (at least 2^-40): RoPE / S is then
///                 exact, and fetch_dequant followed by append_kv gives back the same bytes
/// code = e4m3(content * (1 / S)), round to nearest even, saturating; RoPE' = bf16(rope * (1 / S)).
/// Readers need not know which was used. Every backend writes the same bytes.
enum class ScaleMode : std::uint8_t { exact, power_of_two };

/// "exact" or "power_of_two".
const char* scale_mode_name(ScaleMode mode) noexcept;

/// The default; docs/numerics.md has the measurement behind it.
inline constexpr ScaleMode kDefaultScaleMode = ScaleMode::exact;

struct QuantizeOptions {
  ScaleMode scale = kDefaultScaleMode;
};

/// Content and RoPE of the same tokens or query rows, in one tensor (last dimension 576: content,
/// then RoPE) or in two (last dimensions 512 and 64). Leading dimensions may have any strides; the
/// last one is dense. bf16 or f32, the same for both.
struct ContentRope {
  TensorView joined;
  TensorView content, rope;

  ContentRope() = default;
  ContentRope(const TensorView& joined_tensor) : joined(joined_tensor) {}  // NOLINT: by design
  ContentRope(const TensorView& content_tensor, const TensorView& rope_tensor)
      : content(content_tensor), rope(rope_tensor) {}
};

/// A quantized query: what decode() reads.
struct QuantizedQuery {
  TensorView codes;  ///< e4m3|u8 [b, s_q, h_q, 512]
  TensorView scale;  ///< f32     [b, s_q, h_q]
  TensorView rope;   ///< bf16    [b, s_q, h_q, 64], divided by the scale
};

/// Quantizes absorbed queries, one scale per (token, head).
/// q: [b, s_q, h_q, 576], or q_nope [b, s_q, h_q, 512] and q_rope [b, s_q, h_q, 64], any leading
/// strides. `out` is caller-owned, its rows may be strided too and overlap nothing. One launch, no
/// allocation.
void quantize_query(const ContentRope& q, const QuantizedQuery& out,
                    const QuantizeOptions& options = {}, Stream stream = {});

struct AppendOptions {
  ScaleMode scale = kDefaultScaleMode;
  /// Tokens whose slot equals this are skipped (engines pad batches with a reserved slot, often 0,
  /// and garbage rows). Without it every slot in range is written.
  std::optional<std::int64_t> pad_slot;
  /// Optional i32 [1] on the cache's device: incremented for every slot that is neither in
  /// [0, num_pages * 64), -1, nor pad_slot. Such tokens are not written.
  TensorView status;
};

/// Quantizes tokens and writes them to their slots. kv: [T, 576], or content [T, 512] and rope
/// [T, 64]; slots: i32|i64 [T], slot = page * 64 + offset, -1 = skip. T may be 0. If one slot
/// occurs twice in a call, which of its tokens remains is unspecified. One launch, no allocation.
void append_kv(const Cache& cache, const ContentRope& kv, const TensorView& slots,
               const AppendOptions& options = {}, Stream stream = {});

/// Reads tokens back as real values (stored times scale). slots: i32|i64 [n]; out: [n, 576], or
/// content [n, 512] and rope [n, 64], bf16 or f32. A slot outside the cache (-1 too) gives zeros
/// and is counted in `status` (i32 [1], optional).
void fetch_dequant(const Cache& cache, const TensorView& slots, const ContentRope& out,
                   const TensorView& status = {}, Stream stream = {});

/// Ranges of sequences: request r contributes the tokens at positions
/// [starts[r], starts[r] + lengths[r]) of its block table row, written to out rows
/// [offsets[r], offsets[r] + lengths[r]).
struct TokenRanges {
  TensorView block_table;  ///< i32 [b, max_blocks], rows may be strided
  TensorView starts;       ///< i32 [b]
  TensorView lengths;      ///< i32 [b]
  TensorView offsets;      ///< i32 [b], first output row of each request
};

/// fetch_dequant by ranges. Rows outside `out` are not written; positions without a page in the
/// cache give zeros; both are counted in `status`.
void fetch_dequant(const Cache& cache, const TokenRanges& ranges, const ContentRope& out,
                   const TensorView& status = {}, Stream stream = {});

/// Copies tokens, codes and scale untouched, from slot src[i] to slot dst[i]. src and dst: i32|i64
/// [n]. A pair with a slot outside the cache is skipped (and counted in `status` unless one of the
/// two is -1). No slot may be both read and written in one call, or written twice: the order of
/// the copies is unspecified.
void copy_tokens(const Cache& cache, const TensorView& src, const TensorView& dst,
                 const TensorView& status = {}, Stream stream = {});

}  // namespace snapmla
