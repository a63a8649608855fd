#pragma once

// The number formats once more, by table and by definition: independent of
// src/core/float_formats.h.

#include <cstdint>
#include <vector>

namespace snapmla::test {

float e4m3_value(std::uint8_t code);
float bf16_value(std::uint16_t bits);
/// The nearest of all finite e4m3 magnitudes, the even code of two that are equally near,
/// saturating.
std::uint8_t nearest_e4m3(float x);
/// The nearest bf16 value, ties to even; NaN is 0x7fff.
std::uint16_t nearest_bf16(float x);

/// A row quantized by the text of docs/numerics.md section 2: 512 codes, 64 bf16 bits, the scale.
struct QuantizedRow {
  std::vector<std::uint8_t> codes;
  std::vector<std::uint16_t> rope;
  float scale = 0;
  /// As a token lies in test order: 512 codes, 128 bytes of RoPE, 4 of scale.
  std::vector<std::uint8_t> bytes() const;
};
QuantizedRow quantize_row(const float* row, bool power_of_two);

}  // namespace snapmla::test
