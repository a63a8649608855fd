#pragma once

#include <string>

namespace snapmla::tools {

/// A progress bar on stderr, drawn only where stderr is a terminal: logs and pipes stay clean.
class Progress {
 public:
  /// `total` is the amount of work in whatever unit set() uses.
  Progress(double total, bool wanted);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// What is being done now.
  void stage(std::string text);
  /// How much is done.
  void set(double done);

 private:
  void draw();

  double total_;
  int percent_ = 0;
  bool enabled_, drawn_ = false;
  std::string stage_;
};

}  // namespace snapmla::tools
