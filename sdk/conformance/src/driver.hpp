#pragma once

#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "evaluation.hpp"
#include "fastpath/conformance/cases.hpp"
#include "fastpath/conformance/process_state.hpp"
#include "fastpath/sdk/abi.hpp"
#include "fastpath/sdk/ops.hpp"
#include "trial.hpp"

/// A host that is nothing but the C ABI, and looks closely at every call.
namespace fastpath::conformance {

/// How the structs of a host differ from those of this header, as those of an older or a newer host would.
struct Dialect {
  bool fenced = false;         ///< Structs end where readable memory ends, so that reading further is a crash.
  bool older = false;          ///< Without the last members of host, tensors, answers and run arguments.
  std::uint32_t extra = 0;     ///< Bytes behind the last known member, filled with rubbish.
  std::uint32_t gap = 0;       ///< More bytes from one item of a list to the next.
  std::uint32_t reserved = 0;  ///< What `reserved` members hold.
  const fp_extension* extensions = nullptr;  ///< Hung at every chain.
  std::uint32_t abi_min = FP_ABI_MAJOR << 16;
  std::uint32_t abi_max = FP_ABI_VERSION;
};

/// Whether a text is UTF-8 without control characters.
bool valid_text(std::string_view text);
std::string status_name(std::int32_t status);
bool known_status(std::int32_t status);

/// How a call of the plugin ended.
struct Outcome {
  std::int32_t status = FP_OK;
  std::string text;
  bool ok() const noexcept { return status == FP_OK; }
  /// "invalid_argument: a text", for messages.
  std::string shown() const { return status_name(status) + (text.empty() ? "" : ": " + text); }
};

/// Memory of structs, of exactly the size that each claims.
class Structs {
 public:
  explicit Structs(const Dialect& dialect) : dialect_(dialect) {}
  ~Structs();
  Structs(const Structs&) = delete;
  Structs& operator=(const Structs&) = delete;

  /// A copy of `value` that ends at `older_end` where the dialect is older (0: it has all members).
  template <class T>
  T* put(T value, std::uint32_t older_end = 0) {
    return static_cast<T*>(put_bytes(&value, sdk::abi_size(&value), older_end));
  }
  /// `items` as an array with a stride. @param stride  Out.
  template <class T>
  const T* put_array(const std::vector<T>& items, std::uint32_t older_end, std::uint32_t* stride) {
    const std::uint32_t known = sdk::abi_size(static_cast<const T*>(nullptr));
    return static_cast<const T*>(
        put_items(reinterpret_cast<const char*>(items.data()), sizeof(T), items.size(), known, older_end, stride));
  }
  /// Text that no zero follows.
  const char* put_text(std::string_view text);
  /// What has been written behind the end of a struct, or into its size; empty if nothing was.
  std::string damage() const;

 private:
  struct Block {
    char* data;
    std::size_t size;
    std::uint32_t known, stated;
    void* pages;
    std::size_t page_bytes;
  };
  void* put_bytes(const void* value, std::uint32_t known, std::uint32_t older_end);
  const void* put_items(const char* items, std::size_t item_size, std::size_t count, std::uint32_t known,
                        std::uint32_t older_end, std::uint32_t* stride);
  Block allocate(std::size_t size);
  const Dialect& dialect_;
  std::deque<Block> blocks_;
};

/// The error sink of one call.
class Errors {
 public:
  Errors();
  Errors(const Errors&) = delete;
  Errors& operator=(const Errors&) = delete;
  const fp_error_sink* c() const { return &sink_; }
  const std::string& text() const { return text_; }

 private:
  fp_error_sink sink_;
  std::string text_;
};

/// What the plugin is given of the host: counts, and fails when told to. Lives as long as the process.
class HostTable {
 public:
  HostTable(Trial& trial, const Dialect& dialect);
  const fp_host* c() const { return host_; }
  std::string damage() const { return structs_.damage(); }

  struct Counts {
    std::int64_t allocations = 0;  ///< Calls of allocate.
    std::int64_t outstanding = 0;  ///< Blocks that were not given back.
  };
  Counts counts() const;
  /// The k-th allocation from now on fails, k from 1; 0: none does.
  void fail_allocation(std::int64_t k);
  bool allocation_failed() const;  ///< Since the last fail_allocation().
  std::string log() const;
  void clear_log();
  /// What a plugin finds when it looks up `key`.
  void set(const std::string& key, const std::string& value);
  /// From now on a call of the plugin is a fault.
  void forbid(const std::string& why);

 private:
  struct State;
  static State& state(void* context);
  std::shared_ptr<State> state_;
  Dialect dialect_;
  Structs structs_;
  const fp_host* host_ = nullptr;
};

struct Claim {
  std::string op;
  std::int32_t version = 0, device_type = 0;
  std::uint32_t dtypes = 0, passes = 0;
};

/// A plugin that was loaded and has answered the query of this host.
class Session {
 public:
  explicit Session(Trial& trial, const Dialect& dialect = {});
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// dlopen alone. @throws Stop after saying what the linker said.
  static void* load(Trial& trial);
  static fp_plugin_query_fn query_function(Trial& trial, void* library);

  Trial& trial;
  Dialect dialect;
  HostTable host;
  const fp_plugin* plugin = nullptr;  ///< As the plugin gave it.
  fp_plugin c{};                      ///< What this header knows of it.
  fp_kernel_api kernels{};
  fp_memory_api memory{};
  bool has_memory = false;
  bool watch = true;  ///< Look at the state of the process around every call.

  /// Calls the plugin: `body(sink)` gives its status. Nothing it throws comes through; what it changes is noticed.
  template <class Body>
  Outcome call(const char* what, Body&& body, bool wants_text = true) {
    Errors errors;
    Outcome outcome;
    const std::optional<ProcessState> before = enter();
    try {
      outcome.status = body(errors.c());
    } catch (const std::exception& error) {
      thrown(what, error.what());
      outcome.status = FP_E_INTERNAL;
    } catch (...) {
      thrown(what, "something that is no std::exception");
      outcome.status = FP_E_INTERNAL;
    }
    leave(what, before);
    outcome.text = errors.text();
    judge(what, outcome, wants_text);
    return outcome;
  }
  template <class Body>
  void call_void(const char* what, Body&& body) {
    call(what, [&](const fp_error_sink*) {
      body();
      return FP_OK;
    });
  }

  /// Devices, in the C form; @throws Stop (skipped) if there is none.
  const std::vector<fp_device_info>& devices();
  /// The list as the plugin gives it now, without judging.
  Outcome enumerate(std::vector<fp_device_info>& found);
  const std::vector<Claim>& claims();
  Outcome ops(std::vector<Claim>& found);
  /// Opens a device. @throws Stop after a failure was noted.
  fp_device* open(const fp_device_info& device);
  Outcome try_open(const fp_device_info* device, fp_device** opened);
  void close(fp_device* device);

 private:
  std::optional<ProcessState> enter() const;
  void leave(const char* what, const std::optional<ProcessState>& before);
  void thrown(const char* what, const std::string& words);
  void judge(const char* what, const Outcome& outcome, bool wants_text);
  void negotiate();
  std::optional<std::vector<fp_device_info>> devices_;
  std::optional<std::vector<Claim>> claims_;
};

/// What a kernel is asked for.
struct Asked {
  const OpCase* op = nullptr;
  sdk::DType dtype = sdk::kFloat64;
  std::uint32_t passes = FP_PASS_FORWARD | FP_PASS_BACKWARD;
  std::int32_t math_mode = FP_MATH_FULL;
};
/// The same in C, in the memory of `structs`; it points into `asked` and `device`.
const fp_kernel_query* put_query(Structs& structs, const Dialect& dialect, const Asked& asked,
                                 const fp_device_info& device);

struct Answer {
  Outcome outcome;
  fp_kernel_answer c{};
  std::vector<std::pair<std::int32_t, std::string>> blockers;
  bool yes() const noexcept { return outcome.ok() && c.verdict != FP_ANSWER_NO; }
  std::string shown() const;
};
Answer ask(Session& session, const Asked& asked, const fp_device_info& device);

/// Where an array lies in its memory.
enum class Layout {
  plain,   ///< Contiguous, some bytes into its allocation.
  padded,  ///< Rows with a gap between them (arrays of rank 2 and more).
};

/// An array in memory of the device, between guard bytes.
class Placed {
 public:
  Placed(Session& session, fp_device* device, const fp_device_info& info, const Array& array, Layout layout);
  ~Placed();
  Placed(const Placed&) = delete;
  Placed& operator=(const Placed&) = delete;
  Placed(Placed&&) = delete;

  fp_tensor c(std::uint32_t access) const;
  /// Reads what is there now into `array`. @returns what was changed outside of the elements, or nothing.
  std::string read(Array& array);
  /// Whether everything is as it was placed; else what was changed.
  std::string unchanged();
  /// Overwrites it with NaN: for memory that is given back.
  void poison();

 private:
  std::uint64_t offset_of(std::int64_t element) const;
  void fetch();
  void upload(const std::vector<char>& image);
  Session& session_;
  fp_device* device_;
  const fp_device_info& info_;
  std::vector<std::int64_t> shape_, strides_;
  sdk::DType dtype_;
  bool present_ = false, on_device_ = false;
  std::int64_t numel_ = 0;
  std::vector<char> placed_;     ///< As it was uploaded.
  std::unique_ptr<char[]> own_;  ///< On the CPU: the memory.
  std::vector<char> fetched_;    ///< On a device: what came back.
  char* image_ = nullptr;        ///< What is there now, after fetch().
  void* memory_ = nullptr;
  std::uint64_t byte_offset_ = 0;
};

/// How a run differs from an ordinary one.
struct RunOptions {
  int threads = 1;
  Layout layout = Layout::plain;
  std::int64_t scratch_missing = 0;  ///< Bytes that the scratch memory falls short of what was asked for.
  bool check = true;                 ///< Look at guards and inputs afterwards.
  bool stream = false;               ///< On a stream, synchronised afterwards.
  /// Called just after the call, with its status and what it was given.
  std::function<void(std::int32_t, const fp_run_args&)> after = {};
  bool wants_text = true;  ///< A failure has to come with a text.
  /// Changes the C arguments just before the call.
  std::function<void(fp_run_args&, Structs&)> edit = {};
  /// Changes the tensors of a list: name of the list ("inputs", ...), index, tensor.
  std::function<void(const std::string&, std::size_t, fp_tensor&)> edit_tensor = {};
  std::function<void(fp_graph&)> edit_graph = {};
};

/// A kernel of the plugin.
class Kernel {
 public:
  Kernel(Session& session, fp_device* device, const fp_device_info& info, const Asked& asked);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  const Outcome& created() const { return created_; }
  explicit operator bool() const { return kernel_ != nullptr; }
  fp_kernel* handle() const { return kernel_; }
  const Asked& asked() const { return asked_; }
  /// Binds copies; those of an earlier bind are then overwritten and given back.
  Outcome bind(const std::vector<Array>& parameters, std::uint64_t version);
  Outcome workspace(const Evaluation& evaluation, fp_workspace& out);
  /// Runs; results are read back into `evaluation`. Where the kernel keeps results for backward, forward is run first.
  Outcome run(Evaluation& evaluation, const RunOptions& options = {});
  /// Bytes of the `saved` buffer that the last run used.
  std::uint64_t saved_bytes() const { return saved_bytes_; }
  void destroy();

 private:
  Outcome run_pass(Evaluation& evaluation, const RunOptions& options, Placed* saved, std::uint64_t saved_bytes);
  fp_sizes sizes_of(const Evaluation& evaluation) const;
  Session& session_;
  fp_device* device_;
  const fp_device_info info_;
  Asked asked_;
  OpCase op_;
  fp_kernel* kernel_ = nullptr;
  Outcome created_;
  std::deque<Placed> bound_;
  std::atomic<std::uint64_t> saved_bytes_{0};
};

}  // namespace fastpath::conformance
