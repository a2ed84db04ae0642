#pragma once

#include <string>
#include <vector>

namespace fastpath_gpu {

/// A vendor's library, opened while the program runs: a plugin links none, so that it loads everywhere. It stays in the
/// process for good, since drivers do not survive being unloaded.
class SharedLibrary {
 public:
  /// Opens the first of the names that the linker finds. @throws sdk::Unavailable: `what` could not be opened, with the
  /// linker's words for the file that was there but would not load, else for the first name.
  SharedLibrary(const std::vector<std::string>& names, const std::string& what);

  const std::string& name() const noexcept { return name_; }
  /// A function; null if the library lacks it.
  void* find(const char* symbol) const noexcept;
  /// Fills a pointer to a function. @throws sdk::Unavailable naming the function and `needed`, the version that has it.
  template <class Function>
  void get(Function*& function, const char* symbol, const char* needed) const {
    function = reinterpret_cast<Function*>(required(symbol, needed));
  }
  /// The same, null if it is not there.
  template <class Function>
  void get_optional(Function*& function, const char* symbol) const noexcept {
    function = reinterpret_cast<Function*>(find(symbol));
  }

 private:
  void* required(const char* symbol, const char* needed) const;

  std::string name_;
  void* handle_ = nullptr;
};

}  // namespace fastpath_gpu
