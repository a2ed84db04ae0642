#include "step_tangents.hpp"

#include <algorithm>
#include <exception>
#include <initializer_list>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "cpu/in_turn.hpp"
#include "cpu/radial.hpp"

namespace cpu_simd {
namespace {

/// Blocks that are under way at most; with more threads, several work on one.
constexpr std::int64_t kPlaces = 8;

/// Edges of a block: as many as an array of about this size holds the weights of, within bounds.
std::int64_t edges_of_block(std::int64_t weight_numel, std::size_t element) {
  constexpr std::int64_t kBytes = 2 << 20, kLeast = 256, kMost = 2048;
  return std::clamp<std::int64_t>(kBytes / (weight_numel * static_cast<std::int64_t>(element)), kLeast, kMost);
}

/// Tensors of a call of one of the kernels, contiguous ones in memory of ours. A null address is an absent tensor.
class Tensors {
 public:
  Tensors() = default;
  Tensors(Tensors&&) = delete;

  template <class E>
  Tensors& add(E* data, std::initializer_list<std::int64_t> shape) {
    place(data, shape.begin(), shape.size());
    return *this;
  }
  /// One of the host's.
  Tensors& add(const sdk::Tensor& tensor) {
    items_[n_++] = tensor.present() ? tensor.c() : sdk::abi_struct<fp_tensor>();
    return *this;
  }
  sdk::TensorList list() {
    list_ = sdk::abi_struct<fp_tensor_list>();
    list_.stride = sizeof(fp_tensor);
    list_.count = n_;
    list_.items = items_.data();
    return sdk::TensorList(&list_);
  }
  sdk::Tensor tensor(std::size_t i) const { return sdk::Tensor(items_[i]); }

 private:
  static constexpr std::size_t kMost = 16, kRank = 3;
  template <class E>
  void place(E* data, const std::int64_t* shape, std::size_t rank) {
    fp_tensor tensor = sdk::abi_struct<fp_tensor>();
    if (data != nullptr) {
      tensor.access = std::is_const_v<E> ? FP_ACCESS_READ : FP_ACCESS_READ | FP_ACCESS_WRITE;
      tensor.data = const_cast<std::remove_const_t<E>*>(data);
      tensor.device_type = FP_DEVICE_CPU;
      const sdk::DType dtype = sdk::dtype_of<std::remove_const_t<E>>();
      tensor.dtype_code = dtype.code;
      tensor.dtype_bits = dtype.bits;
      tensor.dtype_lanes = dtype.lanes;
      tensor.ndim = static_cast<std::int32_t>(rank);
      auto& sizes = shapes_[n_];
      auto& strides = strides_[n_];
      std::int64_t stride = 1;
      for (std::size_t i = rank; i-- > 0; stride *= sizes[i]) {
        sizes[i] = shape[i];
        strides[i] = stride;
      }
      tensor.shape = sizes.data();
      tensor.strides = strides.data();
    }
    items_[n_++] = tensor;
  }
  std::array<fp_tensor, kMost> items_;
  std::array<std::array<std::int64_t, kRank>, kMost> shapes_, strides_;
  fp_tensor_list list_{};
  std::size_t n_ = 0;
};

}  // namespace

/// Every tensor of a call. Those of lists that the pass does not have are left out.
struct PartCall {
  Tensors inputs, inputs_t, parameters_t, outputs, outputs_t;
  Tensors grad_outputs, grad_outputs_t, grad_inputs, grad_inputs_t, grad_parameters, grad_parameters_t;

  void run(sdk::Kernel& kernel, const sdk::Sizes& sizes, const sdk::Graph* graph, int threads, void* scratch,
           std::uint64_t scratch_bytes) {
    sdk::Run run;
    run.pass = sizes.pass;
    run.sizes = sizes;
    if (graph != nullptr) run.graph = *graph;
    run.inputs = inputs.list();
    run.inputs_t = inputs_t.list();
    run.parameters_t = parameters_t.list();
    run.outputs = outputs.list();
    run.outputs_t = outputs_t.list();
    run.grad_outputs = grad_outputs.list();
    run.grad_outputs_t = grad_outputs_t.list();
    run.grad_inputs = grad_inputs.list();
    run.grad_inputs_t = grad_inputs_t.list();
    run.grad_parameters = grad_parameters.list();
    run.grad_parameters_t = grad_parameters_t.list();
    run.scratch = scratch;
    run.scratch_bytes = scratch_bytes;
    run.threads = threads;
    kernel.run(run);
  }
};

namespace {

template <class E>
E* from(E* data, std::int64_t offset) {
  return data == nullptr ? nullptr : data + offset;
}
template <class T>
const T* read(const sdk::TensorList& list, std::uint64_t i) {
  return list[i].template view<const T>().data();
}
template <class T>
T* write(const sdk::TensorList& list, std::uint64_t i) {
  return list[i].template view<T>().data();
}

/// A value and its tangent.
template <class T>
struct Pair {
  T *value = nullptr, *tangent = nullptr;
  bool any() const { return value != nullptr || tangent != nullptr; }
};
template <class T>
Pair<const T> read_pair(const sdk::TensorList& values, const sdk::TensorList& tangents, std::uint64_t i) {
  return {read<T>(values, i), read<T>(tangents, i)};
}
template <class T>
Pair<T> write_pair(const sdk::TensorList& values, const sdk::TensorList& tangents, std::uint64_t i) {
  return {write<T>(values, i), write<T>(tangents, i)};
}

template <class T>
void gather(const T* rows, std::int64_t width, const std::int32_t* which, std::int64_t n, T* to) {
  for (std::int64_t i = 0; i < n && rows != nullptr; ++i) std::copy_n(rows + which[i] * width, width, to + i * width);
}
template <class T>
void add_rows(const T* rows, std::int64_t width, const std::int32_t* which, std::int64_t n, T* to) {
  for (std::int64_t i = 0; i < n && to != nullptr; ++i) {
    for (std::int64_t c = 0; c < width; ++c) to[which[i] * width + c] += rows[i * width + c];
  }
}

}  // namespace

/// The edges of a block with their nodes, which are numbered anew: first the receivers, then the other senders.
template <class T>
struct StepTangents<T>::Block {
  std::int64_t first, n, n_receivers = 0, n_nodes = 0;
  Tensors arrays;
  sdk::Graph graph;

  Block(const sdk::HostGraph& whole, std::int64_t first_edge, std::int64_t n_edges, const std::int32_t* species,
        Arrays& a)
      : first(first_edge), n(n_edges) {
    const auto number = [&](std::int32_t node) {
      if (a.local[node] < 0) {
        a.local[node] = static_cast<std::int32_t>(n_nodes);
        a.nodes[n_nodes++] = node;
      }
      return a.local[node];
    };
    for (std::int64_t e = 0; e < n; ++e) {
      const std::int64_t before = n_nodes;
      a.receiver[e] = number(whole.receiver[first + e]);
      if (n_nodes > before) a.receiver_ptr[before] = e;
    }
    n_receivers = n_nodes;
    for (std::int64_t e = 0; e < n; ++e) a.sender[e] = number(whole.sender[first + e]);
    std::fill(a.receiver_ptr + n_receivers, a.receiver_ptr + n_nodes + 1, n);
    for (std::int64_t i = 0; i < n_nodes; ++i) {
      a.local[a.nodes[i]] = -1;
      if (species != nullptr) a.species[i] = species[a.nodes[i]];
    }
    a.n_nodes = n_nodes;
    a.n_receivers = n_receivers;
    const std::int32_t *const sender = a.sender, *const receiver = a.receiver;
    const std::int64_t* const receiver_ptr = a.receiver_ptr;
    arrays.add(sender, {n}).add(receiver, {n}).add(receiver_ptr, {n_nodes + 1});
    graph.n_edges = n;
    graph.n_nodes = n_nodes;
    graph.n_receivers = n_receivers;
    graph.sender = arrays.tensor(0);
    graph.receiver = arrays.tensor(1);
    graph.receiver_ptr = arrays.tensor(2);
  }
  sdk::Sizes sizes(sdk::Pass pass) const { return {pass, n, n_nodes, n_receivers, n}; }
};

/// What edges have of their geometry and the net, with tangents: of a block, or of all edges where the pass backward
/// finds it again.
template <class T>
struct StepTangents<T>::Edges {
  Pair<T> y, embedding, envelope, plain, weights;

  Edges() = default;
  Edges(const sdk::MessageStepConfig& config, sdk::Scratch& scratch, std::int64_t n) {
    const auto pair = [&](std::int64_t size) {
      Pair<T> result;
      result.value = scratch.take<T>(n * size);
      result.tangent = scratch.take<T>(n * size);
      return result;
    };
    y = pair(config.harmonics.dim());
    embedding = pair(config.radial.n_basis);
    plain = weights = pair(config.conv.weight_numel());
    if (!config.radial.apply_cutoff) envelope = pair(1), weights = pair(config.conv.weight_numel());
  }
  /// From an edge on.
  Edges at(const sdk::MessageStepConfig& config, std::int64_t edge) const {
    const auto move = [&](const Pair<T>& pair, std::int64_t size) {
      return Pair<T>{from(pair.value, edge * size), from(pair.tangent, edge * size)};
    };
    Edges result;
    result.y = move(y, config.harmonics.dim());
    result.embedding = move(embedding, config.radial.n_basis);
    result.envelope = move(envelope, 1);
    result.plain = move(plain, config.conv.weight_numel());
    result.weights = move(weights, config.conv.weight_numel());
    return result;
  }
};

/// Memory of a block that is under way.
template <class T>
struct StepTangents<T>::Arrays {
  std::int64_t most_edges, most_nodes, most_receivers;
  std::int32_t *local, *nodes, *sender, *receiver, *species;
  std::int64_t* receiver_ptr;
  Edges own, edges;  ///< Of its own, and those that its block has.
  Pair<T> x, out;
  Pair<T> grad_out, grad_x, grad_y, grad_embedding, grad_envelope, grad_plain, grad_weights;
  std::vector<Pair<T>> grad_layers;
  void* memory = nullptr;  ///< Of the kernels.
  std::uint64_t memory_bytes = 0;
  int threads = 1;                            ///< That work on it.
  std::int64_t n_nodes = 0, n_receivers = 0;  ///< Of its block.

  Arrays(const StepTangents& step, sdk::Scratch& scratch, const sdk::Extents& extents, bool backward)
      : most_edges(std::min(step.block_edges_, extents[sdk::Axis::edges])),
        most_nodes(std::min(2 * most_edges, extents[sdk::Axis::nodes])),
        most_receivers(std::min(most_edges, extents[sdk::Axis::receivers])) {
    const sdk::MessageStepConfig& config = step.config_;
    const auto pair = [&](std::int64_t n) {
      Pair<T> result;
      result.value = scratch.take<T>(n);
      result.tangent = scratch.take<T>(n);
      return result;
    };
    local = scratch.take<std::int32_t>(extents[sdk::Axis::nodes]);
    for (std::int32_t** array : {&sender, &receiver}) *array = scratch.take<std::int32_t>(most_edges);
    for (std::int32_t** array : {&nodes, &species}) *array = scratch.take<std::int32_t>(most_nodes);
    receiver_ptr = scratch.take<std::int64_t>(most_nodes + 1);
    const std::int64_t n_weights = most_edges * config.conv.weight_numel();
    const bool cuts = !config.radial.apply_cutoff;
    x = pair(most_nodes * config.conv.in.dim());
    own = edges = Edges(config, scratch, most_edges);
    (backward ? grad_out : out) = pair(most_receivers * config.conv.out.dim());
    if (backward) {
      grad_x = pair(most_nodes * config.conv.in.dim());
      grad_y = pair(most_edges * config.harmonics.dim());
      grad_embedding = pair(most_edges * config.radial.n_basis);
      grad_plain = grad_weights = pair(n_weights);
      if (cuts) grad_envelope = pair(most_edges), grad_plain = pair(n_weights);
      for (std::size_t i = 0; i < config.mlp.n_layers(); ++i) {
        const std::int64_t n = config.mlp.widths[i] * config.mlp.widths[i + 1];
        grad_layers.push_back(pair(n));
      }
    }
    for (const auto* kernel : {&step.harmonics_, &step.basis_, &step.net_, &step.product_}) {
      for (const sdk::Pass pass : {sdk::Pass::forward_tangent, sdk::Pass::backward_tangent}) {
        const sdk::Sizes sizes{pass, most_edges, most_nodes, most_receivers, most_edges};
        memory_bytes = std::max(memory_bytes, (*kernel)->workspace(sizes).scratch_bytes);
      }
    }
    memory = scratch.take<char>(static_cast<std::int64_t>(memory_bytes));
  }
};

/// Memory of a pass: of all blocks under way, and sums over all blocks.
template <class T>
struct StepTangents<T>::Work {
  std::vector<Arrays> places;
  std::optional<Edges> saved;  ///< Of all edges, if the host keeps them.
  std::vector<Pair<double>> layers;

  const sdk::MessageStepConfig& config;

  Work(const StepTangents& step, sdk::Scratch& scratch, const sdk::Extents& extents, bool backward)
      : config(step.config_) {
    const std::int64_t n_blocks = (extents[sdk::Axis::edges] + step.block_edges_ - 1) / step.block_edges_;
    for (std::int64_t i = 0; i < std::min(kPlaces, n_blocks); ++i) {
      places.emplace_back(step, scratch, extents, backward);
    }
    for (std::size_t i = 0; i < step.config_.mlp.n_layers() && backward; ++i) {
      const std::int64_t n = step.config_.mlp.widths[i] * step.config_.mlp.widths[i + 1];
      Pair<double> sum;
      sum.value = scratch.take<double>(n);
      sum.tangent = scratch.take<double>(n);
      layers.push_back(sum);
    }
  }

  /// Uses memory that the host keeps from forward to backward, if it does.
  void use_saved(const StepTangents& step, const sdk::Run& run) {
    const sdk::Extents extents(run);
    const std::uint64_t bytes = step.saved_bytes(extents);
    if (bytes == 0 || run.saved == nullptr || run.saved_bytes < bytes) return;
    sdk::Scratch memory(run.saved, run.saved_bytes);
    saved.emplace(config, memory, extents[sdk::Axis::edges]);
  }

  /// Blocks of edges 0..end-1 are made side by side, and added one after the other.
  template <class Make, class Add>
  void run(Workers& workers, const sdk::Run& call, const sdk::HostGraph& graph, const std::int32_t* species,
           const Make& make, const Add& add) {
    const std::int64_t end = graph.receiver_ptr[graph.n_receivers];
    if (end == 0) return;
    const std::int64_t size = places.front().most_edges, n_blocks = (end + size - 1) / size;
    const auto at_work = static_cast<int>(std::min<std::int64_t>({call.threads, std::ssize(places), n_blocks}));
    for (Arrays& place : places) {
      std::fill_n(place.local, graph.n_nodes, -1);
      place.threads = std::max(1, call.threads / at_work);
    }
    std::exception_ptr failure;
    std::mutex mutex;
    fastpath_cpu::InTurn turns(n_blocks, at_work == 1 ? 1 : std::min<std::int64_t>(std::ssize(places), at_work + 1), 1);
    const auto make_item = [&](std::int64_t item, std::int64_t place) {
      // The others wait for what is not made.
      try {
        Arrays& a = places[static_cast<std::size_t>(place)];
        const Block block(graph, item * size, std::min(size, end - item * size), species, a);
        a.edges = saved ? saved->at(config, block.first) : a.own;
        make(a, block);
      } catch (...) {
        const std::lock_guard lock(mutex);
        failure = std::current_exception();
      }
    };
    const auto add_item = [&](std::int64_t, std::int64_t place, int) { add(places[static_cast<std::size_t>(place)]); };
    workers.run(at_work, at_work, [&](std::int64_t) { turns.work(make_item, add_item); });
    turns.finish(add_item);
    if (failure) std::rethrow_exception(failure);
  }
};

template <class T>
StepTangents<T>::StepTangents(const sdk::MessageStepConfig& config)
    : config_(config),
      block_edges_(edges_of_block(config.conv.weight_numel(), sizeof(T))),
      harmonics_(spherical_harmonics().create(config.harmonics.attributes(), sdk::dtype_of<T>())),
      basis_(radial_basis().create(config.radial.attributes(), sdk::dtype_of<T>())),
      net_(radial_mlp().create(config.mlp.attributes(), sdk::dtype_of<T>())),
      product_(conv_tensor_product().create(config.conv.attributes(), sdk::dtype_of<T>())) {}
template <class T>
StepTangents<T>::~StepTangents() = default;

template <class T>
void StepTangents<T>::bind(const sdk::TensorList& parameters) {
  ++version_;
  const auto bind_some = [&](sdk::Kernel& kernel, std::uint64_t begin, std::uint64_t end) {
    Tensors own;
    for (std::uint64_t i = begin; i < end; ++i) own.add(parameters[i]);
    sdk::Bind bind;
    bind.version = version_;
    bind.parameters = own.list();
    kernel.bind(bind);
  };
  bind_some(*harmonics_, 0, 0);
  bind_some(*basis_, 0, 1);
  bind_some(*net_, 1, 1 + config_.mlp.n_layers());
  bind_some(*product_, 0, 0);
}

template <class T>
std::uint64_t StepTangents<T>::saved_bytes(const sdk::Extents& extents) const {
  constexpr std::uint64_t kMost = 256 << 20;
  sdk::Scratch counting;
  Edges(config_, counting, extents[sdk::Axis::edges]);
  return counting.bytes() <= kMost ? counting.bytes() : 0;
}

template <class T>
void StepTangents<T>::plan(sdk::Scratch& scratch, const sdk::Extents& extents, sdk::Pass pass) const {
  Work(*this, scratch, extents, pass == sdk::Pass::backward_tangent);
}

template <class T>
const std::int32_t* StepTangents<T>::species(const sdk::Run& run) const {
  return config_.radial.transform == sdk::DistanceTransform::none ? nullptr : read<std::int32_t>(run.inputs, 3);
}
/// @throws InvalidArgument naming a species out of range, before there are threads.
template <class T>
void StepTangents<T>::check_species(const sdk::Run& run, const sdk::HostGraph& graph) const {
  if (species(run) != nullptr) static_cast<void>(fastpath_cpu::EdgeRadii(config_.radial, graph, species(run)));
}
template <class T>
void StepTangents<T>::add_lengths(const sdk::Run& run, const Arrays& a, const Block& block, PartCall& basis) const {
  const auto lengths = read_pair<T>(run.inputs, run.inputs_t, 2);
  const std::int32_t* const of_nodes = species(run) == nullptr ? nullptr : a.species;
  basis.inputs.add(lengths.value + block.first, {block.n}).add(of_nodes, {block.n_nodes});
  basis.inputs_t.add(from(lengths.tangent, block.first), {block.n}).add(sdk::Tensor());
  basis.parameters_t.add(sdk::Tensor());
}
template <class T>
void StepTangents<T>::add_embedding(const sdk::Run& run, const Arrays& a, const Block& block, PartCall& net) const {
  net.inputs.add(a.edges.embedding.value, {block.n, config_.radial.n_basis});
  net.inputs_t.add(a.edges.embedding.tangent, {block.n, config_.radial.n_basis});
  for (std::size_t i = 0; i < config_.mlp.n_layers(); ++i) net.parameters_t.add(run.parameters_t[1 + i]);
}
template <class T>
void StepTangents<T>::add_product(const sdk::Run& run, const Arrays& a, const Block& block, PartCall& product) const {
  const bool moves = run.inputs_t[0].present();
  product.inputs.add(a.x.value, {block.n_nodes, config_.conv.in.dim()})
      .add(a.edges.y.value, {block.n, config_.harmonics.dim()})
      .add(a.edges.weights.value, {block.n, config_.conv.weight_numel()});
  product.inputs_t.add(moves ? a.x.tangent : nullptr, {block.n_nodes, config_.conv.in.dim()})
      .add(a.edges.y.tangent, {block.n, config_.harmonics.dim()})
      .add(a.edges.weights.tangent, {block.n, config_.conv.weight_numel()});
}

/// Harmonics, basis and weights of a block, with their tangents.
template <class T>
void StepTangents<T>::make_edges(const sdk::Run& run, Arrays& a, const Block& block) {
  const std::int64_t n = block.n, width = config_.conv.weight_numel();
  const sdk::Sizes sizes = block.sizes(sdk::Pass::forward_tangent);
  const auto vectors = read_pair<T>(run.inputs, run.inputs_t, 1);
  const bool cuts = !config_.radial.apply_cutoff;

  PartCall harmonics;
  harmonics.inputs.add(vectors.value + 3 * block.first, {n, 3});
  harmonics.inputs_t.add(from(vectors.tangent, 3 * block.first), {n, 3});
  harmonics.outputs.add(a.edges.y.value, {n, config_.harmonics.dim()});
  harmonics.outputs_t.add(a.edges.y.tangent, {n, config_.harmonics.dim()});
  harmonics.run(*harmonics_, sizes, nullptr, a.threads, a.memory, a.memory_bytes);

  PartCall basis;
  add_lengths(run, a, block, basis);
  basis.outputs.add(a.edges.embedding.value, {n, config_.radial.n_basis}).add(a.edges.envelope.value, {n});
  basis.outputs_t.add(a.edges.embedding.tangent, {n, config_.radial.n_basis}).add(a.edges.envelope.tangent, {n});
  basis.run(*basis_, sizes, &block.graph, a.threads, a.memory, a.memory_bytes);

  PartCall net;
  add_embedding(run, a, block, net);
  net.outputs.add(a.edges.plain.value, {n, width});
  net.outputs_t.add(a.edges.plain.tangent, {n, width});
  net.run(*net_, sizes, nullptr, a.threads, a.memory, a.memory_bytes);
  for (std::int64_t e = 0; e < n && cuts; ++e) {
    const T c = a.edges.envelope.value[e], c_t = a.edges.envelope.tangent[e];
    const T *const w = a.edges.plain.value + e * width, *const w_t = a.edges.plain.tangent + e * width;
    T *const to = a.edges.weights.value + e * width, *const to_t = a.edges.weights.tangent + e * width;
    for (std::int64_t i = 0; i < width; ++i) {
      to[i] = w[i] * c;
      to_t[i] = w_t[i] * c + w[i] * c_t;
    }
  }
}

template <class T>
void StepTangents<T>::take_features(const sdk::Run& run, Arrays& a, const Block& block) const {
  gather(read<T>(run.inputs, 0), config_.conv.in.dim(), a.nodes, block.n_nodes, a.x.value);
  gather(read<T>(run.inputs_t, 0), config_.conv.in.dim(), a.nodes, block.n_nodes, a.x.tangent);
}

template <class T>
void StepTangents<T>::forward(const sdk::Run& run, sdk::Scratch& scratch, Workers& workers) {
  const sdk::HostGraph graph = run.graph.value().host();
  check_species(run, graph);
  Work work(*this, scratch, sdk::Extents(run), false);
  work.use_saved(*this, run);
  const auto out = write_pair<T>(run.outputs, run.outputs_t, 0);
  const std::int64_t dim = config_.conv.out.dim();
  for (T* const rows : {out.value, out.tangent}) {
    if (rows != nullptr) std::fill_n(rows, graph.n_receivers * dim, T(0));
  }
  work.run(
      workers, run, graph, species(run),
      [&](Arrays& a, const Block& block) {
        make_edges(run, a, block);
        take_features(run, a, block);
        PartCall product;
        add_product(run, a, block, product);
        product.outputs.add(a.out.value, {block.n_receivers, dim});
        product.outputs_t.add(a.out.tangent, {block.n_receivers, dim});
        product.run(*product_, block.sizes(run.pass), &block.graph, a.threads, a.memory, a.memory_bytes);
      },
      [&](const Arrays& a) {
        add_rows(a.out.value, dim, a.nodes, a.n_receivers, out.value);
        add_rows(a.out.tangent, dim, a.nodes, a.n_receivers, out.tangent);
      });
}

/// What a pass backward is asked for.
template <class T>
struct StepTangents<T>::Wanted {
  Pair<T> x, vectors, lengths;
  std::vector<Pair<T>> layers;
  bool any_layer = false;

  Wanted(const sdk::Run& run, std::size_t n_layers)
      : x(write_pair<T>(run.grad_inputs, run.grad_inputs_t, 0)),
        vectors(write_pair<T>(run.grad_inputs, run.grad_inputs_t, 1)),
        lengths(write_pair<T>(run.grad_inputs, run.grad_inputs_t, 2)) {
    for (std::size_t i = 0; i < n_layers; ++i) {
      layers.push_back(write_pair<T>(run.grad_parameters, run.grad_parameters_t, 1 + i));
      any_layer = any_layer || layers.back().any();
    }
  }
  bool radial() const { return any_layer || lengths.any(); }
};

/// Gradients of a block: of edges where they belong, the others in its arrays.
template <class T>
void StepTangents<T>::backward_block(const sdk::Run& run, const Wanted& wanted, Arrays& a, const Block& block) {
  const std::int64_t n = block.n, first = block.first, in = config_.conv.in.dim(), out = config_.conv.out.dim(),
                     width = config_.conv.weight_numel();
  const sdk::Sizes sizes = block.sizes(run.pass);
  const auto grad_out = read_pair<T>(run.grad_outputs, run.grad_outputs_t, 0);
  gather(grad_out.value, out, a.nodes, block.n_receivers, a.grad_out.value);
  gather(grad_out.tangent, out, a.nodes, block.n_receivers, a.grad_out.tangent);

  PartCall product;
  add_product(run, a, block, product);
  product.grad_outputs.add(a.grad_out.value, {block.n_receivers, out});
  product.grad_outputs_t.add(grad_out.tangent == nullptr ? nullptr : a.grad_out.tangent, {block.n_receivers, out});
  const Pair<T> grad_x = wanted.x.any() ? a.grad_x : Pair<T>{}, grad_y = wanted.vectors.any() ? a.grad_y : Pair<T>{},
                grad_w = wanted.radial() ? a.grad_weights : Pair<T>{};
  product.grad_inputs.add(grad_x.value, {block.n_nodes, in})
      .add(grad_y.value, {n, config_.harmonics.dim()})
      .add(grad_w.value, {n, width});
  product.grad_inputs_t.add(grad_x.tangent, {block.n_nodes, in})
      .add(grad_y.tangent, {n, config_.harmonics.dim()})
      .add(grad_w.tangent, {n, width});
  product.run(*product_, sizes, &block.graph, a.threads, a.memory, a.memory_bytes);

  if (grad_y.any()) {
    PartCall harmonics;
    const auto vectors = read_pair<T>(run.inputs, run.inputs_t, 1);
    harmonics.inputs.add(vectors.value + 3 * first, {n, 3});
    harmonics.inputs_t.add(from(vectors.tangent, 3 * first), {n, 3});
    harmonics.grad_outputs.add(a.grad_y.value, {n, config_.harmonics.dim()});
    harmonics.grad_outputs_t.add(a.grad_y.tangent, {n, config_.harmonics.dim()});
    harmonics.grad_inputs.add(from(wanted.vectors.value, 3 * first), {n, 3});
    harmonics.grad_inputs_t.add(from(wanted.vectors.tangent, 3 * first), {n, 3});
    harmonics.run(*harmonics_, sizes, nullptr, a.threads, a.memory, a.memory_bytes);
  }
  if (!grad_w.any()) return;
  if (!config_.radial.apply_cutoff) backward_envelope(a, n);

  PartCall net;
  add_embedding(run, a, block, net);
  net.grad_outputs.add(a.grad_plain.value, {n, width});
  net.grad_outputs_t.add(a.grad_plain.tangent, {n, width});
  const Pair<T> grad_embedding = wanted.lengths.any() ? a.grad_embedding : Pair<T>{};
  net.grad_inputs.add(grad_embedding.value, {n, config_.radial.n_basis});
  net.grad_inputs_t.add(grad_embedding.tangent, {n, config_.radial.n_basis});
  for (std::size_t i = 0; i < wanted.layers.size(); ++i) {
    const Pair<T> of_layer = wanted.layers[i].any() ? a.grad_layers[i] : Pair<T>{};
    net.grad_parameters.add(of_layer.value, {config_.mlp.widths[i], config_.mlp.widths[i + 1]});
    net.grad_parameters_t.add(of_layer.tangent, {config_.mlp.widths[i], config_.mlp.widths[i + 1]});
  }
  net.run(*net_, sizes, nullptr, a.threads, a.memory, a.memory_bytes);
  if (!grad_embedding.any()) return;

  PartCall basis;
  add_lengths(run, a, block, basis);
  basis.grad_outputs.add(a.grad_embedding.value, {n, config_.radial.n_basis}).add(a.grad_envelope.value, {n});
  basis.grad_outputs_t.add(a.grad_embedding.tangent, {n, config_.radial.n_basis}).add(a.grad_envelope.tangent, {n});
  basis.grad_inputs.add(from(wanted.lengths.value, first), {n}).add(sdk::Tensor());
  basis.grad_inputs_t.add(from(wanted.lengths.tangent, first), {n}).add(sdk::Tensor());
  basis.run(*basis_, sizes, &block.graph, a.threads, a.memory, a.memory_bytes);
}

/// Of weights = plain * envelope.
template <class T>
void StepTangents<T>::backward_envelope(Arrays& a, std::int64_t n) const {
  const std::int64_t width = config_.conv.weight_numel();
  for (std::int64_t e = 0; e < n; ++e) {
    const T c = a.edges.envelope.value[e], c_t = a.edges.envelope.tangent[e];
    double of_c = 0, of_c_t = 0;
    for (std::int64_t k = e * width; k < (e + 1) * width; ++k) {
      const T g = a.grad_weights.value[k], g_t = a.grad_weights.tangent[k], w = a.edges.plain.value[k],
              w_t = a.edges.plain.tangent[k];
      a.grad_plain.value[k] = g * c;
      a.grad_plain.tangent[k] = g_t * c + g * c_t;
      of_c += static_cast<double>(g) * static_cast<double>(w);
      of_c_t += static_cast<double>(g_t) * static_cast<double>(w) + static_cast<double>(g) * static_cast<double>(w_t);
    }
    a.grad_envelope.value[e] = static_cast<T>(of_c);
    a.grad_envelope.tangent[e] = static_cast<T>(of_c_t);
  }
}

template <class T>
void StepTangents<T>::backward(const sdk::Run& run, sdk::Scratch& scratch, Workers& workers) {
  const sdk::HostGraph graph = run.graph.value().host();
  check_species(run, graph);
  const Wanted wanted(run, config_.mlp.n_layers());
  Work work(*this, scratch, sdk::Extents(run), true);
  work.use_saved(*this, run);
  const bool made = work.saved.has_value();
  const std::int64_t in = config_.conv.in.dim();
  const auto layer_numel = [&](std::size_t i) { return config_.mlp.widths[i] * config_.mlp.widths[i + 1]; };
  for (T* const rows : {wanted.x.value, wanted.x.tangent}) {
    if (rows != nullptr) std::fill_n(rows, graph.n_nodes * in, T(0));
  }
  for (std::size_t i = 0; i < work.layers.size(); ++i) {
    std::fill_n(work.layers[i].value, layer_numel(i), 0.0);
    std::fill_n(work.layers[i].tangent, layer_numel(i), 0.0);
  }
  work.run(
      workers, run, graph, species(run),
      [&](Arrays& a, const Block& block) {
        if (!made) make_edges(run, a, block);
        take_features(run, a, block);
        backward_block(run, wanted, a, block);
      },
      [&](const Arrays& a) {
        if (wanted.x.any()) {
          add_rows(a.grad_x.value, in, a.nodes, a.n_nodes, wanted.x.value);
          add_rows(a.grad_x.tangent, in, a.nodes, a.n_nodes, wanted.x.tangent);
        }
        for (std::size_t i = 0; i < wanted.layers.size(); ++i) {
          if (!wanted.layers[i].any()) continue;
          for (std::int64_t k = 0; k < layer_numel(i); ++k) {
            work.layers[i].value[k] += static_cast<double>(a.grad_layers[i].value[k]);
            work.layers[i].tangent[k] += static_cast<double>(a.grad_layers[i].tangent[k]);
          }
        }
      });
  // Into ghosts there is no output.
  const std::int64_t end = graph.receiver_ptr[graph.n_receivers], rest = graph.n_edges - end;
  for (T* const rows : {wanted.vectors.value, wanted.vectors.tangent}) {
    if (rows != nullptr) std::fill_n(rows + 3 * end, 3 * rest, T(0));
  }
  for (T* const rows : {wanted.lengths.value, wanted.lengths.tangent}) {
    if (rows != nullptr) std::fill_n(rows + end, rest, T(0));
  }
  for (std::size_t i = 0; i < wanted.layers.size(); ++i) {
    const auto store = [&](const double* sums, T* to) {
      for (std::int64_t k = 0; k < layer_numel(i) && to != nullptr; ++k) to[k] = static_cast<T>(sums[k]);
    };
    store(work.layers[i].value, wanted.layers[i].value);
    store(work.layers[i].tangent, wanted.layers[i].tangent);
  }
}

template class StepTangents<float>;
template class StepTangents<double>;

}  // namespace cpu_simd
