#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "capture.h"
#include "decode_run.h"
#include "error_stats.h"
#include "exact_attention.h"
#include "json_output.h"
#include "options.h"
#include "progress.h"
#include "table.h"

namespace snapmla::tools {
namespace {

using nlohmann::ordered_json;

struct DecodeArguments {
  std::vector<std::string> captures;
  RunOptions run;
  std::optional<double> softmax_scale;
  bool json = false;
  bool no_progress = false;
  bool check = false;
};

/// Errors of one capture, or of all.
struct Errors {
  ErrorStats vs_dequantized, vs_bf16;

  void add(const AttentionResult& result, const AttentionResult& on_cache,
           const AttentionResult& exact) {
    vs_dequantized.add(result, on_cache);
    vs_bf16.add(result, exact);
  }
  bool within() const {
    return kGateVsDequantized.holds(vs_dequantized) && kGateVsBf16.holds(vs_bf16);
  }
};

struct LayerReport {
  std::filesystem::path path;
  std::string layer;
  std::int64_t tokens = 0, s_q = 0, h_q = 0, pages = 0;
  float softmax_scale = 0;
  bool has_reference = false;
  Errors errors;
  StepTimes times;
};

struct Report {
  BackendInfo backend;
  std::vector<LayerReport> layers;
  Errors all;
  bool within = true;
};

/// A capture's own results must agree with what its tensors give, or one of the two is wrong.
void check_reference(const Capture& capture, const AttentionResult& exact) {
  constexpr double kMaxRelativeL2 = 1e-5, kMaxLseError = 1e-4;
  const std::vector<double> out(capture.ref_out.begin(), capture.ref_out.end());
  const std::vector<double> lse(capture.ref_lse.begin(), capture.ref_lse.end());
  ErrorStats stats;
  stats.add(out, std::span(exact.out).first(out.size()));
  stats.add_lse(lse, std::span(exact.lse).first(lse.size()));
  const auto check = [&](const char* name, const char* measure, double limit, double value) {
    if (value <= limit) return;
    throw InvalidArgument(
        fmt::format("{}: {}", capture.path.string(), name),
        fmt::format("what the capture's tensors give, {} <= {:g}", measure, limit),
        fmt::format("{:.3g}", value));
  };
  check("ref_out_latent", "relative L2", kMaxRelativeL2, stats.relative_l2());
  check("ref_lse", "max error", kMaxLseError, stats.max_lse_error());
}

/// Decodes every capture and measures it.
Report decode_captures(const DecodeArguments& arguments) {
  const std::vector<std::filesystem::path> paths = find_captures(arguments.captures);
  Progress progress(static_cast<double>(paths.size()), !arguments.no_progress && !arguments.json);
  RunOptions options = arguments.run;
  Report report;
  for (const std::filesystem::path& path : paths) {
    const std::string name = path.filename().string();
    const auto done = static_cast<double>(report.layers.size());
    progress.stage(name + ": reading");
    const Capture capture = load_capture(path, arguments.softmax_scale);
    report.backend = choose_backend(capture, options);
    options.backend = report.backend.name;  // one for all captures

    progress.stage(name + ": decode");
    QuantizedCapture quantized(capture, options, report.backend);
    const AttentionResult result = quantized.decode();
    progress.stage(name + ": float64 over the dequantized cache");
    const AttentionResult on_cache = quantized.decode_reference();
    // Of the time, nearly all goes into the two float64 passes.
    progress.set(done + 0.5);
    progress.stage(name + ": float64 over the BF16 originals");
    const auto rows = static_cast<double>(capture.s_q * capture.h_q);
    int rows_done = 0;
    const AttentionResult exact =
        exact_attention(capture, [&] { progress.set(done + 0.5 + 0.5 * ++rows_done / rows); });
    check_reference(capture, exact);

    LayerReport layer;
    layer.path = path;
    layer.layer = capture.layer;
    layer.tokens = capture.tokens;
    layer.s_q = capture.s_q;
    layer.h_q = capture.h_q;
    layer.pages = quantized.pages();
    layer.softmax_scale = capture.softmax_scale;
    layer.has_reference = !capture.ref_out.empty() || !capture.ref_lse.empty();
    layer.times = quantized.times();
    layer.errors.add(result, on_cache, exact);
    report.all.add(result, on_cache, exact);
    report.within = report.within && layer.errors.within();
    report.layers.push_back(std::move(layer));
  }
  report.within = report.within && report.all.within();
  return report;
}

ordered_json to_json(const ErrorStats& stats) {
  return {{"relative_l2", stats.relative_l2()},
          {"one_minus_cosine", stats.one_minus_cosine()},
          {"rmse", stats.rmse()},
          {"max_lse_error", stats.max_lse_error()}};
}

ordered_json to_json(const Gate& gate) {
  return {{"relative_l2", gate.relative_l2}, {"one_minus_cosine", gate.one_minus_cosine}};
}

ordered_json to_json(const Errors& errors) {
  return {{"vs_dequantized", to_json(errors.vs_dequantized)},
          {"vs_bf16", to_json(errors.vs_bf16)},
          {"within", errors.within()}};
}

void print_json(const Report& report, const RunOptions& options, bool enforced) {
  const LayoutDescription layout = describe_layout(options.form);
  ordered_json captures = ordered_json::array();
  for (const LayerReport& layer : report.layers) {
    ordered_json entry = {{"file", layer.path.string()},
                          {"layer", layer.layer},
                          {"tokens", layer.tokens},
                          {"s_q", layer.s_q},
                          {"h_q", layer.h_q},
                          {"pages", layer.pages},
                          {"softmax_scale", layer.softmax_scale},
                          {"has_reference", layer.has_reference}};
    entry.update(to_json(layer.errors));
    entry["time_us"] = {{"quantize_query", layer.times.quantize_query_us},
                        {"append_kv", layer.times.append_kv_us},
                        {"plan_decode", layer.times.plan_decode_us},
                        {"decode", layer.times.decode_us}};
    captures.push_back(std::move(entry));
  }
  const ordered_json result = {
      {"version", version()},
      {"backend", report.backend.name},
      {"device", report.backend.reason},
      {"cache",
       {{"format", layout.name},
        {"form", cache_form_name(options.form)},
        {"scale_mode", scale_mode_name(options.scale)},
        {"bytes_per_token", layout.token_bytes},
        {"bf16_bytes_per_token", 2 * kQkDim}}},
      {"seed", options.seed},
      {"captures", captures},
      {"overall", to_json(report.all)},
      {"gates",
       {{"vs_dequantized", to_json(kGateVsDequantized)}, {"vs_bf16", to_json(kGateVsBf16)}}},
      {"gates_enforced", enforced},
      {"within", report.within}};
  write_json(result);
}

void add_row(Table& table, std::string label, const LayerReport* layer, const Errors& errors) {
  std::vector<std::string> cells = {std::move(label), layer ? std::to_string(layer->tokens) : "",
                                    layer ? fmt::format("{}x{}", layer->s_q, layer->h_q) : ""};
  for (const ErrorStats* stats : {&errors.vs_dequantized, &errors.vs_bf16}) {
    for (double value :
         {stats->relative_l2(), stats->one_minus_cosine(), stats->rmse(), stats->max_lse_error()}) {
      cells.push_back(fmt::format("{:.2e}", value));
    }
  }
  cells.push_back(layer ? format_time(layer->times.decode_us) : "");
  cells.push_back(errors.within() ? "yes" : "NO");
  table.add_row(std::move(cells));
}

void print_text(const Report& report, const RunOptions& options, bool enforced) {
  const LayoutDescription layout = describe_layout(options.form);
  fmt::print("backend  {} on {}: {}\n", report.backend.name, report.backend.reason,
             report.backend.description);
  fmt::print("cache    {}, {}, {} scales, pages in random order (seed {})\n", layout.name,
             cache_form_name(options.form), scale_mode_name(options.scale), options.seed);
  fmt::print("memory   {} bytes per token, {:.0f} % of the {} of BF16\n\n", layout.token_bytes,
             100.0 * layout.token_bytes / (2 * kQkDim), 2 * kQkDim);

  std::vector<std::filesystem::path> paths;
  std::vector<std::string> layers;
  for (const LayerReport& layer : report.layers) {
    paths.push_back(layer.path);
    layers.push_back(layer.layer);
  }
  const std::vector<std::string> labels = capture_labels(paths, layers);

  const std::string on_cache = "error vs dequantized float64", on_bf16 = "error vs BF16 originals";
  const Align right = Align::right;
  Table table({{"layer", Align::left},
               {"tokens"},
               {"queries"},
               {"rel L2", right, on_cache},
               {"1-cos", right, on_cache},
               {"RMSE", right, on_cache},
               {"lse", right, on_cache},
               {"rel L2", right, on_bf16},
               {"1-cos", right, on_bf16},
               {"RMSE", right, on_bf16},
               {"lse", right, on_bf16},
               {"decode"},
               {"within"}});
  for (std::size_t i = 0; i < labels.size(); ++i) {
    add_row(table, labels[i], &report.layers[i], report.layers[i].errors);
  }
  table.add_rule();
  add_row(table, "all", nullptr, report.all);
  const auto gate = [](double limit) { return fmt::format("<={:g}", limit); };
  table.add_row({"gate", "", "", gate(kGateVsDequantized.relative_l2),
                 gate(kGateVsDequantized.one_minus_cosine), "", "", gate(kGateVsBf16.relative_l2),
                 gate(kGateVsBf16.one_minus_cosine), "", "", "", ""});
  fmt::print("{}\n", table.render());

  fmt::print(
      "{}{}\n",
      report.within ? "Every layer is within the accuracy gates."
                    : "Some results are outside the accuracy gates.",
      enforced || report.within
          ? ""
          : " They are made for real activations (docs/numerics.md); --check enforces them.");
}

int run(const DecodeArguments& arguments) {
  const Report report = decode_captures(arguments);
  const bool enforced = arguments.check;
  if (arguments.json) {
    print_json(report, arguments.run, enforced);
  } else {
    print_text(report, arguments.run, enforced);
  }
  return report.within || !enforced ? kExitOk : kExitGateFailed;
}

}  // namespace

Command add_decode_command(CLI::App& root) {
  CLI::App* app = root.add_subcommand(
      "decode",
      "Decode captured attention inputs with an FP8 cache, and measure the error against float64");
  const auto arguments = std::make_shared<DecodeArguments>();
  RunOptions& options = arguments->run;
  app->add_option("captures", arguments->captures,
                  "Captures (examples/captures/README.md describes the format), or directories")
      ->required();
  add_backend_option(*app, options.backend);
  add_form_option(*app, options.form);
  add_scale_mode_option(*app, options.scale);
  add_plan_options(*app, options.plan);
  add_numerics_options(*app, options.numerics);
  app->add_option("--softmax-scale", arguments->softmax_scale,
                  "Softmax scale, instead of the one in the captures' metadata");
  app->add_option("--seed", options.seed, "Seed of the page order")
      ->check(CLI::Range(std::uint64_t{0}, std::uint64_t{1} << 53));
  app->add_option("--repeat", options.repeats, "Decode calls; the fastest is reported")
      ->check(CLI::Range(1, 1000000));
  app->add_flag("--check", arguments->check,
                "Exit with 1 where a result is outside the accuracy gates for real activations");
  add_json_option(*app, arguments->json);
  app->add_flag("--no-progress", arguments->no_progress, "No progress bar");
  return {app, [arguments] { return run(*arguments); }};
}

}  // namespace snapmla::tools
