#include "cuda/sm90/decode_e4m3/launch.cuh"
#include "cuda/sm90/decode_e4m3/launch.h"

namespace snapmla::cuda::sm90 {

const char* decode_e4m3_variant(std::int64_t rows) {
  if (rows <= 16) return "sm90 decode_e4m3, 16 rows";
  if (rows <= 32) return "sm90 decode_e4m3, 32 rows";
  return "sm90 decode_e4m3, 64 rows";
}

void launch_decode_e4m3(const DecodeArgs& args, cudaStream_t stream, bool pdl) {
  if (args.b == 0) return;
  if (args.rows() <= 16) {
    launch_variant<Config<16>>(args, stream, pdl);
  } else if (args.rows() <= 32) {
    launch_variant<Config<32>>(args, stream, pdl);
  } else {
    launch_variant<Config<64>>(args, stream, pdl);
  }
}

}  // namespace snapmla::cuda::sm90
