#pragma once

#include <fmt/format.h>

#include <string_view>

#include "snapmla/error.h"

namespace snapmla {

/// Throws InvalidArgument(argument, rule, value) unless `ok`. The value is the checked operand
/// itself.
template <class Value>
void check(bool ok, std::string_view argument, std::string_view rule, const Value& value) {
  if (!ok)
    throw InvalidArgument(std::string(argument), std::string(rule), fmt::format("{}", value));
}

}  // namespace snapmla
