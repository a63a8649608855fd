#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace snapmla::tools {

/// One tensor of a safetensors file. `begin` and `end` are bytes from the start of the data.
struct SafetensorsEntry {
  std::string dtype;  ///< as written: "BF16", "F32", ...
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;
};

/// Reads a safetensors file that may be damaged or hostile: the header is checked completely before
/// anything of it is used, and no size that the file states is trusted beyond the file's own size.
/// Throws InvalidArgument, which names the file, the tensor or field, the rule and the value.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const std::map<std::string, std::string, std::less<>>& metadata() const { return metadata_; }
  /// Null where the file has no such tensor.
  const SafetensorsEntry* find(std::string_view name) const;

  /// The elements of a tensor, whose dtype must have the size of T.
  template <class T>
  std::vector<T> read(const SafetensorsEntry& entry) {
    std::vector<T> values(static_cast<std::size_t>(entry.end - entry.begin) / sizeof(T));
    read_bytes(entry, values.data());
    return values;
  }

  /// Throws InvalidArgument for `field` of this file.
  [[noreturn]] void fail(std::string_view field, std::string rule, std::string value) const;

 private:
  std::string read_header(std::uint64_t file_bytes);
  void parse_header(const std::string& header, std::uint64_t data_bytes);
  void check_offsets(std::uint64_t data_bytes) const;
  void read_bytes(const SafetensorsEntry& entry, void* out);

  std::filesystem::path path_;
  std::ifstream stream_;
  std::uint64_t data_offset_ = 0;
  std::map<std::string, SafetensorsEntry, std::less<>> entries_;
  std::map<std::string, std::string, std::less<>> metadata_;
};

}  // namespace snapmla::tools
