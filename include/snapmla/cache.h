#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "snapmla/tensor.h"

namespace snapmla {

// The cache format `snapmla.e4m3.token.v1`. This header is the one place where its sizes and
// offsets are written; docs/cache-format.md explains them and is tested against them.
//
// A token is 512 e4m3 content codes, one f32 scale S, and 64 BF16 RoPE values divided by S:
//   real content = code * S      real RoPE = stored RoPE * S

inline constexpr const char* kCacheFormatName = "snapmla.e4m3.token.v1";
inline constexpr int kCacheFormatVersion = 1;

inline constexpr int kPageTokens = 64;   ///< tokens per page; slot = page * 64 + offset
inline constexpr int kKvLoraRank = 512;  ///< content (latent) width; also the value width d_v
inline constexpr int kRopeDim = 64;
inline constexpr int kQkDim = kKvLoraRank + kRopeDim;  ///< 576

inline constexpr int kTokenBytes = kKvLoraRank + 4 + 2 * kRopeDim;  ///< 644, against 1152 for BF16

// The packed page: one contiguous byte range per 64 tokens.
inline constexpr int kPackedContentOffset = 0;                       ///< [64][512] e4m3
inline constexpr int kPackedRopeOffset = kPageTokens * kKvLoraRank;  ///< 32768: [64][64] bf16
inline constexpr int kPackedScaleOffset =
    kPackedRopeOffset + kPageTokens * kRopeDim * 2;  ///< 40960: [64] f32
inline constexpr int kPackedPageBytes =
    kPackedScaleOffset + kPageTokens * 4;  ///< 41216 = 322 * 128

enum class CacheForm : std::uint8_t {
  planes,  ///< three tensors, content, scale and rope
  packed,  ///< one tensor of pages
};

/// "planes" or "packed".
const char* cache_form_name(CacheForm form) noexcept;

/// A paged cache of one layer; owns nothing. `num_pages` bounds every page id and slot: whatever
/// lies outside is never read or written. Offsets are 64-bit: pools beyond 2^31 bytes work.
struct Cache {
  CacheForm form = CacheForm::planes;
  // planes: a page is contiguous, the stride between pages is free (a multiple of 16 bytes).
  TensorView content;  ///< e4m3|u8 [num_pages, 64, 512]
  TensorView scale;    ///< f32     [num_pages, 64]
  TensorView rope;     ///< bf16    [num_pages, 64, 64]
  // packed
  TensorView pages;  ///< u8|e4m3 [num_pages, >= 41216]; stride 0 is the page stride
  std::int64_t page_stride_bytes = 0;  ///< packed only: bytes from one page to the next
  std::int64_t num_pages = 0;

  /// The planes form over three tensors. Shapes are checked by the operation that uses the cache.
  static Cache from_planes(const TensorView& content, const TensorView& scale,
                           const TensorView& rope);
  /// The packed form over `pages`; the page stride is taken from its first stride, so a pool with
  /// larger pages (for example 64 x 656 bytes) or a gap between pages works.
  static Cache from_pages(const TensorView& pages);

  std::int64_t num_slots() const noexcept { return num_pages * kPageTokens; }
};

/// Where one part of a token lives. Offsets and strides are in bytes.
struct PlaneLayout {
  std::string name;  ///< "content", "rope" or "scale"
  DType dtype;
  int elements_per_token;
  std::int64_t offset;        ///< from the start of its page
  std::int64_t token_stride;  ///< from one token to the next within a page
  std::int64_t page_bytes;    ///< bytes of this plane in one page
};

/// What another program needs to read or move pages. Depends on the form alone, never on a shape.
struct LayoutDescription {
  std::string name = kCacheFormatName;
  int version = kCacheFormatVersion;
  CacheForm form;
  int page_tokens = kPageTokens;
  int token_bytes = kTokenBytes;
  std::int64_t page_bytes = kPackedPageBytes;  ///< over all planes
  std::vector<PlaneLayout> planes;

  /// The same as one line of JSON.
  std::string to_json() const;
};

LayoutDescription describe_layout(CacheForm form);

}  // namespace snapmla
