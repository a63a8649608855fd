#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace snapmla::tools {

Progress::Progress(double total, bool wanted)
    : total_(total), enabled_(wanted && isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() {
  if (drawn_) fmt::print(stderr, "\r\033[K");
}

void Progress::stage(std::string text) {
  stage_ = std::move(text);
  draw();
}

void Progress::set(double done) {
  const int percent = static_cast<int>(std::clamp(100 * done / total_, 0.0, 100.0));
  if (std::exchange(percent_, percent) != percent) draw();
}

void Progress::draw() {
  if (!enabled_) return;
  constexpr int kWidth = 30;
  const int filled = kWidth * percent_ / 100;
  fmt::print(stderr, "\r\033[K[{:#<{}}{:.<{}}] {:3}% {}", "", filled, "", kWidth - filled, percent_,
             stage_);
  std::fflush(stderr);
  drawn_ = true;
}

}  // namespace snapmla::tools
