#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "capture.h"

namespace snapmla::tools {

/// Synthetic attention inputs with known properties.
struct GenerateOptions {
  std::string kind = "gaussian";
  std::int64_t tokens = 4096;
  std::int64_t heads = 8;
  double outlier_scale = 1e4;  ///< kinds "outliers" and "mixed": ratio of the magnitudes
  std::uint64_t seed = 1;
};

/// Name and description of every kind.
struct GeneratorKind {
  const char* name;
  const char* description;
};
const std::vector<GeneratorKind>& generator_kinds();

/// One sequence and one query token. Throws InvalidArgument for an unknown kind.
Capture generate_capture(const GenerateOptions& options);

}  // namespace snapmla::tools
