#pragma once

#include <cstdint>

namespace snapmla::cuda::sm90 {

/// The mbarriers of one CTA. Blocks and chunks are counted through all of a worker's work: block k
/// uses stage and slot k % 4 in their phase k / 4, chunk n uses slot n % 2 in phase n / 2.
template <class Config>
struct Barriers {
  static constexpr int kWarpArrivals = Config::kEveryLaneArrives ? 32 : 1;
  static constexpr int kQkArrivals = 4 * kWarpArrivals;
  static constexpr int kPvArrivals = 8 * kWarpArrivals;

  /// Arrives: the load warp once, and the copy engine's bytes. Waits: QK and PV (each must see the
  /// copy itself). Protects kv, scale and valid_tokens of the stage from being read too early.
  std::uint64_t kv_full[Config::kStages];
  /// Arrives: each PV warp, when its value fragments are in registers; QK is done with the stage by
  /// then, since P of the block exists. Waits: the load warp. Protects the stage from being
  /// refilled.
  std::uint64_t kv_empty[Config::kStages];

  /// Arrives: each QK warp, when its rows of P and their factors are written (and the values of
  /// tokens that don't exist zeroed). Waits: PV.
  std::uint64_t p_full[Config::kPSlots];
  /// Arrives: each PV warp, when its last wgmma of the block is done. Waits: QK, before it writes.
  std::uint64_t p_empty[Config::kPSlots];

  /// Arrives: the query warp and the copy engine. Waits: QK.
  std::uint64_t q_full;
  /// Arrives: each QK warp, when the last QK of a chunk is done. Waits: the query warp.
  std::uint64_t q_empty;

  /// Arrives: the plan warp. Waits: all others. Protects the chunk's description.
  std::uint64_t chunk_full[2];
  /// Arrives: the load and the query warp, when they have read it, each QK and each PV warp when
  /// done with the chunk. Waits: the plan warp. Protects the chunk's description and its row
  /// results.
  std::uint64_t chunk_empty[2];
  static constexpr int kChunkArrivals = 1 + kWarpArrivals + kQkArrivals + kPvArrivals;

  /// Arrives: each QK warp, when the row results of the chunk are written. Waits: PV, to finish.
  std::uint64_t rows_full[2];
};

/// Named barrier of the QK warpgroup: before values are zeroed, no warp may still multiply them.
inline constexpr int kQkNamedBarrier = 1;

}  // namespace snapmla::cuda::sm90
