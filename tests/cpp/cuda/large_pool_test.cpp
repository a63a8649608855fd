// bugs.md B24: page ids times strides overflow 32 bits. A pool of 140,000 pages has more than 2^31
// bytes in every form, and slot ids beyond 2^23.

#include <numeric>
#include <vector>

#include "device.h"
#include "snapmla/snapmla.h"
#include "support/pipeline.h"
#include "support/random.h"

namespace snapmla::test {
namespace {

constexpr std::int64_t kPages = 140000;
constexpr std::int64_t kTokens = 130;
constexpr std::int64_t kHeads = 4;

class CudaLargePoolTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    std::size_t free = 0, total = 0;
    SNAPMLA_TEST_CUDA(cudaMemGetInfo(&free, &total));
    if (free < std::size_t{8} << 30) GTEST_SKIP() << "needs 8 GiB of free device memory";
  }

  struct Outcome {
    std::vector<std::uint8_t> fetched, copied, out;
    std::vector<float> lse;
    friend bool operator==(const Outcome&, const Outcome&) = default;
  };

  /// Appends the same tokens to three pages, moves the last to `spare`, fetches and decodes.
  static Outcome run(const Cache& cache, const std::vector<std::int32_t>& pages,
                     std::int32_t spare) {
    ScopedBackend forced("cuda_reference");
    DeviceMemory& memory = device_memory();
    const Device device = memory.device();
    Random random(5);
    std::vector<float> values(kTokens * kQkDim), query(kHeads * kQkDim);
    for (auto& v : values) v = random.normal();
    for (auto& v : query) v = random.normal();
    std::vector<std::int64_t> slots, spare_slots;
    for (std::int64_t t = 0; t < kTokens; ++t) {
      slots.push_back(std::int64_t{pages[t / kPageTokens]} * kPageTokens + t % kPageTokens);
    }
    Buffer kv = Buffer::of(memory, values), slot_buffer = Buffer::of(memory, slots);
    const TensorView slot_view(slot_buffer.data(), DType::i64, {kTokens}, device);
    append_kv(cache, TensorView(kv.data(), DType::f32, {kTokens, kQkDim}, device), slot_view, {},
              memory.stream());

    Outcome outcome;
    Buffer fetched(memory, kTokens * kQkDim * 2);
    const TensorView fetched_view(fetched.data(), DType::bf16, {kTokens, kQkDim}, device);
    fetch_dequant(cache, slot_view, fetched_view, {}, memory.stream());
    outcome.fetched = fetched.read<std::uint8_t>();

    for (std::int64_t t = 0; t < kTokens; ++t) {
      if (t < 2 * kPageTokens) continue;
      spare_slots.push_back(std::int64_t{spare} * kPageTokens + t % kPageTokens);
    }
    const std::vector<std::int64_t> moved(slots.begin() + 2 * kPageTokens, slots.end());
    const auto n = static_cast<std::int64_t>(moved.size());
    Buffer src = Buffer::of(memory, moved), dst = Buffer::of(memory, spare_slots);
    copy_tokens(cache, TensorView(src.data(), DType::i64, {n}, device),
                TensorView(dst.data(), DType::i64, {n}, device), {}, memory.stream());
    Buffer table = Buffer::of(memory, std::vector<std::int32_t>{pages[0], pages[1], spare});
    const TensorView table_view(table.data(), DType::i32, {1, 3}, device);
    Buffer zero = Buffer::of(memory, std::vector<std::int32_t>{0});
    Buffer length = Buffer::of(memory, std::vector<std::int32_t>{kTokens});
    const TensorView zero_view(zero.data(), DType::i32, {1}, device);
    const TensorView length_view(length.data(), DType::i32, {1}, device);
    fetch_dequant(cache, TokenRanges{table_view, zero_view, length_view, zero_view}, fetched_view,
                  {}, memory.stream());
    outcome.copied = fetched.read<std::uint8_t>();

    Buffer q = Buffer::of(memory, query);
    Buffer codes(memory, kHeads * kKvLoraRank), scale(memory, kHeads * 4),
        rope(memory, kHeads * kRopeDim * 2);
    const QuantizedQuery quantized = {
        TensorView(codes.data(), DType::u8, {1, 1, kHeads, kKvLoraRank}, device),
        TensorView(scale.data(), DType::f32, {1, 1, kHeads}, device),
        TensorView(rope.data(), DType::bf16, {1, 1, kHeads, kRopeDim}, device)};
    quantize_query(TensorView(q.data(), DType::f32, {1, 1, kHeads, kQkDim}, device), quantized, {},
                   memory.stream());
    const PlanSpec spec{1, kHeads, kTokens, device};
    const PlanSize size = plan_size(spec);
    Buffer schedule(memory, size.schedule_rows * size.schedule_cols * 4),
        num_splits(memory, size.num_splits * 4), workspace(memory, workspace_bytes(spec));
    const DecodePlan plan = {
        TensorView(schedule.data(), DType::i32, {size.schedule_rows, size.schedule_cols}, device),
        TensorView(num_splits.data(), DType::i32, {size.num_splits}, device)};
    plan_decode(length_view, spec, {}, plan, memory.stream());
    Buffer out(memory, kHeads * kKvLoraRank * 4), lse(memory, kHeads * 4);
    decode(plan, quantized, cache, table_view, length_view, 1.0f / 24, true,
           TensorView(out.data(), DType::f32, {1, 1, kHeads, kKvLoraRank}, device),
           TensorView(lse.data(), DType::f32, {1, kHeads, 1}, device),
           TensorView(workspace.data(), DType::u8, {static_cast<std::int64_t>(workspace.bytes())},
                      device),
           memory.stream());
    outcome.out = out.read<std::uint8_t>();
    outcome.lse = lse.read<float>();
    return outcome;
  }

  static void check(const Cache& cache) {
    const Outcome low = run(cache, {5, 6, 7}, 8);
    EXPECT_EQ(low.copied, low.fetched);
    for (float lse : low.lse) EXPECT_TRUE(lse > -100 && lse < 100);
    EXPECT_TRUE(run(cache, {65535, 65536, 65537}, 65538) == low);
    EXPECT_TRUE(run(cache, {131071, 131072, 139999}, 139998) == low);
    EXPECT_TRUE(run(cache, {5, 6, 7}, 8) == low) << "high pages wrote over low ones";
  }
};

TEST_F(CudaLargePoolTest, PackedPagesBeyond32Bits) {
  Buffer pages(device_memory(), kPages * kPackedPageBytes);
  check(Cache::from_pages(
      TensorView(pages.data(), DType::u8, {kPages, kPackedPageBytes}, device_memory().device())));
  EXPECT_TRUE(pages.guards_intact());
}

TEST_F(CudaLargePoolTest, PlanesBeyond32Bits) {
  DeviceMemory& memory = device_memory();
  const Device device = memory.device();
  Buffer content(memory, kPages * kPageTokens * kKvLoraRank),
      scale(memory, kPages * kPageTokens * 4), rope(memory, kPages * kPageTokens * kRopeDim * 2);
  check(Cache::from_planes(
      TensorView(content.data(), DType::e4m3, {kPages, kPageTokens, kKvLoraRank}, device),
      TensorView(scale.data(), DType::f32, {kPages, kPageTokens}, device),
      TensorView(rope.data(), DType::bf16, {kPages, kPageTokens, kRopeDim}, device)));
  EXPECT_TRUE(content.guards_intact() && scale.guards_intact() && rope.guards_intact());
}

}  // namespace
}  // namespace snapmla::test
