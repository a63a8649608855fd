#pragma once

#include "snapmla/cache.h"

namespace snapmla::cuda::sm90 {

inline constexpr int kWarpgroupThreads = 128;

/// One variant of the kernel. kRowsOfTile: the query rows of a tile that softmax and PV work on (N
/// of PV's wgmma); QK always multiplies 64, the smallest M of wgmma.
template <int kRowsOfTile>
struct Config {
  static constexpr int kRows = kRowsOfTile;
  static_assert(kRows == 16 || kRows == 32 || kRows == 64);

  static constexpr int kBlockTokens = kPageTokens;  // one page, one P block
  static constexpr int kStages = 4;                 // blocks of cache in shared memory
  static constexpr int kPSlots = 4;                 // blocks of P

  // Warpgroups: 0 loads, 1 does QK and softmax, 2 and 3 do PV for 256 value columns each.
  static constexpr int kFirstPvWarpgroup = 2;
  static constexpr int kWarpgroups = 4;
  static constexpr int kThreads = kWarpgroups * kWarpgroupThreads;
  // Registers per thread: 65536 / 128 = 512 for one thread of each warpgroup. PV needs 128 for the
  // output (64 rows x 256 columns), 32 for one tile of it and 16 for value fragments; QK 104, or
  // ptxas serializes its wgmmas. Spills: README.md.
  static constexpr int kLoadRegisters = kRows == 64 ? 24 : 40;
  static constexpr int kQkRegisters = kRows == 64 ? 104 : 128;
  static constexpr int kPvRegisters = kRows == 64 ? 192 : 168;
  /// Every lane of a warp arrives at a barrier, not one for all. Slower; compute-sanitizer's
  /// racecheck doesn't follow the order that __syncwarp() makes through an elected lane.
  static constexpr bool kEveryLaneArrives = false;
  static_assert(kLoadRegisters + kQkRegisters + 2 * kPvRegisters <= 512);
};

}  // namespace snapmla::cuda::sm90
