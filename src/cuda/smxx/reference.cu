#include <cfloat>

#include "core/tile_scheduler.h"
#include "cuda/device/launch.cuh"
#include "cuda/device/row_io.cuh"
#include "cuda/smxx/reference.h"

namespace snapmla::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kTokensPerWarp = kPageTokens / kWarps;
static_assert(kThreads * 2 == kKvLoraRank, "a thread owns two value columns");

/// Lane l holds content dimensions [16 l, 16 l + 16) and RoPE dimensions 2 l and 2 l + 1.
struct LaneVector {
  float content[16];
  float rope[2];
};

__device__ __forceinline__ LaneVector load_vector(const std::uint8_t* codes,
                                                  const std::uint16_t* rope) {
  LaneVector v;
  const uint4 raw = reinterpret_cast<const uint4*>(codes)[lane_id()];
  const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float2 pair = floats_from_e4m3x2((words[i / 2] >> (16 * (i % 2))) & 0xffffu);
    v.content[2 * i] = pair.x;
    v.content[2 * i + 1] = pair.y;
  }
  const float2 pair = floats_from_bf16x2(reinterpret_cast<const std::uint32_t*>(rope)[lane_id()]);
  v.rope[0] = pair.x;
  v.rope[1] = pair.y;
  return v;
}

/// A block per query row; it goes through the sequence page by page with a running maximum.
__global__ void __launch_bounds__(kThreads)
    decode_reference_kernel(const __grid_constant__ DecodeArgs a) {
  __shared__ float logits[kPageTokens];  // then probabilities times value scale
  __shared__ float scales[kPageTokens];
  wait_for_predecessor();
  release_successor();
  const int lane = lane_id();
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const std::int64_t planned = reinterpret_cast<const ScheduleHeader*>(a.schedule)->b;

  for (std::int64_t q = blockIdx.x; q < a.b * a.rows(); q += gridDim.x) {
    const std::int64_t request = q / a.rows();
    const std::int64_t row = q % a.rows();
    const LaneVector query = load_vector(a.q_codes + q * kKvLoraRank, a.q_rope + q * kRopeDim);
    // Never S_Q * S_K: it may overflow where the logit does not.
    const float query_scale = read_scale(a.q_scale[q]) * a.softmax_scale;

    std::int64_t end = request < planned ? a.cache_seqlens[request] : 0;
    end = min(end, a.block_table.max_blocks * kPageTokens);
    const std::int64_t visible = min(end, a.visible_end(request, row / a.h_q));

    float max_logit = -FLT_MAX, sum = 0.0f;
    float out[2] = {0.0f, 0.0f};
    for (std::int64_t begin = 0; begin < end; begin += kPageTokens) {
      const std::int64_t page = a.block_table.page(request, begin / kPageTokens);
      if (page < 0 || page >= a.cache.num_pages) {
        if (a.status != nullptr && row == 0 && threadIdx.x == 0) atomicAdd(a.status, 1);
        continue;
      }
      const int tokens =
          static_cast<int>(min(std::int64_t{kPageTokens}, max(visible - begin, std::int64_t{0})));
      if (tokens == 0) continue;
      const std::int64_t first_slot = page * kPageTokens;

      for (int k = 0; k < kTokensPerWarp; ++k) {
        const int token = warp * kTokensPerWarp + k;
        if (token >= tokens) break;
        const LaneVector key = load_vector(a.cache.content_at(first_slot + token),
                                           a.cache.rope_at(first_slot + token));
        float dot = query.rope[0] * key.rope[0] + query.rope[1] * key.rope[1];
#pragma unroll
        for (int i = 0; i < 16; ++i) dot = fmaf(query.content[i], key.content[i], dot);
        dot = warp_sum(dot);
        if (lane == 0) {
          const float scale = read_scale(*a.cache.scale_at(first_slot + token));
          scales[token] = scale;
          logits[token] = (dot * scale) * query_scale;
        }
      }
      __syncthreads();

      // Every warp computes the page's statistics alike; lane l has tokens l and l + 32.
      float x[2], weight[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = lane + i * kWarpSize;
        x[i] = token < tokens ? logits[token] : -INFINITY;
      }
      const float new_max = fmaxf(max_logit, warp_max(fmaxf(x[0], x[1])));
      const float keep = expf(max_logit - new_max);
#pragma unroll
      for (int i = 0; i < 2; ++i) weight[i] = expf(x[i] - new_max);
      sum = fmaf(sum, keep, warp_sum(weight[0] + weight[1]));
      max_logit = new_max;
      __syncthreads();  // all have read the logits
      if (warp == 0) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int token = lane + i * kWarpSize;
          if (token < tokens) logits[token] = weight[i] * scales[token];
        }
      }
      __syncthreads();

      float page_out[2] = {0.0f, 0.0f};
      const std::uint8_t* codes = a.cache.content_at(first_slot) + 2 * threadIdx.x;
      for (int token = 0; token < tokens; ++token) {
        const float2 value = floats_from_e4m3x2(
            *reinterpret_cast<const std::uint16_t*>(codes + token * kKvLoraRank));
        page_out[0] = fmaf(logits[token], value.x, page_out[0]);
        page_out[1] = fmaf(logits[token], value.y, page_out[1]);
      }
      out[0] = fmaf(out[0], keep, page_out[0]);
      out[1] = fmaf(out[1], keep, page_out[1]);
      __syncthreads();  // before the next page overwrites logits
    }

    const float result[2] = {sum == 0 ? 0.0f : out[0] / sum, sum == 0 ? 0.0f : out[1] / sum};
    store_values<2>(a.out, a.out.offset(request, row / a.h_q, row % a.h_q) + 2 * threadIdx.x,
                    result);
    if (a.lse != nullptr && threadIdx.x == 0) {
      *a.lse_at(request, row) = sum == 0 ? -INFINITY : max_logit + logf(sum);
    }
  }
}

}  // namespace

void launch_decode_reference(const DecodeArgs& args, cudaStream_t stream, bool pdl) {
  const std::int64_t rows = args.b * args.rows();
  if (rows == 0) return;
  launch("decode_reference kernel", decode_reference_kernel, {grid_size(rows, 1), kThreads}, stream,
         pdl, args);
}

}  // namespace snapmla::cuda
