#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "support/formats.h"
#include "support/memory.h"
#include "support/problem.h"

namespace snapmla::test {

/// Host copies of what a decode call wrote.
struct Result {
  std::vector<float> out;  ///< [b, s_q, h_q, 512]
  std::vector<float> lse;  ///< [b, h_q, s_q]
};

/// Real values as stored: codes times scales, decoded by the tests' own table.
struct Stored {
  std::vector<float> q;   ///< [b, s_q, h_q, 576]
  std::vector<float> kv;  ///< [tokens, 576]
};

/// A paged cache in test memory, poisoned: every code 0x7f (NaN), RoPE Inf and NaN, scales NaN, Inf
/// and 1e38, the same in the gaps between pages.
class CacheBuffers {
 public:
  CacheBuffers() = default;
  CacheBuffers(Memory& memory, CacheForm form, std::int64_t num_pages,
               std::int64_t page_stride = kPackedPageBytes);
  Cache cache() const;
  bool guards_intact() const;
  /// Bytes of one token: 512 codes, 128 of RoPE, 4 of scale.
  std::vector<std::uint8_t> token_bytes(std::int64_t slot) const;
  /// Bytes of all tokens, [slots.size(), 644].
  std::vector<std::uint8_t> tokens_bytes(const std::vector<std::int64_t>& slots) const;
  /// Everything, gaps included.
  std::vector<std::uint8_t> all_bytes() const;
  Memory& memory() const { return *memory_; }

 private:
  Memory* memory_ = nullptr;
  CacheForm form_ = CacheForm::planes;
  std::int64_t num_pages_ = 0, page_stride_ = 0;
  Buffer content_, rope_, scale_;  // planes
  Buffer pages_;                   // packed
};

/// All tensors of a problem in one Memory, and the calls in their order. Uses whatever backend the
/// process has selected.
class Pipeline {
 public:
  explicit Pipeline(const Problem& problem, Memory& memory = host_memory());

  void append();
  void quantize();
  void plan();
  void decode(const NumericsOptions& numerics = {});
  /// out and lse as decode left them; fails the test if a guard band, or a gap between rows, was
  /// written.
  Result result();
  Stored stored() const;

  const Problem& problem() const { return problem_; }
  Memory& memory() const { return memory_; }
  CacheBuffers& cache_buffers() { return cache_; }
  Cache cache() const { return cache_.cache(); }
  QuantizedQuery query() const;
  DecodePlan decode_plan() const;
  TensorView block_table() const;
  TensorView lengths() const;
  TensorView out() const;
  TensorView lse() const;
  TensorView workspace() const;
  Buffer& out_buffer() { return out_; }
  Buffer& lse_buffer() { return lse_; }
  Buffer& workspace_buffer() { return workspace_; }
  Buffer& schedule_buffer() { return schedule_; }
  Buffer& num_splits_buffer() { return num_splits_; }
  Buffer& lengths_buffer() { return lengths_; }
  Buffer& block_table_buffer() { return block_table_; }
  std::int64_t status() const { return status_.read<std::int32_t>()[0]; }

 private:
  void check_guards() const;

  Problem problem_;
  Memory& memory_;
  CacheBuffers cache_;
  Buffer kv_, slots_, q_, codes_, q_scale_, q_rope_;
  Buffer block_table_, lengths_, schedule_, num_splits_, workspace_, out_, lse_, status_;
  PlanSize plan_size_;
  std::int64_t out_row_ = 0;     // elements from one out row to the next
  std::int64_t lse_stride_ = 0;  // elements from one head's lse to the next
};

/// quantize, append, plan, decode.
Result run(const Problem& problem, Memory& memory = host_memory(),
           const NumericsOptions& numerics = {});

/// Makes the process use one backend while it lives.
class ScopedBackend {
 public:
  explicit ScopedBackend(const std::string& name) : previous_(forced_backend()) {
    force_backend(name);
  }
  ~ScopedBackend() { force_backend(previous_); }
  ScopedBackend(const ScopedBackend&) = delete;
  ScopedBackend& operator=(const ScopedBackend&) = delete;

 private:
  std::string previous_;
};

/// Values as bytes of f32, or of bf16, which must hold them exactly.
std::vector<std::uint8_t> encode(const std::vector<float>& values, DType dtype);

}  // namespace snapmla::test
