#include "study_inputs.h"

#include <fmt/format.h>

#include "snapmla/error.h"

namespace snapmla::tools {

void add_study_inputs(CLI::App& app, StudyInputs& inputs) {
  app.add_option("captures", inputs.captures,
                 "Captures (examples/captures/README.md describes the format), or directories");
  app.add_option("--softmax-scale", inputs.softmax_scale,
                 "Softmax scale, instead of the one in the captures' metadata");
  std::string help = "Generated inputs too:";
  std::vector<std::string> names;
  for (const GeneratorKind& kind : generator_kinds()) {
    help += fmt::format("\n{}: {}", kind.name, kind.description);
    names.emplace_back(kind.name);
  }
  app.add_option("--generate", inputs.kinds, help)->check(CLI::IsMember(names));
  app.add_option("--tokens", inputs.tokens, "Lengths of the generated sequences")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20));
  app.add_option("--heads", inputs.generate.heads, "Query heads of the generated inputs")
      ->check(CLI::Range(1, 128));
  app.add_option("--outlier-scale", inputs.generate.outlier_scale,
                 "Ratio of the magnitudes in --generate outliers and mixed")
      ->check(CLI::Range(1.0, 1e9));
  app.add_option("--seed", inputs.generate.seed, "Seed of the generated inputs")
      ->check(CLI::Range(std::uint64_t{0}, std::uint64_t{1} << 53));
}

std::vector<StudyInput> list_study_inputs(const StudyInputs& inputs) {
  std::vector<StudyInput> list;
  if (!inputs.captures.empty()) {
    for (const auto& path : find_captures(inputs.captures)) {
      list.push_back({path.stem().string(),
                      [path, scale = inputs.softmax_scale] { return load_capture(path, scale); }});
    }
  }
  if (inputs.captures.empty() && inputs.softmax_scale) {
    throw InvalidArgument("softmax-scale",
                          "captures that it is for (generated inputs have their own)",
                          fmt::format("{}", *inputs.softmax_scale));
  }
  for (const std::string& kind : inputs.kinds) {
    for (const std::int64_t tokens : inputs.tokens) {
      GenerateOptions options = inputs.generate;
      options.kind = kind;
      options.tokens = tokens;
      std::string label = fmt::format("{} {}", kind, tokens);
      if (kind == "outliers" || kind == "mixed")
        label += fmt::format(" x{:g}", options.outlier_scale);
      list.push_back({label, [options] { return generate_capture(options); }});
    }
  }
  if (list.empty()) {
    throw InvalidArgument("captures", "a capture, a directory of them, or --generate KIND", "none");
  }
  return list;
}

}  // namespace snapmla::tools
