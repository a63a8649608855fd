#include "support/formats.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace snapmla::test {

float e4m3_value(std::uint8_t code) {
  const int exponent = (code >> 3) & 15, fraction = code & 7;
  float value = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                              : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
  if ((code & 0x7f) == 0x7f) value = std::numeric_limits<float>::quiet_NaN();
  return code & 0x80 ? -value : value;
}

float bf16_value(std::uint16_t bits) {
  const std::uint32_t u = static_cast<std::uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &u, 4);
  return value;
}

std::uint8_t nearest_e4m3(float x) {
  if (std::isnan(x)) return 0x7f;
  static const std::vector<double> values = [] {
    std::vector<double> v;
    for (int code = 0; code < 0x7f; ++code)
      v.push_back(e4m3_value(static_cast<std::uint8_t>(code)));
    return v;
  }();
  const double magnitude = std::fabs(static_cast<double>(x));
  const std::uint8_t sign = std::signbit(x) ? 0x80 : 0;
  const auto above = std::lower_bound(values.begin(), values.end(), magnitude);
  if (above == values.end()) return sign | 0x7e;
  int code = static_cast<int>(above - values.begin());
  if (code > 0) {
    const double up = values[code] - magnitude, down = magnitude - values[code - 1];
    if (down < up || (down == up && code % 2 == 1)) --code;
  }
  return static_cast<std::uint8_t>(sign | code);
}

std::uint16_t nearest_bf16(float x) {
  if (std::isnan(x)) return 0x7fff;
  std::uint32_t u;
  std::memcpy(&u, &x, 4);
  const auto down = static_cast<std::uint16_t>(u >> 16);
  const double low = std::fabs(static_cast<double>(bf16_value(down)));
  const double magnitude = std::fabs(static_cast<double>(x));
  // The next magnitude; one past the largest finite value counts as 2^128, where rounding sees it.
  const bool last = (down & 0x7fff) == 0x7f7f;
  const double high =
      last ? 0x1p128
           : std::fabs(static_cast<double>(bf16_value(static_cast<std::uint16_t>(down + 1))));
  if (magnitude == low) return down;
  const bool up =
      magnitude - low > high - magnitude || (magnitude - low == high - magnitude && down % 2 == 1);
  return static_cast<std::uint16_t>(down + (up ? 1 : 0));
}

std::vector<std::uint8_t> QuantizedRow::bytes() const {
  std::vector<std::uint8_t> all(codes);
  all.resize(codes.size() + 2 * rope.size() + 4);
  std::memcpy(&all[codes.size()], rope.data(), 2 * rope.size());
  std::memcpy(&all[codes.size() + 2 * rope.size()], &scale, 4);
  return all;
}

QuantizedRow quantize_row(const float* row, bool power_of_two) {
  float amax = 0;
  for (int d = 0; d < 512; ++d) {
    if (std::fabs(row[d]) > amax) amax = std::fabs(row[d]);
  }
  QuantizedRow result;
  if (power_of_two) {
    int exponent = -40;
    while (std::ldexp(464.0, exponent) < amax && exponent < 128) ++exponent;
    result.scale =
        exponent == 128 ? std::numeric_limits<float>::infinity() : std::ldexp(1.0f, exponent);
  } else {
    result.scale = std::max(amax / 448.0f, 0x1p-40f);
  }
  const float inverse = 1.0f / result.scale;
  for (int d = 0; d < 512; ++d) result.codes.push_back(nearest_e4m3(row[d] * inverse));
  for (int d = 512; d < 576; ++d) result.rope.push_back(nearest_bf16(row[d] * inverse));
  return result;
}

}  // namespace snapmla::test
