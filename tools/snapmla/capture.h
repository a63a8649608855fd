#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace snapmla::tools {

/// The decode inputs of one attention layer, as examples/captures/README.md describes them.
struct Capture {
  std::filesystem::path path;
  std::string layer;  ///< metadata "layer"; empty where it is missing or no number
  std::int64_t tokens = 0, s_q = 0, h_q = 0;
  float softmax_scale = 0;
  // BF16 bits.
  std::vector<std::uint16_t> content;  ///< [tokens, 512]
  std::vector<std::uint16_t> rope;     ///< [tokens, 64]
  std::vector<std::uint16_t> q_nope;   ///< [s_q, h_q, 512], absorbed
  std::vector<std::uint16_t> q_rope;   ///< [s_q, h_q, 64]
  // The capture's own float64 results, where it has them and they are for this softmax scale.
  std::vector<float> ref_out;  ///< [s_q, h_q, 512]
  std::vector<float> ref_lse;  ///< [s_q, h_q]
};

/// Files and directories to capture files: a directory stands for its *.safetensors, in natural
/// order (layer2 before layer10).
std::vector<std::filesystem::path> find_captures(const std::vector<std::string>& arguments);

/// Reads and checks a capture: shapes, the sequence's consistency, every value finite.
/// `softmax_scale` replaces the metadata's. Throws InvalidArgument naming file, tensor, rule and
/// value.
Capture load_capture(const std::filesystem::path& path, std::optional<double> softmax_scale = {});

/// A short name for each capture, for tables: its layer where that tells them apart, else its file.
std::vector<std::string> capture_labels(const std::vector<std::filesystem::path>& paths,
                                        const std::vector<std::string>& layers);

}  // namespace snapmla::tools
