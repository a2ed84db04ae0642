#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "fastpath/registry.hpp"

/// What the tests of the zoo share.
namespace zoo {

namespace fs = std::filesystem;

/// A folder of its own that goes away with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "fastpath-zoo-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { fs::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// Sets or, with null, unsets a variable while it lives.
class Variable {
 public:
  Variable(std::string name, const char* value) : name_(std::move(name)) {
    if (const char* before = std::getenv(name_.c_str())) {
      had_ = true;
      before_ = before;
    }
    set(value);
  }
  ~Variable() { set(had_ ? before_.c_str() : nullptr); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  void set(const char* value) {
    if (value == nullptr)
      ::unsetenv(name_.c_str());
    else
      ::setenv(name_.c_str(), value, 1);
  }

 private:
  std::string name_, before_;
  bool had_ = false;
};

inline std::string file_name(const std::string& name) { return "fastpath_zoo_" + name + ".so"; }
/// A library that was built for the tests.
inline fs::path built(const std::string& name) { return fs::path(FASTPATH_ZOO) / file_name(name); }

/// A folder with these libraries.
inline void fill(const fs::path& folder, const std::vector<std::string>& names) {
  for (const std::string& name : names) fs::copy_file(built(name), folder / file_name(name));
}

/// Options of a registry that sees this folder alone and keeps nothing.
inline fastpath::RegistryOptions only(const fs::path& folder) {
  fastpath::RegistryOptions options;
  options.search_paths = {folder};
  options.default_paths = false;
  options.use_cache = false;
  return options;
}

}  // namespace zoo
