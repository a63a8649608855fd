#pragma once

#include <cuda.h>

#include "core/ops.h"

namespace snapmla::cuda::sm90 {

/// The kernel's only parameter, passed by value: no state outlives a call.
struct Params {
  DecodeArgs args;
  // 3-D: width, token or row, page or request; boxes of 128 bytes x 64 tokens, or x the tile's
  // rows.
  CUtensorMap content, rope;    // [num_pages][64][512] and [64] bf16, any page stride
  CUtensorMap q_codes, q_rope;  // [b][rows][512] and [64] bf16
  int row_tiles = 0;            // CTA = worker * row_tiles + tile
};

}  // namespace snapmla::cuda::sm90
