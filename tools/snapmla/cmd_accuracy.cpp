#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "accuracy_study.h"
#include "json_output.h"
#include "options.h"
#include "progress.h"
#include "study_inputs.h"
#include "table.h"

namespace snapmla::tools {
namespace {

using nlohmann::ordered_json;

struct AccuracyArguments {
  StudyInputs inputs;
  std::string study = "all";
  bool per_head = false, json = false, no_progress = false;

  bool schemes() const { return study != "pipelines"; }
  bool pipelines() const { return study != "schemes"; }
};

struct InputReport {
  std::string label;
  std::int64_t tokens = 0, s_q = 0, h_q = 0;
  std::vector<SchemeResult> schemes;
  std::vector<PipelineResult> pipelines;
};

std::vector<InputReport> study(const AccuracyArguments& arguments) {
  const std::vector<StudyInput> inputs = list_study_inputs(arguments.inputs);
  const std::size_t steps =
      (arguments.schemes() ? scheme_steps() : 0) + (arguments.pipelines() ? pipeline_steps() : 0);
  Progress progress(static_cast<double>(inputs.size() * steps),
                    !arguments.no_progress && !arguments.json);
  double done = 0;
  const auto on_step = [&] { progress.set(++done); };
  std::vector<InputReport> reports;
  for (const auto& [label, load] : inputs) {
    progress.stage(label);
    const Capture capture = load();
    InputReport report{label, capture.tokens, capture.s_q, capture.h_q, {}, {}};
    if (arguments.schemes()) report.schemes = study_schemes(capture, on_step);
    if (arguments.pipelines()) report.pipelines = study_pipelines(capture, on_step);
    reports.push_back(std::move(report));
  }
  return reports;
}

ordered_json to_json(const ErrorStats& stats) {
  return {{"relative_l2", stats.relative_l2()},
          {"one_minus_cosine", stats.one_minus_cosine()},
          {"rmse", stats.rmse()},
          {"norm_ratio", stats.norm_ratio()},
          {"max_lse_error", stats.max_lse_error()}};
}

void print_json(const std::vector<InputReport>& reports) {
  ordered_json inputs = ordered_json::array();
  for (const InputReport& report : reports) {
    ordered_json input = {{"input", report.label},
                          {"tokens", report.tokens},
                          {"s_q", report.s_q},
                          {"h_q", report.h_q}};
    for (const SchemeResult& result : report.schemes) {
      ordered_json heads = ordered_json::array();
      for (const ErrorStats& stats : result.per_head) heads.push_back(to_json(stats));
      input["schemes"][result.scheme->name] = {{"description", result.scheme->description},
                                               {"cache", to_json(result.cache)},
                                               {"everything", to_json(result.everything)},
                                               {"heads", heads}};
    }
    for (const PipelineResult& result : report.pipelines) {
      input["pipelines"][result.pipeline->name] = {{"description", result.pipeline->description},
                                                   {"vs_dequantized", to_json(result.stats)}};
    }
    inputs.push_back(std::move(input));
  }
  write_json(ordered_json{{"version", version()}, {"inputs", inputs}});
}

void print_schemes(const std::vector<InputReport>& reports) {
  fmt::print("Cache schemes, against float64 attention over the BF16 originals\n");
  for (const SchemeInfo& scheme : cache_schemes()) {
    fmt::print("  {:<8} {}\n", scheme.name, scheme.description);
  }
  const auto print = [&](const char* title, ErrorStats SchemeResult::*stats,
                         double (ErrorStats::*measure)() const, const char* format) {
    fmt::print("\n{}\n", title);
    std::vector<Column> columns = {{"input", Align::left}};
    for (const SchemeInfo& scheme : cache_schemes()) columns.push_back({scheme.name});
    Table table(columns);
    for (const InputReport& report : reports) {
      std::vector<std::string> cells = {report.label};
      for (const SchemeResult& result : report.schemes) {
        cells.push_back(fmt::format(fmt::runtime(format), ((result.*stats).*measure)()));
      }
      table.add_row(std::move(cells));
    }
    fmt::print("{}", table.render());
  };
  print("relative L2, the cache alone rounded", &SchemeResult::cache, &ErrorStats::relative_l2,
        "{:.2e}");
  print("relative L2, queries and P too", &SchemeResult::everything, &ErrorStats::relative_l2,
        "{:.2e}");
  print("1 - cosine, queries and P too", &SchemeResult::everything, &ErrorStats::one_minus_cosine,
        "{:.1e}");
  print("RMSE, queries and P too", &SchemeResult::everything, &ErrorStats::rmse, "{:.2e}");
  print("norm ratio, queries and P too", &SchemeResult::everything, &ErrorStats::norm_ratio,
        "{:.4f}");
}

void print_heads(const std::vector<InputReport>& reports) {
  for (const InputReport& report : reports) {
    fmt::print("\n{}: relative L2 by head, queries and P too\n", report.label);
    std::vector<Column> columns = {{"head"}};
    for (const SchemeInfo& scheme : cache_schemes()) columns.push_back({scheme.name});
    Table table(columns);
    for (std::int64_t head = 0; head < report.h_q; ++head) {
      std::vector<std::string> cells = {std::to_string(head)};
      for (const SchemeResult& result : report.schemes) {
        cells.push_back(fmt::format("{:.2e}", result.per_head[head].relative_l2()));
      }
      table.add_row(std::move(cells));
    }
    fmt::print("{}", table.render());
  }
}

void print_pipelines(const std::vector<InputReport>& reports) {
  fmt::print("\nPipelines, unsplit, against float64 attention over the dequantized cache\n");
  for (const InputReport& report : reports) {
    fmt::print("\n{}\n", report.label);
    Table table(
        {{"pipeline", Align::left}, {"rel L2"}, {"norm ratio"}, {"lse"}, {"", Align::left}});
    for (const PipelineResult& result : report.pipelines) {
      table.add_row({result.pipeline->name, fmt::format("{:.2e}", result.stats.relative_l2()),
                     fmt::format("{:.4f}", result.stats.norm_ratio()),
                     fmt::format("{:.1e}", result.stats.max_lse_error()),
                     result.pipeline->description});
    }
    fmt::print("{}", table.render());
  }
}

int run(const AccuracyArguments& arguments) {
  const std::vector<InputReport> reports = study(arguments);
  if (arguments.json) {
    print_json(reports);
    return kExitOk;
  }
  if (arguments.schemes()) print_schemes(reports);
  if (arguments.schemes() && arguments.per_head) print_heads(reports);
  if (arguments.pipelines()) print_pipelines(reports);
  return kExitOk;
}

}  // namespace

Command add_accuracy_command(CLI::App& root) {
  CLI::App* app = root.add_subcommand(
      "accuracy", "Compare cache schemes and attention pipelines, on captures or generated inputs");
  const auto arguments = std::make_shared<AccuracyArguments>();
  add_study_inputs(*app, arguments->inputs);
  app->add_option("--study", arguments->study, "schemes, pipelines or all")
      ->check(CLI::IsMember({"schemes", "pipelines", "all"}));
  app->add_flag("--per-head", arguments->per_head, "A table for every head (always in --json)");
  add_json_option(*app, arguments->json);
  app->add_flag("--no-progress", arguments->no_progress, "No progress bar");
  return {app, [arguments] { return run(*arguments); }};
}

}  // namespace snapmla::tools
