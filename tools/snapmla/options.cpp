#include "options.h"

#include <utility>
#include <vector>

namespace snapmla::tools {
namespace {

/// An option that takes one of some names; its default is the value it has now.
template <class Enum>
void add_choice(CLI::App& app, const std::string& flag, Enum& value, const std::string& help,
                const std::vector<std::pair<std::string, Enum>>& choices) {
  std::vector<std::string> names;
  std::string default_name;
  for (const auto& [name, choice] : choices) {
    names.push_back(name);
    if (choice == value) default_name = name;
  }
  app.add_option_function<std::string>(
         flag,
         [&value, choices](const std::string& text) {
           for (const auto& [name, choice] : choices) {
             if (name == text) value = choice;
           }
         },
         help)
      ->check(CLI::IsMember(names))
      ->default_str(default_name);
}

}  // namespace

void add_json_option(CLI::App& app, bool& value) {
  app.add_flag("--json", value, "Print one JSON object instead of text");
}

void add_backend_option(CLI::App& app, std::string& value) {
  app.add_option("--backend", value,
                 "Backend to use (see `snapmla info`); the first usable one if not given");
}

void add_form_option(CLI::App& app, CacheForm& value) {
  add_choice(app, "--form", value, "Memory form of the cache",
             {{cache_form_name(CacheForm::planes), CacheForm::planes},
              {cache_form_name(CacheForm::packed), CacheForm::packed}});
}

void add_scale_mode_option(CLI::App& app, ScaleMode& value) {
  add_choice(app, "--scale-mode", value, "How scales are made from the largest magnitude",
             {{scale_mode_name(ScaleMode::exact), ScaleMode::exact},
              {scale_mode_name(ScaleMode::power_of_two), ScaleMode::power_of_two}});
}

void add_plan_options(CLI::App& app, PlanOptions& value) {
  app.add_option("--splits", value.forced_splits, "Parts to cut every sequence into");
  app.add_option("--split-tokens", value.split_tokens,
                 "Tokens of each part, a multiple of 128, instead of a number of parts");
  app.add_flag("--batch-invariant", value.batch_invariant,
               "Results that do not depend on the batch: parts of a fixed length");
  app.add_option("--workers", value.num_sms, "Workers to plan for; 0 = all the backend has");
  app.add_option("--p-block", value.p_block,
                 "Tokens per quantization block of P: 64, 128, or 0 for the backend's choice");
}

void add_numerics_options(CLI::App& app, NumericsOptions& value) {
  using Form = NumericsOptions::Form;
  using Accumulate = NumericsOptions::Accumulate;
  add_choice(app, "--numerics", value.form, "Form of the FP8 softmax (cpu backend)",
             {{"log_domain", Form::log_domain}, {"chained", Form::chained}});
  add_choice(app, "--accumulate", value.accumulate,
             "fp32, or an emulation of Hopper's e4m3 accumulator (cpu backend)",
             {{"exact", Accumulate::exact}, {"hopper", Accumulate::hopper}});
  app.add_option("--qk-accumulators", value.qk_accumulators,
                 "Partial accumulators of QK with --accumulate hopper: 1, 2 or 4");
  app.add_flag("--normalize-by-quantized-p", value.normalize_by_quantized_p,
               "Divide by the sum of quantized P (cpu backend)");
}

}  // namespace snapmla::tools
