#pragma once

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace snapmla::test {

/// Splitmix64: the same numbers on every machine and with every standard library.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 0x1234567u) {}

  std::uint64_t bits() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  /// In [lo, hi].
  std::int64_t integer(std::int64_t lo, std::int64_t hi) {
    return lo + static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(hi - lo + 1));
  }
  /// In [0, 1).
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  double uniform(double lo, double hi) { return lo + (hi - lo) * uniform(); }
  double log_uniform(double lo, double hi) { return std::exp(uniform(std::log(lo), std::log(hi))); }
  /// Mean 0, variance 1, near normal: the sum of four 16-bit uniforms. Cheap, as problems have up
  /// to 10^8 values.
  float normal() {
    const std::uint64_t u = bits();
    const auto part = [u](int shift) { return static_cast<float>((u >> shift) & 0xffff); };
    const float sum = part(0) + part(16) + part(32) + part(48);
    return (sum - 131070.0f) * (1.7320508f / 65536.0f);
  }
  template <class T>
  void shuffle(std::vector<T>& values) {
    for (std::size_t i = values.size(); i > 1; --i) {
      std::swap(values[i - 1], values[static_cast<std::size_t>(integer(0, i - 1))]);
    }
  }

 private:
  std::uint64_t state_;
};

}  // namespace snapmla::test
