// The vector kernels give the plain loops' bits.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>

#include "cpu/tile.h"
#include "hwy/highway.h"

namespace snapmla::cpu {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// Equal bits, any NaN equal to any other.
::testing::AssertionResult same(const float* a, const float* b, int count) {
  for (int i = 0; i < count; ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0) {
      return ::testing::AssertionFailure() << "element " << i << ": " << a[i] << " and " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}

/// Calls `check` for every instruction set that this machine has and the library was built for.
void for_each_target(const std::function<void(const cpu::Kernels&)>& check) {
  int checked = 0;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    if (const cpu::Kernels* kernels = simd_kernels()) {
      SCOPED_TRACE(hwy::TargetName(target));
      check(*kernels);
      ++checked;
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  if (checked == 0) GTEST_SKIP() << "this machine has no vectors with fused multiply-add";
}

struct Shape {
  int rows, tokens, p_holes;  // every p_holes-th token has no page; 0: none
  bool extreme;               // scales over 2^80, NaN codes and scores
};

class Kernels : public ::testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    random_.seed(17);
    const Shape& shape = GetParam();
    block_->begin = 640;
    block_->tokens = shape.tokens;
    block_->all_valid = shape.p_holes == 0;
    for (int j = 0; j < block_->padded_tokens(); ++j) fill_token(j, shape);
    tile_->rows = shape.rows;
    for (int r = 0; r < shape.rows; ++r) fill_row(r, shape);
  }

  void fill_token(int j, const Shape& shape) {
    const bool in_block = j < shape.tokens;
    block_->valid[j] = in_block && (shape.p_holes == 0 || j % shape.p_holes != 1);
    const bool valid = block_->valid[j];
    for (float& code : block_->codes[j]) code = valid ? any_code() : 0.0f;
    for (float& value : block_->rope[j]) value = valid ? any_rope() : 0.0f;
    const int exponent = shape.extreme ? static_cast<int>(random_() % 80) - 40 : -6;
    block_->scale[j] =
        valid ? std::ldexp(1.0f + static_cast<float>(random_() % 8) / 8, exponent) : 1;
    block_->log2_scale[j] = valid ? std::log2(block_->scale[j]) : 0;
    block_->inverse_scale[j] = valid ? 1 / block_->scale[j] : 0;
    if (shape.extreme && j == 5) block_->codes[j][77] = kNaN;
  }

  void fill_row(int r, const Shape& shape) {
    for (float& code : tile_->codes[r]) code = any_code();
    for (float& value : tile_->rope[r]) value = any_rope();
    tile_->scale[r] = 0.01f;
    // Rows that see all, some and none of the block.
    tile_->visible_end[r] = block_->begin + (r % 3 == 0   ? 1000
                                             : r % 3 == 1 ? shape.tokens / 2
                                                          : -7);
    for (float& out : tile_->out[r]) out = any_rope();
    tile_->max[r] = r % 4 == 0 ? -std::numeric_limits<float>::max() : any_rope() * 10;
    tile_->sum[r] = tile_->norm[r] = std::fabs(any_rope());
  }

  float any_code() {
    return e4m3_to_float(static_cast<std::uint8_t>(random_() % 127 + 128 * (random_() % 2)));
  }
  float any_rope() {
    return bf16_to_float(bf16_from_float(static_cast<float>(random_() % 2001) / 300 - 3));
  }

  std::mt19937 random_;
  std::unique_ptr<Block> block_ = std::make_unique<Block>();
  std::unique_ptr<RowTile> tile_ = std::make_unique<RowTile>();
};

TEST_P(Kernels, VectorsGiveTheBitsOfPlainLoops) {
  const cpu::Kernels& plain = plain_kernels();
  for_each_target([&](const cpu::Kernels& simd) {
    const auto plain_tile = std::make_unique<RowTile>(*tile_);
    const auto simd_tile = std::make_unique<RowTile>(*tile_);
    RowTile &a = *plain_tile, &b = *simd_tile;
    for (const bool quantized_norm : {false, true}) {
      NumericsOptions numerics;
      numerics.normalize_by_quantized_p = quantized_norm;
      plain.score(numerics, *block_, a);
      simd.score(numerics, *block_, b);
      for (int r = 0; r < a.rows; ++r) {
        ASSERT_TRUE(same(a.scores[r], b.scores[r], block_->tokens)) << "scores of row " << r;
        plain.softmax(numerics, *block_, a, r, 1e-4f);
        simd.softmax(numerics, *block_, b, r, 1e-4f);
        ASSERT_TRUE(same(a.scores[r], b.scores[r], block_->tokens)) << "P' of row " << r;
        ASSERT_TRUE(same(&a.sum[r], &b.sum[r], 1)) << r;
        ASSERT_TRUE(same(&a.norm[r], &b.norm[r], 1)) << r;
        ASSERT_TRUE(same(&a.max[r], &b.max[r], 1)) << r;
      }
      plain.accumulate(numerics, *block_, a);
      simd.accumulate(numerics, *block_, b);
      for (int r = 0; r < a.rows; ++r) {
        ASSERT_TRUE(same(a.out[r], b.out[r], kKvLoraRank)) << "out of row " << r;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, Kernels,
                         ::testing::Values(Shape{1, 64, 0, false}, Shape{16, 64, 0, false},
                                           Shape{64, 128, 0, false}, Shape{7, 63, 0, false},
                                           Shape{5, 1, 0, false}, Shape{9, 100, 3, false},
                                           Shape{13, 64, 0, true}, Shape{6, 128, 5, true}));

TEST(DecodeToken, VectorsGiveTheBitsOfPlainLoops) {
  std::uint8_t codes[kKvLoraRank];
  std::uint16_t rope[kRopeDim];
  for (int d = 0; d < kKvLoraRank; ++d)
    codes[d] = static_cast<std::uint8_t>(d);  // all codes, twice
  for (int d = 0; d < kRopeDim; ++d) rope[d] = static_cast<std::uint16_t>(d * 1031);
  alignas(64) float a[kQkDim], b[kQkDim];
  plain_kernels().decode_token(codes, rope, a, a + kKvLoraRank);
  for_each_target([&](const cpu::Kernels& simd) {
    simd.decode_token(codes, rope, b, b + kKvLoraRank);
    EXPECT_TRUE(same(a, b, kQkDim));
  });
}

}  // namespace
}  // namespace snapmla::cpu
