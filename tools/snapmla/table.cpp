#include "table.h"

#include <fmt/format.h>

#include <algorithm>

namespace snapmla::tools {
namespace {

constexpr std::size_t kGap = 2;

std::string pad(const std::string& text, std::size_t width, Align align) {
  return align == Align::left ? fmt::format("{:<{}}", text, width)
                              : fmt::format("{:>{}}", text, width);
}

void append_line(std::string& out, std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  out += line + "\n";
}

}  // namespace

std::string Table::render() const {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    std::size_t width = columns_[c].title.size();
    for (const auto& row : rows_) {
      if (!row.empty()) width = std::max(width, row[c].size());
    }
    widths.push_back(width);
  }

  std::string out, groups;
  bool grouped = false;
  for (std::size_t c = 0; c < columns_.size();) {
    std::size_t end = c + 1, width = widths[c];
    const std::string& group = columns_[c].group;
    for (; !group.empty() && end < columns_.size() && columns_[end].group == group; ++end) {
      width += kGap + widths[end];
    }
    grouped = grouped || !group.empty();
    // Dashes show which columns a heading spans.
    groups += fmt::format(
        "{}{}", c ? std::string(kGap, ' ') : "",
        group.empty() ? std::string(width, ' ') : fmt::format("{:-^{}}", " " + group + " ", width));
    c = end;
  }
  if (grouped) append_line(out, groups);

  std::string header, rule;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    const std::string gap(c ? kGap : 0, ' ');
    header += gap + pad(columns_[c].title, widths[c], columns_[c].align);
    rule += gap + std::string(widths[c], '-');
  }
  append_line(out, header);
  append_line(out, rule);
  for (const auto& row : rows_) {
    if (row.empty()) {
      append_line(out, rule);
      continue;
    }
    std::string line;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      line += std::string(c ? kGap : 0, ' ') + pad(row[c], widths[c], columns_[c].align);
    }
    append_line(out, line);
  }
  return out;
}

std::string format_time(double us) {
  if (us < 1e3) return fmt::format("{:.1f} us", us);
  if (us < 1e6) return fmt::format("{:.2f} ms", us / 1e3);
  return fmt::format("{:.2f} s", us / 1e6);
}

std::string format_bytes(double bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(units)) bytes /= 1024, ++unit;
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.2f} {}", bytes, units[unit]);
}

}  // namespace snapmla::tools
