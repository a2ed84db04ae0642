#include "fastpath/context.hpp"

#include <thread>

#include "dispatch/context_impl.hpp"
#include "fastpath/error.hpp"

namespace fastpath {
namespace {

int thread_budget(int requested) {
  if (requested < 0) {
    throw Error(ErrorCode::invalid_argument, "threads is " + std::to_string(requested) + ", expected 0 (all) or more");
  }
  if (requested > 0) return requested;
  const unsigned hardware = std::thread::hardware_concurrency();
  return hardware > 0 ? static_cast<int>(hardware) : 1;
}

}  // namespace

Context::Impl::Impl(ContextOptions options)
    : registry(options.shared_registry ? std::move(options.shared_registry)
                                       : std::make_shared<PluginRegistry>(std::move(options.registry))),
      threads(thread_budget(options.threads)) {}

void Context::Impl::record_failure(const std::string& kernel, const std::string& text) {
  const std::lock_guard lock(mutex_);
  Failures& failures = failures_[kernel];
  ++failures.count;
  failures.text = text;
}

std::string Context::Impl::taken_out(const std::string& kernel) const {
  const std::lock_guard lock(mutex_);
  const auto found = failures_.find(kernel);
  return found == failures_.end() || found->second.count < 2 ? std::string() : found->second.text;
}

Context::Context(ContextOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Context::~Context() = default;

Context& Context::process() {
  // Never destroyed: plugins and kernels of the process may be used until its last thread ends.
  static auto* context = new Context();
  return *context;
}

PluginRegistry& Context::registry() noexcept { return *impl_->registry; }
int Context::threads() const noexcept { return impl_->threads; }

}  // namespace fastpath
