#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "fastpath/export.hpp"
#include "fastpath/fast_path.hpp"

namespace fastpath {

/// What one module ran in an evaluation, for a range of sizes.
struct LockedChoice {
  std::string module, op;
  std::int32_t op_version = 1;
  std::string config;  ///< Of the op: 16 hexadecimal digits.
  std::string device;  ///< Its kind: "cpu", "cuda".
  DType dtype = DType::float64;
  std::uint32_t passes = 0;
  std::int64_t min_edges = 0, max_edges = 0;  ///< Both included.
  std::string choice;                         ///< A plugin id, or "reference".
  std::string build;                          ///< Decision::build.
  friend bool operator==(const LockedChoice&, const LockedChoice&) = default;
};

/// The selections of a run, to be made again: ContextOptions::replay. A plain value; safe to share once built.
class FASTPATH_EXPORT SelectionLock {
 public:
  /// Adds what a selection chose, as the evaluation ended: a module that fell back ran its reference. What is there
  /// already is not added again.
  /// @throws Error(invalid_argument) if something else was chosen before for the same module and some of the sizes.
  void add(const Selection& selection);
  const std::vector<LockedChoice>& choices() const noexcept { return choices_; }

  /// The choice for a module and a size; null, with `why` saying what differs from the nearest one, if there is none.
  const LockedChoice* find(const std::string& module, const OpSpec& op, const Device& device, DType dtype,
                           Passes passes, std::int64_t n_edges, std::string& why) const;

  /// A JSON file. @throws Error(io) naming the path.
  void save(const std::filesystem::path& file) const;
  /// @throws Error(not_found), Error(io), or Error(bad_file) naming the path, what was found and what was expected.
  static SelectionLock load(const std::filesystem::path& file);

 private:
  std::vector<LockedChoice> choices_;
};

}  // namespace fastpath
