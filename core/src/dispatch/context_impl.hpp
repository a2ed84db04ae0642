#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "fastpath/context.hpp"

namespace fastpath {

struct FastPathKernelWarning;
/// Tells the handler of kernel warnings, or stderr if there is none.
void warn_about_kernel(const FastPathKernelWarning& warning);

class Context::Impl {
 public:
  explicit Impl(ContextOptions options);

  const std::shared_ptr<PluginRegistry> registry;
  const int threads;

  /// Counts a failure of a kernel (plugin, op configuration, device, dtype) and keeps its text.
  void record_failure(const std::string& kernel, const std::string& text);
  /// The text of the last failure once a kernel has failed twice, otherwise empty: it is then out for the process.
  std::string taken_out(const std::string& kernel) const;

 private:
  struct Failures {
    int count = 0;
    std::string text;
  };
  mutable std::mutex mutex_;
  std::map<std::string, Failures> failures_;
};

}  // namespace fastpath
