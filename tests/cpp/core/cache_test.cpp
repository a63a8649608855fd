#include "snapmla/cache.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace snapmla {
namespace {

TEST(CacheFormat, PackedPageAddsUp) {
  EXPECT_EQ(kPackedContentOffset, 0);
  EXPECT_EQ(kPackedRopeOffset, 32768);
  EXPECT_EQ(kPackedScaleOffset, 40960);
  EXPECT_EQ(kPackedPageBytes, 41216);
  EXPECT_EQ(kPackedPageBytes, 322 * 128);  // a legal TMA stride
  EXPECT_EQ(kPackedPageBytes, kPageTokens * kTokenBytes);
  EXPECT_EQ(kTokenBytes, 644);
}

TEST(CacheFormat, DescriptionMatchesConstants) {
  for (CacheForm form : {CacheForm::planes, CacheForm::packed}) {
    const LayoutDescription layout = describe_layout(form);
    EXPECT_EQ(layout.name, "snapmla.e4m3.token.v1");
    EXPECT_EQ(layout.version, 1);
    EXPECT_EQ(layout.form, form);
    EXPECT_EQ(layout.page_tokens, 64);
    EXPECT_EQ(layout.page_bytes, 41216);
    ASSERT_EQ(layout.planes.size(), 3u);
    std::int64_t page = 0, token = 0;
    for (const PlaneLayout& plane : layout.planes) {
      EXPECT_EQ(plane.page_bytes, plane.token_stride * kPageTokens) << plane.name;
      EXPECT_EQ(plane.token_stride,
                plane.elements_per_token * static_cast<std::int64_t>(dtype_bytes(plane.dtype)));
      EXPECT_EQ(plane.offset, form == CacheForm::packed ? page : 0) << plane.name;
      page += plane.page_bytes;
      token += plane.token_stride;
    }
    EXPECT_EQ(page, layout.page_bytes);
    EXPECT_EQ(token, layout.token_bytes);
    EXPECT_EQ(layout.planes[0].dtype, DType::e4m3);
    EXPECT_EQ(layout.planes[1].dtype, DType::bf16);
    EXPECT_EQ(layout.planes[2].dtype, DType::f32);
  }
}

TEST(CacheFormat, JsonNamesEverything) {
  const std::string json = describe_layout(CacheForm::packed).to_json();
  for (const char* part : {R"("name": "snapmla.e4m3.token.v1")", R"("version": 1)",
                           R"("form": "packed")", R"("page_bytes": 41216)",
                           R"("name": "scale", "dtype": "f32", "elements_per_token": 1, )"
                           R"("offset": 40960, "token_stride": 4, "page_bytes": 256)"}) {
    EXPECT_NE(json.find(part), std::string::npos) << part << " in " << json;
  }
  EXPECT_EQ(std::count(json.begin(), json.end(), '{'), std::count(json.begin(), json.end(), '}'));
}

// bugs others met (B36): a layout guessed from a shape.
TEST(CacheFormat, B36_LayoutIsNotGuessedFromTheNumberOfPages) {
  alignas(16) static char memory[16];
  for (std::int64_t pages : {1, 2, 64, 512}) {
    const Cache planes = Cache::from_planes(TensorView(memory, DType::u8, {pages, 64, 512}),
                                            TensorView(memory, DType::f32, {pages, 64}),
                                            TensorView(memory, DType::bf16, {pages, 64, 64}));
    EXPECT_EQ(planes.form, CacheForm::planes);
    EXPECT_EQ(planes.num_slots(), pages * 64);
    const Cache packed = Cache::from_pages(TensorView(memory, DType::u8, {pages, 41984}));
    EXPECT_EQ(packed.form, CacheForm::packed);
    EXPECT_EQ(packed.num_pages, pages);
    EXPECT_EQ(packed.page_stride_bytes, 41984);
  }
}

}  // namespace
}  // namespace snapmla
