#pragma once

#include <fmt/format.h>

#include <string>

#include "snapmla/error.h"

/// Throws InvalidArgument(argument, rule, value) unless `ok`. The value is the checked operand
/// itself. A macro, so that the texts are made only then: they would take most of a call's time.
#define SNAPMLA_CHECK(ok, argument, rule, value)                                 \
  do {                                                                           \
    if (!(ok)) {                                                                 \
      throw ::snapmla::InvalidArgument(std::string(argument), std::string(rule), \
                                       ::fmt::format("{}", value));              \
    }                                                                            \
  } while (false)
