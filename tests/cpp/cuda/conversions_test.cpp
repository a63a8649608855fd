#include "device.h"

namespace snapmla::test {
namespace {

class ConversionsTest : public CudaTest {};

// The CPU writes the bytes of the portable functions, the GPU those of its instructions.
TEST_F(ConversionsTest, EveryFloatGivesTheSameBitsInHardwareAndSoftware) {
  const ConversionMismatches mismatches = compare_conversions();
  EXPECT_EQ(mismatches.e4m3, 0u) << "for example float bits " << std::hex
                                 << mismatches.e4m3_example;
  EXPECT_EQ(mismatches.bf16, 0u) << "for example float bits " << std::hex
                                 << mismatches.bf16_example;
}

TEST_F(ConversionsTest, EveryE4m3CodeDecodesAlike) { EXPECT_EQ(compare_e4m3_decoding(), 0u); }

}  // namespace
}  // namespace snapmla::test
