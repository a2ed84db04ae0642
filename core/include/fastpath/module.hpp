#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fastpath/export.hpp"
#include "fastpath/tensor.hpp"

namespace fastpath {

class Model;

/// Named tensors in definition order, as checkpoints hold them.
class FASTPATH_EXPORT StateDict {
 public:
  using Entry = std::pair<std::string, Tensor>;

  /// Adds a tensor. @throws Error(invalid_argument) if the name is taken.
  void add(std::string name, Tensor tensor);
  /// The tensor of a name, or null.
  const Tensor* find(std::string_view name) const noexcept;
  /// @throws Error(not_found) naming the tensor.
  const Tensor& at(std::string_view name) const;
  bool contains(std::string_view name) const noexcept { return find(name) != nullptr; }
  std::size_t size() const noexcept { return entries_.size(); }
  std::vector<Entry>::const_iterator begin() const noexcept { return entries_.begin(); }
  std::vector<Entry>::const_iterator end() const noexcept { return entries_.end(); }

 private:
  std::vector<Entry> entries_;
  std::map<std::string, std::size_t, std::less<>> by_name_;  // indices into entries_
};

/// Whether load_state_dict refuses names that are missing or unexpected. A wrong shape or dtype kind is refused always.
enum class Strictness { strict, lenient };

/// A building block of a model: named parameters (trainable), buffers (constants) and children, in definition order.
/// Not thread-safe while it changes; concurrent reads are fine.
class FASTPATH_EXPORT Module {
 public:
  Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  virtual ~Module();

  /// A word for the kind of module, e.g. "irreps_linear"; shown by explain.
  virtual std::string kind() const { return "module"; }

  /// Adds a member. Names hold no '.' at registration of children; parameters and buffers may hold dots, because
  /// checkpoints do. @throws Error(invalid_argument) for an empty or taken name, or an undefined tensor.
  void register_parameter(std::string name, Tensor value);
  void register_buffer(std::string name, Tensor value);
  void register_child(std::string name, std::shared_ptr<Module> child);

  /// Own member by name. @throws Error(not_found) naming it.
  const Tensor& parameter(std::string_view name) const;
  const Tensor& buffer(std::string_view name) const;
  const std::vector<std::pair<std::string, std::shared_ptr<Module>>>& children() const noexcept { return children_; }
  const std::vector<StateDict::Entry>& parameters() const noexcept { return parameters_; }
  const std::vector<StateDict::Entry>& buffers() const noexcept { return buffers_; }

  /// All parameters below this module with dotted names; a shared module once, under its first name.
  std::vector<StateDict::Entry> named_parameters() const;
  std::vector<StateDict::Entry> named_buffers() const;
  /// Every module below and including this one ("" for itself), depth first in definition order, a shared one once.
  std::vector<std::pair<std::string, Module*>> named_modules();

  /// Parameters and buffers under their dotted names. The tensors share storage with the module.
  StateDict state_dict() const;
  /// Copies values in, converting floating dtypes to those of the module's tensors.
  /// Validates everything first: on error nothing has changed.
  /// @throws Error(invalid_argument) listing every missing, unexpected and mis-shaped name.
  void load_state_dict(const StateDict& state, Strictness strictness = Strictness::strict);

  /// Makes the tensors of this module and those below it the very tensors of `other`, a module of the same make.
  /// @throws Error(internal) if names or shapes differ.
  void share_tensors(const Module& other);

  /// Number of elements of all parameters below this module.
  std::int64_t parameter_count() const;

  /// Grows whenever values of this module's own parameters or buffers may have changed; keys caches and kernels.
  std::uint64_t version() const noexcept { return version_; }
  /// To be called after writing into a parameter in place.
  void touch();

  /// Calls `visit` for every model inside, itself included if it is one. Wrappers that hold a model somewhere that is
  /// not a child override this.
  virtual void for_each_model(const std::function<void(Model&)>& visit);

 protected:
  /// Called after load_state_dict or touch() changed this module's own tensors.
  virtual void on_change() {}

 private:
  void check_name(std::string_view name) const;

  std::vector<StateDict::Entry> parameters_;
  std::vector<StateDict::Entry> buffers_;
  std::vector<std::pair<std::string, std::shared_ptr<Module>>> children_;
  std::uint64_t version_ = 1;
};

}  // namespace fastpath
