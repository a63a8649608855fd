#pragma once

// FP8 decode attention for Multi-head Latent Attention. The call order of one decode step:
//   plan_decode once;  then per layer: append_kv, quantize_query, decode.

#include "snapmla/backend.h"   // IWYU pragma: export
#include "snapmla/cache.h"     // IWYU pragma: export
#include "snapmla/decode.h"    // IWYU pragma: export
#include "snapmla/error.h"     // IWYU pragma: export
#include "snapmla/quantize.h"  // IWYU pragma: export
#include "snapmla/tensor.h"    // IWYU pragma: export

namespace snapmla {

inline constexpr int kVersionMajor = 0;
inline constexpr int kVersionMinor = 1;
inline constexpr int kVersionPatch = 0;

/// "0.1.0"
const char* version() noexcept;

}  // namespace snapmla
