#include "snapmla/tensor.h"

#include <gtest/gtest.h>

#include <vector>

#include "snapmla/error.h"
#include "snapmla/snapmla.h"

namespace snapmla {
namespace {

TEST(TensorView, ContiguousStridesAndSizes) {
  float data[24] = {};
  const TensorView t(data, DType::f32, {2, 3, 4});
  EXPECT_EQ(t.rank, 3);
  EXPECT_EQ(t.strides[0], 12);
  EXPECT_EQ(t.strides[1], 4);
  EXPECT_EQ(t.strides[2], 1);
  EXPECT_EQ(t.numel(), 24);
  EXPECT_EQ(t.bytes(), 96);
  EXPECT_TRUE(t.is_contiguous());
  EXPECT_EQ(to_string(t), "f32[2, 3, 4] on cpu");
  EXPECT_FALSE(TensorView().defined());
  EXPECT_EQ(TensorView().numel(), 0);
  EXPECT_EQ(to_string(TensorView()), "no tensor");
}

TEST(TensorView, SliceMovesDataByTheStride) {
  float data[24] = {};
  const TensorView t(data, DType::f32, {2, 3, 4});
  const TensorView s = t.slice(1, 1, 3);
  EXPECT_EQ(s.data, data + 4);
  EXPECT_EQ(s.shape[1], 2);
  EXPECT_FALSE(s.is_contiguous());
  EXPECT_EQ(t.slice(2, 4, 4).numel(), 0);
  EXPECT_THROW(t.slice(3, 0, 1), InvalidArgument);
  EXPECT_THROW(t.slice(-1, 0, 1), InvalidArgument);
  EXPECT_THROW(t.slice(0, 0, 3), InvalidArgument);
  EXPECT_THROW(t.slice(0, 2, 1), InvalidArgument);
  EXPECT_THROW(t.slice(0, -1, 1), InvalidArgument);
}

TEST(TensorView, StridesOfSizeOneDimensionsDoNotMatter) {
  EXPECT_TRUE(TensorView(nullptr, DType::i32, {1, 5}, {999, 1}).is_contiguous());
  EXPECT_FALSE(TensorView(nullptr, DType::i32, {2, 5}, {999, 1}).is_contiguous());
  EXPECT_FALSE(TensorView(nullptr, DType::i32, {5}, {-1}).is_contiguous());
}

TEST(TensorView, RefusesBadShapes) {
  EXPECT_THROW(TensorView(nullptr, DType::u8, {1, 1, 1, 1, 1, 1, 1}), InvalidArgument);
  EXPECT_THROW(TensorView(nullptr, DType::u8, {2, -1}), InvalidArgument);
  EXPECT_THROW(TensorView(nullptr, DType::u8, {2, 2}, {1}), InvalidArgument);
}

// A product of dimensions beyond 2^63 must not be computed with undefined behaviour and then
// trusted.
TEST(TensorView, RefusesShapesWhoseSizeOverflows) {
  const std::int64_t big = std::int64_t{1} << 40;
  EXPECT_THROW(TensorView(nullptr, DType::u8, {big, big}), InvalidArgument);
  EXPECT_THROW(TensorView(nullptr, DType::f32, {std::int64_t{1} << 62}), InvalidArgument);
}

TEST(Names, DtypesDevicesVersion) {
  EXPECT_STREQ(dtype_name(DType::e4m3), "e4m3");
  EXPECT_EQ(dtype_bytes(DType::i64), 8u);
  EXPECT_EQ(to_string(Device{DeviceType::cuda, 1}), "cuda:1");
  EXPECT_STREQ(version(), "0.1.0");
  EXPECT_STREQ(scale_mode_name(ScaleMode::power_of_two), "power_of_two");
}

}  // namespace
}  // namespace snapmla
