#pragma once

#include <string>
#include <vector>

namespace snapmla::tools {

enum class Align { left, right };

struct Column {
  std::string title;
  Align align = Align::right;
  std::string group{};  ///< a heading over this column and its neighbours of the same group
};

/// A plain text table.
class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  /// As many cells as there are columns.
  void add_row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  void add_rule() { rows_.emplace_back(); }

  std::string render() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;  // an empty row is a rule
};

/// "12.3 us", "4.56 ms" or "7.89 s".
std::string format_time(double us);
/// "644 B", "40.2 KiB", ...
std::string format_bytes(double bytes);

}  // namespace snapmla::tools
