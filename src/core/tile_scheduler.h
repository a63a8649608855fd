#pragma once

// Split-KV planning. The schedule is a pure function of (cache_seqlens, spec, options); the device
// planner evaluates the same inline functions, so both write the same words.
//
// All requests are laid on one line of work. Request i takes kRequestOverhead + blocks(i) units,
// its overhead first; a unit is one 128-token block. With W workers and total work N, worker w gets
// the range [w * C, (w + 1) * C), C = ceil(N / W). A cut that falls inside a request's blocks
// splits it there; a cut inside its overhead moves to its start. So a worker that continues a
// request pays that overhead outside its range, and one that starts a request pays inside: both end
// up equal.
//
// With a fixed number or length of splits the units on the line are whole splits (overhead +
// blocks each) and a split belongs to the worker in whose range it starts.
//
// The last chunk of every sequence is open-ended: a plan stays correct when lengths change.

#include <cstdint>

#include "core/float_formats.h"
#include "snapmla/decode.h"

namespace snapmla {

/// Cost of starting a request or split, in 128-token blocks.
inline constexpr std::int64_t kRequestOverhead = 3;
inline constexpr int kRowTile = 64;
inline constexpr int kScheduleCols = 8;
inline constexpr std::int32_t kOpenEnd = 0x7fffffff;

enum class SplitMode : std::int32_t { balanced = 0, fixed_tokens = 1, fixed_count = 2 };

/// Row 0 of a schedule.
struct ScheduleHeader {
  std::int32_t version;
  std::int32_t p_block;
  std::int32_t workers;
  std::int32_t b;
  std::int32_t rows;
  SplitMode mode;
  std::int32_t mode_value;  // fixed_tokens: tokens per split; fixed_count: splits
  std::int32_t max_splits;  // fixed modes: upper bound per request
};
static_assert(sizeof(ScheduleHeader) == kScheduleCols * 4);

/// Row 1 + w: the work of worker w. Requests begin_request..last_request in order; within the first
/// one from split begin_split on, within the last one up to split last_split. Balanced plans have
/// one chunk per request and worker, whose bounds are begin_token (first request) and end_token
/// (last request); other chunks are whole sequences.
struct ScheduleRow {
  std::int32_t begin_request;
  std::int32_t last_request;  // < begin_request: nothing to do
  std::int32_t begin_split;
  std::int32_t last_split;
  std::int32_t begin_token;
  std::int32_t end_token;  // kOpenEnd: to the end of the sequence
  std::int32_t unused[2];
};
static_assert(sizeof(ScheduleRow) == kScheduleCols * 4);

/// A piece of one sequence for one worker: keys [begin, end) of `request`. slot < 0: the only
/// piece, its result goes to the output; otherwise the index of its partial result in the
/// workspace.
struct Chunk {
  std::int64_t request;
  std::int64_t begin, end;
  std::int64_t slot;
};

SNAPMLA_HD std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

SNAPMLA_HD std::int64_t plan_blocks(std::int32_t seqlen) {
  return seqlen <= 0 ? 0 : ceil_div(seqlen, kPlanBlockTokens);
}

/// Fixed modes: the number of splits of a sequence of `blocks` blocks.
SNAPMLA_HD std::int64_t fixed_splits(std::int64_t blocks, const ScheduleHeader& header) {
  std::int64_t n = header.mode_value;
  if (header.mode == SplitMode::fixed_tokens) {
    n = ceil_div(blocks, header.mode_value / kPlanBlockTokens);
    if (n > header.max_splits) n = header.max_splits;
  } else if (n > blocks) {
    n = blocks;
  }
  return n < 1 ? 1 : n;
}

/// Fixed modes: tokens per split when the sequence has `seqlen` tokens and `splits` splits.
SNAPMLA_HD std::int64_t split_length(std::int64_t seqlen, std::int64_t splits,
                                     const ScheduleHeader& header) {
  if (header.mode == SplitMode::fixed_tokens) return header.mode_value;
  const std::int64_t blocks = seqlen <= 0 ? 1 : ceil_div(seqlen, kPlanBlockTokens);
  return ceil_div(blocks, splits) * kPlanBlockTokens;
}

/// Fixed modes: units on the line of a request of `blocks` blocks in `splits` splits of `length`
/// blocks. More than overhead + blocks where rounding the length up leaves the last splits empty.
SNAPMLA_HD std::int64_t fixed_work(std::int64_t blocks, std::int64_t splits, std::int64_t length) {
  const std::int64_t last = blocks - (splits - 1) * length;
  return splits * kRequestOverhead + (splits - 1) * length + (last > 0 ? last : 0);
}

/// Walks the chunks of one worker:   for (WorkerChunks it(...); it.next(chunk);) ...
/// Everything read from the plan is clamped to the call's own sizes, so that a stale or foreign
/// plan cannot lead outside the caller's buffers. `slots` is the number of partial results that
/// fit.
class WorkerChunks {
 public:
  SNAPMLA_HD WorkerChunks(const std::int32_t* schedule, const std::int32_t* num_splits,
                          const std::int32_t* cache_seqlens, std::int64_t b, std::int64_t slots,
                          std::int64_t worker)
      : header_(reinterpret_cast<const ScheduleHeader*>(schedule)),
        row_(*reinterpret_cast<const ScheduleRow*>(schedule + (1 + worker) * kScheduleCols)),
        num_splits_(num_splits),
        cache_seqlens_(cache_seqlens),
        slots_(slots),
        request_(row_.begin_request),
        split_(row_.begin_split) {
    const std::int64_t limit = header_->b < b ? header_->b : b;
    last_ = row_.last_request < limit ? row_.last_request : limit - 1;
    if (request_ < 0) request_ = limit;
    if (split_ < 0) split_ = 0;
  }

  SNAPMLA_HD bool next(Chunk& chunk) {
    if (request_ > last_) return false;
    // 32 bits where they suffice: the warp that walks the plan on a GPU has few registers.
    const std::int32_t first_slot = num_splits_[request_];
    const std::int64_t partials = std::int64_t{num_splits_[request_ + 1]} - first_slot;
    const std::int32_t splits =
        partials > 1 ? static_cast<std::int32_t>(partials < kOpenEnd ? partials : kOpenEnd) : 1;
    const bool is_last = request_ == row_.last_request;
    chunk.request = request_;
    bool more = false;  // further splits of this request belong to this worker
    if (header_->mode == SplitMode::balanced) {
      chunk.begin = request_ == row_.begin_request ? row_.begin_token : 0;
      chunk.end = is_last ? row_.end_token : kOpenEnd;
    } else {
      const std::int64_t length = split_length(cache_seqlens_[request_], splits, *header_);
      chunk.begin = split_ * length;
      chunk.end = split_ + 1 < splits ? chunk.begin + length : kOpenEnd;
      more = split_ + 1 < splits && !(is_last && split_ >= row_.last_split);
    }
    if (chunk.begin < 0) chunk.begin = 0;
    chunk.slot = splits == 1 ? -1 : std::int64_t{first_slot} + split_;
    if (chunk.slot >= slots_) chunk.slot = slots_ - 1;
    if (more) {
      ++split_;
    } else {
      ++request_;
      split_ = 0;
    }
    return true;
  }

 private:
  const ScheduleHeader* header_;
  ScheduleRow row_;
  const std::int32_t* num_splits_;
  const std::int32_t* cache_seqlens_;
  std::int64_t slots_;
  std::int64_t request_, last_, split_;
};

// --- host side -------------------------------------------------------------------------------

/// Workers of a plan: one CTA per worker and 64-row tile, at least one.
std::int64_t plan_workers(std::int64_t rows, int num_sms);

/// Fills in mode, mode_value and max_splits for resolved options (num_sms and p_block set).
ScheduleHeader make_schedule_header(const PlanSpec& spec, const PlanOptions& options);

/// Partial results that a balanced plan can have: each cut ends one and begins one.
SNAPMLA_HD std::int64_t balanced_partial_results(std::int64_t workers) { return 2 * (workers - 1); }

/// Upper bound of the partial results of any plan made with this header.
std::int64_t max_partial_results(const ScheduleHeader& header);

/// Workspace bytes of one partial result: f32 out [rows, 512] and lse [rows].
inline std::int64_t partial_result_bytes(std::int64_t rows) {
  return rows * (kKvLoraRank + 1) * static_cast<std::int64_t>(sizeof(float));
}

/// Writes schedule [1 + workers, 8] and num_splits [b + 1].
void schedule_tiles(const std::int32_t* cache_seqlens, const ScheduleHeader& header,
                    std::int32_t* schedule, std::int32_t* num_splits);

}  // namespace snapmla
