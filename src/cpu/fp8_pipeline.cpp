#include "cpu/fp8_pipeline.h"

#include <omp.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "core/tile_scheduler.h"
#include "core/validate.h"
#include "cpu/data_path.h"
#include "cpu/tile.h"

namespace snapmla::cpu {
namespace {

struct Scratch {
  Block block;
  RowTile tile;
};

void load_block(const DecodeArgs& a, const Kernels& kernels, std::int64_t request,
                std::int64_t begin, std::int64_t end, bool count_faults, Block& block) {
  block.begin = begin;
  block.tokens = static_cast<int>(end - begin);
  block.all_valid = true;
  for (int j = 0; j < block.padded_tokens(); ++j) {
    const std::int64_t position = begin + j;
    std::int64_t page = -1;
    if (j < block.tokens) {
      page = a.block_table.page(request, position / kPageTokens);
      block.valid[j] = page >= 0 && page < a.cache.num_pages;
      if (!block.valid[j]) {
        page = -1;
        block.all_valid = false;
        if (count_faults && position % kPageTokens == 0) count_fault(a.status);
      }
    }
    if (page < 0) {
      std::memset(block.codes[j], 0, sizeof(block.codes[j]));
      std::memset(block.rope[j], 0, sizeof(block.rope[j]));
      block.scale[j] = 1.0f;
      block.log2_scale[j] = block.inverse_scale[j] = 0.0f;
      continue;
    }
    const std::int64_t slot = page * kPageTokens + position % kPageTokens;
    kernels.decode_token(a.cache.content_at(slot), a.cache.rope_at(slot), block.codes[j],
                         block.rope[j]);
    block.scale[j] = read_scale(*a.cache.scale_at(slot));
    block.log2_scale[j] = std::log2(block.scale[j]);
    block.inverse_scale[j] = 1.0f / block.scale[j];
  }
}

void load_rows(const DecodeArgs& a, const Kernels& kernels, std::int64_t request,
               std::int64_t first_row, RowTile& tile) {
  tile.rows = static_cast<int>(std::min<std::int64_t>(kRowTile, a.rows() - first_row));
  for (int r = 0; r < tile.rows; ++r) {
    const std::int64_t row = first_row + r;
    const std::int64_t q = request * a.rows() + row;
    kernels.decode_token(a.q_codes + q * kKvLoraRank, a.q_rope + q * kRopeDim, tile.codes[r],
                         tile.rope[r]);
    tile.scale[r] = read_scale(a.q_scale[q]);
    tile.visible_end[r] = a.visible_end(request, row / a.h_q);
    std::memset(tile.out[r], 0, sizeof(tile.out[r]));
    tile.max[r] = -FLT_MAX;
    tile.sum[r] = tile.norm[r] = 0.0f;
    tile.sigma[r] = 1.0f;
  }
}

/// The paper's Algorithm 1: the running max and the P scale go from block to block, and with
/// Accumulate::hopper the output accumulates in place. sum is kept apart from sigma, which it would
/// overflow with.
void attend_block_chained(const DecodeArgs& a, const Block& block, RowTile& tile, int r) {
  const float c = tile.scale[r] * a.softmax_scale;
  float* x = tile.scores[r];
  float max = tile.max[r];
  for (int j = 0; j < block.tokens; ++j) {
    x[j] = tile.sees(block, r, j) ? x[j] * block.scale[j] * c : -kInf;
    max = max_ignoring_nan(max, x[j]);
  }
  float fused[kMaxBlock], block_sum = 0.0f, fused_max = 0.0f;
  for (int j = 0; j < block.tokens; ++j) {
    const float e = std::exp(x[j] - max);
    block_sum += e;
    fused[j] = e * block.scale[j];
    fused_max = max_ignoring_nan(fused_max, fused[j]);
  }
  constexpr float kMinSigma = 0x1p-120f;
  const float sigma = std::max(fused_max / kE4m3Max, kMinSigma);
  float p_quantized[kMaxBlock], block_norm = 0.0f;
  for (int j = 0; j < block.tokens; ++j) {
    p_quantized[j] = e4m3_to_float(e4m3_from_float(fused[j] / sigma));
    block_norm += p_quantized[j] * sigma * block.inverse_scale[j];
  }
  const float decay = std::exp(tile.max[r] - max);
  const float gamma = decay * (tile.sigma[r] / sigma);
  for (float& o : tile.out[r]) o = o == 0.0f ? 0.0f : o * gamma;
  multiply_values(a.numerics, block, p_quantized, tile.out[r]);
  tile.sum[r] = tile.sum[r] * decay + block_sum;
  tile.norm[r] =
      a.numerics.normalize_by_quantized_p ? tile.norm[r] * decay + block_norm : tile.sum[r];
  tile.max[r] = max;
  tile.sigma[r] = sigma;
}

void attend_block(const DecodeArgs& a, const Kernels& kernels, const Block& block, RowTile& tile) {
  kernels.score(a.numerics, block, tile);
  if (a.numerics.form == NumericsOptions::Form::chained) {
    for (int r = 0; r < tile.rows; ++r) attend_block_chained(a, block, tile, r);
    return;
  }
  for (int r = 0; r < tile.rows; ++r) {
    kernels.softmax(a.numerics, block, tile, r, tile.scale[r] * a.softmax_scale * kLog2E);
  }
  kernels.accumulate(a.numerics, block, tile);
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

void attend_chunk(const DecodeArgs& a, const Kernels& kernels, const Chunk& chunk,
                  std::int64_t first_row, int p_block, Scratch& scratch) {
  RowTile& tile = scratch.tile;
  load_rows(a, kernels, chunk.request, first_row, tile);
  const std::int64_t end =
      std::min({chunk.end, static_cast<std::int64_t>(a.cache_seqlens[chunk.request]),
                a.block_table.max_blocks * kPageTokens});
  for (std::int64_t begin = chunk.begin; begin < end; begin += p_block) {
    load_block(a, kernels, chunk.request, begin, std::min(begin + p_block, end), first_row == 0,
               scratch.block);
    attend_block(a, kernels, scratch.block, tile);
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
    max = max_ignoring_nan(max, a.lse_accum[slot * a.rows() + row]);
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

}  // namespace

const Kernels& choose_kernels(const NumericsOptions& numerics) {
  const bool vectorized = numerics.form == NumericsOptions::Form::log_domain &&
                          numerics.accumulate == NumericsOptions::Accumulate::exact;
  const Kernels* simd = simd_kernels();
  return vectorized && simd ? *simd : plain_kernels();
}

void decode_fp8(const DecodeArgs& a) {
  const auto& header = *reinterpret_cast<const ScheduleHeader*>(a.schedule);
  check_host_plan(a);
  const Kernels& kernels = choose_kernels(a.numerics);
  const std::int64_t row_tiles = ceil_div(a.rows(), kRowTile);
  const std::int64_t jobs = header.workers * row_tiles;
  const int threads = static_cast<int>(std::min<std::int64_t>(omp_get_max_threads(), jobs));
  std::vector<std::unique_ptr<Scratch>> scratch(threads);  // allocated here: it may throw
  for (auto& one : scratch) one = std::make_unique_for_overwrite<Scratch>();

#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (std::int64_t job = 0; job < jobs; ++job) {
    const std::int64_t worker = job / row_tiles, first_row = job % row_tiles * kRowTile;
    WorkerChunks chunks(a.schedule, a.num_splits, a.cache_seqlens, a.b, a.slots, worker);
    for (Chunk chunk; chunks.next(chunk);) {
      attend_chunk(a, kernels, chunk, first_row, header.p_block, *scratch[omp_get_thread_num()]);
    }
  }

  const float zeros[kKvLoraRank] = {};
#pragma omp parallel for schedule(static)
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
