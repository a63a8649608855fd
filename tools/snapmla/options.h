#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "snapmla/snapmla.h"

namespace snapmla::tools {

// Exit codes of every command.
inline constexpr int kExitOk = 0;
inline constexpr int kExitGateFailed = 1;
inline constexpr int kExitBadInput = 2;
inline constexpr int kExitFailed = 3;

/// A subcommand: its parser, and what to do once its arguments are parsed.
struct Command {
  CLI::App* app;
  std::function<int()> run;  ///< returns an exit code
};

Command add_accuracy_command(CLI::App& root);
Command add_analyze_command(CLI::App& root);
Command add_decode_command(CLI::App& root);
Command add_explain_command(CLI::App& root);
Command add_info_command(CLI::App& root);

// Options that several commands share. Each adds its option to `app` and writes to `value`.
void add_json_option(CLI::App& app, bool& value);
void add_backend_option(CLI::App& app, std::string& value);
void add_form_option(CLI::App& app, CacheForm& value);
void add_scale_mode_option(CLI::App& app, ScaleMode& value);
/// --splits, --split-tokens, --batch-invariant, --workers and --p-block.
void add_plan_options(CLI::App& app, PlanOptions& value);
/// --numerics, --accumulate, --qk-accumulators and --normalize-by-quantized-p.
void add_numerics_options(CLI::App& app, NumericsOptions& value);

}  // namespace snapmla::tools
