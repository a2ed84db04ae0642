#include "fastpath/module.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <set>

#include "fastpath/error.hpp"
#include "io/printable.hpp"
#include "module/structure.hpp"

namespace fastpath {
namespace {

/// Calls `visit(name, module)` for `root` and everything below it, depth first, each module once under its first name.
template <class M, class Visit>
void walk(M& root, const std::string& name, std::set<const Module*>& seen, const Visit& visit) {
  if (!seen.insert(&root).second) return;
  visit(name, root);
  for (const auto& [child_name, child] : root.children()) {
    walk<M>(*child, name.empty() ? child_name : fmt::format("{}.{}", name, child_name), seen, visit);
  }
}

template <class M, class Visit>
void walk(M& root, const Visit& visit) {
  std::set<const Module*> seen;
  walk<M>(root, std::string{}, seen, visit);
}

std::string join(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : fmt::format("{}.{}", prefix, name);
}

const Tensor* find_in(const std::vector<StateDict::Entry>& entries, std::string_view name) {
  const auto found =
      std::find_if(entries.begin(), entries.end(), [&](const auto& entry) { return entry.first == name; });
  return found == entries.end() ? nullptr : &found->second;
}

bool is_integer(DType dtype) { return dtype == DType::int32 || dtype == DType::int64; }

/// Floating dtypes convert into each other and so do the integers, which must fit; bool and uint8 only match
/// themselves.
bool same_kind(DType a, DType b) {
  return a == b || (is_floating(a) && is_floating(b)) || (is_integer(a) && is_integer(b));
}

bool fits_int32(const Tensor& tensor) {
  const Tensor packed = tensor.contiguous();
  const auto values = packed.span<std::int64_t>();
  return std::all_of(values.begin(), values.end(), [](std::int64_t value) {
    return value >= std::numeric_limits<std::int32_t>::min() && value <= std::numeric_limits<std::int32_t>::max();
  });
}

/// What keeps `source` from being copied into `target`, or nothing.
std::string mismatch(const Tensor& source, const Tensor& target) {
  if (!source.defined()) return "is undefined";
  if (source.shape() != target.shape()) {
    return fmt::format("has shape {}, expected {}", to_string(source.shape()), to_string(target.shape()));
  }
  if (!same_kind(source.dtype(), target.dtype())) {
    return fmt::format("is {}, expected {}", to_string(source.dtype()), to_string(target.dtype()));
  }
  if (!source.device().is_cpu() || !target.device().is_cpu()) {
    return fmt::format("is on {} and goes to {}, expected cpu for both", to_string(source.device()),
                       to_string(target.device()));
  }
  if (source.dtype() == DType::int64 && target.dtype() == DType::int32 && !fits_int32(source)) {
    return "is int64 with values outside the range of the expected int32";
  }
  return {};
}

std::atomic<std::uint64_t> structure{1};

}  // namespace

void StateDict::add(std::string name, Tensor tensor) {
  const auto [at, fresh] = by_name_.try_emplace(name, entries_.size());
  if (!fresh) throw Error(ErrorCode::invalid_argument, fmt::format("state dict has two tensors named '{}'", name));
  try {
    entries_.emplace_back(std::move(name), std::move(tensor));
  } catch (...) {
    by_name_.erase(at);
    throw;
  }
}

const Tensor* StateDict::find(std::string_view name) const noexcept {
  const auto at = by_name_.find(name);
  return at == by_name_.end() ? nullptr : &entries_[at->second].second;
}

const Tensor& StateDict::at(std::string_view name) const {
  if (const Tensor* tensor = find(name)) return *tensor;
  throw Error(ErrorCode::not_found, fmt::format("no tensor named '{}' among {}", name, size()));
}

std::uint64_t structure_epoch() noexcept { return structure.load(std::memory_order_acquire); }

Module::~Module() = default;

void Module::check_name(std::string_view name) const {
  if (name.empty()) throw Error(ErrorCode::invalid_argument, fmt::format("{}: a member needs a name", kind()));
  const bool child = std::any_of(children_.begin(), children_.end(), [&](const auto& c) { return c.first == name; });
  if (child || find_in(parameters_, name) != nullptr || find_in(buffers_, name) != nullptr) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: the name '{}' is taken", kind(), name));
  }
}

void Module::register_parameter(std::string name, Tensor value) {
  check_name(name);
  if (!value.defined()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: parameter '{}' is an undefined tensor", kind(), name));
  }
  parameters_.emplace_back(std::move(name), std::move(value));
  ++version_;
}

void Module::register_buffer(std::string name, Tensor value) {
  check_name(name);
  if (!value.defined()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: buffer '{}' is an undefined tensor", kind(), name));
  }
  buffers_.emplace_back(std::move(name), std::move(value));
  ++version_;
}

void Module::register_child(std::string name, std::shared_ptr<Module> child) {
  check_name(name);
  if (name.find('.') != std::string::npos) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: child '{}' may not have a '.' in its name", kind(), name));
  }
  if (child == nullptr) throw Error(ErrorCode::invalid_argument, fmt::format("{}: child '{}' is null", kind(), name));
  walk<const Module>(*child, [&](const std::string&, const Module& below) {
    if (&below == this) {
      throw Error(ErrorCode::invalid_argument, fmt::format("{}: child '{}' contains its own parent", kind(), name));
    }
  });
  children_.emplace_back(std::move(name), std::move(child));
  structure.fetch_add(1, std::memory_order_release);
}

const Tensor& Module::parameter(std::string_view name) const {
  if (const Tensor* tensor = find_in(parameters_, name)) return *tensor;
  throw Error(ErrorCode::not_found, fmt::format("{} has no parameter '{}'", kind(), name));
}

const Tensor& Module::buffer(std::string_view name) const {
  if (const Tensor* tensor = find_in(buffers_, name)) return *tensor;
  throw Error(ErrorCode::not_found, fmt::format("{} has no buffer '{}'", kind(), name));
}

std::vector<StateDict::Entry> Module::named_parameters() const {
  std::vector<StateDict::Entry> result;
  walk<const Module>(*this, [&](const std::string& prefix, const Module& module) {
    for (const auto& [name, tensor] : module.parameters_) result.emplace_back(join(prefix, name), tensor);
  });
  return result;
}

std::vector<StateDict::Entry> Module::named_buffers() const {
  std::vector<StateDict::Entry> result;
  walk<const Module>(*this, [&](const std::string& prefix, const Module& module) {
    for (const auto& [name, tensor] : module.buffers_) result.emplace_back(join(prefix, name), tensor);
  });
  return result;
}

std::vector<std::pair<std::string, Module*>> Module::named_modules() {
  std::vector<std::pair<std::string, Module*>> result;
  walk<Module>(*this, [&](const std::string& name, Module& module) { result.emplace_back(name, &module); });
  return result;
}

StateDict Module::state_dict() const {
  StateDict result;
  walk<const Module>(*this, [&](const std::string& prefix, const Module& module) {
    for (const auto& [name, tensor] : module.parameters_) result.add(join(prefix, name), tensor);
    for (const auto& [name, tensor] : module.buffers_) result.add(join(prefix, name), tensor);
  });
  return result;
}

void Module::load_state_dict(const StateDict& state, Strictness strictness) {
  struct Copy {
    Tensor target;
    Tensor source;
  };
  std::vector<Copy> copies;
  std::vector<Module*> changed;
  StateDict own;
  std::vector<std::string> missing;
  std::vector<std::string> wrong;
  walk<Module>(*this, [&](const std::string& prefix, Module& module) {
    const std::size_t before = copies.size();
    for (const auto* entries : {&module.parameters_, &module.buffers_}) {
      for (const auto& [name, target] : *entries) {
        const std::string full = join(prefix, name);
        own.add(full, target);
        const Tensor* source = state.find(full);
        if (source == nullptr) {
          missing.push_back(full);
        } else if (const std::string why = mismatch(*source, target); !why.empty()) {
          wrong.push_back(fmt::format("{} {}", full, why));
        } else {
          copies.push_back({target, *source});
        }
      }
    }
    if (copies.size() > before) changed.push_back(&module);
  });
  std::vector<std::string> unexpected;
  for (const auto& [name, tensor] : state) {
    if (own.contains(name)) continue;
    // The names of a file may be of any kind, length and number.
    constexpr std::size_t kLongest = 100, kMost = 1000;
    if (unexpected.size() == kMost) unexpected.push_back("...");
    if (unexpected.size() > kMost) break;
    const bool plain = name.size() <= kLongest && std::all_of(name.begin(), name.end(), [](char c) {
                         return static_cast<unsigned char>(c) > 0x20 && c != 0x7f;
                       });
    unexpected.push_back(plain ? name : io::printable(name));
  }
  if (strictness == Strictness::lenient) {
    missing.clear();
    unexpected.clear();
  }

  std::vector<std::string> problems;
  if (!missing.empty()) problems.push_back(fmt::format("missing: {}", fmt::join(missing, ", ")));
  if (!unexpected.empty()) problems.push_back(fmt::format("unexpected: {}", fmt::join(unexpected, ", ")));
  if (!wrong.empty()) problems.push_back(fmt::format("mismatched: {}", fmt::join(wrong, ", ")));
  if (!problems.empty()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("state dict does not fit {}; {}", kind(), fmt::join(problems, "; ")));
  }

  // Everything that may run out of memory comes before the first write. Sources that are another target's storage
  // (two parameters exchanging their values) are copied aside too.
  std::set<const void*> written;
  for (const Copy& copy : copies) written.insert(copy.target.base());
  for (Copy& copy : copies) {
    const bool itself = copy.source.raw() == copy.target.raw();
    copy.source = copy.source.to(copy.target.dtype()).contiguous();
    if (!itself && written.count(copy.source.base()) != 0) copy.source = copy.source.clone();
  }
  for (const Copy& copy : copies) copy.target.copy_from(copy.source);
  for (Module* module : changed) ++module->version_;
  for (Module* module : changed) module->on_change();
}

void Module::share_tensors(const Module& other) {
  const auto share = [&](std::vector<StateDict::Entry>& mine, const std::vector<StateDict::Entry>& theirs) {
    bool same = mine.size() == theirs.size();
    for (std::size_t i = 0; same && i < mine.size(); ++i) {
      same = mine[i].first == theirs[i].first && mine[i].second.shape() == theirs[i].second.shape();
      if (same) mine[i].second = theirs[i].second;
    }
    if (!same)
      throw Error(ErrorCode::internal,
                  fmt::format("tensors of two different modules ({}, {}) shared", kind(), other.kind()));
  };
  share(parameters_, other.parameters_);
  share(buffers_, other.buffers_);
  if (children_.size() != other.children_.size()) {
    throw Error(ErrorCode::internal,
                fmt::format("{} has {} children, the other one {}", kind(), children_.size(), other.children_.size()));
  }
  for (std::size_t i = 0; i < children_.size(); ++i) children_[i].second->share_tensors(*other.children_[i].second);
  touch();
}

std::int64_t Module::parameter_count() const {
  std::int64_t total = 0;
  walk<const Module>(*this, [&](const std::string&, const Module& module) {
    for (const auto& [name, tensor] : module.parameters_) total += tensor.numel();
  });
  return total;
}

void Module::touch() {
  ++version_;
  on_change();
}

void Module::for_each_model(const std::function<void(Model&)>& visit) {
  std::set<const Model*> seen;  // a model may be shared by two children
  for (const auto& [name, child] : children_) {
    child->for_each_model([&](Model& model) {
      if (seen.insert(std::addressof(model)).second) visit(model);
    });
  }
}

}  // namespace fastpath
