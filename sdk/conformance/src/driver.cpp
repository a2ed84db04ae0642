#include "driver.hpp"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <stdexcept>

namespace fastpath::conformance {

std::string status_name(std::int32_t status) {
  constexpr std::array kNames{"ok",   "unsupported", "invalid_argument", "incompatible", "unavailable", "out_of_memory",
                              "busy", "device_lost", "numerics",         "internal"};
  return known_status(status) ? kNames[static_cast<std::size_t>(-status)] : "status " + std::to_string(status);
}
bool valid_text(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = [&](std::size_t k) { return k < text.size() ? static_cast<unsigned char>(text[k]) : 0u; };
    const unsigned lead = byte(i);
    const std::size_t length = lead < 0x80                   ? 1
                               : lead >= 0xc2 && lead < 0xe0 ? 2
                               : lead >= 0xe0 && lead < 0xf0 ? 3
                               : lead >= 0xf0 && lead < 0xf5 ? 4
                                                             : 0;
    if (length == 0 || (length == 1 && (lead < 0x20 || lead == 0x7f))) return false;
    for (std::size_t k = 1; k < length; ++k) {
      if ((byte(i + k) & 0xc0u) != 0x80u) return false;
    }
    i += length;
  }
  return true;
}
bool known_status(std::int32_t status) { return status <= FP_OK && status >= FP_E_INTERNAL; }

// ---- Structs --------------------------------------------------------------------------------------------------------

namespace {
constexpr char kRubbish = static_cast<char>(0xAB);
}

Structs::~Structs() {
  for (const Block& block : blocks_) {
    if (block.pages != nullptr) {
      ::munmap(block.pages, block.page_bytes);
    } else {
      std::free(block.data);
    }
  }
}

Structs::Block Structs::allocate(std::size_t size) {
  if (!dialect_.fenced) {
    char* data = static_cast<char*>(std::malloc(std::max<std::size_t>(size, 1)));
    if (data == nullptr) throw std::bad_alloc();
    return {data, size, 0, 0, nullptr, 0};
  }
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t used = (size + page - 1) / page * page;
  void* pages = ::mmap(nullptr, used + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  char* fence = static_cast<char*>(pages) + used;
  ::mprotect(fence, page, PROT_NONE);
  return {fence - size, size, 0, 0, pages, used + page};
}

void* Structs::put_bytes(const void* value, std::uint32_t known, std::uint32_t older_end) {
  const std::uint32_t end = dialect_.older && older_end != 0 ? older_end : known;
  const std::uint32_t size = end + dialect_.extra;
  Block block = allocate(size);
  block.known = end;
  block.stated = size;
  std::memset(block.data, kRubbish, size);
  std::memcpy(block.data, value, end);
  std::memcpy(block.data, &size, sizeof size);
  blocks_.push_back(block);
  return block.data;
}

const void* Structs::put_items(const char* items, std::size_t item_size, std::size_t count, std::uint32_t known,
                               std::uint32_t older_end, std::uint32_t* stride) {
  const std::uint32_t end = dialect_.older && older_end != 0 ? older_end : known;
  const std::uint32_t size = end + dialect_.extra;
  *stride = (size + dialect_.gap + 7) / 8 * 8;
  if (count == 0) return nullptr;
  // The last item ends where its struct ends, not where its stride does.
  Block block = allocate(*stride * (count - 1) + size);
  std::memset(block.data, kRubbish, block.size);
  for (std::size_t i = 0; i < count; ++i) {
    char* to = block.data + i * *stride;
    std::memcpy(to, items + i * item_size, end);
    std::memcpy(to, &size, sizeof size);
  }
  blocks_.push_back(block);
  return block.data;
}

const char* Structs::put_text(std::string_view text) {
  constexpr std::size_t kBehind = 8;
  Block block = allocate(text.size() + (dialect_.fenced ? 0 : kBehind));
  std::memset(block.data, 'Z', block.size);
  if (!text.empty()) std::memcpy(block.data, text.data(), text.size());
  blocks_.push_back(block);
  return block.data;
}

std::string Structs::damage() const {
  for (const Block& block : blocks_) {
    if (block.stated == 0) continue;
    std::uint32_t size = 0;
    std::memcpy(&size, block.data, sizeof size);
    if (size != block.stated) {
      return "struct_size of a struct became " + std::to_string(size) + ", was " + std::to_string(block.stated);
    }
    for (std::size_t i = block.known; i < block.size; ++i) {
      if (block.data[i] != kRubbish) {
        return "byte " + std::to_string(i) + " of a struct whose last known member ends at byte " +
               std::to_string(block.known) + " was written";
      }
    }
  }
  return {};
}

Errors::Errors() : sink_(sdk::abi_struct<fp_error_sink>()) {
  sink_.context = this;
  sink_.report = [](void* context, std::int32_t, const char* text, std::uint64_t size) {
    constexpr std::uint64_t kMost = 4096;
    std::string& to = static_cast<Errors*>(context)->text_;
    if (text != nullptr && to.size() < kMost) to.append(text, static_cast<std::size_t>(std::min(size, kMost)));
  };
}

// ---- The host's table -----------------------------------------------------------------------------------------------

struct HostTable::State {
  explicit State(Trial& t) : trial(t) {}
  Trial& trial;
  std::mutex mutex;
  std::map<void*, std::uint64_t> blocks;
  std::int64_t allocations = 0, fail_at = 0;
  bool failed = false;
  std::string log, forbidden;
  void called(const char* what) {
    if (!forbidden.empty()) trial.fail("P-29", std::string("it called ") + what + " of the host", forbidden);
  }
};

HostTable::State& HostTable::state(void* context) { return *static_cast<State*>(context); }

HostTable::HostTable(Trial& trial, const Dialect& dialect) : dialect_(dialect), structs_(dialect_) {
  // Never destroyed: a plugin may call until the process ends.
  static auto* const kept = new std::vector<std::shared_ptr<State>>;
  state_ = std::make_shared<State>(trial);
  kept->push_back(state_);
  fp_host host = sdk::abi_struct<fp_host>();
  host.abi_min = dialect.abi_min;
  host.abi_max = dialect.abi_max;
  host.reserved = dialect.reserved;
  host.context = state_.get();
  static constexpr std::string_view kVersion = "0.0-conformance";
  host.version = kVersion.data();
  host.version_size = kVersion.size();
  host.log = [](void* context, std::int32_t, const char* text, std::uint64_t size) {
    State& s = state(context);
    const std::lock_guard lock(s.mutex);
    s.called("log");
    constexpr std::size_t kMost = 65536;
    if (text != nullptr && s.log.size() < kMost)
      s.log.append(text, static_cast<std::size_t>(std::min<std::uint64_t>(size, kMost)));
  };
  host.allocate = [](void* context, std::uint64_t bytes, std::uint64_t alignment) -> void* {
    State& s = state(context);
    const std::lock_guard lock(s.mutex);
    s.called("allocate");
    ++s.allocations;
    if (s.fail_at > 0 && --s.fail_at == 0) {
      s.failed = true;
      return nullptr;
    }
    if (bytes > (std::uint64_t{1} << 40)) return nullptr;
    alignment = std::max<std::uint64_t>(alignment, 64);
    constexpr std::uint64_t kGuard = 64;
    void* memory = std::aligned_alloc(alignment, (bytes + kGuard + alignment - 1) / alignment * alignment);
    if (memory == nullptr) return nullptr;
    std::memset(memory, 0xFF, bytes);
    std::memset(static_cast<char*>(memory) + bytes, 0xA5, kGuard);
    s.blocks[memory] = bytes;
    return memory;
  };
  host.release = [](void* context, void* memory) {
    State& s = state(context);
    const std::lock_guard lock(s.mutex);
    s.called("release");
    if (memory == nullptr) return;
    const auto found = s.blocks.find(memory);
    if (found == s.blocks.end()) {
      s.trial.fail("P-28", "it released memory that the host had not given, or twice", "each block once");
      return;
    }
    for (std::uint64_t i = 0; i < 64; ++i) {
      if (static_cast<unsigned char*>(memory)[found->second + i] != 0xA5) {
        s.trial.fail("P-57", "it wrote past the end of a block of " + std::to_string(found->second) + " bytes",
                     "nothing written past the end of memory");
        break;
      }
    }
    s.blocks.erase(found);
    std::free(memory);
  };
  host.thread_budget = [](void*) -> std::int32_t { return 2; };
  host.lookup = [](void*, const char*, std::uint64_t, const char**, std::uint64_t*) -> std::int32_t { return 0; };
  host.extensions = dialect.extensions;
  host_ = structs_.put(host, FP_END_OF(fp_host, thread_budget));
}

HostTable::Counts HostTable::counts() const {
  const std::lock_guard lock(state_->mutex);
  return {state_->allocations, static_cast<std::int64_t>(state_->blocks.size())};
}
void HostTable::fail_allocation(std::int64_t k) {
  const std::lock_guard lock(state_->mutex);
  state_->fail_at = k;
  state_->failed = false;
}
bool HostTable::allocation_failed() const {
  const std::lock_guard lock(state_->mutex);
  return state_->failed;
}
std::string HostTable::log() const {
  const std::lock_guard lock(state_->mutex);
  return state_->log;
}
void HostTable::clear_log() {
  const std::lock_guard lock(state_->mutex);
  state_->log.clear();
}
void HostTable::forbid(const std::string& why) {
  const std::lock_guard lock(state_->mutex);
  state_->forbidden = why;
}

// ---- Session --------------------------------------------------------------------------------------------------------

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
  for (const std::string& difference : after.differences(before)) {
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
  const std::vector<std::string> differences = after.differences(*before);
  if (differences.empty()) return;
  for (const std::string& difference : differences) {
    trial.fail("P-31", std::string("after ") + what + " " + difference, "that it is as before");
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

// ---- Questions ------------------------------------------------------------------------------------------------------

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

// ---- Arrays ---------------------------------------------------------------------------------------------------------

Array Array::zeros(std::vector<std::int64_t> sizes, sdk::DType type) {
  Array array;
  array.shape = std::move(sizes);
  array.dtype = type;
  array.present = true;
  array.storage.assign(array.bytes() / 8 + 1, 0.0);  // never empty, for its address is copied from and to
  return array;
}
std::int64_t Array::numel() const noexcept {
  std::int64_t n = present ? 1 : 0;
  for (const std::int64_t size : shape) n *= size;
  return n;
}
double Array::at(std::int64_t i) const noexcept {
  if (dtype == sdk::kFloat32) return static_cast<double>(data<float>()[i]);
  if (dtype == sdk::kFloat64) return data<double>()[i];
  return static_cast<double>(data<std::int32_t>()[i]);
}
void Array::set(std::int64_t i, double value) noexcept {
  if (dtype == sdk::kFloat32) {
    data<float>()[i] = static_cast<float>(value);
  } else if (dtype == sdk::kFloat64) {
    data<double>()[i] = value;
  } else {
    data<std::int32_t>()[i] = static_cast<std::int32_t>(value);
  }
}
void Array::fill_bytes(unsigned char value) noexcept {
  if (bytes() != 0) std::memset(raw(), value, bytes());
}
Array Array::to(sdk::DType wanted) const {
  if (!present || dtype == wanted || dtype.code != FP_CODE_FLOAT) return *this;
  Array result = zeros(shape, wanted);
  for (std::int64_t i = 0; i < numel(); ++i) result.set(i, at(i));
  return result;
}

namespace {
constexpr std::uint64_t kGuardBytes = 256;
constexpr char kGuard = static_cast<char>(0x5A);
}  // namespace

Placed::Placed(Session& session, fp_device* device, const fp_device_info& info, const Array& array, Layout layout)
    : session_(session),
      device_(device),
      info_(info),
      shape_(array.shape),
      dtype_(array.dtype),
      present_(array.present) {
  if (!present_) return;
  numel_ = array.numel();
  on_device_ = info.type != FP_DEVICE_CPU;
  strides_.resize(shape_.size());
  std::int64_t stride = 1;
  for (std::size_t axis = shape_.size(); axis-- > 0;) {
    strides_[axis] = stride;
    stride *= shape_[axis];
    if (layout == Layout::padded && axis + 1 == shape_.size() && axis > 0) stride += 3;
  }
  const std::uint64_t span = static_cast<std::uint64_t>(numel_ == 0 ? 0 : stride) * array.item_bytes();
  placed_.assign(kGuardBytes + span + kGuardBytes, kGuard);
  byte_offset_ = kGuardBytes;
  for (std::int64_t i = 0; i < numel_; ++i) {
    std::memcpy(placed_.data() + offset_of(i), array.raw() + static_cast<std::size_t>(i) * array.item_bytes(),
                array.item_bytes());
  }
  if (!on_device_) {
    own_.reset(new char[placed_.size() + 256]);
    image_ = own_.get() + (256 - reinterpret_cast<std::uintptr_t>(own_.get()) % 256);
    memory_ = image_;
  } else {
    if (!session_.has_memory) session_.trial.skip("the plugin brings no memory for its device");
    const Outcome outcome = session_.call("allocate", [&](const fp_error_sink* errors) {
      return session_.memory.allocate(device_, placed_.size(), &memory_, errors);
    });
    if (!outcome.ok()) throw std::runtime_error("device memory: " + outcome.shown());
  }
  upload(placed_);
}

Placed::~Placed() {
  if (on_device_ && memory_ != nullptr) {
    session_.call_void("release", [&] { session_.memory.release(device_, memory_); });
  }
}

void Placed::upload(const std::vector<char>& image) {
  if (!on_device_) {
    std::memcpy(image_, image.data(), image.size());
    return;
  }
  const Outcome outcome = session_.call("copy_to_device", [&](const fp_error_sink* errors) {
    return session_.memory.copy_to_device(device_, memory_, 0, image.data(), image.size(), nullptr, errors);
  });
  if (!outcome.ok()) throw std::runtime_error("copy to the device: " + outcome.shown());
}

void Placed::fetch() {
  if (!on_device_) return;
  fetched_.resize(placed_.size());
  const Outcome outcome = session_.call("copy_from_device", [&](const fp_error_sink* errors) {
    return session_.memory.copy_from_device(device_, fetched_.data(), memory_, 0, fetched_.size(), nullptr, errors);
  });
  if (!outcome.ok()) throw std::runtime_error("copy from the device: " + outcome.shown());
  image_ = fetched_.data();
}

std::uint64_t Placed::offset_of(std::int64_t element) const {
  std::int64_t at = 0;
  for (std::size_t axis = shape_.size(); axis-- > 0;) {
    at += element % shape_[axis] * strides_[axis];
    element /= shape_[axis];
  }
  return kGuardBytes + static_cast<std::uint64_t>(at) * (dtype_.bits / 8);
}

fp_tensor Placed::c(std::uint32_t access) const {
  static constexpr std::int64_t kNoAxes = 0;
  fp_tensor tensor = sdk::abi_struct<fp_tensor>();
  if (!present_) return tensor;
  tensor.access = access;
  tensor.data = memory_;
  tensor.device_type = info_.type;
  tensor.device_id = info_.index;
  tensor.ndim = static_cast<std::int32_t>(shape_.size());
  tensor.dtype_code = dtype_.code;
  tensor.dtype_bits = dtype_.bits;
  tensor.dtype_lanes = dtype_.lanes;
  tensor.shape = shape_.empty() ? &kNoAxes : shape_.data();
  tensor.strides = shape_.empty() ? &kNoAxes : strides_.data();
  tensor.byte_offset = byte_offset_;
  return tensor;
}

std::string Placed::read(Array& array) {
  if (!present_) return {};
  fetch();
  const std::size_t item = dtype_.bits / 8;
  for (std::int64_t i = 0; i < numel_; ++i) {
    std::memcpy(array.raw() + static_cast<std::size_t>(i) * item, image_ + offset_of(i), item);
  }
  // What is left once the elements are put back must be what was placed.
  std::vector<char> rest(image_, image_ + placed_.size());
  for (std::int64_t i = 0; i < numel_; ++i) {
    std::memcpy(rest.data() + offset_of(i), placed_.data() + offset_of(i), item);
  }
  for (std::size_t i = 0; i < rest.size(); ++i) {
    if (rest[i] == placed_[i]) continue;
    if (i < kGuardBytes) return std::to_string(kGuardBytes - i) + " bytes before its first element were written";
    if (i >= placed_.size() - kGuardBytes) {
      return "the byte " + std::to_string(i - (placed_.size() - kGuardBytes)) + " after its last element was written";
    }
    return "memory between its rows was written";
  }
  return {};
}

std::string Placed::unchanged() {
  if (!present_) return {};
  fetch();
  for (std::size_t i = 0; i < placed_.size(); ++i) {
    if (image_[i] != placed_[i]) {
      return "byte " + std::to_string(static_cast<std::int64_t>(i) - static_cast<std::int64_t>(kGuardBytes)) +
             " of it was changed";
    }
  }
  return {};
}

void Placed::poison() {
  if (!present_) return;
  upload(std::vector<char>(placed_.size(), static_cast<char>(0xFF)));
}

// ---- Kernels --------------------------------------------------------------------------------------------------------

Kernel::Kernel(Session& session, fp_device* device, const fp_device_info& info, const Asked& asked)
    : session_(session), device_(device), info_(info), asked_(asked), op_(*asked.op) {
  asked_.op = &op_;
  Structs structs(session_.dialect);
  const fp_kernel_query* query = put_query(structs, session_.dialect, asked_, info_);
  created_ = session_.call("create", [&](const fp_error_sink* errors) {
    fp_create_args args = sdk::abi_struct<fp_create_args>();
    args.reserved = session_.dialect.reserved;
    args.device = device_;
    args.query = query;
    args.errors = errors;
    return session_.kernels.create(session_.plugin, structs.put(args), &kernel_);
  });
  if (const std::string damage = structs.damage(); !damage.empty()) {
    session_.trial.fail("P-10", "create: " + damage, "nothing written into a struct of the host");
  }
  if (created_.ok() && kernel_ == nullptr) {
    created_ = {FP_E_INTERNAL, "create reported success and gave no kernel"};
  }
}

Kernel::~Kernel() { destroy(); }

void Kernel::destroy() {
  if (kernel_ == nullptr) return;
  session_.call_void("destroy", [&] { session_.kernels.destroy(kernel_); });
  kernel_ = nullptr;
}

namespace {

const fp_tensor_list* put_list(Structs& structs, const std::vector<fp_tensor>& tensors) {
  fp_tensor_list list = sdk::abi_struct<fp_tensor_list>();
  list.items = structs.put_array(tensors, FP_END_OF(fp_tensor, strides), &list.stride);
  list.count = tensors.size();
  return structs.put(list);
}

}  // namespace

Outcome Kernel::bind(const std::vector<Array>& parameters, std::uint64_t version) {
  std::deque<Placed> next;
  std::vector<fp_tensor> tensors;
  // An older host has no byte_offset, so its arrays start at their address: those of a fenced dialect stay as they are.
  for (const Array& parameter : parameters) {
    next.emplace_back(session_, device_, info_, parameter, Layout::plain);
    fp_tensor tensor = next.back().c(FP_ACCESS_READ);
    if (session_.dialect.older && tensor.data != nullptr) {
      tensor.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
    }
    tensors.push_back(tensor);
  }
  Structs structs(session_.dialect);
  const fp_tensor_list* list = put_list(structs, tensors);
  const Outcome outcome = session_.call("bind", [&](const fp_error_sink* errors) {
    fp_bind_args args = sdk::abi_struct<fp_bind_args>();
    args.reserved = session_.dialect.reserved;
    args.version = version;
    args.parameters = list;
    args.errors = errors;
    return session_.kernels.bind(kernel_, structs.put(args));
  });
  if (const std::string damage = structs.damage(); !damage.empty()) {
    session_.trial.fail("P-10", "bind: " + damage, "nothing written into a struct of the host");
  }
  for (Placed& parameter : bound_) parameter.poison();  // nobody may look at the old ones any more
  bound_.swap(next);
  return outcome;
}

fp_sizes Kernel::sizes_of(const Evaluation& evaluation) const {
  fp_sizes sizes = sdk::abi_struct<fp_sizes>();
  sizes.pass = evaluation.pass;
  sizes.n_rows = evaluation.n_rows;
  if (evaluation.graph != nullptr) {
    sizes.n_edges = evaluation.graph->n_edges();
    sizes.n_nodes = evaluation.graph->n_nodes;
    sizes.n_receivers = evaluation.graph->n_receivers;
  } else {
    sizes.n_edges = sizes.n_rows;
  }
  return sizes;
}

Outcome Kernel::workspace(const Evaluation& evaluation, fp_workspace& out) {
  Structs structs(session_.dialect);
  const fp_sizes* sizes = structs.put(sizes_of(evaluation));
  fp_workspace* wanted = structs.put(sdk::abi_struct<fp_workspace>());
  const Outcome outcome = session_.call("workspace", [&](const fp_error_sink* errors) {
    return session_.kernels.workspace(kernel_, sizes, wanted, errors);
  });
  if (const std::string damage = structs.damage(); !damage.empty()) {
    session_.trial.fail("P-10", "workspace: " + damage, "nothing written past the end of a struct");
  }
  out = sdk::known(wanted);
  return outcome;
}

namespace {

Array bytes_array(std::uint64_t bytes) {
  Array array;
  array.present = bytes != 0;
  array.dtype = {FP_CODE_UINT, 8, 1};
  array.shape = {static_cast<std::int64_t>(bytes)};
  array.storage.assign(static_cast<std::size_t>((bytes + 7) / 8), 0.0);
  array.fill_bytes(0xFF);
  return array;
}

}  // namespace

Outcome Kernel::run(Evaluation& evaluation, const RunOptions& options) {
  constexpr std::uint64_t kMostWorkspace = std::uint64_t{1} << 34;
  fp_workspace own{}, forward{};
  Evaluation first;
  Outcome outcome = workspace(evaluation, own);
  if (!outcome.ok()) return outcome;
  const bool backward = (evaluation.pass & (FP_PASS_BACKWARD | FP_PASS_BACKWARD_TANGENT)) != 0;
  if (backward) {
    first = evaluation;
    first.pass = evaluation.pass == FP_PASS_BACKWARD ? FP_PASS_FORWARD : FP_PASS_FORWARD_TANGENT;
    if ((asked_.passes & first.pass) != 0) outcome = workspace(first, forward);
    if (!outcome.ok()) return outcome;
  }
  const std::uint64_t saved_size = std::max(own.saved_bytes, forward.saved_bytes);
  saved_bytes_ = saved_size;
  if (own.scratch_bytes > kMostWorkspace || saved_size > kMostWorkspace) {
    session_.trial.fail(
        "P-55",
        "workspace asks for " + std::to_string(std::max(own.scratch_bytes, saved_size)) + " bytes for a small call",
        "a size that can be had");
    session_.trial.stop();
  }
  std::unique_ptr<Placed> saved;
  Array saved_content = bytes_array(saved_size);
  if (saved_size != 0) {
    saved = std::make_unique<Placed>(session_, device_, info_, saved_content, Layout::plain);
  }
  if (saved != nullptr && backward) {
    first.outputs.clear();
    for (const Array& cotangent : evaluation.grad_outputs) {
      first.outputs.push_back(cotangent.present ? Array::zeros(cotangent.shape, cotangent.dtype) : Array());
    }
    outcome = run_pass(first, {}, saved.get(), saved_size);
    if (!outcome.ok()) return outcome;
  }
  outcome = run_pass(evaluation, options, saved.get(), saved_size);
  if (saved != nullptr && options.check && info_.type == FP_DEVICE_CPU) {
    const std::string damage = saved->read(saved_content);
    if (!damage.empty()) {
      session_.trial.fail("P-55", "the saved buffer of " + std::to_string(saved_size) + " bytes: " + damage,
                          "nothing written past the end of memory");
    }
  }
  return outcome;
}

Outcome Kernel::run_pass(Evaluation& evaluation, const RunOptions& options, Placed* saved, std::uint64_t saved_bytes) {
  fp_workspace wanted{};
  Outcome outcome = workspace(evaluation, wanted);
  if (!outcome.ok()) return outcome;
  const bool older = session_.dialect.older;
  Structs structs(session_.dialect);
  fp_run_args args = sdk::abi_struct<fp_run_args>();

  struct List {
    std::string name;
    std::vector<Array>* arrays;
    const fp_tensor_list** slot;
    bool written;
    std::deque<Placed> placed;
  };
  std::deque<List> lists;
  const auto add = [&](const char* name, std::vector<Array>& arrays, const fp_tensor_list*& slot, bool written,
                       bool used) {
    if (used) lists.push_back({name, &arrays, &slot, written, {}});
  };
  const bool backward = (evaluation.pass & (FP_PASS_BACKWARD | FP_PASS_BACKWARD_TANGENT)) != 0;
  const bool tangent = (evaluation.pass & (FP_PASS_FORWARD_TANGENT | FP_PASS_BACKWARD_TANGENT)) != 0;
  add("inputs", evaluation.inputs, args.inputs, false, true);
  add("outputs", evaluation.outputs, args.outputs, true, !backward);
  add("grad_outputs", evaluation.grad_outputs, args.grad_outputs, false, backward);
  add("grad_inputs", evaluation.grad_inputs, args.grad_inputs, true, backward);
  add("grad_parameters", evaluation.grad_parameters, args.grad_parameters, true, backward);
  add("inputs_t", evaluation.inputs_t, args.inputs_t, false, tangent);
  add("outputs_t", evaluation.outputs_t, args.outputs_t, true, tangent && !backward);
  add("parameters_t", evaluation.parameters_t, args.parameters_t, false, tangent);
  add("grad_outputs_t", evaluation.grad_outputs_t, args.grad_outputs_t, false, tangent && backward);
  add("grad_inputs_t", evaluation.grad_inputs_t, args.grad_inputs_t, true, tangent && backward);
  add("grad_parameters_t", evaluation.grad_parameters_t, args.grad_parameters_t, true, tangent && backward);

  const auto shift = [&](fp_tensor& tensor) {  // an older host has no byte_offset
    if (older && info_.type == FP_DEVICE_CPU && tensor.data != nullptr) {
      tensor.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
    }
  };
  for (List& list : lists) {
    std::vector<fp_tensor> tensors;
    for (const Array& array : *list.arrays) {
      list.placed.emplace_back(session_, device_, info_, array, options.layout);
      tensors.push_back(list.placed.back().c(list.written ? FP_ACCESS_WRITE : FP_ACCESS_READ));
      shift(tensors.back());
      if (options.edit_tensor) options.edit_tensor(list.name, tensors.size() - 1, tensors.back());
    }
    *list.slot = put_list(structs, tensors);
  }

  std::deque<Placed> graph_arrays;
  const fp_graph* graph_c = nullptr;
  if (evaluation.graph != nullptr) {
    const GraphData& graph = *evaluation.graph;
    fp_graph g = sdk::abi_struct<fp_graph>();
    g.reserved = session_.dialect.reserved;
    g.n_edges = graph.n_edges();
    g.n_nodes = graph.n_nodes;
    g.n_receivers = graph.n_receivers;
    g.n_species = graph.n_species;
    const auto put = [&](const auto& values, bool there) -> const fp_tensor* {
      using Value = typename std::decay_t<decltype(values)>::value_type;
      Array array;
      if (there) {
        array = Array::zeros({static_cast<std::int64_t>(values.size())}, sdk::dtype_of<Value>());
        std::copy(values.begin(), values.end(), array.template data<Value>());
      }
      graph_arrays.emplace_back(session_, device_, info_, array, Layout::plain);
      fp_tensor tensor = graph_arrays.back().c(FP_ACCESS_READ);
      shift(tensor);
      return structs.put(tensor, FP_END_OF(fp_tensor, strides));
    };
    g.sender = put(graph.sender, true);
    g.receiver = put(graph.receiver, true);
    g.receiver_ptr = put(graph.receiver_ptr, true);
    g.sender_ptr = put(graph.sender_ptr, true);
    g.sender_edge = put(graph.sender_edge, true);
    const bool species = graph.n_species > 0;
    g.species = put(graph.species, species);
    g.species_ptr = put(graph.species_ptr, species);
    g.species_node = put(graph.species_node, species);
    if (options.edit_graph) options.edit_graph(g);
    graph_c = structs.put(g);
  }

  const auto scratch_bytes = static_cast<std::uint64_t>(
      std::max<std::int64_t>(0, static_cast<std::int64_t>(wanted.scratch_bytes) - options.scratch_missing));
  Array scratch_content = bytes_array(scratch_bytes);
  std::unique_ptr<Placed> scratch;
  if (scratch_bytes != 0) scratch = std::make_unique<Placed>(session_, device_, info_, scratch_content, Layout::plain);
  const auto address = [&](const Placed& placed) -> void* {
    const fp_tensor tensor = placed.c(FP_ACCESS_WRITE);
    // A handle of a device need not be an address that can be added to; its guards are then behind it alone.
    return info_.type == FP_DEVICE_CPU ? static_cast<char*>(tensor.data) + tensor.byte_offset : tensor.data;
  };

  args.pass = evaluation.pass;
  args.graph = graph_c;
  args.sizes = structs.put(sizes_of(evaluation));
  args.scratch = scratch == nullptr ? nullptr : address(*scratch);
  args.scratch_bytes = scratch_bytes;
  args.saved = saved == nullptr ? nullptr : address(*saved);
  args.saved_bytes = saved_bytes;
  args.threads = options.threads;
  args.extensions = session_.dialect.extensions;
  fp_stream* stream = nullptr;
  if (options.stream) {
    outcome = session_.call("create_stream", [&](const fp_error_sink* errors) {
      return session_.memory.create_stream(device_, &stream, errors);
    });
    if (!outcome.ok()) return outcome;
    args.stream = stream;
  }
  const fp_run_args* sent = nullptr;
  outcome = session_.call(
      "run",
      [&](const fp_error_sink* errors) {
        args.errors = errors;
        if (options.edit) options.edit(args, structs);
        sent = structs.put(args, FP_END_OF(fp_run_args, capturing));
        return session_.kernels.run(kernel_, sent);
      },
      options.wants_text);
  if (stream != nullptr) {
    const Outcome finished = session_.call("synchronize", [&](const fp_error_sink* errors) {
      return session_.memory.synchronize(device_, stream, errors);
    });
    session_.call_void("destroy_stream", [&] { session_.memory.destroy_stream(device_, stream); });
    if (outcome.ok()) outcome = finished;
  }
  if (const std::string damage = structs.damage(); !damage.empty()) {
    session_.trial.fail("P-10", "run: " + damage, "nothing written into a struct of the host");
  }
  const bool look = options.check;
  for (List& list : lists) {
    for (std::size_t i = 0; i < list.placed.size(); ++i) {
      const auto name = [&] { return list.name + "[" + std::to_string(i) + "]"; };
      if (list.written) {
        const std::string damage = list.placed[i].read((*list.arrays)[i]);
        if (look && !damage.empty()) {
          session_.trial.fail("P-57", name() + ": " + damage, "nothing written but the elements");
        }
      } else if (look) {
        const std::string damage = list.placed[i].unchanged();
        if (!damage.empty()) session_.trial.fail("P-57", name() + ": " + damage, "inputs that stay as they are");
      }
    }
  }
  if (!look) return outcome;
  for (Placed& array : graph_arrays) {
    if (const std::string damage = array.unchanged(); !damage.empty()) {
      session_.trial.fail("P-57", "an array of the graph: " + damage, "a graph that stays as it is");
    }
  }
  for (std::size_t i = 0; i < bound_.size(); ++i) {
    if (const std::string damage = bound_[i].unchanged(); !damage.empty()) {
      session_.trial.fail("P-57", "parameter " + std::to_string(i) + ": " + damage, "parameters that stay as they are");
    }
  }
  if (scratch != nullptr) {
    // On a device the scratch memory begins at the allocation, so what is called a guard in front belongs to it.
    const std::string damage = scratch->read(scratch_content);
    if (!damage.empty() && info_.type == FP_DEVICE_CPU) {
      session_.trial.fail("P-55", "scratch memory of " + std::to_string(scratch_bytes) + " bytes: " + damage,
                          "nothing written past the end of memory");
    }
  }
  return outcome;
}

}  // namespace fastpath::conformance
