#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../../../sdk/conformance/src/canonical_edges.hpp"
#include "fastpath/sdk/abi.hpp"
#include "fastpath/sdk/attributes.hpp"
#include "fastpath/sdk/tensor.hpp"

/// A host that is nothing but the C ABI, to drive a plugin without the library. It can pretend to have been built with
/// an older or a newer header.
namespace fake {

namespace sdk = fastpath::sdk;

/// How the host's structs differ from those of this header.
struct Dialect {
  std::uint32_t extra = 0;  ///< Bytes behind the last known member of each struct, filled with rubbish.
  bool older = false;       ///< Without the last members of host, tensors, answers and run arguments.
  std::uint32_t abi_min = FP_ABI_VERSION;
  std::uint32_t abi_max = FP_ABI_VERSION;
};

/// One C struct in memory of exactly the size that it claims, so that a sanitizer sees who reads past it.
template <class T>
class Struct {
 public:
  Struct(const T& value, const Dialect& dialect, std::uint32_t older_size)
      : size_((dialect.older ? older_size : sdk::abi_size(&value)) + dialect.extra), bytes_(new char[size_]) {
    std::memset(bytes_.get(), 0xAB, size_);
    std::memcpy(bytes_.get(), &value, std::min<std::size_t>(size_, sdk::abi_size(&value)));
    std::memcpy(bytes_.get(), &size_, sizeof size_);
  }
  T* get() { return reinterpret_cast<T*>(bytes_.get()); }
  bool rubbish_is_untouched(std::uint32_t known) const {
    for (std::uint32_t i = known; i < size_; ++i) {
      if (bytes_[i] != static_cast<char>(0xAB)) return false;
    }
    return true;
  }

 private:
  std::uint32_t size_;
  std::unique_ptr<char[]> bytes_;
};

/// A tensor in host memory, contiguous unless strides are changed.
struct Tensor {
  std::vector<std::int64_t> shape, strides;
  std::vector<double> storage;  // of any dtype; double for its alignment
  sdk::DType dtype;
  bool present = false;
  std::uint64_t byte_offset = 0;
  std::int32_t device_type = FP_DEVICE_CPU;

  static Tensor absent() { return {}; }
  template <class T>
  static Tensor zeros(std::vector<std::int64_t> shape) {
    Tensor t;
    std::int64_t n = 1;
    t.strides.resize(shape.size());
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      t.strides[axis] = n;
      n *= shape[axis];
    }
    t.shape = std::move(shape);
    t.storage.assign((static_cast<std::size_t>(n) * sizeof(T) + 7) / 8, 0.0);
    t.dtype = sdk::dtype_of<T>();
    t.present = true;
    return t;
  }
  /// Filled with NaN, so that an element which nobody writes shows.
  template <class T>
  static Tensor unwritten(std::vector<std::int64_t> shape) {
    Tensor t = zeros<T>(std::move(shape));
    for (T& value : t.span<T>()) value = std::numeric_limits<T>::quiet_NaN();
    return t;
  }
  template <class T, class Values>
  static Tensor of(std::vector<std::int64_t> shape, const Values& values) {
    Tensor t = zeros<T>(std::move(shape));
    if (static_cast<std::int64_t>(values.size()) != t.numel()) throw std::logic_error("shape and values differ");
    T* to = t.data<T>();
    for (const auto& value : values) *to++ = static_cast<T>(value);
    return t;
  }

  std::int64_t numel() const {
    std::int64_t n = 1;
    for (const std::int64_t size : shape) n *= size;
    return n;
  }
  template <class T>
  T* data() {
    return present ? reinterpret_cast<T*>(storage.data()) : nullptr;
  }
  template <class T>
  const T* data() const {
    return present ? reinterpret_cast<const T*>(storage.data()) : nullptr;
  }
  template <class T>
  struct Span {
    T *first, *last;
    T* begin() const { return first; }
    T* end() const { return last; }
  };
  template <class T>
  Span<T> span() {
    return {data<T>(), data<T>() + numel()};
  }
  template <class T>
  std::vector<T> values() const {
    return std::vector<T>(data<T>(), data<T>() + numel());
  }

  fp_tensor c(std::uint32_t access) const {
    fp_tensor t = sdk::abi_struct<fp_tensor>();
    if (!present) return t;
    t.access = access;
    t.data = const_cast<double*>(storage.data());
    t.device_type = device_type;
    t.ndim = static_cast<std::int32_t>(shape.size());
    t.dtype_code = dtype.code;
    t.dtype_bits = dtype.bits;
    t.dtype_lanes = dtype.lanes;
    t.shape = shape.data();
    t.strides = strides.data();
    t.byte_offset = byte_offset;
    return t;
  }
};

/// Tensors as a list with a stride of its own.
class TensorList {
 public:
  TensorList(const std::vector<Tensor>& tensors, std::uint32_t access, const Dialect& dialect)
      : stride_((sizeof(fp_tensor) + dialect.extra + 7) / 8 * 8), bytes_(tensors.size() * stride_ / 8 + 1) {
    char* to = reinterpret_cast<char*>(bytes_.data());
    std::memset(to, 0xAB, bytes_.size() * 8);
    for (const Tensor& tensor : tensors) {
      fp_tensor c = tensor.c(access);
      c.struct_size = (dialect.older ? FP_END_OF(fp_tensor, strides) : FP_SIZE_TENSOR) + dialect.extra;
      std::memcpy(to, &c, std::min<std::size_t>(c.struct_size, FP_SIZE_TENSOR));
      to += stride_;
    }
    list_ = sdk::abi_struct<fp_tensor_list>();
    list_.stride = static_cast<std::uint32_t>(stride_);
    list_.count = tensors.size();
    list_.items = reinterpret_cast<const fp_tensor*>(bytes_.data());
  }
  TensorList(const TensorList&) = delete;
  TensorList& operator=(const TensorList&) = delete;
  const fp_tensor_list* c() const { return &list_; }

 private:
  std::size_t stride_;
  std::vector<double> bytes_;
  fp_tensor_list list_{};
};

/// What a call reported.
struct Result {
  std::int32_t status = FP_OK;
  std::string text;
};
class Errors {
 public:
  Errors() : sink_(sdk::abi_struct<fp_error_sink>()) {
    sink_.context = this;
    sink_.report = [](void* context, std::int32_t status, const char* text, std::uint64_t size) {
      auto* self = static_cast<Errors*>(context);
      self->last_status_ = status;
      self->text_.append(text, size);
    };
  }
  Errors(const Errors&) = delete;
  Errors& operator=(const Errors&) = delete;
  const fp_error_sink* c() const { return &sink_; }
  Result result(std::int32_t status) const { return {status, text_}; }
  std::int32_t last_status() const { return last_status_; }

 private:
  fp_error_sink sink_;
  std::int32_t last_status_ = FP_OK;
  std::string text_;
};

/// Directed edges in canonical order with everything that fp_graph holds.
struct Graph {
  std::int64_t n_nodes = 0, n_receivers = 0;
  std::vector<std::int32_t> sender, receiver;
  std::vector<std::int64_t> receiver_ptr, sender_ptr, sender_edge;

  std::int64_t n_edges() const { return static_cast<std::int64_t>(sender.size()); }
  /// @param edges  (receiver, sender), any order, duplicates allowed.
  static Graph from(std::int64_t n_nodes, std::int64_t n_receivers,
                    std::vector<std::pair<std::int32_t, std::int32_t>> edges) {
    Graph g;
    g.n_nodes = n_nodes;
    g.n_receivers = n_receivers;
    fastpath::conformance::fill_edges(g, std::move(edges));
    return g;
  }
};

/// One call, in the order of the op's schema.
struct Call {
  std::uint32_t pass = FP_PASS_FORWARD;
  const Graph* graph = nullptr;
  std::int64_t n_edges = 0, n_rows = 0;  ///< Sizes of ops without a graph.
  std::vector<Tensor> inputs, outputs, grad_outputs, grad_inputs, grad_parameters;
  int threads = 1;
  std::int64_t scratch_missing = 0;  ///< Bytes that the scratch memory falls short of what was asked for.
};

class Plugin {
 public:
  /// Loads a plugin and asks it for its table. @throws std::runtime_error with the linker's words.
  explicit Plugin(const std::string& path, Dialect dialect = {}) : dialect_(dialect) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed, as in the real host
    if (library == nullptr) throw std::runtime_error(dlerror());
    query_ = reinterpret_cast<fp_plugin_query_fn>(dlsym(library, FP_QUERY_SYMBOL));
    if (query_ == nullptr) throw std::runtime_error(dlerror());
    negotiate();
  }
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  std::int32_t status() const { return status_; }
  const std::string& log() const { return *log_; }
  const fp_plugin& c() const { return *plugin_; }
  bool loaded() const { return plugin_ != nullptr; }
  const Dialect& dialect() const { return dialect_; }

 private:
  void negotiate() {
    // A host table lives as long as the process; so does this one.
    log_ = new std::string;
    fp_host host = sdk::abi_struct<fp_host>();
    host.abi_min = dialect_.abi_min;
    host.abi_max = dialect_.abi_max;
    host.context = log_;
    host.version = "0.0-fake";
    host.version_size = std::strlen(host.version);
    host.log = [](void* context, std::int32_t, const char* text, std::uint64_t size) {
      static_cast<std::string*>(context)->append(text, size);
    };
    host.thread_budget = [](void*) { return std::int32_t{2}; };
    static std::vector<Struct<fp_host>>& hosts = *new std::vector<Struct<fp_host>>;
    hosts.emplace_back(host, dialect_, FP_END_OF(fp_host, thread_budget));
    status_ = query_(hosts.back().get(), &plugin_);
  }

  Dialect dialect_;
  fp_plugin_query_fn query_ = nullptr;
  std::int32_t status_ = FP_OK;
  const fp_plugin* plugin_ = nullptr;
  std::string* log_ = nullptr;
};

/// What a plugin is asked, with the C form.
struct Query {
  std::string op;
  std::int32_t version = 1;
  sdk::Attributes config;
  sdk::DType dtype = sdk::kFloat64;
  std::uint32_t passes = FP_PASS_FORWARD | FP_PASS_BACKWARD;
  std::int32_t device_type = FP_DEVICE_CPU;

  template <class F>
  auto with_c(const F& f) const {
    const sdk::AttributeList list(config);
    fp_device_info device = sdk::abi_struct<fp_device_info>();
    device.type = device_type;
    fp_kernel_query c = sdk::abi_struct<fp_kernel_query>();
    c.op_version = version;
    c.op = op.data();
    c.op_size = op.size();
    c.config = &list.c_list();
    c.device = &device;
    c.dtype_code = dtype.code;
    c.dtype_bits = dtype.bits;
    c.dtype_lanes = dtype.lanes;
    c.passes = passes;
    return f(c);
  }
};

struct Answer {
  Result result;
  fp_kernel_answer c{};
  std::vector<std::pair<std::int32_t, std::string>> blockers;
  bool rubbish_is_untouched = true;
};
inline Answer ask(const Plugin& plugin, const Query& query) {
  Answer answer;
  Errors errors;
  fp_kernel_answer c = sdk::abi_struct<fp_kernel_answer>();
  c.context = &answer.blockers;
  c.add_blocker = [](void* context, std::int32_t reason, const char* text, std::uint64_t size) {
    static_cast<std::vector<std::pair<std::int32_t, std::string>>*>(context)->emplace_back(reason,
                                                                                           std::string(text, size));
  };
  const std::uint32_t older = FP_END_OF(fp_kernel_answer, prior_edges);
  Struct<fp_kernel_answer> out(c, plugin.dialect(), older);
  const std::int32_t status = query.with_c(
      [&](const fp_kernel_query& q) { return plugin.c().kernels->query(&plugin.c(), &q, out.get(), errors.c()); });
  answer.result = errors.result(status);
  answer.c = sdk::known(out.get());
  answer.rubbish_is_untouched = out.rubbish_is_untouched(plugin.dialect().older ? older : FP_SIZE_KERNEL_ANSWER);
  return answer;
}

/// A kernel of a plugin on its own device.
class Kernel {
 public:
  Kernel(const Plugin& plugin, const Query& query) : plugin_(plugin) {
    Errors errors;
    fp_device_info info = sdk::abi_struct<fp_device_info>();
    info.type = query.device_type;
    fp_open_args open = sdk::abi_struct<fp_open_args>();
    open.device = &info;
    open.errors = errors.c();
    if (plugin.c().open(&plugin.c(), &open, &device_) != FP_OK) throw std::runtime_error(errors.result(0).text);
    created_.status = query.with_c([&](const fp_kernel_query& q) {
      fp_create_args create = sdk::abi_struct<fp_create_args>();
      create.device = device_;
      create.query = &q;
      create.errors = errors.c();
      return plugin.c().kernels->create(&plugin.c(), &create, &kernel_);
    });
    created_ = errors.result(created_.status);
  }
  ~Kernel() {
    if (kernel_ != nullptr) plugin_.c().kernels->destroy(kernel_);
    if (device_ != nullptr) plugin_.c().close(&plugin_.c(), device_);
  }
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  const Result& created() const { return created_; }

  Result bind(const std::vector<Tensor>& parameters, std::uint64_t version = 1) {
    Errors errors;
    const TensorList list(parameters, FP_ACCESS_READ, plugin_.dialect());
    fp_bind_args args = sdk::abi_struct<fp_bind_args>();
    args.version = version;
    args.parameters = list.c();
    args.errors = errors.c();
    return errors.result(plugin_.c().kernels->bind(kernel_, &args));
  }

  /// Asks for memory, then runs. Outputs and gradients of `call` are written.
  Result run(Call& call) {
    Errors errors;
    const Dialect& dialect = plugin_.dialect();
    std::vector<Tensor> arrays;
    std::vector<fp_tensor> c_arrays(5);
    fp_graph graph = sdk::abi_struct<fp_graph>();
    fp_sizes sizes = sdk::abi_struct<fp_sizes>();
    sizes.pass = call.pass;
    sizes.n_edges = call.n_edges;
    sizes.n_rows = call.n_rows;
    if (call.graph != nullptr) {
      const Graph& g = *call.graph;
      arrays.push_back(Tensor::of<std::int32_t>({g.n_edges()}, g.sender));
      arrays.push_back(Tensor::of<std::int32_t>({g.n_edges()}, g.receiver));
      arrays.push_back(Tensor::of<std::int64_t>({g.n_nodes + 1}, g.receiver_ptr));
      arrays.push_back(Tensor::of<std::int64_t>({g.n_nodes + 1}, g.sender_ptr));
      arrays.push_back(Tensor::of<std::int64_t>({g.n_edges()}, g.sender_edge));
      for (std::size_t i = 0; i < 5; ++i) c_arrays[i] = arrays[i].c(FP_ACCESS_READ);
      graph.n_edges = sizes.n_edges = g.n_edges();
      graph.n_nodes = sizes.n_nodes = g.n_nodes;
      graph.n_receivers = sizes.n_receivers = g.n_receivers;
      graph.sender = &c_arrays[0];
      graph.receiver = &c_arrays[1];
      graph.receiver_ptr = &c_arrays[2];
      graph.sender_ptr = &c_arrays[3];
      graph.sender_edge = &c_arrays[4];
    }
    fp_workspace wanted = sdk::abi_struct<fp_workspace>();
    const std::int32_t asked = plugin_.c().kernels->workspace(kernel_, &sizes, &wanted, errors.c());
    if (asked != FP_OK) return errors.result(asked);
    const auto bytes = static_cast<std::size_t>(
        std::max<std::int64_t>(0, static_cast<std::int64_t>(wanted.scratch_bytes) - call.scratch_missing));
    const std::unique_ptr<char[]> scratch(new char[bytes + 256]);
    char* aligned = scratch.get() + (256 - reinterpret_cast<std::uintptr_t>(scratch.get()) % 256);
    std::memset(aligned, 0xFF, bytes);  // NaN, so that memory which is read before it is written shows

    const TensorList inputs(call.inputs, FP_ACCESS_READ, dialect), outputs(call.outputs, FP_ACCESS_WRITE, dialect);
    const TensorList grad_outputs(call.grad_outputs, FP_ACCESS_READ, dialect);
    const TensorList grad_inputs(call.grad_inputs, FP_ACCESS_WRITE, dialect);
    const TensorList grad_parameters(call.grad_parameters, FP_ACCESS_WRITE, dialect);
    fp_run_args args = sdk::abi_struct<fp_run_args>();
    args.pass = call.pass;
    args.graph = call.graph == nullptr ? nullptr : &graph;
    args.sizes = &sizes;
    args.inputs = inputs.c();
    args.outputs = call.pass == FP_PASS_FORWARD ? outputs.c() : nullptr;
    if (call.pass != FP_PASS_FORWARD) {
      args.grad_outputs = grad_outputs.c();
      args.grad_inputs = grad_inputs.c();
      args.grad_parameters = grad_parameters.c();
    }
    args.scratch = bytes == 0 ? nullptr : aligned;
    args.scratch_bytes = bytes;
    args.threads = call.threads;
    args.errors = errors.c();
    Struct<fp_run_args> c(args, dialect, FP_END_OF(fp_run_args, capturing));
    return errors.result(plugin_.c().kernels->run(kernel_, c.get()));
  }

 private:
  const Plugin& plugin_;
  fp_device* device_ = nullptr;
  fp_kernel* kernel_ = nullptr;
  Result created_;
};

/// max |a - b| / max |reference|; infinite for NaN, for another length, and for anything beside a reference of zeros.
template <class T>
double difference(const std::vector<T>& a, const std::vector<T>& reference) {
  if (a.size() != reference.size()) return std::numeric_limits<double>::infinity();
  double error = 0, scale = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(static_cast<double>(a[i]) - static_cast<double>(reference[i]));
    if (!(d <= std::numeric_limits<double>::max())) return std::numeric_limits<double>::infinity();
    error = std::max(error, d);
    scale = std::max(scale, std::abs(static_cast<double>(reference[i])));
  }
  return error == 0 ? 0 : error / scale;
}

}  // namespace fake
