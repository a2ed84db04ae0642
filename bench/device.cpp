// fastpath_bench_device: conv_tensor_product of a plugin on its device. README.md says how to read it.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "fastpath/sdk/abi.hpp"
#include "fastpath/sdk/attributes.hpp"
#include "fastpath/sdk/coupling.hpp"
#include "fastpath/sdk/ops.hpp"
#include "fastpath/sdk/tensor.hpp"
#include "harness.hpp"

namespace {

namespace sdk = fastpath::sdk;

constexpr const char* kHelp =
    R"(fastpath_bench_device PLUGIN.so [options]: speed of conv_tensor_product on a device of a plugin.

  --device N        device of the plugin (0)
  --edges N[,N..]   numbers of edges (100000,1000000)
  --layer NAME      only this layer: medium, large (both)
  --dtype NAME      only this dtype: float32, float64 (both)
  --seconds S       time for measuring one row (1)
  --json FILE       all rows as JSON

Against the device's own bandwidth of copies, measured in the same run, and for the byte and FLOP counts of one edge
that the table's head names. Exit status: 0; 2 for a wrong option; 77 if there is no such device, with the reason.
)";

[[noreturn]] void stop(int status, const std::string& text) {
  std::fprintf(stderr, "fastpath_bench_device: %s\n", text.c_str());
  std::exit(status);
}
constexpr int kNoDevice = 77;

/// Keeps the text of a failed call.
struct Errors {
  fp_error_sink sink = sdk::abi_struct<fp_error_sink>();
  std::string text;
  Errors() {
    sink.context = this;
    sink.report = [](void* context, std::int32_t, const char* words, std::uint64_t size) {
      std::string& all = static_cast<Errors*>(context)->text;
      all += (all.empty() ? "" : "; ") + std::string(words, size);
    };
  }
};
/// Calls the plugin. @throws std::runtime_error with its words.
void call(const char* what, const std::function<std::int32_t(const fp_error_sink*)>& body) {
  Errors errors;
  const std::int32_t status = body(&errors.sink);
  if (status != FP_OK) {
    throw std::runtime_error(std::string(what) + ": status " + std::to_string(status) + ": " + errors.text);
  }
}

/// The least of a host that a plugin needs.
fp_host host() {
  fp_host result = sdk::abi_struct<fp_host>();
  result.abi_min = FP_ABI_MAJOR << 16;
  result.abi_max = FP_ABI_VERSION;
  result.version = "bench";
  result.version_size = 5;
  result.log = [](void*, std::int32_t, const char*, std::uint64_t) {};
  result.allocate = [](void*, std::uint64_t bytes, std::uint64_t alignment) -> void* {
    const std::uint64_t unit = std::max<std::uint64_t>(alignment, 64);
    return std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
  };
  result.release = [](void*, void* memory) { std::free(memory); };
  result.thread_budget = [](void*) { return 1; };
  result.lookup = [](void*, const char*, std::uint64_t, const char**, std::uint64_t*) { return 0; };
  return result;
}

/// A plugin with one open device.
class Subject {
 public:
  Subject(const std::string& path, std::size_t index) {
    void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) stop(1, ::dlerror());
    const auto query = reinterpret_cast<fp_plugin_query_fn>(::dlsym(library, FP_QUERY_SYMBOL));
    if (query == nullptr) stop(1, path + " has no " FP_QUERY_SYMBOL);
    static const fp_host table = host();
    if (query(&table, &raw) != FP_OK || raw == nullptr) stop(1, path + " does not serve this host");
    plugin = sdk::known(raw);
    kernels = sdk::known(plugin.kernels);
    fp_device_list list = sdk::abi_struct<fp_device_list>();
    try {
      call("enumerate", [&](const fp_error_sink* errors) { return plugin.enumerate(raw, &list, errors); });
    } catch (const std::runtime_error& error) {
      stop(kNoDevice, error.what());
    }
    if (index >= list.count) stop(kNoDevice, "device " + std::to_string(index) + " of " + std::to_string(list.count));
    info = sdk::element(list, index);
    if (plugin.memory == nullptr) stop(kNoDevice, path + " brings no memory of a device");
    memory = sdk::known(plugin.memory);
    fp_open_args open = sdk::abi_struct<fp_open_args>();
    open.device = &info;
    call("open", [&](const fp_error_sink* errors) {
      open.errors = errors;
      return plugin.open(raw, &open, &device);
    });
    call("stream", [&](const fp_error_sink* errors) { return memory.create_stream(device, &stream, errors); });
  }
  void wait() const {
    call("synchronize", [&](const fp_error_sink* errors) { return memory.synchronize(device, stream, errors); });
  }

  const fp_plugin* raw = nullptr;
  fp_plugin plugin{};
  fp_kernel_api kernels{};
  fp_memory_api memory{};
  fp_device_info info{};
  fp_device* device = nullptr;
  fp_stream* stream = nullptr;
};

/// An array on the device.
class Array {
 public:
  Array(const Subject& subject, sdk::DType dtype, std::vector<std::int64_t> shape, const void* values = nullptr)
      : subject_(subject), dtype_(dtype), shape_(std::move(shape)), strides_(shape_.size()) {
    std::int64_t n = 1;
    for (std::size_t axis = shape_.size(); axis-- > 0;) {
      strides_[axis] = n;
      n *= shape_[axis];
    }
    bytes_ = static_cast<std::uint64_t>(n) * dtype.bits / 8;
    call("allocate", [&](const fp_error_sink* errors) {
      return subject.memory.allocate(subject.device, std::max<std::uint64_t>(bytes_, 1), &memory_, errors);
    });
    if (values == nullptr) return;
    call("copy", [&](const fp_error_sink* errors) {
      return subject.memory.copy_to_device(subject.device, memory_, 0, values, bytes_, nullptr, errors);
    });
  }
  ~Array() { subject_.memory.release(subject_.device, memory_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  void* memory() const { return memory_; }
  std::uint64_t bytes() const { return bytes_; }
  void read(void* to) const {
    call("copy", [&](const fp_error_sink* errors) {
      return subject_.memory.copy_from_device(subject_.device, to, memory_, 0, bytes_, nullptr, errors);
    });
  }
  fp_tensor c(std::uint32_t access) const {
    fp_tensor result = sdk::abi_struct<fp_tensor>();
    result.access = access;
    result.data = memory_;
    result.device_type = subject_.info.type;
    result.device_id = subject_.info.index;
    result.ndim = static_cast<std::int32_t>(shape_.size());
    result.dtype_code = dtype_.code;
    result.dtype_bits = dtype_.bits;
    result.dtype_lanes = dtype_.lanes;
    result.shape = shape_.data();
    result.strides = strides_.data();
    return result;
  }

 private:
  const Subject& subject_;
  sdk::DType dtype_;
  std::vector<std::int64_t> shape_, strides_;
  std::uint64_t bytes_ = 0;
  void* memory_ = nullptr;
};

struct Layer {
  const char* name;
  const char* in;
  int l_max_in, l_max_out;
};
/// Second layers of MACE-MP-0 (operators.md 4 and 5): 128 channels, edge attributes and outputs up to degree 3.
constexpr std::array<Layer, 2> kLayers{{{"medium", "128x0e+128x1o", 1, 3}, {"large", "128x0e+128x1o+128x2e", 2, 3}}};

sdk::ConvTensorProductConfig config_of(const Layer& layer) {
  sdk::ConvTensorProductConfig config{sdk::Irreps::parse(layer.in), sdk::Irreps::parse("1x0e+1x1o+1x2e+1x3o"), {}, {}};
  std::string out;
  for (int l3 = 0; l3 <= layer.l_max_out; ++l3) {  // the order of MACE: by output
    for (std::size_t a = 0; a < config.in.size(); ++a) {
      for (std::size_t b = 0; b < config.edge.size(); ++b) {
        const sdk::Irrep x = config.in[a].ir, y = config.edge[b].ir;
        if (l3 < std::abs(x.l - y.l) || l3 > x.l + y.l || x.parity * y.parity != (l3 % 2 == 0 ? 1 : -1)) continue;
        config.instructions.push_back({a, b, config.instructions.size(), std::sqrt(2.0 * l3 + 1.0)});
        out += (out.empty() ? "" : "+") + std::to_string(config.in[a].mul) + "x" + std::to_string(l3) +
               (l3 % 2 == 0 ? "e" : "o");
      }
    }
  }
  config.out = sdk::Irreps::parse(out);
  return config;
}

/// What one edge costs at least: every row that a fused kernel reads or writes once, and FLOPs with every non-zero
/// coefficient counted for every channel ("naive" in operators.md 5.1).
struct Cost {
  double forward_bytes, backward_bytes, forward_flops, backward_flops;
};
Cost cost_of(const sdk::ConvTensorProductConfig& config, double element) {
  const auto x = static_cast<double>(config.in.dim()), y = static_cast<double>(config.edge.dim()),
             w = static_cast<double>(config.weight_numel()), z = static_cast<double>(config.out.dim());
  double nonzero = 0;
  for (const auto& path : config.instructions) {
    const auto& tensor = sdk::coupling(config.in[path.in].ir.l, config.edge[path.edge].ir.l, config.out[path.out].ir.l);
    nonzero += static_cast<double>(tensor.nonzero.size()) * static_cast<double>(config.in[path.in].mul);
  }
  return {(x + y + w) * element + 8, 2 * (x + y + w) * element + 8, 3 * nonzero + 2 * z, 9 * nonzero};
}

/// Edges of a crystal whose nodes are numbered as they lie: neighbours have near numbers. Sorted by receiver, sender.
struct Graph {
  std::int64_t n_nodes = 0, n_edges = 0;
  std::vector<std::int32_t> sender, receiver;
  std::vector<std::int64_t> receiver_ptr, sender_ptr, sender_edge;

  explicit Graph(std::int64_t edges) : n_edges(edges) {
    constexpr std::int64_t kNeighbours = 45;
    n_nodes = std::max<std::int64_t>((edges + kNeighbours - 1) / kNeighbours, 1);
    std::mt19937_64 random(1);
    std::vector<std::int64_t> count(static_cast<std::size_t>(n_nodes) + 1, 0);
    for (std::int64_t n = 0; n < n_nodes; ++n) {
      receiver_ptr.push_back(static_cast<std::int64_t>(sender.size()));
      std::vector<std::int32_t> own;
      for (std::int64_t i = 0; i < kNeighbours && static_cast<std::int64_t>(sender.size() + own.size()) < edges; ++i) {
        const std::int64_t offset = static_cast<std::int64_t>(random() % 400) - 200;
        own.push_back(static_cast<std::int32_t>(((n + offset) % n_nodes + n_nodes) % n_nodes));
      }
      std::sort(own.begin(), own.end());
      for (const std::int32_t s : own) {
        sender.push_back(s);
        receiver.push_back(static_cast<std::int32_t>(n));
        ++count[static_cast<std::size_t>(s) + 1];
      }
    }
    receiver_ptr.push_back(edges);
    for (std::size_t n = 1; n < count.size(); ++n) count[n] += count[n - 1];
    sender_ptr = count;
    sender_edge.resize(static_cast<std::size_t>(edges));
    for (std::size_t e = 0; e < sender.size(); ++e) {
      sender_edge[static_cast<std::size_t>(count[static_cast<std::size_t>(sender[e])]++)] =
          static_cast<std::int64_t>(e);
    }
  }
};

template <class T>
std::vector<T> drawn(std::int64_t n) {
  std::mt19937 random(static_cast<std::uint32_t>(n));
  std::vector<T> result(static_cast<std::size_t>(n));
  for (T& value : result) value = static_cast<T>(static_cast<double>(random()) / 2147483648.0 - 1.0);
  return result;
}
template <class T>
std::unique_ptr<Array> random_array(const Subject& subject, std::int64_t rows, std::int64_t width) {
  return std::make_unique<Array>(subject, sdk::dtype_of<T>(), std::vector{rows, width}, drawn<T>(rows * width).data());
}

struct Row {
  std::string layer, dtype, pass;
  std::int64_t edges = 0, nodes = 0;
  double seconds = 0, spread = 0, bytes = 0, flops = 0;
};

/// The kernel of one layer and dtype on one graph.
template <class T>
class Conv {
 public:
  Conv(const Subject& subject, const sdk::ConvTensorProductConfig& config, const Graph& graph)
      : subject_(subject), graph_(graph), attributes_(config.attributes()), list_(attributes_) {
    const auto n = graph.n_nodes, e = graph.n_edges;
    x_ = random_array<T>(subject, n, config.in.dim());
    y_ = random_array<T>(subject, e, config.edge.dim());
    w_ = random_array<T>(subject, e, config.weight_numel());
    g_ = random_array<T>(subject, n, config.out.dim());
    out_ = random_array<T>(subject, n, config.out.dim());
    gx_ = random_array<T>(subject, n, config.in.dim());
    gy_ = random_array<T>(subject, e, config.edge.dim());
    gw_ = random_array<T>(subject, e, config.weight_numel());
    const auto index = [&](const auto& values) {
      using I = typename std::decay_t<decltype(values)>::value_type;
      return std::make_unique<Array>(subject, sdk::dtype_of<I>(), std::vector{static_cast<std::int64_t>(values.size())},
                                     values.data());
    };
    sender_ = index(graph.sender), receiver_ = index(graph.receiver);
    receiver_ptr_ = index(graph.receiver_ptr), sender_ptr_ = index(graph.sender_ptr);
    sender_edge_ = index(graph.sender_edge);

    fp_kernel_query query = sdk::abi_struct<fp_kernel_query>();
    query.op_version = sdk::ConvTensorProductConfig::kVersion;
    query.op = sdk::ConvTensorProductConfig::kOp.data();
    query.op_size = sdk::ConvTensorProductConfig::kOp.size();
    query.config = &list_.c_list();
    query.device = &subject.info;
    const sdk::DType dtype = sdk::dtype_of<T>();
    query.dtype_code = dtype.code, query.dtype_bits = dtype.bits, query.dtype_lanes = dtype.lanes;
    query.passes = FP_PASS_FORWARD | FP_PASS_BACKWARD;
    fp_create_args create = sdk::abi_struct<fp_create_args>();
    create.device = subject.device;
    create.query = &query;
    call("create", [&](const fp_error_sink* errors) {
      create.errors = errors;
      return subject.kernels.create(subject.raw, &create, &kernel_);
    });
    fp_tensor_list none = sdk::abi_struct<fp_tensor_list>();
    none.stride = sizeof(fp_tensor);
    fp_bind_args bind = sdk::abi_struct<fp_bind_args>();
    bind.version = 1;
    bind.parameters = &none;
    call("bind", [&](const fp_error_sink* errors) {
      bind.errors = errors;
      return subject.kernels.bind(kernel_, &bind);
    });
  }
  ~Conv() { subject_.kernels.destroy(kernel_); }
  Conv(const Conv&) = delete;
  Conv& operator=(const Conv&) = delete;

  double forward() { return run(FP_PASS_FORWARD); }
  double backward() { return run(FP_PASS_BACKWARD); }
  /// @throws std::runtime_error if results are not finite or all zero.
  void look_at_results() {
    for (const Array* array : {out_.get(), gx_.get(), gy_.get(), gw_.get()}) {
      std::vector<T> values(array->bytes() / sizeof(T));
      array->read(values.data());
      double largest = 0;
      for (const T value : values) {
        if (!std::isfinite(value)) throw std::runtime_error("a result is not finite");
        largest = std::max(largest, std::abs(static_cast<double>(value)));
      }
      if (largest == 0) throw std::runtime_error("all numbers of a result are zero");
    }
  }

 private:
  double run(std::uint32_t pass) {
    const bool backward = pass == FP_PASS_BACKWARD;
    fp_sizes sizes = sdk::abi_struct<fp_sizes>();
    sizes.pass = pass;
    sizes.n_edges = graph_.n_edges;
    sizes.n_nodes = sizes.n_receivers = sizes.n_rows = graph_.n_nodes;
    fp_workspace wanted = sdk::abi_struct<fp_workspace>();
    call("workspace",
         [&](const fp_error_sink* errors) { return subject_.kernels.workspace(kernel_, &sizes, &wanted, errors); });
    if (wanted.scratch_bytes > 0 && (scratch_ == nullptr || scratch_->bytes() < wanted.scratch_bytes)) {
      scratch_ = std::make_unique<Array>(subject_, sdk::kFloat64,
                                         std::vector{static_cast<std::int64_t>(wanted.scratch_bytes / 8 + 1)});
    }
    std::array<fp_tensor, 3> inputs{x_->c(FP_ACCESS_READ), y_->c(FP_ACCESS_READ), w_->c(FP_ACCESS_READ)};
    std::array<fp_tensor, 1> out{backward ? g_->c(FP_ACCESS_READ) : out_->c(FP_ACCESS_WRITE)};
    std::array<fp_tensor, 3> gradients{gx_->c(FP_ACCESS_WRITE), gy_->c(FP_ACCESS_WRITE), gw_->c(FP_ACCESS_WRITE)};
    const auto list = [](const auto& items) {
      fp_tensor_list result = sdk::abi_struct<fp_tensor_list>();
      result.stride = sizeof(fp_tensor);
      result.count = items.size();
      result.items = items.data();
      return result;
    };
    const fp_tensor_list input_list = list(inputs), out_list = list(out), gradient_list = list(gradients);
    std::array<fp_tensor, 5> indices{sender_->c(FP_ACCESS_READ), receiver_->c(FP_ACCESS_READ),
                                     receiver_ptr_->c(FP_ACCESS_READ), sender_ptr_->c(FP_ACCESS_READ),
                                     sender_edge_->c(FP_ACCESS_READ)};
    fp_graph graph = sdk::abi_struct<fp_graph>();
    graph.n_edges = graph_.n_edges;
    graph.n_nodes = graph.n_receivers = graph_.n_nodes;
    graph.sender = &indices[0], graph.receiver = &indices[1], graph.receiver_ptr = &indices[2];
    graph.sender_ptr = &indices[3], graph.sender_edge = &indices[4];
    fp_run_args args = sdk::abi_struct<fp_run_args>();
    args.pass = pass;
    args.graph = &graph;
    args.sizes = &sizes;
    args.inputs = &input_list;
    (backward ? args.grad_outputs : args.outputs) = &out_list;
    if (backward) args.grad_inputs = &gradient_list;
    args.scratch = scratch_ == nullptr ? nullptr : scratch_->memory();
    args.scratch_bytes = wanted.scratch_bytes;
    args.stream = subject_.stream;
    args.threads = 1;
    subject_.wait();
    const double start = bench::now();
    call(backward ? "backward" : "forward", [&](const fp_error_sink* errors) {
      args.errors = errors;
      return subject_.kernels.run(kernel_, &args);
    });
    subject_.wait();
    return bench::now() - start;
  }

  const Subject& subject_;
  const Graph& graph_;
  sdk::Attributes attributes_;
  sdk::AttributeList list_;
  std::unique_ptr<Array> x_, y_, w_, g_, out_, gx_, gy_, gw_, sender_, receiver_, receiver_ptr_, sender_ptr_,
      sender_edge_, scratch_;
  fp_kernel* kernel_ = nullptr;
};

struct Options {
  std::string plugin, layer, dtype, json;
  std::size_t device = 0;
  std::vector<std::int64_t> edges{100000, 1000000};
  double seconds = 1;
};

/// Bytes a second of a copy within the device's memory, read and write counted.
double copy_bandwidth(const Subject& subject, double seconds) {
  std::uint64_t unused = 0, total = 0;
  call("memory_info", [&](const fp_error_sink* errors) {
    return subject.memory.memory_info(subject.device, &unused, &total, errors);
  });
  const auto n = static_cast<std::int64_t>(std::min<std::uint64_t>(std::uint64_t{1} << 28, unused / 4) / 8);
  const Array from(subject, sdk::kFloat64, {n}), to(subject, sdk::kFloat64, {n});
  const auto copy = [&] {
    subject.wait();
    const double start = bench::now();
    call("copy", [&](const fp_error_sink* errors) {
      return subject.memory.copy_on_device(subject.device, to.memory(), 0, from.memory(), 0, from.bytes(),
                                           subject.stream, errors);
    });
    subject.wait();
    return bench::now() - start;
  };
  const double median = bench::measure({{"copy", copy}}, {.seconds = seconds})[0].median();
  return 2 * static_cast<double>(from.bytes()) / median;
}

template <class T>
void measure_layer(const Subject& subject, const Options& options, const Layer& layer, const Graph& graph,
                   std::vector<Row>& rows) {
  const sdk::ConvTensorProductConfig config = config_of(layer);
  const Cost cost = cost_of(config, sizeof(T));
  const char* dtype = sizeof(T) == 4 ? "float32" : "float64";
  try {
    Conv<T> conv(subject, config, graph);
    const auto timings =
        bench::measure({{"forward", [&] { return conv.forward(); }}, {"backward", [&] { return conv.backward(); }}},
                       {.seconds = 2 * options.seconds});
    conv.look_at_results();
    const auto edges = static_cast<double>(graph.n_edges),
               out = static_cast<double>(graph.n_nodes * config.out.dim()) * sizeof(T);
    rows.push_back({layer.name, dtype, "forward", graph.n_edges, graph.n_nodes, timings[0].median(), timings[0].mad(),
                    edges * cost.forward_bytes + out, edges * cost.forward_flops});
    rows.push_back({layer.name, dtype, "backward", graph.n_edges, graph.n_nodes, timings[1].median(), timings[1].mad(),
                    edges * cost.backward_bytes + out, edges * cost.backward_flops});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s, %s, %lld edges: not measured: %s\n", layer.name, dtype,
                 static_cast<long long>(graph.n_edges), error.what());
  }
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&]() -> std::string {
      if (++i == argc) stop(2, word + " needs a value; see --help");
      return argv[i];
    };
    try {
      if (word == "--help") {
        std::fputs(kHelp, stdout);
        std::exit(0);
      } else if (word == "--device") {
        options.device = std::stoul(value());
      } else if (word == "--edges") {
        options.edges.clear();
        std::string list = value();
        for (std::size_t at = 0; at <= list.size();) {
          const std::size_t comma = std::min(list.find(',', at), list.size());
          options.edges.push_back(std::stoll(list.substr(at, comma - at)));
          if (options.edges.back() < 1) throw std::out_of_range("edges");
          at = comma + 1;
        }
      } else if (word == "--layer") {
        options.layer = value();
        if (options.layer != "medium" && options.layer != "large") stop(2, "--layer is medium or large");
      } else if (word == "--dtype") {
        options.dtype = value();
        if (options.dtype != "float32" && options.dtype != "float64") stop(2, "--dtype is float32 or float64");
      } else if (word == "--seconds") {
        options.seconds = std::stod(value());
      } else if (word == "--json") {
        options.json = value();
      } else if (word.starts_with("-") || !options.plugin.empty()) {
        stop(2, "'" + word + "' is not an option; see --help");
      } else {
        options.plugin = word;
      }
    } catch (const std::logic_error&) {
      stop(2, "'" + std::string(argv[i]) + "' is no value for " + word);
    }
  }
  if (options.plugin.empty()) stop(2, "the file of a plugin is missing; see --help");
  return options;
}

void write_json(const std::string& path, const Subject& subject, double bandwidth, const std::vector<Row>& rows) {
  bench::JsonWriter json;
  json.begin_object();
  json.put("device", sdk::text_view(subject.info.name, subject.info.name_size));
  json.put("arch", sdk::text_view(subject.info.arch, subject.info.arch_size));
  json.put("driver", sdk::text_view(subject.info.driver, subject.info.driver_size));
  json.put("copy_bytes_per_second", bandwidth);
  json.begin_array("rows");
  for (const Row& row : rows) {
    json.begin_object();
    json.put("layer", row.layer).put("dtype", row.dtype).put("pass", row.pass);
    json.put("edges", row.edges).put("nodes", row.nodes).put("seconds", row.seconds).put("spread", row.spread);
    json.put("bytes", row.bytes).put("flops", row.flops);
    json.end();
  }
  json.end();
  json.end();
  std::FILE* file = std::fopen(path.c_str(), "w");
  const std::string text = json.text() + "\n";
  const bool written = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (file == nullptr || std::fclose(file) != 0 || !written) stop(1, path + ": cannot be written");
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  try {
    const Subject subject(options.plugin, options.device);
    const double bandwidth = copy_bandwidth(subject, options.seconds);
    std::printf("%s (%s), driver %s: copies at %s GB/s\n",
                std::string(sdk::text_view(subject.info.name, subject.info.name_size)).c_str(),
                std::string(sdk::text_view(subject.info.arch, subject.info.arch_size)).c_str(),
                std::string(sdk::text_view(subject.info.driver, subject.info.driver_size)).c_str(),
                bench::fixed(bandwidth / 1e9, 1).c_str());
    std::vector<Row> rows;
    for (const std::int64_t edges : options.edges) {
      const Graph graph(edges);
      for (const Layer& layer : kLayers) {
        if (!options.layer.empty() && options.layer != layer.name) continue;
        if (options.dtype != "float64") measure_layer<float>(subject, options, layer, graph, rows);
        if (options.dtype != "float32" && (subject.info.dtypes & FP_DTYPE_BIT_F64) != 0) {
          measure_layer<double>(subject, options, layer, graph, rows);
        }
      }
    }
    for (const Layer& layer : kLayers) {
      const Cost cost = cost_of(config_of(layer), 4);
      std::printf("%s layer, an edge in float32: %.0f bytes and %.1f kFLOP forward, %.0f and %.1f backward\n",
                  layer.name, cost.forward_bytes, cost.forward_flops / 1e3, cost.backward_bytes,
                  cost.backward_flops / 1e3);
    }
    bench::Table table({"layer", "dtype", "pass", "edges", "atoms", "ms", "+-", "GB/s", "of copy", "GFLOP/s"});
    for (const Row& row : rows) {
      table.add({row.layer, row.dtype, row.pass, std::to_string(row.edges), std::to_string(row.nodes),
                 bench::fixed(row.seconds * 1e3, 2), bench::fixed(row.spread * 1e3, 2),
                 bench::fixed(row.bytes / row.seconds / 1e9, 1),
                 bench::fixed(100 * row.bytes / row.seconds / bandwidth, 0) + " %",
                 bench::fixed(row.flops / row.seconds / 1e9, 0)});
    }
    std::fputs(table.text().c_str(), stdout);
    if (!options.json.empty()) write_json(options.json, subject, bandwidth, rows);
    return rows.empty() ? 1 : 0;
  } catch (const std::exception& error) {
    stop(1, error.what());
  }
}
