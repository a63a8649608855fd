#include "core/tile_scheduler.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "snapmla/error.h"

namespace snapmla {
namespace {

void write_row(std::int32_t* schedule, std::int64_t row, const ScheduleRow& value) {
  std::memcpy(schedule + row * kScheduleCols, &value, sizeof(value));
}

// Balanced: cut the line of work at multiples of C.
void schedule_balanced(const std::int32_t* cache_seqlens, const ScheduleHeader& header,
                       std::int32_t* schedule, std::int32_t* num_splits) {
  std::int64_t total = 0;
  for (std::int64_t i = 0; i < header.b; ++i) {
    total += plan_blocks(cache_seqlens[i]) + kRequestOverhead;
  }
  const std::int64_t per_worker = std::max<std::int64_t>(ceil_div(total, header.workers), 1);

  std::int64_t request = 0, start = 0;  // the request that holds the cut and where it starts
  std::int32_t partials = 0;
  std::int64_t worker = 0;
  ScheduleRow row{};  // of `worker`, its begin set
  const auto close = [&](std::int64_t last_request, std::int64_t last_split, std::int64_t end) {
    row.last_request = static_cast<std::int32_t>(last_request);
    row.last_split = static_cast<std::int32_t>(last_split);
    row.end_token = static_cast<std::int32_t>(end);
    write_row(schedule, 1 + worker, row);
    ++worker;
  };

  num_splits[0] = 0;
  for (request = 0; request < header.b; ++request) {
    const std::int64_t blocks = plan_blocks(cache_seqlens[request]);
    const std::int64_t blocks_start = start + kRequestOverhead;
    const std::int64_t next_start = blocks_start + blocks;
    std::int32_t splits = 1;
    // Each cut in (start, next_start) ends the current worker: inside the overhead before this
    // request, inside the blocks at a token of it. (The cut at `start` was handled when the
    // previous request ended there, except the very first, which is no cut.)
    for (std::int64_t cut = (worker + 1) * per_worker; cut < next_start;
         cut = (worker + 1) * per_worker) {
      const std::int64_t block = cut - blocks_start;
      if (block <= 0) {
        close(request - 1, 0, kOpenEnd);
        row = {static_cast<std::int32_t>(request), 0, 0, 0, 0, 0, {}};
      } else {
        const std::int64_t token = block * kPlanBlockTokens;
        close(request, splits - 1, token);
        row = {static_cast<std::int32_t>(request), 0, splits, 0,
               static_cast<std::int32_t>(token),   0, {}};
        ++splits;
      }
    }
    num_splits[request + 1] = partials += splits > 1 ? splits : 0;
    start = next_start;
  }
  while (worker < header.workers) {
    close(header.b - 1, 0, kOpenEnd);
    row = {header.b, 0, 0, 0, 0, 0, {}};
  }
}

// Fixed modes: a split belongs to the worker in whose range of the line it starts.
void schedule_fixed(const std::int32_t* cache_seqlens, const ScheduleHeader& header,
                    std::int32_t* schedule, std::int32_t* num_splits) {
  std::int64_t total = 0;
  for (std::int64_t i = 0; i < header.b; ++i) {
    const std::int64_t blocks = plan_blocks(cache_seqlens[i]);
    const std::int64_t splits = fixed_splits(blocks, header);
    total += fixed_work(blocks, splits,
                        split_length(cache_seqlens[i], splits, header) / kPlanBlockTokens);
  }
  const std::int64_t per_worker = std::max<std::int64_t>(ceil_div(total, header.workers), 1);

  for (std::int64_t w = 0; w < header.workers; ++w) {
    write_row(schedule, 1 + w, {header.b, header.b - 1, 0, 0, 0, kOpenEnd, {}});
  }
  std::int64_t position = 0;
  std::int64_t previous_worker = -1;
  std::int32_t partials = 0;
  num_splits[0] = 0;
  for (std::int32_t request = 0; request < header.b; ++request) {
    const std::int64_t blocks = plan_blocks(cache_seqlens[request]);
    const std::int64_t splits = fixed_splits(blocks, header);
    const std::int64_t length =
        split_length(cache_seqlens[request], splits, header) / kPlanBlockTokens;
    for (std::int32_t split = 0; split < splits; ++split) {
      const std::int64_t worker = position / per_worker;
      auto* row = reinterpret_cast<ScheduleRow*>(schedule + (1 + worker) * kScheduleCols);
      if (worker != previous_worker) {
        row->begin_request = request;
        row->begin_split = split;
        previous_worker = worker;
      }
      row->last_request = request;
      row->last_split = split;
      const std::int64_t split_end = split + 1 < splits ? (split + 1) * length : blocks;
      position += kRequestOverhead + std::max<std::int64_t>(split_end - split * length, 0);
    }
    num_splits[request + 1] = partials += splits > 1 ? static_cast<std::int32_t>(splits) : 0;
  }
}

}  // namespace

std::int64_t plan_workers(std::int64_t rows, int num_sms) {
  return std::max<std::int64_t>(num_sms / ceil_div(std::max<std::int64_t>(rows, 1), kRowTile), 1);
}

ScheduleHeader make_schedule_header(const PlanSpec& spec, const PlanOptions& options) {
  ScheduleHeader header{};
  header.version = kPlanVersion;
  header.p_block = options.p_block;
  header.workers = static_cast<std::int32_t>(plan_workers(spec.rows, options.num_sms));
  header.b = static_cast<std::int32_t>(spec.b);
  header.rows = static_cast<std::int32_t>(spec.rows);
  header.mode = SplitMode::balanced;
  if (options.forced_splits > 0) {
    header.mode = SplitMode::fixed_count;
    header.mode_value = options.forced_splits;
    header.max_splits = options.forced_splits;
  } else if (options.split_tokens > 0 || options.batch_invariant) {
    header.mode = SplitMode::fixed_tokens;
    header.mode_value =
        options.split_tokens > 0 ? options.split_tokens : kBatchInvariantSplitTokens;
    header.max_splits = static_cast<std::int32_t>(
        std::max<std::int64_t>(ceil_div(spec.max_seqlen, header.mode_value), 1));
  }
  return header;
}

std::int64_t max_partial_results(const ScheduleHeader& header) {
  const std::int64_t balanced = balanced_partial_results(header.workers);
  if (header.mode == SplitMode::balanced || header.max_splits <= 1) return balanced;
  return std::max(balanced, static_cast<std::int64_t>(header.b) * header.max_splits);
}

void schedule_tiles(const std::int32_t* cache_seqlens, const ScheduleHeader& header,
                    std::int32_t* schedule, std::int32_t* num_splits) {
  std::memcpy(schedule, &header, sizeof(header));
  if (header.mode == SplitMode::balanced) {
    schedule_balanced(cache_seqlens, header, schedule, num_splits);
  } else {
    schedule_fixed(cache_seqlens, header, schedule, num_splits);
  }
}

}  // namespace snapmla
