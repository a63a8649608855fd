#include "safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "snapmla/error.h"

namespace snapmla::tools {
namespace {

using nlohmann::json;

constexpr std::uint64_t kLengthBytes = 8;
// The format's own limit for a header.
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

// Text from a file goes into messages quoted, with control characters escaped, and not at length.
std::string printable(const json& value) {
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true);
  constexpr std::size_t kMax = 80;
  if (text.size() > kMax) text = text.substr(0, kMax) + "...";
  return text;
}

/// Bytes of an element, 0 for a dtype this reader does not know.
std::uint64_t element_bytes(const std::string& dtype) {
  static const std::map<std::string, std::uint64_t> sizes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1},
      {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},
      {"U32", 4},  {"F32", 4}, {"I64", 8}, {"U64", 8},     {"F64", 8}};
  const auto found = sizes.find(dtype);
  return found == sizes.end() ? 0 : found->second;
}

/// Bytes of a tensor of this shape; nothing where they do not fit 64 bits.
std::optional<std::uint64_t> shape_bytes(const std::vector<std::int64_t>& shape,
                                         std::uint64_t element) {
  std::uint64_t bytes = element;
  for (std::int64_t dim : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(dim), &bytes)) return {};
  }
  return bytes;
}

/// The names that we look up are plain; others may hold anything and are quoted.
std::string label_of(const std::string& name) {
  const bool plain = std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '.';
  });
  return plain && !name.empty() ? name : printable(name);
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    throw InvalidArgument(path.string(), "a safetensors file", "no such file");
  }
  // Devices and pipes have no size to check the header against.
  if (!std::filesystem::is_regular_file(status)) {
    throw InvalidArgument(path.string(), "a regular file",
                          std::filesystem::is_directory(status) ? "a directory"
                          : error                               ? error.message()
                                                                : "a special file");
  }
  const std::uint64_t file_bytes = std::filesystem::file_size(path, error);
  if (error) throw InvalidArgument(path.string(), "a readable file", error.message());
  errno = 0;
  stream_.open(path, std::ios::binary);
  if (!stream_) throw InvalidArgument(path.string(), "a readable file", std::strerror(errno));

  const std::string header = read_header(file_bytes);
  data_offset_ = kLengthBytes + header.size();
  parse_header(header, file_bytes - data_offset_);
  check_offsets(file_bytes - data_offset_);
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second;
}

void SafetensorsFile::fail(std::string_view field, std::string rule, std::string value) const {
  throw InvalidArgument(fmt::format("{}: {}", path_.string(), field), std::move(rule),
                        std::move(value));
}

std::string SafetensorsFile::read_header(std::uint64_t file_bytes) {
  if (file_bytes < kLengthBytes) {
    fail("file size", fmt::format("at least {} bytes (the header length)", kLengthBytes),
         fmt::format("{} bytes", file_bytes));
  }
  unsigned char raw[kLengthBytes] = {};
  stream_.read(reinterpret_cast<char*>(raw), sizeof(raw));
  std::uint64_t length = 0;
  for (int i = static_cast<int>(kLengthBytes) - 1; i >= 0; --i) length = length << 8 | raw[i];
  const std::uint64_t limit = std::min(file_bytes - kLengthBytes, kMaxHeaderBytes);
  if (!stream_ || length < 2 || length > limit) {
    fail("header length", fmt::format("2 to {} bytes in a file of {} bytes", limit, file_bytes),
         fmt::format("{}", length));
  }
  std::string header(static_cast<std::size_t>(length), '\0');
  stream_.read(header.data(), static_cast<std::streamsize>(length));
  if (!stream_) fail("header", fmt::format("{} bytes", length), "a shorter file");
  return header;
}

void SafetensorsFile::parse_header(const std::string& header, std::uint64_t data_bytes) {
  // A parsed object has merged its duplicates, and a deeply nested one overflows the stack when it
  // is printed: both are refused while parsing.
  constexpr int kMaxDepth = 4;
  std::set<std::string> names[2];  // of the header, and of the object at work in it
  const auto check_event = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > kMaxDepth) {
      fail("header", fmt::format("JSON nested at most {} deep", kMaxDepth), "more");
    }
    if (event == json::parse_event_t::key && depth <= 2) {
      const auto& name = value.get_ref<const std::string&>();
      if (depth == 1) names[1].clear();
      if (!names[depth - 1].insert(name).second) {
        fail("header", "each name once", printable(name) + " twice");
      }
    }
    return true;
  };
  json root;
  try {
    root = json::parse(header, check_event);
  } catch (const json::parse_error& error) {
    fail("header", "JSON", fmt::format("a syntax error at byte {}", error.byte));
  } catch (const json::exception&) {
    fail("header", "JSON", "a number out of range");
  }
  if (!root.is_object()) fail("header", "a JSON object", root.type_name());

  for (const auto& [name, value] : root.items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) fail(name, "an object of strings", printable(value));
      for (const auto& [key, text] : value.items()) {
        if (!text.is_string()) fail(name + "." + printable(key), "a string", printable(text));
        metadata_[key] = text.get<std::string>();
      }
      continue;
    }
    const std::string label = label_of(name);
    if (!value.is_object())
      fail(label, "an object with dtype, shape and data_offsets", printable(value));
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      if (!value.contains(field)) fail(label, fmt::format("a field {}", field), "none");
    }

    SafetensorsEntry entry;
    if (!value["dtype"].is_string()) fail(label + ".dtype", "a string", printable(value["dtype"]));
    entry.dtype = value["dtype"].get<std::string>();

    const json& shape = value["shape"];
    if (!shape.is_array()) fail(label + ".shape", "an array", printable(shape));
    for (const json& dim : shape) {
      if (!dim.is_number_unsigned() ||
          dim.get<std::uint64_t>() >
              static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        fail(label + ".shape", "integers from 0 to 2^63 - 1", printable(shape));
      }
      entry.shape.push_back(dim.get<std::int64_t>());
    }

    const json& offsets = value["data_offsets"];
    if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
        !offsets[1].is_number_unsigned()) {
      fail(label + ".data_offsets", "[begin, end]", printable(offsets));
    }
    entry.begin = offsets[0].get<std::uint64_t>();
    entry.end = offsets[1].get<std::uint64_t>();
    if (entry.begin > entry.end || entry.end > data_bytes) {
      fail(label + ".data_offsets",
           fmt::format("begin <= end <= {}, the bytes after the header", data_bytes),
           printable(offsets));
    }

    if (const std::uint64_t element = element_bytes(entry.dtype)) {
      const auto bytes = shape_bytes(entry.shape, element);
      if (!bytes) {
        fail(label + ".shape", "a size of less than 2^64 bytes", printable(shape));
      }
      if (*bytes != entry.end - entry.begin) {
        fail(label + ".data_offsets",
             fmt::format("{} bytes for {} of shape {}", *bytes, entry.dtype, printable(shape)),
             fmt::format("{} bytes", entry.end - entry.begin));
      }
    }
    entries_[name] = std::move(entry);
  }
}

void SafetensorsFile::check_offsets(std::uint64_t data_bytes) const {
  std::vector<std::pair<const std::string*, const SafetensorsEntry*>> order;
  for (const auto& [name, entry] : entries_) order.emplace_back(&name, &entry);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->begin, a.second->end) < std::pair(b.second->begin, b.second->end);
  });
  // The format allows no gaps, so an overlap and a gap are the same mistake.
  std::uint64_t expected = 0;
  for (const auto& [name, entry] : order) {
    if (entry->begin != expected) {
      fail(label_of(*name) + ".data_offsets",
           fmt::format("begin {}, where the tensor before it ends", expected),
           fmt::format("{}", entry->begin));
    }
    expected = entry->end;
  }
  if (expected != data_bytes) {
    fail("file size", fmt::format("{} bytes of data, as the header says", expected),
         fmt::format("{} bytes", data_bytes));
  }
}

void SafetensorsFile::read_bytes(const SafetensorsEntry& entry, void* out) {
  const std::uint64_t bytes = entry.end - entry.begin;
  stream_.clear();
  stream_.seekg(static_cast<std::streamoff>(data_offset_ + entry.begin));
  stream_.read(static_cast<char*>(out), static_cast<std::streamsize>(bytes));
  // The size was checked when the file was opened; a file that has shrunk since ends here.
  if (!stream_) {
    fail("file size", fmt::format("{} bytes at {}", bytes, data_offset_ + entry.begin),
         "a file that became shorter while it was read");
  }
}

}  // namespace snapmla::tools
