#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "backend.hpp"
#include "fastpath/sdk/host.hpp"

namespace fastpath_gpu {

/// What compiled code belongs to.
struct CompileKey {
  std::string source;    ///< SHA-256 of language, architecture, kernels and source: 64 hexadecimal digits.
  std::string compiler;  ///< SHA-256 of what names the compiler and its options; empty where there is no compiler.

  static CompileKey of(const Program& program, const Target& target, const std::string& compiler);
};

/// Compiled code on disk, a file for each source and compiler. A file is written under another name and renamed, and
/// says how long it is and what its hash is: whatever else is found there counts as nothing kept. Nothing here fails:
/// a directory that cannot be read or written means that everything is compiled, and is logged once (debug). A file
/// that somebody else than the user and root could have written is not looked at: it is code that would be run. May be
/// used from several threads and processes at once.
class CompileCache {
 public:
  /// Keeps nothing.
  CompileCache() = default;
  /// @param directory  Made when there is something to keep. @param most_bytes  Of all files together: the ones that
  /// were not used for longest go first.
  CompileCache(sdk::Host host, std::filesystem::path directory, std::uint64_t most_bytes)
      : host_(host), directory_(std::move(directory)), most_bytes_(most_bytes) {}
  /// Below the host's cache directory (key `cache_dir`), with the limit of key `gpu.cache_bytes`.
  static CompileCache of(const sdk::Host& host, Language language);

  /// With an empty key.compiler: of any compiler, the latest.
  std::optional<Binary> find(const CompileKey& key) const;
  /// Nothing is kept of an empty binary, and none without a compiler's name.
  void keep(const CompileKey& key, const Binary& binary) const;
  /// To the host's log, at level debug.
  void say(const std::string& text) const;

  static constexpr std::uint64_t kMostBytes = std::uint64_t{256} << 20;

 private:
  void say_once(const std::string& text) const;
  void trim() const;

  sdk::Host host_;
  std::filesystem::path directory_;
  std::uint64_t most_bytes_ = 0;
  std::shared_ptr<std::atomic<bool>> said_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace fastpath_gpu
