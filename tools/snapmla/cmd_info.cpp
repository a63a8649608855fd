#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "json_output.h"
#include "options.h"
#include "table.h"

namespace snapmla::tools {
namespace {

using nlohmann::ordered_json;

void print_json() {
  ordered_json backends = ordered_json::array();
  for (const BackendInfo& backend : list_backends()) {
    backends.push_back({{"name", backend.name},
                        {"description", backend.description},
                        {"device", backend.device == DeviceType::cpu ? "cpu" : "cuda"},
                        {"available", backend.available},
                        {"reason", backend.reason}});
  }
  ordered_json layouts = ordered_json::array();
  for (CacheForm form : {CacheForm::planes, CacheForm::packed}) {
    layouts.push_back(ordered_json::parse(describe_layout(form).to_json()));
  }
  const ordered_json info = {{"version", version()}, {"backends", backends}, {"layouts", layouts}};
  write_json(info);
}

void print_text() {
  fmt::print("snapmla {}\n\n", version());
  Table backends({{"backend", Align::left},
                  {"usable", Align::left},
                  {"what", Align::left},
                  {"here", Align::left}});
  for (const BackendInfo& backend : list_backends()) {
    backends.add_row(
        {backend.name, backend.available ? "yes" : "no", backend.description, backend.reason});
  }
  fmt::print("{}\n", backends.render());

  const LayoutDescription packed = describe_layout(CacheForm::packed);
  fmt::print("Cache format {}: {} tokens per page, {} bytes per token ({} in BF16)\n\n",
             packed.name, packed.page_tokens, packed.token_bytes, 2 * kQkDim);
  Table planes({{"plane", Align::left},
                {"dtype", Align::left},
                {"per token"},
                {"bytes per page"},
                {"offset in a packed page"}});
  for (const PlaneLayout& plane : packed.planes) {
    planes.add_row({plane.name, dtype_name(plane.dtype), std::to_string(plane.elements_per_token),
                    std::to_string(plane.page_bytes), std::to_string(plane.offset)});
  }
  fmt::print("{}", planes.render());
}

}  // namespace

Command add_info_command(CLI::App& root) {
  CLI::App* app = root.add_subcommand("info", "Backends, what is usable here, the cache format");
  const auto json = std::make_shared<bool>(false);
  add_json_option(*app, *json);
  return {app, [json] {
            *json ? print_json() : print_text();
            return kExitOk;
          }};
}

}  // namespace snapmla::tools
