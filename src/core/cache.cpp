#include "snapmla/cache.h"

#include <fmt/format.h>

namespace snapmla {

const char* cache_form_name(CacheForm form) noexcept {
  return form == CacheForm::planes ? "planes" : "packed";
}

Cache Cache::from_planes(const TensorView& content, const TensorView& scale,
                         const TensorView& rope) {
  Cache cache;
  cache.form = CacheForm::planes;
  cache.content = content;
  cache.scale = scale;
  cache.rope = rope;
  cache.num_pages = content.rank > 0 ? content.shape[0] : 0;
  return cache;
}

Cache Cache::from_pages(const TensorView& pages) {
  Cache cache;
  cache.form = CacheForm::packed;
  cache.pages = pages;
  if (pages.rank > 0) {
    cache.num_pages = pages.shape[0];
    // Bytes are elements here; other dtypes are refused by the operation that uses the cache.
    cache.page_stride_bytes = pages.strides[0];
  }
  return cache;
}

LayoutDescription describe_layout(CacheForm form) {
  LayoutDescription layout;
  layout.form = form;
  const bool packed = form == CacheForm::packed;
  layout.planes = {
      {"content", DType::e4m3, kKvLoraRank, packed ? kPackedContentOffset : 0, kKvLoraRank,
       kPageTokens * kKvLoraRank},
      {"rope", DType::bf16, kRopeDim, packed ? kPackedRopeOffset : 0, kRopeDim * 2,
       kPageTokens * kRopeDim * 2},
      {"scale", DType::f32, 1, packed ? kPackedScaleOffset : 0, 4, kPageTokens * 4},
  };
  return layout;
}

std::string LayoutDescription::to_json() const {
  std::string json = fmt::format(
      R"({{"name": "{}", "version": {}, "form": "{}", "page_tokens": {}, "token_bytes": {}, "page_bytes": {}, "planes": [)",
      name, version, cache_form_name(form), page_tokens, token_bytes, page_bytes);
  for (std::size_t i = 0; i < planes.size(); ++i) {
    const PlaneLayout& plane = planes[i];
    json += fmt::format(
        R"({}{{"name": "{}", "dtype": "{}", "elements_per_token": {}, "offset": {}, "token_stride": {}, "page_bytes": {}}})",
        i ? ", " : "", plane.name, dtype_name(plane.dtype), plane.elements_per_token, plane.offset,
        plane.token_stride, plane.page_bytes);
  }
  return json + "]}";
}

}  // namespace snapmla
