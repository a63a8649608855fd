#include "capture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <set>
#include <string_view>

#include "bf16.h"
#include "safetensors.h"
#include "snapmla/cache.h"
#include "snapmla/error.h"

namespace snapmla::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kAny = -1;

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

/// Runs of digits compare as numbers, the rest by character.
bool natural_less(std::string_view a, std::string_view b) {
  std::size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (is_digit(a[i]) && is_digit(b[j])) {
      const auto digits = [](std::string_view text, std::size_t& at) {
        while (at < text.size() && text[at] == '0') ++at;
        const std::size_t begin = at;
        while (at < text.size() && is_digit(text[at])) ++at;
        return text.substr(begin, at - begin);
      };
      const std::string_view x = digits(a, i), y = digits(b, j);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
    } else {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i, ++j;
    }
  }
  return a.size() - i < b.size() - j;
}

/// Text from a file, for a message: short and printable.
std::string printable(std::string_view text) {
  std::string result;
  for (char c : text.substr(0, 40)) {
    result += std::isprint(static_cast<unsigned char>(c)) ? c : '?';
  }
  return "'" + result + "'";
}

std::string describe(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (std::int64_t dim : shape) {
    text += (text.empty() ? "" : ", ") + (dim == kAny ? std::string("*") : std::to_string(dim));
  }
  return "[" + text + "]";
}

const SafetensorsEntry& require(const SafetensorsFile& file, const char* name, const char* dtype,
                                const std::vector<std::int64_t>& shape) {
  const SafetensorsEntry* entry = file.find(name);
  if (!entry) file.fail(name, fmt::format("a tensor {} {}", dtype, describe(shape)), "none");
  if (entry->dtype != dtype) {
    file.fail(name, fmt::format("dtype {}", dtype), printable(entry->dtype));
  }
  bool fits = entry->shape.size() == shape.size();
  for (std::size_t d = 0; fits && d < shape.size(); ++d) {
    fits = shape[d] == kAny || entry->shape[d] == shape[d];
  }
  if (!fits) file.fail(name, "shape " + describe(shape), describe(entry->shape));
  return *entry;
}

template <class T, class ToFloat>
void check_finite(const SafetensorsFile& file, const char* name, const SafetensorsEntry& entry,
                  const std::vector<T>& values, ToFloat to_float) {
  const auto bad = std::find_if(values.begin(), values.end(),
                                [&](T value) { return !std::isfinite(to_float(value)); });
  if (bad == values.end()) return;
  std::vector<std::int64_t> index(entry.shape.size());
  std::int64_t flat = bad - values.begin();
  for (std::size_t d = index.size(); d-- > 0; flat /= entry.shape[d]) {
    index[d] = flat % entry.shape[d];
  }
  file.fail(name, "finite values", fmt::format("{} at {}", to_float(*bad), describe(index)));
}

std::vector<std::uint16_t> read_bf16(SafetensorsFile& file, const char* name,
                                     const std::vector<std::int64_t>& shape) {
  const SafetensorsEntry& entry = require(file, name, "BF16", shape);
  std::vector<std::uint16_t> values = file.read<std::uint16_t>(entry);
  check_finite(file, name, entry, values, bf16_to_float);
  return values;
}

std::vector<float> read_f32(SafetensorsFile& file, const char* name,
                            const std::vector<std::int64_t>& shape) {
  const SafetensorsEntry& entry = require(file, name, "F32", shape);
  std::vector<float> values = file.read<float>(entry);
  check_finite(file, name, entry, values, [](float value) { return value; });
  return values;
}

bool usable_scale(double scale) {
  return std::isfinite(static_cast<float>(scale)) && static_cast<float>(scale) > 0;
}

constexpr const char* kScaleRule = "a positive finite float";

/// The metadata's softmax scale; nothing where there is none.
std::optional<double> metadata_scale(const SafetensorsFile& file) {
  const auto found = file.metadata().find("softmax_scale");
  if (found == file.metadata().end()) return {};
  const std::string& text = found->second;
  char* end = nullptr;
  const double scale = std::strtod(text.c_str(), &end);
  if (text.empty() || end != text.c_str() + text.size() || !usable_scale(scale)) {
    file.fail("metadata softmax_scale", kScaleRule, printable(text));
  }
  return scale;
}

/// Queries are the last positions of the sequence, in order: what a causal decode step sees.
void check_positions(const SafetensorsFile& file, std::int64_t tokens, std::int64_t s_q) {
  const auto found = file.metadata().find("query_positions");
  if (found == file.metadata().end()) return;
  std::string expected;
  for (std::int64_t i = tokens - s_q; i < tokens; ++i) {
    expected += fmt::format("{}{}", expected.empty() ? "" : ",", i);
  }
  std::string text = found->second;
  std::erase(text, ' ');
  if (text != expected) {
    file.fail("metadata query_positions",
              fmt::format("the last {} positions, {}", s_q, printable(expected)),
              printable(found->second));
  }
}

}  // namespace

std::vector<fs::path> find_captures(const std::vector<std::string>& arguments) {
  std::vector<fs::path> paths;
  for (const std::string& argument : arguments) {
    std::error_code error;
    if (!fs::is_directory(argument, error)) {
      paths.emplace_back(argument);  // load_capture() says what is wrong with it
      continue;
    }
    std::vector<fs::path> found;
    for (fs::directory_iterator entry(argument, error), end; !error && entry != end;
         entry.increment(error)) {
      if (entry->path().extension() == ".safetensors") found.push_back(entry->path());
    }
    if (error) throw InvalidArgument(argument, "a readable directory", error.message());
    if (found.empty()) {
      throw InvalidArgument(argument, "a directory with *.safetensors files", "none");
    }
    std::sort(found.begin(), found.end(), [](const fs::path& a, const fs::path& b) {
      return natural_less(a.filename().string(), b.filename().string());
    });
    paths.insert(paths.end(), found.begin(), found.end());
  }
  return paths;
}

Capture load_capture(const fs::path& path, std::optional<double> softmax_scale) {
  if (softmax_scale && !usable_scale(*softmax_scale)) {
    throw InvalidArgument("--softmax-scale", kScaleRule, fmt::format("{}", *softmax_scale));
  }
  SafetensorsFile file(path);
  Capture capture;
  capture.path = path;
  if (const auto layer = file.metadata().find("layer"); layer != file.metadata().end()) {
    const std::string& text = layer->second;
    if (text.size() < 10 && std::all_of(text.begin(), text.end(), is_digit)) capture.layer = text;
  }

  const std::optional<double> own_scale = metadata_scale(file);
  if (!own_scale && !softmax_scale) {
    file.fail("metadata softmax_scale", fmt::format("{} (or give --softmax-scale)", kScaleRule),
              "none");
  }
  capture.softmax_scale = static_cast<float>(softmax_scale.value_or(own_scale.value_or(0)));

  const SafetensorsEntry& kv = require(file, "c_kv", "BF16", {kAny, kKvLoraRank});
  capture.tokens = kv.shape[0];
  constexpr std::int64_t kMaxTokens = std::numeric_limits<std::int32_t>::max() - kPageTokens;
  if (capture.tokens < 1 || capture.tokens > kMaxTokens) {
    file.fail("c_kv", fmt::format("1 to {} tokens", kMaxTokens), fmt::format("{}", capture.tokens));
  }
  const SafetensorsEntry& q = require(file, "q_nope_absorbed", "BF16", {kAny, kAny, kKvLoraRank});
  capture.s_q = q.shape[0];
  capture.h_q = q.shape[1];
  if (capture.s_q < 1 || capture.h_q < 1 || capture.s_q > capture.tokens) {
    file.fail("q_nope_absorbed",
              fmt::format("1 to {} queries (the tokens) and at least 1 head", capture.tokens),
              describe(q.shape));
  }
  check_positions(file, capture.tokens, capture.s_q);
  if (file.find("token_ids")) require(file, "token_ids", "I32", {capture.tokens});

  capture.content = read_bf16(file, "c_kv", {capture.tokens, kKvLoraRank});
  capture.rope = read_bf16(file, "k_pe", {capture.tokens, kRopeDim});
  capture.q_nope = read_bf16(file, "q_nope_absorbed", {capture.s_q, capture.h_q, kKvLoraRank});
  capture.q_rope = read_bf16(file, "q_pe", {capture.s_q, capture.h_q, kRopeDim});
  const bool same_scale = own_scale && static_cast<float>(*own_scale) == capture.softmax_scale;
  if (file.find("ref_out_latent")) {
    capture.ref_out = read_f32(file, "ref_out_latent", {capture.s_q, capture.h_q, kKvLoraRank});
    if (!same_scale) capture.ref_out.clear();
  }
  if (file.find("ref_lse")) {
    capture.ref_lse = read_f32(file, "ref_lse", {capture.s_q, capture.h_q});
    if (!same_scale) capture.ref_lse.clear();
  }
  return capture;
}

std::vector<std::string> capture_labels(const std::vector<fs::path>& paths,
                                        const std::vector<std::string>& layers) {
  const std::set<std::string> distinct(layers.begin(), layers.end());
  if (distinct.size() == paths.size() && !distinct.contains("")) return layers;
  std::vector<std::string> labels;
  labels.reserve(paths.size());
  for (const fs::path& path : paths) labels.push_back(path.stem().string());
  return labels;
}

}  // namespace snapmla::tools
