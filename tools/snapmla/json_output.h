#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace snapmla::tools {

/// Prints one JSON object. File names need not be UTF-8; what is not is replaced.
inline void write_json(const nlohmann::ordered_json& value) {
  fmt::print("{}\n", value.dump(2, ' ', /*ensure_ascii=*/false,
                                nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace snapmla::tools
