#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "distribution.h"
#include "json_output.h"
#include "options.h"
#include "progress.h"
#include "study_inputs.h"
#include "table.h"

namespace snapmla::tools {
namespace {

using nlohmann::ordered_json;

struct AnalyzeArguments {
  StudyInputs inputs;
  bool json = false, no_progress = false;
};

struct InputReport {
  std::string label;
  std::int64_t tokens = 0;
  CaptureDistribution distribution;
};

ordered_json to_json(const Distribution& d) {
  return {{"min", d.min},
          {"max", d.max},
          {"mean", d.mean},
          {"deviation", d.deviation},
          {"kurtosis", d.kurtosis},
          {"token_amax",
           {{"min", d.token_amax_min}, {"median", d.token_amax_median}, {"max", d.token_amax_max}}},
          {"e4m3_mse", d.e4m3_mse},
          {"bf16_mse", d.bf16_mse},
          {"dimension_amax", d.dimension_amax},
          {"histogram", {{"first_octave", Distribution::kMinOctave}, {"counts", d.octaves}}}};
}

void print_json(const std::vector<InputReport>& reports) {
  ordered_json inputs = ordered_json::array();
  for (const InputReport& report : reports) {
    inputs.push_back({{"input", report.label},
                      {"tokens", report.tokens},
                      {"content", to_json(report.distribution.content)},
                      {"rope", to_json(report.distribution.rope)}});
  }
  write_json(ordered_json{{"version", version()}, {"inputs", inputs}});
}

/// One character per octave of magnitude, its height the share of values.
std::string histogram(const Distribution& d) {
  static constexpr const char* kBars[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const std::int64_t largest =
      std::max<std::int64_t>(1, *std::max_element(d.octaves.begin(), d.octaves.end()));
  std::string text;
  for (const std::int64_t count : d.octaves) {
    const std::int64_t height = count == 0 ? 0 : std::max<std::int64_t>(1, count * 8 / largest);
    text += kBars[height];
  }
  return text;
}

void print_text(const std::vector<InputReport>& reports) {
  Table table({{"input", Align::left},
               {"part", Align::left},
               {"min"},
               {"max"},
               {"deviation"},
               {"kurtosis"},
               {"min", Align::right, "amax of a token"},
               {"median", Align::right, "amax of a token"},
               {"max", Align::right, "amax of a token"},
               {"e4m3", Align::right, "mean squared error"},
               {"BF16", Align::right, "mean squared error"},
               {"e4m3 / variance"}});
  const auto add = [&](const std::string& label, const char* part, const Distribution& d) {
    const auto number = [](double x) { return fmt::format("{:.3g}", x); };
    table.add_row({label, part, number(d.min), number(d.max), number(d.deviation),
                   number(d.kurtosis), number(d.token_amax_min), number(d.token_amax_median),
                   number(d.token_amax_max), fmt::format("{:.2e}", d.e4m3_mse),
                   d.width == kRopeDim ? fmt::format("{:.2e}", d.bf16_mse) : "",
                   fmt::format("{:.2e}", d.variance() == 0 ? 0 : d.e4m3_mse / d.variance())});
  };
  for (const InputReport& report : reports) {
    add(report.label, "content", report.distribution.content);
    add("", "RoPE", report.distribution.rope);
  }
  fmt::print("{}\n", table.render());
  fmt::print("Magnitudes by octave, 2^{} to 2^{}\n", Distribution::kMinOctave,
             Distribution::kMaxOctave);
  for (const InputReport& report : reports) {
    fmt::print("  {:<32} content |{}|\n  {:<32} RoPE    |{}|\n", report.label,
               histogram(report.distribution.content), "", histogram(report.distribution.rope));
  }
  fmt::print("\nThe dimensions with the largest magnitude (all of them in --json)\n");
  for (const InputReport& report : reports) {
    const auto print = [](const std::string& label, const char* part, const Distribution& d) {
      std::vector<int> order(d.dimension_amax.size());
      for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
      std::partial_sort(order.begin(), order.begin() + 5, order.end(),
                        [&](int a, int b) { return d.dimension_amax[a] > d.dimension_amax[b]; });
      fmt::print("  {:<32} {}", label, part);
      for (int i = 0; i < 5; ++i) fmt::print("  {}: {:.3g}", order[i], d.dimension_amax[order[i]]);
      fmt::print("\n");
    };
    print(report.label, "content", report.distribution.content);
    print("", "RoPE   ", report.distribution.rope);
  }
}

int run(const AnalyzeArguments& arguments) {
  const std::vector<StudyInput> inputs = list_study_inputs(arguments.inputs);
  Progress progress(static_cast<double>(inputs.size()), !arguments.no_progress && !arguments.json);
  std::vector<InputReport> reports;
  for (const StudyInput& input : inputs) {
    progress.stage(input.label);
    const Capture capture = input.load();
    reports.push_back({input.label, capture.tokens, analyze(capture)});
    progress.set(static_cast<double>(reports.size()));
  }
  if (arguments.json) {
    print_json(reports);
  } else {
    print_text(reports);
  }
  return kExitOk;
}

}  // namespace

Command add_analyze_command(CLI::App& root) {
  CLI::App* app = root.add_subcommand(
      "analyze", "Ranges, histograms and FP8 error of the content and RoPE parts of a cache");
  const auto arguments = std::make_shared<AnalyzeArguments>();
  add_study_inputs(*app, arguments->inputs);
  add_json_option(*app, arguments->json);
  app->add_flag("--no-progress", arguments->no_progress, "No progress bar");
  return {app, [arguments] { return run(*arguments); }};
}

}  // namespace snapmla::tools
