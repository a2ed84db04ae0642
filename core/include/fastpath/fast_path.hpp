#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fastpath/context.hpp"
#include "fastpath/export.hpp"
#include "fastpath/module.hpp"
#include "fastpath/op.hpp"
#include "fastpath/policy.hpp"
#include "fastpath/reason.hpp"
#include "fastpath/registry.hpp"

namespace fastpath {

namespace plugin {
class Kernel;
class OpenDevice;
struct CallStatus;
}  // namespace plugin

/// Whether fast paths are used: never, always where available, or where available and measured to be faster.
enum class UseFast { never, always, automatic };
/// "false", "true", "auto".
FASTPATH_EXPORT std::string_view to_string(UseFast value) noexcept;

/// The setting a user means. Text: true, false, on, off, auto, in any case.
/// Only exactly `bool` counts as a truth value: integers do not compile, and a string literal is text.
/// @throws Error(invalid_argument) for other text, naming it and what is accepted.
inline UseFast resolve_use_fast(UseFast value) { return value; }
FASTPATH_EXPORT UseFast resolve_use_fast(std::string_view text);
template <std::same_as<bool> Bool>
UseFast resolve_use_fast(Bool value) {
  return value ? UseFast::always : UseFast::never;
}
template <std::integral Integer>
requires(!std::same_as<Integer, bool>) UseFast resolve_use_fast(Integer)
= delete;
UseFast resolve_use_fast(std::nullptr_t) = delete;

/// A module whose evaluation a plugin kernel may take over. It keeps exactly the parameters, buffers and state dict of
/// its reference. Not thread-safe: one evaluation at a time; Model::replica() makes more.
class FASTPATH_EXPORT FastPathModule : public Module {
 public:
  FastPathModule();
  ~FastPathModule() override;

  std::string kind() const override { return op().id; }
  /// What plugins are asked for. Stays valid until the module's tensors change.
  virtual const OpSpec& op() const = 0;

  /// Yes if some plugin has a usable kernel for this module there; otherwise every reason why not, of every plugin.
  Support fast_supported(const Device& device, DType dtype, Passes passes, Context* context = nullptr) const;
  /// True if the last select() gave this module a kernel and nothing took it away since.
  bool fast_active() const noexcept;
  /// Where the chosen path wants its tensors: the kernel's device if it owns memory, otherwise the CPU.
  Device placement() const noexcept;

  /// Evaluates by the chosen path. Tensors must lie on placement(). A recoverable failure of a kernel on host tensors
  /// is answered by the reference and recorded: fast_active() is then false and last_failure() says why.
  /// @throws Error(invalid_argument) for wrong shapes, dtypes, or tensors on different devices (both are named);
  ///   Error(kernel_failed) or Error(device_lost) for other failures, Error(numerics) where a kernel reports it.
  void run(const OpCall& call);
  /// Bytes of OpCall::saved that the chosen path wants for a call of these sizes and pass: forward fills them, backward
  /// reads them, so the caller hands both the same buffer, on placement(). 0 for the reference, and for kernels that
  /// keep nothing.
  std::uint64_t saved_bytes(const OpCall& call) const;
  /// The most that they are in any of these passes. @param n_rows  Rows of the op's first input.
  std::uint64_t saved_bytes(ProblemSize size, std::int64_t n_rows, DType dtype, Passes passes) const;
  /// Evaluates by the reference, whatever is chosen. Tensors on the CPU.
  void run_reference(const OpCall& call);
  /// The same with other parameters than the module's own, in the order and the shapes of op_parameters(). Constants
  /// from which a module has derived something (a basis) must be its own. @throws Error(invalid_argument) for another
  /// number of them.
  void run_reference(const OpCall& call, const std::vector<Tensor>& parameters);
  const std::optional<Reason>& last_failure() const noexcept;

  /// Parameters and buffers in the order of the op's schema, converted once per version to `dtype`. Undefined where an
  /// optional one is absent.
  const std::vector<Tensor>& op_parameters(DType dtype) const;

  /// Fast-path modules whose work this one does when it runs fast: by default every one below it.
  virtual std::vector<FastPathModule*> covered();

  // For the library: see core/src/dispatch.
  struct State;
  State& state() noexcept { return *state_; }
  /// Shares converted parameters with another module of equal tensors (a replica).
  void share_parameters(const FastPathModule& other);

 protected:
  /// The reference. `parameters` are op_parameters() in the dtype of the call.
  virtual void reference(const OpCall& call, const std::vector<Tensor>& parameters) = 0;
  /// Own tensors in the order of the op's schema, as stored.
  virtual std::vector<Tensor> schema_tensors() const = 0;
  void on_change() override;

 private:
  std::unique_ptr<State> state_;
};

/// A kernel that was considered for a module.
struct Candidate {
  enum class Verdict { chosen, not_chosen, refused };
  std::string plugin;
  Verdict verdict = Verdict::refused;
  std::vector<Reason> reasons;
};
FASTPATH_EXPORT std::string_view to_string(Candidate::Verdict verdict) noexcept;

/// One module's part of a selection.
struct Decision {
  std::string module;  ///< Dotted name.
  std::string op;
  std::string choice;  ///< A plugin id, or "reference".
  Reason reason;
  std::vector<Candidate> candidates;  ///< Empty under use_fast false: no plugin is asked, or even loaded.
  std::int32_t op_version = 1;
  std::string config = {};  ///< Of the op: 16 hexadecimal digits.
  std::string build = {};   ///< What tells the build of the chosen plugin from others; empty for the reference.
  bool fast() const noexcept { return choice != "reference"; }
};

/// The decisions of one selection, one per module in definition order. Copies share one list, so that an evaluation can
/// keep those of the one before; a const Decisions may be read from several threads.
class FASTPATH_EXPORT Decisions {
 public:
  using value_type = Decision;
  using const_iterator = std::vector<Decision>::const_iterator;
  using iterator = const_iterator;
  Decisions() = default;
  Decisions(std::vector<Decision> list)  // NOLINT: a list is a list
      : list_(std::make_shared<std::vector<Decision>>(std::move(list))) {}

  const std::vector<Decision>& list() const noexcept;
  operator const std::vector<Decision>&() const noexcept { return list(); }  // NOLINT: reads like one
  const_iterator begin() const noexcept { return list().begin(); }
  const_iterator end() const noexcept { return list().end(); }
  std::size_t size() const noexcept { return list().size(); }
  bool empty() const noexcept { return list().empty(); }
  const Decision& operator[](std::size_t i) const { return list()[i]; }
  const Decision& at(std::size_t i) const { return list().at(i); }
  const Decision& front() const { return list().front(); }
  const Decision& back() const { return list().back(); }
  /// A list that is this object's alone: copied first if it is shared.
  std::vector<Decision>& edit();

 private:
  std::shared_ptr<std::vector<Decision>> list_;
};

/// Which kernel, or the reference, each module uses in one evaluation.
struct FASTPATH_EXPORT Selection {
  Decisions decisions;
  Device device;
  DType dtype = DType::float64;
  Passes passes;
  /// The numbers of edges for which it would have been made, both included.
  std::int64_t min_edges = 0, max_edges = 0;
  bool any_fast() const noexcept;
  explicit operator bool() const noexcept { return any_fast(); }
};

/// A fast-path module and its dotted name.
struct NamedFastModule {
  std::string name;
  FastPathModule* module = nullptr;
};

/// Every fast-path module inside, in definition order; a shared module once, fused parents and their children both.
FASTPATH_EXPORT std::vector<NamedFastModule> fast_modules(Module& model);

/// Those of fast_modules(model) that some plugin can run there, found one by one as the range is walked.
class FASTPATH_EXPORT FastCapableRange {
 public:
  class iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = NamedFastModule;
    using difference_type = std::ptrdiff_t;
    using pointer = const NamedFastModule*;
    using reference = const NamedFastModule&;
    reference operator*() const { return range_->modules_[at_]; }
    pointer operator->() const { return &range_->modules_[at_]; }
    iterator& operator++() {
      at_ = range_->next(at_ + 1);
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const iterator& a, const iterator& b) { return a.at_ == b.at_; }

   private:
    friend class FastCapableRange;
    iterator(const FastCapableRange* range, std::size_t at) : range_(range), at_(at) {}
    const FastCapableRange* range_;
    std::size_t at_;
  };
  FastCapableRange(std::vector<NamedFastModule> modules, Device device, DType dtype, Passes passes, Context* context)
      : modules_(std::move(modules)), device_(device), dtype_(dtype), passes_(passes), context_(context) {}
  iterator begin() const { return {this, next(0)}; }
  iterator end() const { return {this, modules_.size()}; }

 private:
  std::size_t next(std::size_t from) const;
  std::vector<NamedFastModule> modules_;
  Device device_;
  DType dtype_;
  Passes passes_;
  Context* context_;
};
FASTPATH_EXPORT FastCapableRange iter_fast_capable(Module& model, const Device& device, DType dtype, Passes passes,
                                                   Context* context = nullptr);

/// Decides the path of every module for one evaluation and writes it into the modules (those that get the reference
/// too). Plugins are asked, and loaded, only when fast is wanted. Children of a fused parent that runs fast get the
/// reference with reason covered_by_parent. Under float32 with any kernel chosen, warn_float32_once() is called.
/// @param policy   Null makes `automatic` behave as `always`.
/// @param context  Null: Context::process().
/// @param threads  CPU threads of the evaluation, which measurements belong to; 0: as the context says.
/// @throws Error(invalid_argument) if a variable FASTPATH_OP_<NAME> names an op or a plugin that is not there, naming
/// the
///   nearest; Error(unavailable) if the context replays a lock that cannot be honoured, naming what differs.
FASTPATH_EXPORT Selection select(const std::vector<NamedFastModule>& modules, UseFast use_fast,
                                 const AutoPolicy* policy, const Device& device, DType dtype, ProblemSize size,
                                 Passes passes, Context* context = nullptr, int threads = 0);

/// Clears fast_active everywhere below; modules run their reference until the next select().
FASTPATH_EXPORT void deactivate(Module& model);

}  // namespace fastpath
