#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cfenv>
#include <chrono>
#include <clocale>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "fastpath/sdk/plugin.hpp"
#include "kernel.hpp"

/// A plugin whose kernels are right (those of cpu_ref) and which breaks its contract in one way: the one that its file
/// is named after, fastpath_lying_WAY.so. One file is built and copied under each name.
namespace lying {

namespace sdk = fastpath::sdk;
using cpu_ref::Op;

/// The way in which this copy lies.
const std::string& way() {
  static const std::string name = [] {
    Dl_info info{};
    if (::dladdr(reinterpret_cast<const void*>(&way), &info) == 0 || info.dli_fname == nullptr) return std::string();
    std::string path = info.dli_fname;
    path = path.substr(path.find_last_of('/') + 1);
    constexpr std::string_view kPrefix = "fastpath_lying_", kSuffix = ".so";
    if (path.size() <= kPrefix.size() + kSuffix.size()) return std::string();
    return path.substr(kPrefix.size(), path.size() - kPrefix.size() - kSuffix.size());
  }();
  return name;
}
bool is(std::string_view name) { return way() == name; }

#ifdef LYING_MORE_SYMBOLS
// Another build, without an export map, which also reads the environment.
extern "C" FP_EXPORT int lying_helper() { return std::getenv("LYING_SETTING") == nullptr ? 0 : 1; }
#endif

/// Objects with effects at the start and the end of the process.
struct Effects {
  Effects() {
    if (is("signal_handler_when_loaded")) std::signal(SIGUSR1, [](int) {});
  }
  ~Effects() {
    if (is("crashes_at_exit")) std::raise(SIGSEGV);
    if (is("hangs_at_exit")) {
      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    }
  }
} effects;

const std::array<Op, 3>& ops() {
  static const std::array<Op, 3> all{cpu_ref::spherical_harmonics(), cpu_ref::irreps_linear(),
                                     cpu_ref::conv_tensor_product()};
  return all;
}

/// Elements of one tensor of a call, of either dtype.
struct Elements {
  char* data = nullptr;
  std::int64_t n = 0;
  std::size_t item = 0;
  explicit Elements(const sdk::Tensor& tensor)
      : data(tensor.present() ? static_cast<char*>(tensor.handle()) + tensor.byte_offset() : nullptr),
        n(tensor.present() ? tensor.numel() : 0),
        item(tensor.dtype().bits / 8u) {}
  double get(std::int64_t i) const {
    return item == 4 ? static_cast<double>(reinterpret_cast<float*>(data)[i]) : reinterpret_cast<double*>(data)[i];
  }
  void set(std::int64_t i, double value) const {
    if (item == 4) {
      reinterpret_cast<float*>(data)[i] = static_cast<float>(value);
    } else {
      reinterpret_cast<double*>(data)[i] = value;
    }
  }
  void scale(double factor) const {
    for (std::int64_t i = 0; i < n; ++i) set(i, get(i) * factor);
  }
};

char* volatile leaked = nullptr;

/// Results that every kernel puts in one place first, and takes from there when others have had time to come by. Races
/// on purpose.
std::vector<double> shared_results(1 << 16);
int shared_runs = 0;
void pass_through_shared(const Elements& result) {
  const auto n = static_cast<std::size_t>(result.n);
  if (shared_results.size() < n) return;
  if (is("shares_a_counter")) {
    const int mine = ++shared_runs;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (mine != shared_runs) result.scale(2);
    return;
  }
  for (std::size_t i = 0; i < n; ++i) shared_results[i] = result.get(static_cast<std::int64_t>(i));
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (std::size_t i = 0; i < n; ++i) result.set(static_cast<std::int64_t>(i), shared_results[i]);
}

/// Shared by all kernels of the process, as nothing should be.
std::vector<double> last_inputs;

class Kernel final : public sdk::Kernel {
 public:
  Kernel(std::unique_ptr<sdk::Kernel> inner, const sdk::KernelQuery& query, const sdk::Host& host)
      : inner_(std::move(inner)), query_(query), host_(host) {
    if (is("leaks")) leaked = new char[4096];
    if (is("leaks_memory_of_the_host")) static_cast<void>(host.allocate(4096, 64));
    if (is("ignores_refused_memory")) {
      char* memory = static_cast<char*>(host.allocate(256, 64));
      memory[0] = 1;
      host.release(memory);
    }
    if (is("keeps_memory_after_a_failure")) {
      void* first = host.allocate(256, 64);
      void* second = first == nullptr ? nullptr : host.allocate(256, 64);
      if (second == nullptr) throw std::bad_alloc();
      host.release(first);
      host.release(second);
    }
  }

  void bind(const sdk::Bind& bind) override {
    if (is("ignores_new_parameters") && bound_) return;
    bound_ = true;
    inner_->bind(bind);
    if (!is("keeps_old_parameters")) return;
    // What was bound before is what is used.
    used_ = std::move(kept_);
    kept_.clear();
    for (std::uint64_t i = 0; i < bind.parameters.size(); ++i) {
      const sdk::Tensor tensor = bind.parameters[i];
      Kept kept;
      kept.present = tensor.present();
      kept.data = tensor.handle();
      kept.offset = tensor.byte_offset();
      kept.dtype = tensor.dtype();
      for (std::int32_t axis = 0; axis < tensor.ndim() && tensor.present(); ++axis) {
        kept.shape.push_back(tensor.size(axis));
        kept.strides.push_back(tensor.stride(axis));
      }
      kept_.push_back(std::move(kept));
    }
  }

  sdk::Workspace workspace(const sdk::Sizes& sizes) override {
    sdk::Workspace wanted = inner_->workspace(sizes);
    if (is("wants_other_memory_each_time")) wanted.scratch_bytes += 64u * static_cast<unsigned>(++asked_);
    if (is("writes_past_scratch")) wanted.scratch_bytes += 64;
    return wanted;
  }

  void run(const sdk::Run& run) override;

 private:
  struct Kept {
    std::vector<std::int64_t> shape, strides;
    void* data = nullptr;
    std::uint64_t offset = 0;
    sdk::DType dtype;
    bool present = false;
  };
  void use_old_parameters();
  std::unique_ptr<sdk::Kernel> inner_;
  sdk::KernelQuery query_;
  sdk::Host host_;
  bool bound_ = false, failed_ = false;
  int asked_ = 0;
  std::uint64_t version_ = 1u << 20;
  std::vector<Kept> kept_, used_;
};

void Kernel::use_old_parameters() {
  if (used_.empty()) return;
  std::vector<fp_tensor> tensors;
  for (const Kept& kept : used_) {
    fp_tensor tensor = sdk::abi_struct<fp_tensor>();
    if (kept.present) {
      tensor.access = FP_ACCESS_READ;
      tensor.data = kept.data;
      tensor.byte_offset = kept.offset;
      tensor.device_type = FP_DEVICE_CPU;
      tensor.ndim = static_cast<std::int32_t>(kept.shape.size());
      tensor.dtype_code = kept.dtype.code;
      tensor.dtype_bits = kept.dtype.bits;
      tensor.dtype_lanes = kept.dtype.lanes;
      tensor.shape = kept.shape.data();
      tensor.strides = kept.strides.data();
    }
    tensors.push_back(tensor);
  }
  fp_tensor_list list = sdk::abi_struct<fp_tensor_list>();
  list.stride = sizeof(fp_tensor);
  list.count = tensors.size();
  list.items = tensors.data();
  inner_->bind({++version_, sdk::TensorList(&list), nullptr, {}});
}

bool is_forward(const sdk::Run& run) {
  return run.pass == sdk::Pass::forward || run.pass == sdk::Pass::forward_tangent;
}
sdk::Tensor first_of(const sdk::TensorList& list) {
  for (std::uint64_t i = 0; i < list.size(); ++i) {
    if (list[i].present() && list[i].numel() > 0) return list[i];
  }
  return {};
}
/// The first tensor that a call writes.
sdk::Tensor first_result(const sdk::Run& run) { return first_of(is_forward(run) ? run.outputs : run.grad_inputs); }

/// What the ways to get a tangent wrong do to the first one that a call writes.
void spoil_tangent(const sdk::Run& run) {
  const Elements tangent(first_of(is_forward(run) ? run.outputs_t : run.grad_inputs_t));
  if (tangent.n == 0) return;
  if (is("tangent_off")) tangent.scale(1.001);
  bool given = false;
  for (const sdk::TensorList* list : {&run.inputs_t, &run.parameters_t, &run.grad_outputs_t}) {
    given = given || first_of(*list).present();
  }
  if (is("tangent_of_nothing") && !given) tangent.set(0, 0.25);
  if (is("tangent_needs_all")) {  // what one argument has no tangent for is left out altogether
    for (std::uint64_t i = 0; i < run.inputs.size(); ++i) {
      if (!run.inputs_t[i].present()) tangent.scale(0);
    }
  }
}

void Kernel::run(const sdk::Run& run) {
  const bool forward = is_forward(run);
  const sdk::Tensor tensor = first_result(run);
  const Elements result(tensor);

  if (is("exits")) std::exit(0);
  if (is("crashes")) std::raise(SIGSEGV);
  if (is("hangs")) {
    for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
  }
  if (is("prints")) std::printf("lying: at work\n"), std::fflush(stdout);
  if (is("floating_point_mode")) std::fesetround(FE_TOWARDZERO);
  if (is("environment")) {
    // Not by name, for every copy of this file would refer to it then.
    int (*set)(const char*, const char*, int) = nullptr;
    void* const symbol = ::dlsym(RTLD_DEFAULT, "setenv");
    std::memcpy(&set, &symbol, sizeof set);
    set("LYING", "1", 1);
  }
  if (is("directory") && ::chdir("/") != 0) throw std::runtime_error("chdir");
  if (is("signal_handler")) std::signal(SIGUSR1, [](int) {});
  if (is("leaves_a_thread")) {
    std::thread([] { std::this_thread::sleep_for(std::chrono::hours(1)); }).detach();
  }
  if (is("starts_a_process") && ::fork() == 0) {
    std::this_thread::sleep_for(std::chrono::hours(1));
    ::_exit(0);
  }
  if (is("does_not_recover") && failed_) throw std::runtime_error("broken since an earlier call");
  if (is("writes_past_scratch") && run.scratch != nullptr) static_cast<char*>(run.scratch)[run.scratch_bytes] = 1;
  use_old_parameters();

  // What was there before the right result.
  std::vector<char> before;
  if (is("leaves_a_row") && result.n > 0) {
    before.assign(result.data, result.data + static_cast<std::size_t>(result.n) * result.item);
  }
  if (is("adds_to_results") && result.n > 0) {
    before.assign(result.data, result.data + static_cast<std::size_t>(result.n) * result.item);
  }
  if (is("remembers_inputs")) {
    // Backward uses the inputs of the last forward: kept in one place for all.
    const Elements input(run.inputs[0]);
    if (forward) {
      last_inputs.clear();
      for (std::int64_t i = 0; i < input.n; ++i) last_inputs.push_back(input.get(i));
    }
  }

  try {
    inner_->run(run);
  } catch (...) {
    failed_ = true;
    throw;
  }
  spoil_tangent(run);
  if (result.n == 0) return;

  if (is("shares_a_buffer") || is("shares_a_counter")) pass_through_shared(result);
  if (is("allocates_while_capturing") && run.capturing) host_.release(host_.allocate(256, 64));
  if (is("not_a_number")) result.set(0, std::numeric_limits<double>::quiet_NaN());
  if (is("hides_not_a_number") && forward) {
    for (std::int64_t i = 0; i < result.n; ++i) {
      if (!std::isfinite(result.get(i))) result.set(i, 0);
    }
  }
  if (is("backward") && !forward) result.scale(1.001);
  if (is("float32") && result.item == 4) result.scale(1.0001);
  if (is("a_little_off")) result.scale(1 + 3e-6);
  if (is("degree_3")) {
    const int degree =
        query_.op == sdk::SphericalHarmonicsConfig::kOp  ? sdk::SphericalHarmonicsConfig::from(query_.config).l_max
        : query_.op == sdk::ConvTensorProductConfig::kOp ? sdk::ConvTensorProductConfig::from(query_.config).out.l_max()
                                                         : 0;
    if (degree == 3) result.scale(1.01);
  }
  if (is("leaves_a_row")) {
    const std::size_t last = static_cast<std::size_t>(result.n - 1) * result.item;
    std::memcpy(result.data + last, before.data() + last, result.item);
  }
  if (is("adds_to_results")) {
    for (std::int64_t i = 0; i < result.n; ++i) {
      double old = 0;
      if (result.item == 4) {
        float value = 0;
        std::memcpy(&value, before.data() + 4 * i, 4);
        old = static_cast<double>(value);
      } else {
        std::memcpy(&old, before.data() + 8 * i, 8);
      }
      result.set(i, result.get(i) + old);
    }
  }
  if (is("writes_past_the_end")) result.set(result.n, 0);
  if (is("changes_an_input")) {
    const Elements input(run.inputs[0]);
    if (input.n > 0) input.set(input.n - 1, 0.5);
  }
  if (is("depends_on_threads") && run.threads > 1) result.set(0, std::nextafter(result.get(0) * (1 + 1e-7), 1e9));
  if (is("depends_on_the_run")) {
    static std::atomic<int> runs{0};
    if (++runs % 2 == 0) result.set(0, result.get(0) * (1 + 1e-6));
  }
  if (is("remembers_inputs") && !forward && !last_inputs.empty()) {
    const Elements input(run.inputs[0]);
    if (input.n > 0 && last_inputs[0] != input.get(0)) result.scale(2);
  }
}

class Plugin final : public sdk::Plugin {
 public:
  std::vector<sdk::DeviceDescription> devices() override {
    sdk::DeviceDescription cpu;
    cpu.dtypes = FP_DTYPE_BIT_F32 | FP_DTYPE_BIT_F64;
    if (is("bad_uuid")) cpu.uuid = "not-hexadecimal";
    if (is("control_characters")) cpu.name = "a\x1b[31m name";
    if (is("device_twice")) return {cpu, cpu};
    if (is("kind_not_declared")) {
      sdk::DeviceDescription other = cpu;
      other.type = FP_DEVICE_EXT;
      return {cpu, other};
    }
    return {cpu};
  }

  std::vector<sdk::OpDescription> ops() override {
    std::vector<sdk::OpDescription> result;
    for (const Op& op : lying::ops()) {
      if (is("offers_more_than_it_lists") && op.id == sdk::SphericalHarmonicsConfig::kOp) continue;
      result.push_back({std::string(op.id), op.version, FP_DEVICE_CPU, FP_DTYPE_BIT_F32 | FP_DTYPE_BIT_F64,
                        fastpath_cpu::kAllPasses});
    }
    if (is("lists_more_than_it_offers")) {
      result.push_back({std::string(sdk::RadialMlpConfig::kOp), 1, FP_DEVICE_CPU, FP_DTYPE_BIT_F64, FP_PASS_FORWARD});
    }
    if (is("plain_name")) result.push_back({"my_op", 1, FP_DEVICE_CPU, FP_DTYPE_BIT_F64, FP_PASS_FORWARD});
    return result;
  }

  void query(const sdk::KernelQuery& query, sdk::KernelAnswer& answer) override {
    if (query.device.type != FP_DEVICE_CPU) answer.blocked(sdk::Reason::device, "only the CPU");
    if (!(query.dtype == sdk::kFloat32) && !(query.dtype == sdk::kFloat64)) {
      answer.blocked(sdk::Reason::dtype, query.dtype.name() + ", only float32 and float64");
    }
    if ((query.passes & ~fastpath_cpu::kAllPasses) != 0)
      answer.blocked(sdk::Reason::pass, "only four passes are known");
    answer.flags = FP_KERNEL_DETERMINISTIC | FP_KERNEL_THREAD_SAFE;
    if (is("allocates_while_capturing")) answer.flags |= FP_KERNEL_CAPTURE_SAFE;
    if (is("tolerance")) answer.tolerance = 1.5;
    if (is("negative_tolerance")) answer.tolerance = std::numeric_limits<double>::quiet_NaN();
    if (is("window")) {
      answer.min_edges = 100;
      answer.max_edges = 10;
    }
    if (is("reduced_math")) answer.math_mode = FP_MATH_REDUCED;
    if (is("not_pure")) {
      static std::atomic<int> asked{0};
      answer.rank = ++asked;
    }
    for (const Op& op : lying::ops()) {
      if (op.id != query.op) continue;
      if (op.version != query.op_version) return answer.blocked(sdk::Reason::op_version, "only version 1");
      if (is("any_attribute")) {
        auto values = query.config.values();
        values.erase("attribute_of_nobody");
        return op.check(sdk::Attributes(values), answer);
      }
      return op.check(query.config, answer);
    }
    answer.blocked(sdk::Reason::op, "op '" + query.op + "' is not known here");
  }

  std::unique_ptr<sdk::Kernel> create(const sdk::KernelQuery& query, sdk::Device&) override {
    if (is("create_fails")) throw sdk::Refused("changed its mind");
    if (is("keeps_memory_after_shutdown")) {
      static void* const kept = host().allocate(256, 64);
      static_cast<void>(kept);
    }
    if (is("locale")) std::setlocale(LC_ALL, "C.UTF-8");
    for (const Op& op : lying::ops()) {
      if (op.id == query.op) return std::make_unique<Kernel>(op.create(query.config, query.dtype), query, host());
    }
    return nullptr;
  }

  std::unique_ptr<sdk::Device> open(const sdk::OpenRequest& request) override {
    if (is("opens_anything")) return std::make_unique<sdk::Device>();
    return sdk::Plugin::open(request);
  }

  void shutdown() override {
    if (is("crashes_in_shutdown")) std::raise(SIGSEGV);
    if (!is("talks_after_shutdown")) return;
    static const sdk::Host kept = host();
    std::atexit([] { kept.log(FP_LOG_INFO, "still here"); });
  }
};

// ---- What the SDK makes impossible ----------------------------------------------------------------------------------

fp_kernel_api real{};

std::int32_t odd_run(fp_kernel* kernel, const fp_run_args* args) {
  if (is("throws")) throw std::runtime_error("thrown through the ABI");
  if (is("throws_a_number")) throw 7;
  if (is("unknown_status")) return 42;
  if (is("fails_without_a_text")) return FP_E_INTERNAL;
  if (is("trusts_its_arguments") && args->pass == FP_PASS_FORWARD) {
    // Reads and writes what the shapes say, whatever they are.
    const fp_tensor& out = *args->outputs->items;
    for (std::int64_t i = 0; i < out.shape[0]; ++i) {
      static_cast<volatile char*>(
          out.data)[out.byte_offset + static_cast<std::uint64_t>(i * out.strides[0]) * (out.dtype_bits / 8u)] = 0;
    }
  }
  if (is("needs_a_sink")) {
    const char text[] = "starting";
    args->errors->report(args->errors->context, FP_OK, text, 0);
  }
  if (is("writes_into_arguments")) {
    const_cast<fp_run_args*>(args)->scratch_bytes = 0;
    reinterpret_cast<char*>(const_cast<fp_run_args*>(args))[FP_SIZE_RUN_ARGS] = 0;
  }
  if (is("own_stride") && args->inputs != nullptr && args->inputs->count > 1) {
    fp_run_args copy = *args;
    fp_tensor_list inputs = *args->inputs;
    inputs.stride = sizeof(fp_tensor);
    copy.inputs = &inputs;
    return real.run(kernel, &copy);
  }
  if (is("knows_one_size") && args->struct_size != FP_SIZE_RUN_ARGS) return FP_E_INVALID_ARGUMENT;
  return real.run(kernel, args);
}

std::int32_t odd_query(const fp_plugin* plugin, const fp_kernel_query* query, fp_kernel_answer* answer,
                       const fp_error_sink* errors) {
  const std::int32_t status = real.query(plugin, query, answer, errors);
  if (status != FP_OK || answer == nullptr) return status;
  const char text[] = "and yet";
  if (is("yes_with_a_reason") && answer->verdict == FP_ANSWER_YES && answer->add_blocker != nullptr) {
    answer->add_blocker(answer->context, FP_REASON_OTHER, text, sizeof text - 1);
  }
  if (is("another_verdict")) answer->verdict = 5;
  return status;
}

/// A no without a reason: the reasons go nowhere.
std::int32_t silent_query(const fp_plugin* plugin, const fp_kernel_query* query, fp_kernel_answer* answer,
                          const fp_error_sink* errors) {
  if (answer == nullptr) return real.query(plugin, query, answer, errors);
  const auto report = answer->add_blocker;
  answer->add_blocker = nullptr;
  const std::int32_t status = real.query(plugin, query, answer, errors);
  answer->add_blocker = report;
  return status;
}

const fp_plugin* odd_plugin(const fp_plugin* honest) {
  static fp_plugin plugin = *honest;
  static fp_kernel_api kernels = *honest->kernels;
  static const bool once = [&] {
    real = *honest->kernels;
    plugin.kernels = &kernels;
    kernels.run = odd_run;
    kernels.query = is("no_without_a_reason") ? silent_query : odd_query;
    if (is("other_id")) {
      plugin.id = "somebody";
      plugin.id_size = 8;
    }
    if (is("throws_in_shutdown")) plugin.shutdown = [](const fp_plugin*) { throw std::runtime_error("not yet"); };
    if (is("null_entry")) kernels.workspace = nullptr;
    if (is("size_of_another_header")) kernels.struct_size += 8;
    if (is("reserved_not_zero")) kernels.reserved = 99;
    return true;
  }();
  static_cast<void>(once);
  return &plugin;
}

}  // namespace lying

FASTPATH_PLUGIN_METADATA("lying", "fastpath tests", "1.0", "cpu", "lying");

extern "C" FP_EXPORT std::int32_t fastpath_plugin_query_v1(const fp_host* host, const fp_plugin** out) {
  if (lying::is("takes_no_host") && host == nullptr && out != nullptr) {
    *out = nullptr;
    return FP_OK;
  }
  if (lying::is("serves_any_version") && host != nullptr && out != nullptr) {
    fp_host pretended = fastpath::sdk::known(host);
    pretended.struct_size = FP_SIZE_HOST;
    pretended.abi_min = pretended.abi_max = FP_ABI_VERSION;
    const std::int32_t status =
        fastpath::sdk::detail::query_plugin<lying::Plugin>(fastpath_plugin_metadata, &pretended, out);
    if (status == FP_OK) *out = lying::odd_plugin(*out);
    return status;
  }
  const std::int32_t status = fastpath::sdk::detail::query_plugin<lying::Plugin>(fastpath_plugin_metadata, host, out);
  if (status == FP_OK) *out = lying::odd_plugin(*out);
  return status;
}
