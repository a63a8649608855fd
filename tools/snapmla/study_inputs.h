#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "capture.h"
#include "generate.h"

namespace snapmla::tools {

/// The inputs of the studies (accuracy, analyze): captures, and generated sequences.
struct StudyInputs {
  std::vector<std::string> captures, kinds;
  std::vector<std::int64_t> tokens = {4096};
  GenerateOptions generate;
  std::optional<double> softmax_scale;
};

void add_study_inputs(CLI::App& app, StudyInputs& inputs);

/// One input; it is read or made when it is needed, since inputs may be large.
struct StudyInput {
  std::string label;
  std::function<Capture()> load;
};

/// Throws InvalidArgument where there are none.
std::vector<StudyInput> list_study_inputs(const StudyInputs& inputs);

}  // namespace snapmla::tools
