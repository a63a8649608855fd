#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "decode_run.h"
#include "json_output.h"
#include "options.h"
#include "table.h"

namespace snapmla::tools {
namespace {

using nlohmann::ordered_json;

struct ExplainArguments {
  DecodeProblem problem;
  std::string backend;
  bool f32_out = false;
  bool json = false;
};

/// The backends asked before the chosen one, with what kept them out.
std::vector<std::string> passed_over(const Explanation& explanation) {
  std::vector<std::string> lines = explanation.passed_over;
  const std::vector<BackendInfo> backends = list_backends();
  for (std::size_t i = 0; i < lines.size(); ++i) {
    // "No GPU here" says more than "works on cuda tensors".
    if (!backends[i].available) lines[i] = backends[i].name + ": " + backends[i].reason;
  }
  return lines;
}

void print_json(const DecodeProblem& problem, const Explanation& e) {
  const ordered_json result = {{"problem",
                                {{"batch", problem.b},
                                 {"s_q", problem.s_q},
                                 {"heads", problem.h_q},
                                 {"kv", problem.max_seqlen},
                                 {"form", cache_form_name(problem.form)},
                                 {"out", dtype_name(problem.out_dtype)},
                                 {"device", to_string(problem.device)}}},
                               {"backend", e.backend},
                               {"kernel", e.kernel},
                               {"passed_over", passed_over(e)},
                               {"row_tiles", e.row_tiles},
                               {"workers", e.workers},
                               {"p_block", e.p_block},
                               {"splits", e.splits},
                               {"workspace_bytes", e.workspace_bytes},
                               {"cache_bytes", e.cache_bytes},
                               {"flops", e.flops},
                               {"bound", e.bound},
                               {"estimated_us", e.estimated_us},
                               {"basis", e.basis}};
  write_json(result);
}

void print_text(const DecodeProblem& problem, const Explanation& e) {
  fmt::print("{} requests of {} tokens, {} queries x {} heads, {} cache, {} output on {}\n\n",
             problem.b, problem.max_seqlen, problem.s_q, problem.h_q, cache_form_name(problem.form),
             dtype_name(problem.out_dtype), to_string(problem.device));
  const auto line = [](const char* name, const std::string& value) {
    fmt::print("{:<14} {}\n", name, value);
  };
  line("backend", e.backend);
  line("kernel", e.kernel);
  for (const std::string& reason : passed_over(e)) line("passed over", reason);
  line("row tiles", fmt::format("{} of 64 rows per request", e.row_tiles));
  line("workers", std::to_string(e.workers));
  line("splits", fmt::format("{} per sequence", e.splits));
  line("P block", fmt::format("{} tokens", e.p_block));
  line("workspace", format_bytes(static_cast<double>(e.workspace_bytes)));
  line("cache read", format_bytes(static_cast<double>(e.cache_bytes)));
  line("arithmetic", fmt::format("{:.4g} GFLOP", e.flops / 1e9));
  line("bound", e.bound);
  line("estimate", fmt::format("{} (not a measurement)", format_time(e.estimated_us)));
  line("basis", e.basis);
}

int run(ExplainArguments& arguments) {
  DecodeProblem& problem = arguments.problem;
  problem.out_dtype = arguments.f32_out ? DType::f32 : DType::bf16;
  const BackendInfo backend = choose_backend(problem, arguments.backend);
  problem.device = {backend.device, 0};
  const ForcedBackend forced(arguments.backend);
  const Explanation explanation = explain(problem);
  arguments.json ? print_json(problem, explanation) : print_text(problem, explanation);
  return kExitOk;
}

}  // namespace

Command add_explain_command(CLI::App& root) {
  CLI::App* app = root.add_subcommand(
      "explain", "What a decode call of these sizes would do: backend, splits, bytes, time");
  const auto arguments = std::make_shared<ExplainArguments>();
  DecodeProblem& problem = arguments->problem;
  problem.max_seqlen = 1;
  // Upper limits keep every product of the four within 64 bits.
  app->add_option("--heads", problem.h_q, "Query heads on this rank")
      ->required()
      ->check(CLI::Range(1, 1 << 12));
  app->add_option("--kv", problem.max_seqlen, "Cached tokens of every sequence")
      ->required()
      ->check(CLI::Range(0, 1 << 30));
  app->add_option("--batch", problem.b, "Requests")->check(CLI::Range(1, 1 << 20));
  app->add_option("--s-q", problem.s_q, "Query tokens per request")->check(CLI::Range(1, 1 << 12));
  add_form_option(*app, problem.form);
  app->add_flag("--f32-out", arguments->f32_out, "Output in f32 instead of bf16");
  add_backend_option(*app, arguments->backend);
  add_plan_options(*app, problem.plan);
  add_numerics_options(*app, problem.numerics);
  add_json_option(*app, arguments->json);
  return {app, [arguments] { return run(*arguments); }};
}

}  // namespace snapmla::tools
