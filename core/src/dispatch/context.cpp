#include "fastpath/context.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "dispatch/context_impl.hpp"
#include "fastpath/error.hpp"
#include "plugin/host.hpp"
#include "plugin/life.hpp"
#include "plugin/probe_cache.hpp"

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

std::uint64_t shadow_period(int requested) {
  if (requested < 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("shadow is {}, expected 0 or a number of evaluations", requested));
  }
  if (requested > 0) return static_cast<std::uint64_t>(requested);
  const char* value = std::getenv("FASTPATH_SHADOW");
  const std::string_view text = value != nullptr ? value : "";
  if (text.empty()) return 0;
  std::uint64_t period = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), period);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("FASTPATH_SHADOW is '{}', expected a number: every how many evaluations one is compared with "
                    "the reference, 0 for never",
                    text));
  }
  return period;
}

/// Where plugins and the gate keep things: beside what the registry keeps. A registry that is shared is its maker's.
std::filesystem::path cache_directory(const ContextOptions& options) {
  if (options.shared_registry || !options.registry.use_cache) return {};
  return options.registry.cache_directory.empty() ? plugin::user_cache_directory() : options.registry.cache_directory;
}

constexpr std::string_view kOverride = "FASTPATH_OP_";

/// An empty value is none.
std::map<std::string, std::string> op_overrides() {
  std::map<std::string, std::string> result;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (!text.starts_with(kOverride) || equals == std::string_view::npos || equals + 1 == text.size()) continue;
    result.emplace(text.substr(kOverride.size(), equals - kOverride.size()), text.substr(equals + 1));
  }
  return result;
}

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

Context::Impl::Impl(ContextOptions options)
    : cache(cache_directory(options)),
      gates(cache),
      registry(options.shared_registry ? std::move(options.shared_registry)
                                       : std::make_shared<PluginRegistry>(std::move(options.registry))),
      threads(thread_budget(options.threads)),
      gate(options.gate),
      deterministic(options.deterministic),
      measurements(options.measurements ? std::move(options.measurements)
                                        : std::make_shared<MeasurementStore>(MeasurementDirectories::defaults())),
      replay(std::move(options.replay)),
      overrides(op_overrides()),
      id(next_id()),
      shadow_(shadow_period(options.shadow)) {
  if (options.threads > 0) plugin::set_thread_budget(options.threads);
  if (options.log) plugin::set_log_sink(std::move(options.log));
  if (!cache.empty()) plugin::set_configuration("cache_dir", cache.string());
  for (auto& [key, value] : options.plugin_configuration) plugin::set_configuration(key, std::move(value));
}

std::uint64_t Context::Impl::epoch() const noexcept {
  // All of them only grow, so their sum changes when one does.
  return epoch_.load(std::memory_order_acquire) + plugin::fork_generation() + plugin::shutdown_generation() +
         measurements->generation();
}

bool Context::Impl::record_failure(const std::string& kernel, const std::string& text) {
  const std::lock_guard lock(mutex_);
  Failures& failures = failures_[kernel];
  failures.text = text;
  if (++failures.count >= 2 && !failures.out) {
    failures.out = Reason{ReasonCode::run_failed, fmt::format("failed twice in this process: {}", text)};
  }
  epoch_.fetch_add(1, std::memory_order_release);
  return failures.count == 1;
}

bool Context::Impl::take_out(const std::string& kernel, Reason reason) {
  const std::lock_guard lock(mutex_);
  Failures& failures = failures_[kernel];
  epoch_.fetch_add(1, std::memory_order_release);
  if (failures.out) return false;
  failures.out = std::move(reason);
  return true;
}

std::optional<Reason> Context::Impl::taken_out(const std::string& kernel) const {
  const std::lock_guard lock(mutex_);
  const auto found = failures_.find(kernel);
  return found == failures_.end() ? std::nullopt : found->second.out;
}

void Context::Impl::lose(const std::string& plugin, const Device& device, const std::string& text) {
  const std::lock_guard lock(mutex_);
  lost_.try_emplace({plugin, to_string(device)}, text);
  epoch_.fetch_add(1, std::memory_order_release);
}

std::optional<Reason> Context::Impl::lost(const std::string& plugin, const Device& device) const {
  const std::lock_guard lock(mutex_);
  const auto found = lost_.find({plugin, to_string(device)});
  if (found == lost_.end()) return std::nullopt;
  return Reason{ReasonCode::device_lost,
                fmt::format("{} was lost in this process: {}", to_string(device), found->second)};
}

bool Context::Impl::shadow_due() noexcept {
  if (shadow_ == 0) return false;
  return (evaluations_.fetch_add(1, std::memory_order_relaxed) + 1) % shadow_ == 0;
}

bool Context::Impl::knows(const Device& device) const {
  const std::lock_guard lock(mutex_);
  return std::find(known_.begin(), known_.end(), device) != known_.end();
}

void Context::Impl::remember(const Device& device) {
  const std::lock_guard lock(mutex_);
  if (std::find(known_.begin(), known_.end(), device) == known_.end()) known_.push_back(device);
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
MeasurementStore& Context::measurements() noexcept { return *impl_->measurements; }
bool Context::deterministic() const noexcept { return impl_->deterministic; }

}  // namespace fastpath
