#include <algorithm>

#include "core/tile_scheduler.h"
#include "cuda/device/launch.cuh"
#include "cuda/device/math.cuh"
#include "cuda/smxx/plan.h"

// core/tile_scheduler.cpp walks the line of work from left to right. Here every worker finds its
// own place on it: with P[r] the start of request r (a prefix sum), the place of worker w's first
// unit is w * C, and the request there is found by binary search. Requests are taken a block's
// worth at a time, so any number of them works.

namespace snapmla::cuda {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kMaxWarps = kMaxThreads / kWarpSize;

/// Division of non-negative numbers; in 32 bits wherever they fit, which is several times faster.
__device__ __forceinline__ std::int64_t divide(std::int64_t a, std::int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
  return a / b;
}

/// Sums over the block, inclusive per thread, and the total. All threads must call it.
struct Scan {
  std::int64_t inclusive, total;
};
__device__ Scan block_scan(std::int64_t value, std::int64_t* warp_sums) {
  const int lane = lane_id();
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;
  std::int64_t sum = value;
  for (int step = 1; step < kWarpSize; step *= 2) {
    const std::int64_t other = __shfl_up_sync(kFullMask, sum, step);
    if (lane >= step) sum += other;
  }
  __syncthreads();  // the previous call's readers are done with warp_sums
  if (lane == kWarpSize - 1) warp_sums[warp] = sum;
  __syncthreads();
  std::int64_t warp_sum = lane < warps ? warp_sums[lane] : 0;
  for (int step = 1; step < kWarpSize; step *= 2) {
    const std::int64_t other = __shfl_up_sync(kFullMask, warp_sum, step);
    if (lane >= step) warp_sum += other;
  }
  const std::int64_t before = __shfl_sync(kFullMask, warp_sum, warp > 0 ? warp - 1 : 0);
  return {sum + (warp > 0 ? before : 0), __shfl_sync(kFullMask, warp_sum, kWarpSize - 1)};
}

struct Request {
  std::int64_t blocks, splits, length;  // the last two in fixed modes only; length in blocks
};

__device__ __forceinline__ Request describe(std::int32_t seqlen, const ScheduleHeader& header) {
  Request request{plan_blocks(seqlen), 1, 0};
  if (header.mode != SplitMode::balanced) {
    request.splits = fixed_splits(request.blocks, header);
    request.length = split_length(seqlen, request.splits, header) / kPlanBlockTokens;
  }
  return request;
}

__device__ __forceinline__ std::int64_t work(const Request& request, const ScheduleHeader& header) {
  return header.mode == SplitMode::balanced
             ? request.blocks + kRequestOverhead
             : fixed_work(request.blocks, request.splits, request.length);
}

/// Requests [first, first + count) on the line of work.
struct Group {
  const std::int64_t* starts;  // [count + 1]
  const std::int32_t* seqlens;
  std::int64_t first;
  int count;

  /// The last request that starts at or before `position`, relative to `first`.
  __device__ int find(std::int64_t position) const {
    int low = 0, high = count;  // starts[low] <= position < starts[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (starts[middle] <= position) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

__device__ __forceinline__ ScheduleRow* schedule_row(std::int32_t* schedule, std::int64_t worker) {
  return reinterpret_cast<ScheduleRow*>(schedule + (1 + worker) * kScheduleCols);
}

/// Each cut inside the group ends the worker before it and begins the one after it.
__device__ void place_balanced(const Group& group, std::int64_t per_worker,
                               std::int32_t* schedule) {
  const std::int64_t first_cut =
      max(divide(group.starts[0] + per_worker - 1, per_worker), std::int64_t{1});
  for (std::int64_t w = first_cut + threadIdx.x; w * per_worker < group.starts[group.count];
       w += blockDim.x) {
    const std::int64_t cut = w * per_worker;
    const int r = group.find(cut);
    const std::int64_t blocks_start = group.starts[r] + kRequestOverhead;
    ScheduleRow* ended = schedule_row(schedule, w - 1);
    ScheduleRow* begun = schedule_row(schedule, w);
    const auto request = static_cast<std::int32_t>(group.first + r);
    begun->begin_request = request;
    if (cut <= blocks_start) {  // inside the overhead
      ended->last_request = request - 1;
      ended->last_split = 0;
      ended->end_token = kOpenEnd;
      begun->begin_split = begun->begin_token = 0;
    } else {
      // The cuts of this request's blocks are those after blocks_start.
      const auto split = static_cast<std::int32_t>(w - divide(blocks_start, per_worker));
      const auto token = static_cast<std::int32_t>((cut - blocks_start) * kPlanBlockTokens);
      ended->last_request = request;
      ended->last_split = split - 1;
      ended->end_token = token;
      begun->begin_split = split;
      begun->begin_token = token;
    }
  }
}

/// Each worker whose range meets the group takes its first and last split there. Groups come in
/// order, so a later group's last split replaces an earlier one's; `previous` is the worker of the
/// last split before the group, whose first split stays.
__device__ void place_fixed(const Group& group, std::int64_t per_worker, std::int64_t previous,
                            const ScheduleHeader& header, std::int32_t* schedule) {
  const std::int64_t group_end = group.starts[group.count];
  const std::int64_t first_worker = divide(group.starts[0], per_worker);
  for (std::int64_t w = first_worker + threadIdx.x; w * per_worker < group_end; w += blockDim.x) {
    const std::int64_t range_begin = max(w * per_worker, group.starts[0]);
    const std::int64_t range_end = min((w + 1) * per_worker, group_end);
    int r = group.find(range_begin);
    Request request = describe(group.seqlens[r], header);
    std::int64_t unit = request.length + kRequestOverhead;
    std::int64_t split = divide(range_begin - group.starts[r] + unit - 1, unit);
    if (split >= request.splits) {  // the range begins inside the last split of r
      if (++r == group.count) continue;
      split = 0;
      request = describe(group.seqlens[r], header);
      unit = request.length + kRequestOverhead;
    }
    if (group.starts[r] + split * unit >= range_end) continue;
    ScheduleRow* row = schedule_row(schedule, w);
    if (w != previous) {
      row->begin_request = static_cast<std::int32_t>(group.first + r);
      row->begin_split = static_cast<std::int32_t>(split);
    }
    r = group.find(range_end - 1);
    request = describe(group.seqlens[r], header);
    unit = request.length + kRequestOverhead;
    row->last_request = static_cast<std::int32_t>(group.first + r);
    row->last_split = static_cast<std::int32_t>(
        min(request.splits - 1, divide(range_end - 1 - group.starts[r], unit)));
  }
}

__global__ void __launch_bounds__(kMaxThreads)
    plan_kernel(const std::int32_t* cache_seqlens, const __grid_constant__ ScheduleHeader header,
                std::int32_t* schedule, std::int32_t* num_splits) {
  __shared__ std::int64_t starts[kMaxThreads + 1];
  __shared__ std::int32_t seqlens[kMaxThreads];
  __shared__ std::int64_t warp_sums[kMaxWarps];
  wait_for_predecessor();
  release_successor();

  const bool balanced = header.mode == SplitMode::balanced;
  const std::int64_t b = header.b;
  std::int64_t own = 0;
  for (std::int64_t i = threadIdx.x; i < b; i += blockDim.x) {
    own += work(describe(cache_seqlens[i], header), header);
  }
  const std::int64_t total = block_scan(own, warp_sums).total;
  const std::int64_t per_worker =
      max(divide(total + header.workers - 1, header.workers), std::int64_t{1});

  // What workers get that no cut or split below reaches.
  for (std::int64_t w = threadIdx.x; w < header.workers; w += blockDim.x) {
    const bool begins = balanced && w == 0;
    *schedule_row(schedule, w) = {begins ? 0 : header.b, header.b - 1, 0, 0, 0, kOpenEnd, {}};
  }
  if (threadIdx.x == 0) {
    *reinterpret_cast<ScheduleHeader*>(schedule) = header;
    num_splits[0] = 0;
  }

  std::int64_t line = 0;      // start of the group on the line
  std::int64_t partials = 0;  // before the group
  std::int64_t previous = -1;
  for (std::int64_t first = 0; first < b; first += blockDim.x) {
    const std::int64_t i = first + threadIdx.x;
    const bool in_batch = i < b;
    const std::int32_t seqlen = in_batch ? cache_seqlens[i] : 0;
    const Request request = describe(seqlen, header);
    const std::int64_t units = in_batch ? work(request, header) : 0;
    const Scan place = block_scan(units, warp_sums);
    const std::int64_t start = line + place.inclusive - units;
    starts[threadIdx.x] = start;
    seqlens[threadIdx.x] = seqlen;
    if (threadIdx.x == blockDim.x - 1) starts[blockDim.x] = start + units;

    std::int64_t splits = request.splits;
    if (balanced) {  // one more than the cuts in (start + overhead, start + units)
      splits = 1 + divide(start + max(units, kRequestOverhead + 1) - 1, per_worker) -
               divide(start + kRequestOverhead, per_worker);
    }
    const Scan slots = block_scan(in_batch && splits > 1 ? splits : 0, warp_sums);
    if (in_batch) num_splits[i + 1] = static_cast<std::int32_t>(partials + slots.inclusive);

    // block_scan has synchronized: starts, seqlens and the rows above are complete.
    const Group group{starts, seqlens, first,
                      static_cast<int>(min(std::int64_t{blockDim.x}, b - first))};
    if (balanced) {
      place_balanced(group, per_worker, schedule);
    } else {
      place_fixed(group, per_worker, previous, header, schedule);
      const Request last = describe(seqlens[group.count - 1], header);
      previous =
          divide(starts[group.count - 1] + (last.splits - 1) * (last.length + kRequestOverhead),
                 per_worker);
    }
    line += place.total;
    partials += slots.total;
    __syncthreads();  // before the next group overwrites starts
  }
}

}  // namespace

void launch_plan_decode(const PlanArgs& args, cudaStream_t stream, bool pdl) {
  const ScheduleHeader header = make_schedule_header(args.spec, args.options);
  // No wider than the work: barriers of fewer warps are faster.
  const std::int64_t wanted = std::max<std::int64_t>(header.b, header.workers);
  const auto threads = static_cast<unsigned>(std::clamp<std::int64_t>(
      ceil_div(wanted, kWarpSize) * kWarpSize, 4 * kWarpSize, kMaxThreads));
  launch("plan_decode kernel", plan_kernel, {1, threads}, stream, pdl, args.cache_seqlens, header,
         args.schedule, args.num_splits);
}

}  // namespace snapmla::cuda
