#include "core/float_formats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/formats.h"
#include "support/random.h"

namespace snapmla {
namespace {

using test::e4m3_value;
using test::nearest_e4m3;

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNaN = std::numeric_limits<float>::quiet_NaN();

float from_bits(std::uint32_t u) { return bit_cast_hd<float>(u); }

TEST(E4m3, EveryCodeDecodesAndComesBack) {
  for (int code = 0; code < 256; ++code) {
    const auto bits = static_cast<std::uint8_t>(code);
    const float value = e4m3_to_float(bits);
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value)) << code;
      EXPECT_EQ(e4m3_from_float(value), 0x7f) << code;
      continue;
    }
    EXPECT_EQ(value, e4m3_value(bits)) << code;
    EXPECT_EQ(std::signbit(value), code >= 128) << code;
    EXPECT_EQ(e4m3_from_float(value), bits) << code;
  }
}

TEST(E4m3, KnownValues) {
  EXPECT_EQ(e4m3_to_float(0x7e), 448.0f);
  EXPECT_EQ(e4m3_to_float(0x38), 1.0f);
  EXPECT_EQ(e4m3_to_float(0x08), 0x1p-6f);  // smallest normal
  EXPECT_EQ(e4m3_to_float(0x01), 0x1p-9f);  // smallest subnormal
}

// Every tie and both its neighbours, in the subnormal range too.
TEST(E4m3, RoundsToNearestEvenAtEveryBoundary) {
  for (int code = 0; code < 0x7e; ++code) {
    const double low = e4m3_value(static_cast<std::uint8_t>(code));
    const double high = e4m3_value(static_cast<std::uint8_t>(code + 1));
    const float tie = static_cast<float>((low + high) / 2);
    ASSERT_EQ(static_cast<double>(tie), (low + high) / 2);
    const int even = code % 2 == 0 ? code : code + 1;
    for (int sign : {0, 0x80}) {
      const float s = sign ? -1.0f : 1.0f;
      EXPECT_EQ(e4m3_from_float(s * tie), even | sign) << tie;
      EXPECT_EQ(e4m3_from_float(s * std::nextafter(tie, 0.0f)), code | sign) << tie;
      EXPECT_EQ(e4m3_from_float(s * std::nextafter(tie, kInf)), (code + 1) | sign) << tie;
    }
  }
}

TEST(E4m3, MatchesNearestValueOnEveryExponentAndManyFractions) {
  test::Random random(1);
  for (std::uint32_t high = 0; high < (1u << 16); ++high) {  // sign, exponent, seven fraction bits
    for (std::uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu,
                              static_cast<std::uint32_t>(random.integer(0, 0xffff))}) {
      const float x = from_bits(high << 16 | low);
      ASSERT_EQ(e4m3_from_float(x), nearest_e4m3(x)) << std::hexfloat << x;
    }
  }
}

TEST(E4m3, SaturatesAndKeepsNaN) {
  for (float x : {448.0f, 449.0f, 464.0f, 480.0f, 1e30f, std::numeric_limits<float>::max(), kInf}) {
    EXPECT_EQ(e4m3_from_float(x), 0x7e) << x;
    EXPECT_EQ(e4m3_from_float(-x), 0xfe) << x;
  }
  for (std::uint32_t bits : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xff800001u, 0x7fffffffu}) {
    EXPECT_EQ(e4m3_from_float(from_bits(bits)), 0x7f) << std::hex << bits;
  }
  EXPECT_EQ(e4m3_from_float(0.0f), 0x00);
  EXPECT_EQ(e4m3_from_float(-0.0f), 0x80);
  EXPECT_EQ(e4m3_from_float(std::numeric_limits<float>::denorm_min()), 0x00);
  EXPECT_EQ(e4m3_from_float(0x1p-10f), 0x00);  // a tie with zero goes to the even code, zero
  EXPECT_EQ(e4m3_from_float(std::nextafter(0x1p-10f, 1.0f)), 0x01);
}

TEST(Bf16, EveryPatternComesBack) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = bf16_to_float(static_cast<std::uint16_t>(bits));
    EXPECT_EQ(bit_cast_hd<std::uint32_t>(value), bits << 16);
    EXPECT_EQ(bf16_from_float(value), std::isnan(value) ? 0x7fff : bits) << std::hex << bits;
  }
}

TEST(Bf16, MatchesNearestValue) {
  test::Random random(2);
  for (int i = 0; i < 300000; ++i) {
    const float x = from_bits(static_cast<std::uint32_t>(random.bits()));
    ASSERT_EQ(bf16_from_float(x), test::nearest_bf16(x)) << std::hexfloat << x;
  }
}

TEST(Bf16, RoundsToNearestEven) {
  for (std::uint32_t bits = 0; bits < 0x7f80; ++bits) {
    const std::uint32_t even = bits + (bits & 1);
    for (std::uint32_t sign : {0u, 0x8000u}) {
      const std::uint32_t base = (bits | sign) << 16;
      EXPECT_EQ(bf16_from_float(from_bits(base | 0x7fff)), bits | sign);
      EXPECT_EQ(bf16_from_float(from_bits(base | 0x8000)), even | sign);
      EXPECT_EQ(bf16_from_float(from_bits(base | 0x8001)), (bits + 1) | sign);
    }
  }
  EXPECT_EQ(bf16_from_float(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(bf16_from_float(from_bits(0x7f800001)), 0x7fff);  // a NaN with a low payload stays one
}

TEST(Scale, ExactIsAmaxOver448WithAFloor) {
  EXPECT_EQ(scale_from_amax(448.0f, ScaleMode::exact), 1.0f);
  EXPECT_EQ(scale_from_amax(1.0f, ScaleMode::exact), 1.0f / 448.0f);
  for (float tiny : {0.0f, 1e-38f, 1e-20f, 0x1p-40f * 448.0f}) {
    EXPECT_EQ(scale_from_amax(tiny, ScaleMode::exact), 0x1p-40f) << tiny;
    EXPECT_EQ(scale_from_amax(tiny, ScaleMode::power_of_two), 0x1p-40f) << tiny;
  }
  for (ScaleMode mode : {ScaleMode::exact, ScaleMode::power_of_two}) {
    EXPECT_EQ(scale_from_amax(kInf, mode), kInf);
  }
}

TEST(Scale, PowerOfTwoPutsAmaxBetween232And464) {
  test::Random random(3);
  for (int i = 0; i < 20000; ++i) {
    const float amax = static_cast<float>(random.log_uniform(1e-9, 1e38));
    const float scale = scale_from_amax(amax, ScaleMode::power_of_two);
    int exponent;
    ASSERT_EQ(std::frexp(scale, &exponent), 0.5f) << scale;
    ASSERT_GT(amax / scale, 232.0f) << amax;
    ASSERT_LE(amax / scale, 464.0f) << amax;
  }
  EXPECT_EQ(scale_from_amax(464.0f, ScaleMode::power_of_two), 1.0f);
  EXPECT_EQ(scale_from_amax(std::nextafter(464.0f, 1e9f), ScaleMode::power_of_two), 2.0f);
}

TEST(Scale, ReadersLiftTinyScalesAndKeepNaN) {
  EXPECT_EQ(read_scale(0.0f), 0x1p-100f);
  EXPECT_EQ(read_scale(-1.0f), 0x1p-100f);
  EXPECT_EQ(read_scale(0x1p-101f), 0x1p-100f);
  EXPECT_EQ(read_scale(0x1p-99f), 0x1p-99f);
  EXPECT_EQ(read_scale(kInf), kInf);
  EXPECT_TRUE(std::isnan(read_scale(kNaN)));
}

}  // namespace
}  // namespace snapmla
