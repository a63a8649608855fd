#include "core/tile_scheduler.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "support/random.h"

namespace snapmla {
namespace {

using test::Random;

struct Plan {
  ScheduleHeader header;
  std::vector<std::int32_t> schedule, num_splits;
};

constexpr std::int32_t kGuard = 0x5a5a5a5a;

/// A plan between guard words.
Plan make_plan(const std::vector<std::int32_t>& lengths, const ScheduleHeader& header) {
  const std::size_t words = (1 + header.workers) * kScheduleCols, requests = lengths.size() + 1;
  std::vector<std::int32_t> schedule(words + 64, kGuard), num_splits(requests + 64, kGuard);
  schedule_tiles(lengths.data(), header, schedule.data(), num_splits.data());
  for (std::size_t i = 0; i < 64; ++i) {
    EXPECT_EQ(schedule[words + i], kGuard) << "words past the schedule were written";
    EXPECT_EQ(num_splits[requests + i], kGuard) << "words past num_splits were written";
  }
  schedule.resize(words);
  num_splits.resize(requests);
  return {header, schedule, num_splits};
}

ScheduleHeader make_header(std::int64_t b, std::int64_t workers, const PlanOptions& base,
                           std::int64_t max_seqlen) {
  PlanOptions options = base;
  options.num_sms = static_cast<int>(workers);
  options.p_block = 64;
  return make_schedule_header({b, 64, max_seqlen, {}}, options);
}

std::vector<std::vector<Chunk>> chunks_of(const Plan& plan,
                                          const std::vector<std::int32_t>& lengths,
                                          std::int64_t slots) {
  std::vector<std::vector<Chunk>> workers;
  for (std::int64_t w = 0; w < plan.header.workers; ++w) {
    workers.emplace_back();
    WorkerChunks chunks(plan.schedule.data(), plan.num_splits.data(), lengths.data(),
                        static_cast<std::int64_t>(lengths.size()), slots, w);
    for (Chunk chunk; chunks.next(chunk);) {
      workers.back().push_back(chunk);
      if (workers.back().size() > 100000) {
        ADD_FAILURE() << "worker " << w << " does not end";
        return workers;
      }
    }
  }
  return workers;
}

std::string describe(const Plan& plan, const std::vector<std::int32_t>& lengths) {
  const auto shown = static_cast<std::ptrdiff_t>(std::min<std::size_t>(lengths.size(), 40));
  return fmt::format("mode {} value {} workers {} lengths {}", static_cast<int>(plan.header.mode),
                     plan.header.mode_value, plan.header.workers,
                     fmt::join(lengths.begin(), lengths.begin() + shown, " "));
}

/// Every token of every request exactly once and in order, whatever the lengths are now; slots
/// unique, inside the request's range and below the bound; starts on multiples of 128.
void expect_covers(const Plan& plan, const std::vector<std::int32_t>& lengths,
                   bool planned_for_these) {
  SCOPED_TRACE(describe(plan, lengths));
  const std::int64_t bound = max_partial_results(plan.header);
  const std::int64_t requests =
      std::min<std::int64_t>(plan.header.b, static_cast<std::int64_t>(lengths.size()));
  ASSERT_EQ(plan.num_splits[0], 0);
  for (std::int64_t i = 0; i < requests; ++i) {
    const std::int64_t partials = plan.num_splits[i + 1] - plan.num_splits[i];
    ASSERT_TRUE(partials == 0 || partials >= 2) << "request " << i << " has " << partials;
  }
  ASSERT_LE(plan.num_splits[requests], bound);

  std::vector<std::vector<Chunk>> by_request(requests);
  std::set<std::int64_t> slots;
  std::int64_t last_request = 0;
  for (const auto& worker : chunks_of(plan, lengths, bound)) {
    for (const Chunk& chunk : worker) {
      ASSERT_GE(chunk.request, last_request) << "out of order";
      ASSERT_LT(chunk.request, requests);
      last_request = chunk.request;
      by_request[chunk.request].push_back(chunk);
      if (chunk.slot >= 0) {
        ASSERT_TRUE(slots.insert(chunk.slot).second) << "slot " << chunk.slot << " twice";
        ASSERT_LT(chunk.slot, bound);
        ASSERT_GE(chunk.slot, plan.num_splits[chunk.request]);
        ASSERT_LT(chunk.slot, plan.num_splits[chunk.request + 1]);
      }
    }
  }
  for (std::int64_t i = 0; i < requests; ++i) {
    const auto& chunks = by_request[i];
    const std::int64_t partials = plan.num_splits[i + 1] - plan.num_splits[i];
    ASSERT_EQ(static_cast<std::int64_t>(chunks.size()), std::max<std::int64_t>(partials, 1))
        << "request " << i;
    ASSERT_EQ(chunks[0].begin, 0) << "request " << i;
    for (std::size_t k = 0; k < chunks.size(); ++k) {
      ASSERT_EQ(chunks[k].begin % kPlanBlockTokens, 0) << "request " << i;
      ASSERT_EQ(chunks[k].slot, partials == 0 ? -1 : plan.num_splits[i] + static_cast<int>(k));
      if (k > 0) {
        ASSERT_EQ(chunks[k].begin, chunks[k - 1].end) << "request " << i;
      }
      if (planned_for_these && plan.header.mode == SplitMode::balanced && chunks.size() > 1) {
        ASSERT_LT(chunks[k].begin, lengths[i]) << "an empty split in a fresh balanced plan";
      }
    }
    ASSERT_GE(chunks.back().end, std::max(lengths[i], 0)) << "request " << i;
  }
}

std::int64_t worker_cost(const std::vector<Chunk>& chunks,
                         const std::vector<std::int32_t>& lengths) {
  std::int64_t cost = 0;
  for (const Chunk& chunk : chunks) {
    const std::int64_t end = std::min<std::int64_t>(chunk.end, std::max(lengths[chunk.request], 0));
    cost +=
        kRequestOverhead + std::max<std::int64_t>(ceil_div(end - chunk.begin, kPlanBlockTokens), 0);
  }
  return cost;
}

// No worker gets more than its even share of the line plus one start (balanced) or one split
// (fixed: a split belongs to the worker in whose range it starts).
void expect_balanced(const Plan& plan, const std::vector<std::int32_t>& lengths) {
  SCOPED_TRACE(describe(plan, lengths));
  std::int64_t line = 0, largest = kRequestOverhead;
  for (std::int32_t length : lengths) {
    const std::int64_t blocks = plan_blocks(length);
    if (plan.header.mode == SplitMode::balanced) {
      line += kRequestOverhead + blocks;
    } else {
      const std::int64_t splits = fixed_splits(blocks, plan.header);
      const std::int64_t split = split_length(length, splits, plan.header) / kPlanBlockTokens;
      line += splits * kRequestOverhead + std::max(blocks, (splits - 1) * split);
      largest = std::max(largest, kRequestOverhead + split);
    }
  }
  const std::int64_t share = std::max<std::int64_t>(ceil_div(line, plan.header.workers), 1);
  for (const auto& chunks : chunks_of(plan, lengths, max_partial_results(plan.header))) {
    ASSERT_LE(worker_cost(chunks, lengths), share + largest);
  }
}

std::vector<std::int32_t> random_lengths(Random& random, std::int64_t b) {
  std::vector<std::int32_t> lengths(b);
  const std::int64_t kind = random.integer(0, 4);
  for (std::int32_t& length : lengths) {
    switch (kind) {
      case 0:
        length = static_cast<std::int32_t>(random.integer(0, 300));
        break;
      case 1:
        length = static_cast<std::int32_t>(random.log_uniform(1, 200000));
        break;
      case 2:
        length = static_cast<std::int32_t>(128 * random.integer(0, 40));
        break;
      case 3:
        length = random.integer(0, 9) ? 1 : 131072;
        break;
      default:
        length = static_cast<std::int32_t>(random.integer(-3, 3));
        break;
    }
  }
  return lengths;
}

PlanOptions random_options(Random& random) {
  PlanOptions options;
  switch (random.integer(0, 3)) {
    case 0:
      break;
    case 1:
      options.forced_splits = static_cast<int>(random.integer(1, 40));
      break;
    case 2:
      options.split_tokens = static_cast<int>(128 * random.integer(1, 30));
      break;
    default:
      options.batch_invariant = true;
      break;
  }
  return options;
}

TEST(TileScheduler, CoversEveryBlockOnceInOrder) {
  for (int seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Random random(seed);
    const auto lengths = random_lengths(random, random.integer(0, seed % 10 ? 12 : 300));
    const std::int32_t longest =
        lengths.empty() ? 1 : std::max(*std::max_element(lengths.begin(), lengths.end()), 1);
    const std::int64_t workers = random.integer(1, random.integer(0, 1) ? 8 : 200);
    const Plan plan = make_plan(lengths, make_header(static_cast<std::int64_t>(lengths.size()),
                                                     workers, random_options(random), longest));
    expect_covers(plan, lengths, true);
    expect_balanced(plan, lengths);
    // The lengths change under the plan.
    auto changed = lengths;
    for (auto& length : changed) {
      const std::int64_t kind = random.integer(0, 3);
      if (kind == 0) length = 0;
      if (kind == 1) length += static_cast<std::int32_t>(random.integer(0, 500));
      if (kind == 2)
        length = static_cast<std::int32_t>(random.integer(-1, length < 0 ? 0 : length));
    }
    expect_covers(plan, changed, false);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(TileScheduler, SmallExhaustive) {
  for (std::int32_t a : {0, 1, 128, 129, 640, 1152}) {
    for (std::int32_t b : {0, 1, 255, 257, 1152}) {
      for (int workers = 1; workers <= 40; ++workers) {
        for (int splits : {0, 1, 2, 3, 7, 8, 9, 32}) {
          PlanOptions options;
          options.forced_splits = splits;
          for (const std::vector<std::int32_t>& lengths :
               {std::vector<std::int32_t>{a, b}, std::vector<std::int32_t>{a, 0, b, a}}) {
            const Plan plan = make_plan(
                lengths,
                make_header(static_cast<std::int64_t>(lengths.size()), workers, options, 1152));
            expect_covers(plan, lengths, true);
            expect_balanced(plan, lengths);
          }
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

// 9 blocks in 8 splits are splits of 2 blocks, the last ones empty; their cost must not be counted
// beyond the sequence, or the last worker's number leaves the schedule.
TEST(TileScheduler, EmptyForcedSplitsStayInsideTheSchedule) {
  PlanOptions options;
  options.forced_splits = 8;
  const std::vector<std::int32_t> lengths = {9 * 128};
  for (int workers = 20; workers < 40; ++workers) {
    const Plan plan = make_plan(lengths, make_header(1, workers, options, 9 * 128));
    expect_covers(plan, lengths, true);
  }
}

TEST(TileScheduler, NoRequests) {
  for (int splits : {0, 4}) {
    PlanOptions options;
    options.forced_splits = splits;
    const Plan plan = make_plan({}, make_header(0, 7, options, 1));
    for (const auto& worker : chunks_of(plan, {}, 12)) EXPECT_TRUE(worker.empty());
  }
}

TEST(TileScheduler, ManyRequestsAndHugeLengths) {
  Random random(5);
  std::vector<std::int32_t> many(5000);
  for (auto& length : many) length = static_cast<std::int32_t>(random.integer(1, 3));
  expect_covers(make_plan(many, make_header(5000, 132, {}, 3)), many, true);
  const std::vector<std::int32_t> huge = {0x7fffffff, 1, 0x7fffffff, 0};
  for (int splits : {0, 3}) {
    PlanOptions options;
    options.forced_splits = splits;
    expect_covers(make_plan(huge, make_header(4, 132, options, 0x7fffffff)), huge, true);
  }
}

TEST(TileScheduler, ScheduleShapeDependsOnRowsAndWorkersOnly) {
  for (std::int64_t rows : {1, 64, 65, 128, 1024, 100000}) {
    const std::int64_t workers = plan_workers(rows, 132);
    EXPECT_GE(workers, 1);
    EXPECT_LE(workers * ceil_div(rows, kRowTile), std::max<std::int64_t>(132, ceil_div(rows, 64)));
  }
}

// A batch-invariant plan cuts a sequence at places that depend on its own length alone.
TEST(TileScheduler, BatchInvariantSplitsIgnoreNeighbours) {
  PlanOptions options;
  options.batch_invariant = true;
  const auto cuts = [&](const std::vector<std::int32_t>& lengths, int workers) {
    const std::int32_t longest = *std::max_element(lengths.begin(), lengths.end());
    const Plan plan = make_plan(
        lengths, make_header(static_cast<std::int64_t>(lengths.size()), workers, options, longest));
    std::vector<std::int64_t> begins;
    for (const auto& worker : chunks_of(plan, lengths, max_partial_results(plan.header))) {
      for (const Chunk& chunk : worker) {
        if (chunk.request == 0) begins.push_back(chunk.begin);
      }
    }
    return begins;
  };
  const auto alone = cuts({10000}, 132);
  EXPECT_EQ(alone, (std::vector<std::int64_t>{0, 2048, 4096, 6144, 8192}));
  EXPECT_EQ(cuts({10000, 1, 40000, 7}, 132), alone);
  EXPECT_EQ(cuts({10000, 3, 3}, 1), alone);
}

// Whatever words a schedule holds, chunks stay inside the caller's tensors and a walk ends.
TEST(TileScheduler, GarbagePlansNeverLeadOutside) {
  for (int seed = 0; seed < 4000; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Random random(seed);
    const auto lengths = random_lengths(random, random.integer(1, 6));
    const auto b = static_cast<std::int64_t>(lengths.size());
    PlanOptions options = random_options(random);
    Plan plan = make_plan(lengths, make_header(b, random.integer(1, 6), options, 1000));
    const std::int32_t workers = plan.header.workers;
    const auto word = [&] {
      const std::int32_t extremes[] = {0, -1, 1, 0x7fffffff, -0x7fffffff - 1, 1 << 20, -128};
      return random.integer(0, 1) ? extremes[random.integer(0, 6)]
                                  : static_cast<std::int32_t>(random.bits());
    };
    for (std::size_t i = seed % 2 ? 0 : kScheduleCols; i < plan.schedule.size(); ++i) {
      if (random.integer(0, 2) == 0) plan.schedule[i] = word();
    }
    // num_splits stays small, so that a walk is bounded by it.
    for (auto& n : plan.num_splits) {
      if (random.integer(0, 3) == 0) n = static_cast<std::int32_t>(random.integer(-5, 40));
    }
    const std::int64_t slots = random.integer(0, 4);
    for (std::int64_t w = 0; w < workers; ++w) {
      WorkerChunks chunks(plan.schedule.data(), plan.num_splits.data(), lengths.data(), b, slots,
                          w);
      std::int64_t count = 0;
      for (Chunk chunk; chunks.next(chunk); ++count) {
        ASSERT_GE(chunk.request, 0);
        ASSERT_LT(chunk.request, b);
        ASSERT_GE(chunk.begin, 0) << "a negative begin indexes before the block table";
        ASSERT_LT(chunk.slot, std::max<std::int64_t>(slots, 1));
        ASSERT_LE(count, 1000) << "a walk that does not end";
      }
    }
  }
}

}  // namespace
}  // namespace snapmla
