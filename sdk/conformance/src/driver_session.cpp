#include "driver.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace fastpath::conformance {

void* Session::load(Trial& trial) {
  trial.step("loading the file");
  const ProcessState before = ProcessState::take();
  void* library = nullptr;
  // An absolute path: a bare name would be looked for elsewhere.
  std::string path = trial.options.plugin;
  if (char* real = ::realpath(path.c_str(), nullptr)) {
    path = real;
    std::free(real);
  }
  try {
    library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  } catch (...) {
    trial.fail("P-07", "a constructor of the file threw", "constructors that cannot fail");
    trial.stop();
  }
  if (library == nullptr) {
    const char* words = ::dlerror();
    trial.fail("P-05", std::string("the linker says: ") + (words == nullptr ? "nothing" : words),
               "a file that can be loaded");
    trial.stop();
  }
  const ProcessState after = ProcessState::take();
  for (const std::string& difference : after.changes_since(before)) {
    trial.fail("P-07", difference, "that loading a file changes nothing");
  }
  before.restore();
  return library;
}

fp_plugin_query_fn Session::query_function(Trial& trial, void* library) {
  void* symbol = ::dlsym(library, FP_QUERY_SYMBOL);
  if (symbol == nullptr) {
    trial.fail("P-02", std::string("there is no symbol ") + FP_QUERY_SYMBOL, "the query function");
    trial.stop();
  }
  fp_plugin_query_fn function = nullptr;
  std::memcpy(&function, &symbol, sizeof function);
  return function;
}

Session::Session(Trial& trial_, const Dialect& dialect_) : trial(trial_), dialect(dialect_), host(trial_, dialect_) {
  negotiate();
}

void Session::negotiate() {
  const fp_plugin_query_fn query = query_function(trial, load(trial));
  trial.step("calling the query function");
  const Outcome outcome = call(
      "the query function", [&](const fp_error_sink*) { return query(host.c(), &plugin); }, false);
  const std::string log = host.log();
  if (outcome.status == FP_E_UNAVAILABLE) trial.skip("the plugin is idle: " + log);
  if (!outcome.ok() || plugin == nullptr) {
    trial.fail("P-15",
               outcome.ok() ? "the query function gave no plugin"
                            : "the query function failed: " + outcome.shown() + (log.empty() ? "" : ": " + log),
               "a plugin");
    trial.stop();
  }
  const std::string damage = host.damage();
  if (!damage.empty()) trial.fail("P-10", damage, "that nothing is written into the host's table");
  constexpr std::uint32_t kNeeded = FP_END_OF(fp_plugin, kernels);
  if (plugin->struct_size < kNeeded) {
    trial.fail("P-08", "fp_plugin of " + std::to_string(plugin->struct_size) + " bytes",
               "at least " + std::to_string(kNeeded));
    trial.stop();
  }
  c = sdk::known(plugin);
  kernels = sdk::known(c.kernels);
  has_memory = c.memory != nullptr;
  memory = sdk::known(c.memory);
  const bool complete = c.enumerate != nullptr && c.open != nullptr && c.close != nullptr && c.ops != nullptr &&
                        kernels.query != nullptr && kernels.create != nullptr && kernels.destroy != nullptr &&
                        kernels.bind != nullptr && kernels.workspace != nullptr && kernels.run != nullptr;
  if (!complete) {
    trial.fail("P-14", "a mandatory entry of fp_plugin or fp_kernel_api is null", "all of them");
    trial.stop();
  }
}

std::optional<ProcessState> Session::enter() const {
  return watch ? std::optional<ProcessState>(ProcessState::take()) : std::nullopt;
}

void Session::leave(const char* what, const std::optional<ProcessState>& before) {
  if (!before) return;
  const ProcessState after = ProcessState::take();
  const std::vector<std::string> differences = after.changes_since(*before);
  if (differences.empty()) return;
  for (const std::string& difference : differences) {
    trial.fail("P-31", std::string(what) + " " + difference, "that it is as before");
  }
  before->restore();
}

void Session::thrown(const char* what, const std::string& words) {
  trial.fail("P-19", std::string(what) + " threw an exception: " + words, "a status");
}

void Session::judge(const char* what, const Outcome& outcome, bool wants_text) {
  if (!known_status(outcome.status)) {
    trial.fail("P-18", std::string(what) + " returned status " + std::to_string(outcome.status),
               "FP_OK (0) or one of FP_E_* (-1 to -9)");
  } else if (wants_text && !outcome.ok() && outcome.text.empty()) {
    trial.fail("P-18", std::string(what) + " failed with " + status_name(outcome.status) + " and no text",
               "a text in the error sink that says what was found");
  }
  if (!valid_text(outcome.text)) {
    trial.fail("P-25", std::string("the text of ") + what + " holds bytes that are not UTF-8, or control characters",
               "UTF-8 without control characters");
  }
}

namespace {
/// Copies a list with a stride.
template <class Item, class List>
std::vector<Item> items_of(const List& list) {
  std::vector<Item> result;
  constexpr std::uint64_t kMost = 1u << 16;
  if (list.items == nullptr || list.stride < sizeof(std::uint32_t)) return result;
  for (std::uint64_t i = 0; i < std::min(list.count, kMost); ++i) result.push_back(sdk::element(list, i));
  return result;
}
std::string text_of(const char* text, std::uint64_t size) {
  constexpr std::uint64_t kMost = 1024;
  return std::string(sdk::text_view(text, std::min(size, kMost)));
}
}  // namespace

Outcome Session::enumerate(std::vector<fp_device_info>& found) {
  Structs structs(dialect);
  fp_device_list list = sdk::abi_struct<fp_device_list>();
  fp_device_list* out = structs.put(list);
  const Outcome outcome =
      call("enumerate", [&](const fp_error_sink* errors) { return c.enumerate(plugin, out, errors); });
  if (const std::string damage = structs.damage(); !damage.empty()) {
    trial.fail("P-10", "enumerate: " + damage, "nothing written past the end of a struct");
  }
  if (outcome.ok()) found = items_of<fp_device_info>(sdk::known(out));
  return outcome;
}

const std::vector<fp_device_info>& Session::devices() {
  if (!devices_) {
    std::vector<fp_device_info> found;
    const Outcome outcome = enumerate(found);
    if (outcome.status == FP_E_UNAVAILABLE) trial.skip("no device on this machine: " + outcome.text);
    if (!outcome.ok()) {
      trial.fail("P-36", "enumerate failed: " + outcome.shown(), "a list of devices");
      trial.stop();
    }
    if (found.empty()) trial.skip("no device on this machine");
    devices_ = std::move(found);
  }
  return *devices_;
}

Outcome Session::ops(std::vector<Claim>& found) {
  Structs structs(dialect);
  fp_op_list* out = structs.put(sdk::abi_struct<fp_op_list>());
  const Outcome outcome = call("ops", [&](const fp_error_sink* errors) { return c.ops(plugin, out, errors); });
  if (const std::string damage = structs.damage(); !damage.empty()) {
    trial.fail("P-10", "ops: " + damage, "nothing written past the end of a struct");
  }
  if (!outcome.ok()) return outcome;
  for (const fp_op_info& item : items_of<fp_op_info>(sdk::known(out))) {
    found.push_back({text_of(item.op, item.op_size), item.op_version, item.device_type, item.dtypes, item.passes});
  }
  return outcome;
}

const std::vector<Claim>& Session::claims() {
  if (!claims_) {
    std::vector<Claim> found;
    const Outcome outcome = ops(found);
    if (!outcome.ok()) {
      trial.fail("P-49", "ops failed: " + outcome.shown(), "a list of ops");
      trial.stop();
    }
    claims_ = std::move(found);
  }
  return *claims_;
}

Outcome Session::try_open(const fp_device_info* device, fp_device** opened) {
  Structs structs(dialect);
  const fp_device_info* info = device == nullptr ? nullptr : structs.put(*device);
  const Outcome outcome = call("open", [&](const fp_error_sink* errors) {
    fp_open_args args = sdk::abi_struct<fp_open_args>();
    args.reserved = dialect.reserved;
    args.device = info;
    args.errors = errors;
    return c.open(plugin, structs.put(args), opened);
  });
  if (const std::string damage = structs.damage(); !damage.empty()) {
    trial.fail("P-10", "open: " + damage, "nothing written into a struct of the host");
  }
  return outcome;
}

fp_device* Session::open(const fp_device_info& device) {
  fp_device* opened = nullptr;
  const Outcome outcome = try_open(&device, &opened);
  if (!outcome.ok() || opened == nullptr) {
    trial.fail("P-40", outcome.ok() ? "open reported success and gave no device" : "open failed: " + outcome.shown(),
               "an open device");
    trial.stop();
  }
  return opened;
}

void Session::close(fp_device* device) {
  call_void("close", [&] { c.close(plugin, device); });
}

const fp_kernel_query* put_query(Structs& structs, const Dialect& dialect, const Asked& asked,
                                 const fp_device_info& device) {
  const sdk::AttributeList attributes(asked.op->config);
  const fp_attribute_list& source = attributes.c_list();
  std::vector<fp_attribute> items(source.items, source.items + source.count);
  for (fp_attribute& item : items) {
    item.name = structs.put_text({item.name, item.name_size});
    if (item.kind == FP_ATTRIBUTE_UTF8) item.data = structs.put_text({static_cast<const char*>(item.data), item.count});
  }
  fp_attribute_list list = sdk::abi_struct<fp_attribute_list>();
  list.items = structs.put_array(items, 0, &list.stride);
  list.count = items.size();
  fp_kernel_query query = sdk::abi_struct<fp_kernel_query>();
  query.op_version = asked.op->version;
  query.op = structs.put_text(asked.op->op);
  query.op_size = asked.op->op.size();
  query.config = structs.put(list);
  query.device = structs.put(device);
  query.dtype_code = asked.dtype.code;
  query.dtype_bits = asked.dtype.bits;
  query.dtype_lanes = asked.dtype.lanes;
  query.passes = asked.passes;
  query.math_mode = asked.math_mode;
  query.reserved = dialect.reserved;
  query.extensions = dialect.extensions;
  return structs.put(query, FP_END_OF(fp_kernel_query, passes));
}

std::string Answer::shown() const {
  if (!outcome.ok()) return outcome.shown();
  std::string text = c.verdict == FP_ANSWER_YES       ? "yes"
                     : c.verdict == FP_ANSWER_NO      ? "no"
                     : c.verdict == FP_ANSWER_UNKNOWN ? "unknown until open"
                                                      : "verdict " + std::to_string(c.verdict);
  for (const auto& [reason, words] : blockers) text += "; reason " + std::to_string(reason) + ": " + words;
  return text;
}

Answer ask(Session& session, const Asked& asked, const fp_device_info& device) {
  Structs structs(session.dialect);
  Answer answer;
  fp_kernel_answer blank = sdk::abi_struct<fp_kernel_answer>();
  blank.context = &answer.blockers;
  blank.add_blocker = [](void* context, std::int32_t reason, const char* text, std::uint64_t size) {
    static_cast<std::vector<std::pair<std::int32_t, std::string>>*>(context)->emplace_back(reason, text_of(text, size));
  };
  fp_kernel_answer* out = structs.put(blank, FP_END_OF(fp_kernel_answer, prior_edges));
  const fp_kernel_query* query = put_query(structs, session.dialect, asked, device);
  answer.outcome = session.call("query of a kernel", [&](const fp_error_sink* errors) {
    return session.kernels.query(session.plugin, query, out, errors);
  });
  answer.c = sdk::known(out);
  for (const auto& [reason, words] : answer.blockers) {
    if (!valid_text(words)) {
      session.trial.fail("P-25", "the text of a blocker holds bytes that are not UTF-8, or control characters",
                         "UTF-8 without control characters");
    }
  }
  if (const std::string damage = structs.damage(); !damage.empty()) {
    session.trial.fail("P-10", "query of a kernel: " + damage, "nothing written past the end of a struct");
  }
  return answer;
}

}  // namespace fastpath::conformance
