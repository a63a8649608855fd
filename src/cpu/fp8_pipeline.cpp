#include "cpu/fp8_pipeline.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "core/check.h"
#include "core/tile_scheduler.h"
#include "cpu/data_path.h"
#include "cpu/exp2.h"
#include "cpu/hopper_accumulator.h"

namespace snapmla::cpu {
namespace {

constexpr int kMaxBlock = 128;
constexpr int kLanes = 16;  // dot products are summed in 16 lanes, whatever the vector width
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

/// The tokens of one block, decoded to float, and what softmax needs of them.
struct Block {
  std::int64_t begin = 0;  // position of the first token
  int tokens = 0;          // p_block, or less for positions past the end
  float codes[kMaxBlock][kKvLoraRank];  // 0 for invalid tokens: 0 * NaN would reach the output
  float rope[kMaxBlock][kRopeDim];
  float scale[kMaxBlock], log2_scale[kMaxBlock], inverse_scale[kMaxBlock];  // 1, 0, 0 if invalid
  bool valid[kMaxBlock];
};

/// Up to 64 query rows and their running results.
struct RowTile {
  std::int64_t first_row = 0;
  int rows = 0;
  float codes[kRowTile][kKvLoraRank];
  float rope[kRowTile][kRopeDim];
  float scale[kRowTile];
  std::int64_t visible_end[kRowTile];
  float out[kRowTile][kKvLoraRank];
  float max[kRowTile];    // log domain: base 2, of y; chained: natural, of x
  float sum[kRowTile];    // log domain: of p / S
  float norm[kRowTile];   // what out is divided by: sum, or its form with quantized P
  float sigma[kRowTile];  // chained: the current P scale
};

struct Scratch {
  Block block;
  RowTile tile;
};

void load_block(const DecodeArgs& a, std::int64_t request, std::int64_t begin, std::int64_t end,
                bool count_faults, Block& block) {
  block.begin = begin;
  block.tokens = static_cast<int>(end - begin);
  for (int j = 0; j < block.tokens; ++j) {
    const std::int64_t position = begin + j;
    const std::int64_t page = a.block_table.page(request, position / kPageTokens);
    block.valid[j] = page >= 0 && page < a.cache.num_pages;
    if (!block.valid[j]) {
      if (count_faults && position % kPageTokens == 0) ++*a.status;
      std::memset(block.codes[j], 0, sizeof(block.codes[j]));
      std::memset(block.rope[j], 0, sizeof(block.rope[j]));
      block.scale[j] = 1.0f;
      block.log2_scale[j] = block.inverse_scale[j] = 0.0f;
      continue;
    }
    const std::int64_t slot = page * kPageTokens + position % kPageTokens;
    const std::uint8_t* codes = a.cache.content_at(slot);
    const std::uint16_t* rope = a.cache.rope_at(slot);
    for (int d = 0; d < kKvLoraRank; ++d) block.codes[j][d] = e4m3_to_float(codes[d]);
    for (int d = 0; d < kRopeDim; ++d) block.rope[j][d] = bf16_to_float(rope[d]);
    block.scale[j] = read_scale(*a.cache.scale_at(slot));
    block.log2_scale[j] = std::log2(block.scale[j]);
    block.inverse_scale[j] = 1.0f / block.scale[j];
  }
}

void load_rows(const DecodeArgs& a, std::int64_t request, std::int64_t first_row, RowTile& tile) {
  tile.first_row = first_row;
  tile.rows = static_cast<int>(std::min<std::int64_t>(kRowTile, a.rows() - first_row));
  for (int r = 0; r < tile.rows; ++r) {
    const std::int64_t row = first_row + r;
    const std::int64_t q = request * a.rows() + row;
    for (int d = 0; d < kKvLoraRank; ++d) {
      tile.codes[r][d] = e4m3_to_float(a.q_codes[q * kKvLoraRank + d]);
    }
    for (int d = 0; d < kRopeDim; ++d) {
      tile.rope[r][d] = bf16_to_float(a.q_rope[q * kRopeDim + d]);
    }
    tile.scale[r] = read_scale(a.q_scale[q]);
    tile.visible_end[r] = a.visible_end(request, row / a.h_q);
    std::memset(tile.out[r], 0, sizeof(tile.out[r]));
    tile.max[r] = -FLT_MAX;
    tile.sum[r] = tile.norm[r] = 0.0f;
    tile.sigma[r] = 1.0f;
  }
}

template <int kWidth>
float dot_in_lanes(const float* a, const float* b, float (&lanes)[kLanes]) {
  for (int d = 0; d < kWidth; d += kLanes) {
    for (int k = 0; k < kLanes; ++k) lanes[k] += a[d + k] * b[d + k];  // products are exact
  }
  float halves[kLanes / 2];
  for (int k = 0; k < 8; ++k) halves[k] = lanes[k] + lanes[k + 8];
  for (int k = 0; k < 4; ++k) halves[k] += halves[k + 4];
  return (halves[0] + halves[2]) + (halves[1] + halves[3]);
}

float score(const RowTile& tile, int r, const Block& block, int j, const NumericsOptions& numerics) {
  float lanes[kLanes] = {};
  if (numerics.accumulate == NumericsOptions::Accumulate::exact) {
    dot_in_lanes<kKvLoraRank>(tile.codes[r], block.codes[j], lanes);
    return dot_in_lanes<kRopeDim>(tile.rope[r], block.rope[j], lanes);
  }
  // FP8 steps first, in `qk_accumulators` narrow accumulators added in fp32; the BF16 RoPE steps last.
  const int width = kKvLoraRank / numerics.qk_accumulators;
  float content = 0.0f;
  for (int begin = 0; begin < kKvLoraRank; begin += width) {
    float accumulator = 0.0f;
    for (int d = begin; d < begin + width; d += kHopperStep) {
      float products[kHopperStep];
      for (int k = 0; k < kHopperStep; ++k) {
        products[k] = tile.codes[r][d + k] * block.codes[j][d + k];
      }
      accumulator = hopper_accumulate(accumulator, products, kHopperStep);
    }
    content += accumulator;
  }
  return content + dot_in_lanes<kRopeDim>(tile.rope[r], block.rope[j], lanes);
}

bool sees(const RowTile& tile, int r, const Block& block, int j) {
  return block.valid[j] && block.begin + j < tile.visible_end[r];
}

/// sums[d] += sum over tokens of p[j] * code[j][d], starting at 0 or, in place, at sums.
void multiply_values(const Block& block, const float* p, const NumericsOptions& numerics,
                     float* sums) {
  if (numerics.accumulate == NumericsOptions::Accumulate::exact) {
    for (int j = 0; j < block.tokens; ++j) {
      for (int d = 0; d < kKvLoraRank; ++d) sums[d] += p[j] * block.codes[j][d];
    }
    return;
  }
  for (int d = 0; d < kKvLoraRank; ++d) {
    for (int begin = 0; begin < block.tokens; begin += kHopperStep) {
      const int n = std::min(kHopperStep, block.tokens - begin);
      float products[kHopperStep];
      for (int k = 0; k < n; ++k) products[k] = p[begin + k] * block.codes[begin + k][d];
      sums[d] = hopper_accumulate(sums[d], products, n);
    }
  }
}

/// docs/numerics.md section 3, the log-domain form.
void attend_block_log_domain(const DecodeArgs& a, const Block& block, RowTile& tile, int r) {
  const float c = tile.scale[r] * a.softmax_scale * kLog2E;
  float y[kMaxBlock];
  float block_max = -FLT_MAX;
  for (int j = 0; j < block.tokens; ++j) {
    // Both operations are fused or not alike in every code path: one multiply, one FMA.
    y[j] = sees(tile, r, block, j)
               ? std::fma(score(tile, r, block, j, a.numerics) * block.scale[j], c,
                          block.log2_scale[j])
               : -kInf;
    block_max = std::fmax(block_max, y[j]);
  }
  float p_quantized[kMaxBlock];
  float block_sum = 0.0f, block_norm = 0.0f;
  for (int j = 0; j < block.tokens; ++j) {
    const float p = kE4m3Max * exp2_nonpositive(y[j] - block_max);
    p_quantized[j] = e4m3_to_float(e4m3_from_float(p));
    block_sum = std::fma(p, block.inverse_scale[j], block_sum);
    block_norm = std::fma(p_quantized[j], block.inverse_scale[j], block_norm);
  }
  if (!a.numerics.normalize_by_quantized_p) block_norm = block_sum;

  float t[kKvLoraRank] = {};
  multiply_values(block, p_quantized, a.numerics, t);

  const float max = std::fmax(tile.max[r], block_max);
  const float keep = exp2_nonpositive(tile.max[r] - max);
  const float add = exp2_nonpositive(block_max - max);
  if (keep != 1.0f) {
    for (float& o : tile.out[r]) o *= keep;
    tile.sum[r] *= keep;
    tile.norm[r] *= keep;
  }
  for (int d = 0; d < kKvLoraRank; ++d) tile.out[r][d] = std::fma(t[d], add, tile.out[r][d]);
  tile.sum[r] = std::fma(block_sum, add, tile.sum[r]);
  tile.norm[r] = std::fma(block_norm, add, tile.norm[r]);
  tile.max[r] = max;
}

/// The paper's Algorithm 1: the running max and the P scale go from block to block, and with
/// Accumulate::hopper the output accumulates in place. sum is kept apart from sigma, which it would
/// overflow with.
void attend_block_chained(const DecodeArgs& a, const Block& block, RowTile& tile, int r) {
  const float c = tile.scale[r] * a.softmax_scale;
  float x[kMaxBlock];
  float max = tile.max[r];
  for (int j = 0; j < block.tokens; ++j) {
    x[j] = sees(tile, r, block, j) ? score(tile, r, block, j, a.numerics) * block.scale[j] * c : -kInf;
    max = std::fmax(max, x[j]);
  }
  float fused[kMaxBlock], block_sum = 0.0f, fused_max = 0.0f;
  for (int j = 0; j < block.tokens; ++j) {
    const float e = std::exp(x[j] - max);
    block_sum += e;
    fused[j] = e * block.scale[j];
    fused_max = std::fmax(fused_max, fused[j]);
  }
  constexpr float kMinSigma = 0x1p-120f;
  const float sigma = std::fmax(fused_max / kE4m3Max, kMinSigma);
  float p_quantized[kMaxBlock], block_norm = 0.0f;
  for (int j = 0; j < block.tokens; ++j) {
    p_quantized[j] = e4m3_to_float(e4m3_from_float(fused[j] / sigma));
    block_norm += p_quantized[j] * sigma * block.inverse_scale[j];
  }
  const float decay = std::exp(tile.max[r] - max);
  const float gamma = decay * (tile.sigma[r] / sigma);
  for (float& o : tile.out[r]) o = o == 0.0f ? 0.0f : o * gamma;
  multiply_values(block, p_quantized, a.numerics, tile.out[r]);
  tile.sum[r] = tile.sum[r] * decay + block_sum;
  tile.norm[r] = a.numerics.normalize_by_quantized_p ? tile.norm[r] * decay + block_norm
                                                     : tile.sum[r];
  tile.max[r] = max;
  tile.sigma[r] = sigma;
}

/// out / norm, and lse in natural log.
void finish_row(const RowTile& tile, int r, const NumericsOptions& numerics, float* out,
                float* lse) {
  const bool chained = numerics.form == NumericsOptions::Form::chained;
  const float factor = chained ? tile.sigma[r] : 1.0f;
  const float norm = tile.norm[r];
  for (int d = 0; d < kKvLoraRank; ++d) {
    out[d] = norm == 0.0f ? 0.0f : tile.out[r][d] / norm * factor;
  }
  if (tile.sum[r] == 0.0f) {
    *lse = -kInf;
  } else if (chained) {
    *lse = tile.max[r] + std::log(tile.sum[r]);
  } else {
    *lse = (tile.max[r] + std::log2(tile.sum[r] / kE4m3Max)) * kLn2;
  }
}

void write_row(const DecodeArgs& a, std::int64_t request, std::int64_t row, const float* out,
               float lse) {
  store_output(a.out, a.out.offset(request, row / a.h_q, row % a.h_q), out);
  if (a.lse) *a.lse_at(request, row) = lse;
}

void attend_chunk(const DecodeArgs& a, const Chunk& chunk, std::int64_t first_row, int p_block,
                  Scratch& scratch) {
  RowTile& tile = scratch.tile;
  load_rows(a, chunk.request, first_row, tile);
  const std::int64_t end =
      std::min({chunk.end, static_cast<std::int64_t>(a.cache_seqlens[chunk.request]),
                a.block_table.max_blocks * kPageTokens});
  const bool count_faults = a.status && first_row == 0;
  for (std::int64_t begin = chunk.begin; begin < end; begin += p_block) {
    load_block(a, chunk.request, begin, std::min(begin + p_block, end), count_faults,
               scratch.block);
    for (int r = 0; r < tile.rows; ++r) {
      if (a.numerics.form == NumericsOptions::Form::chained) {
        attend_block_chained(a, scratch.block, tile, r);
      } else {
        attend_block_log_domain(a, scratch.block, tile, r);
      }
    }
  }
  for (int r = 0; r < tile.rows; ++r) {
    const std::int64_t row = first_row + r;
    float out[kKvLoraRank], lse;
    finish_row(tile, r, a.numerics, out, &lse);
    if (chunk.slot < 0) {
      write_row(a, chunk.request, row, out, lse);
    } else {
      const std::int64_t partial = chunk.slot * a.rows() + row;
      std::memcpy(a.out_accum + partial * kKvLoraRank, out, sizeof(out));
      a.lse_accum[partial] = lse;
    }
  }
}

/// Merges the partial results of one row, in the order of the splits.
void combine_row(const DecodeArgs& a, std::int64_t request, std::int64_t row) {
  const std::int64_t first = a.num_splits[request], last = a.num_splits[request + 1];
  float max = -FLT_MAX;
  for (std::int64_t slot = first; slot < last; ++slot) {
    max = std::fmax(max, a.lse_accum[slot * a.rows() + row]);
  }
  float sum = 0.0f;
  float out[kKvLoraRank] = {};
  for (std::int64_t slot = first; slot < last; ++slot) {
    const std::int64_t partial = slot * a.rows() + row;
    const float weight = std::exp(a.lse_accum[partial] - max);
    sum += weight;
    for (int d = 0; d < kKvLoraRank; ++d) {
      out[d] = std::fma(weight, a.out_accum[partial * kKvLoraRank + d], out[d]);
    }
  }
  for (float& o : out) o = sum == 0.0f ? 0.0f : o / sum;
  write_row(a, request, row, out, sum == 0.0f ? -kInf : max + std::log(sum));
}

/// On the CPU the plan can be read, so a plan for something else is an error, not a clamp.
void check_plan(const DecodeArgs& a, const ScheduleHeader& header) {
  check(header.version == kPlanVersion, "plan.schedule",
        fmt::format("version {} in word 0 (made by plan_decode)", kPlanVersion), header.version);
  check(header.p_block == 64 || header.p_block == 128, "plan.schedule",
        "a P block of 64 or 128 in word 1", header.p_block);
  check(header.workers == a.schedule_rows - 1, "plan.schedule",
        fmt::format("{} workers, as it has {} rows", a.schedule_rows - 1, a.schedule_rows),
        header.workers);
  check(header.rows == a.rows(), "plan.schedule",
        fmt::format("a plan for rows = s_q * h_q = {}", a.rows()), header.rows);
  const std::int64_t requests = std::min<std::int64_t>(header.b, a.b);
  check(requests >= 0 && a.num_splits[0] == 0, "plan.num_splits", "0 as its first word",
        a.num_splits[0]);
  for (std::int64_t i = 0; i < requests; ++i) {
    check(a.num_splits[i] <= a.num_splits[i + 1], "plan.num_splits", "no decrease",
          fmt::format("{} then {}", a.num_splits[i], a.num_splits[i + 1]));
  }
  const std::int64_t used = requests > 0 ? a.num_splits[requests] : 0;
  check(used <= a.slots, "workspace",
        fmt::format("{} bytes for the {} partial results of this plan (workspace_bytes with the "
                    "plan's own options)",
                    used * partial_result_bytes(a.rows()), used),
        fmt::format("room for {}", a.slots));
}

}  // namespace

void decode_fp8(const DecodeArgs& a) {
  const auto& header = *reinterpret_cast<const ScheduleHeader*>(a.schedule);
  check_plan(a, header);
  const auto scratch = std::make_unique<Scratch>();
  for (std::int64_t worker = 0; worker < header.workers; ++worker) {
    for (std::int64_t first_row = 0; first_row < a.rows(); first_row += kRowTile) {
      WorkerChunks chunks(a.schedule, a.num_splits, a.cache_seqlens, a.b, a.slots, worker);
      for (Chunk chunk; chunks.next(chunk);) {
        attend_chunk(a, chunk, first_row, header.p_block, *scratch);
      }
    }
  }
  const float zeros[kKvLoraRank] = {};
  for (std::int64_t request = 0; request < a.b; ++request) {
    const bool planned = request < header.b;
    if (planned && a.num_splits[request + 1] - a.num_splits[request] < 2) continue;
    for (std::int64_t row = 0; row < a.rows(); ++row) {
      if (planned) {
        combine_row(a, request, row);
      } else {
        write_row(a, request, row, zeros, -kInf);
      }
    }
  }
}

}  // namespace snapmla::cpu
