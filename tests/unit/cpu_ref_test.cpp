// The kernels of cpu_ref against the reference of the core, through the C ABI.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>

#include "../plugin/sdk/fake_host.hpp"
#include "fastpath/sdk/ops.hpp"
#include "ops/conv_tensor_product/conv_tensor_product.hpp"
#include "ops/irreps_linear/irreps_linear.hpp"
#include "ops/radial_basis/radial_basis.hpp"
#include "ops/radial_mlp/radial_mlp.hpp"
#include "ops/species_linear/species_linear.hpp"
#include "ops/spherical_harmonics/spherical_harmonics.hpp"
#include "ops/symmetric_contraction/basis.hpp"
#include "ops/symmetric_contraction/symmetric_contraction.hpp"

namespace {

using namespace fastpath;
using fake::Tensor;

const fake::Plugin& plugin() {
  static const fake::Plugin& loaded = *new fake::Plugin(FASTPATH_PLUGIN_CPU_REF);
  return loaded;
}

/// The precision contract; no output of these cases sums more than 1e4 terms.
template <class T>
constexpr double kTolerance = std::is_same_v<T, float> ? 1e-6 : 1e-14;

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  template <class T>
  Tensor normal(std::vector<std::int64_t> shape, double scale = 1.0) {
    Tensor t = Tensor::zeros<T>(std::move(shape));
    std::normal_distribution<double> distribution(0.0, scale);
    for (T& value : t.span<T>()) value = static_cast<T>(distribution(engine_));
    return t;
  }
  template <class T>
  Tensor uniform(std::vector<std::int64_t> shape, double low, double high) {
    Tensor t = Tensor::zeros<T>(std::move(shape));
    std::uniform_real_distribution<double> distribution(low, high);
    for (T& value : t.span<T>()) value = static_cast<T>(distribution(engine_));
    return t;
  }
  std::int64_t below(std::int64_t n) { return std::uniform_int_distribution<std::int64_t>(0, n - 1)(engine_); }
  Tensor indices(std::int64_t n, std::int64_t n_species) {
    Tensor t = Tensor::zeros<std::int32_t>({n});
    for (std::int32_t& value : t.span<std::int32_t>()) value = static_cast<std::int32_t>(below(n_species));
    return t;
  }
  /// Random edges into the first n_receivers nodes, every tenth of them twice; node 0 has none if it can be helped.
  fake::Graph graph(std::int64_t n_nodes, std::int64_t n_receivers, std::int64_t n_edges) {
    std::vector<std::pair<std::int32_t, std::int32_t>> edges;
    const auto node = [&](std::int64_t n) { return static_cast<std::int32_t>(n < 2 ? 0 : 1 + below(n - 1)); };
    while (static_cast<std::int64_t>(edges.size()) < n_edges) {
      edges.emplace_back(node(n_receivers), node(n_nodes));
      if (edges.size() % 10 == 9) edges.push_back(edges.back());
    }
    edges.resize(static_cast<std::size_t>(n_edges));
    return fake::Graph::from(n_nodes, n_receivers, std::move(edges));
  }

 private:
  std::mt19937 engine_;
};

/// An op with arguments, and what the reference makes of them.
struct Case {
  fake::Query query;
  const fake::Graph* graph = nullptr;
  std::int64_t n_edges = 0, n_rows = 0;
  std::vector<Tensor> inputs, parameters, grad_outputs;
  std::vector<Tensor> outputs, grad_inputs, grad_parameters;  // of the reference; absent where there is none

  fake::Call call(std::uint32_t pass, int threads) const {
    fake::Call c;
    c.pass = pass;
    c.graph = graph;
    c.n_edges = n_edges;
    c.n_rows = n_rows;
    c.inputs = inputs;
    c.grad_outputs = grad_outputs;
    c.threads = threads;
    return c;
  }
};

template <class T>
std::vector<Tensor> unwritten(const std::vector<Tensor>& like) {
  std::vector<Tensor> result;
  for (const Tensor& tensor : like) {
    result.push_back(tensor.present ? Tensor::unwritten<T>(tensor.shape) : Tensor::absent());
  }
  return result;
}

template <class T>
void expect_close(const std::vector<Tensor>& got, const std::vector<Tensor>& want, const std::string& what) {
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (!want[i].present) continue;
    EXPECT_LE(fake::difference(got[i].values<T>(), want[i].values<T>()), kTolerance<T>) << what << ' ' << i;
  }
}
void expect_same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b, const std::string& what) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(a[i].storage.empty() ||
                std::memcmp(a[i].storage.data(), b[i].storage.data(), 8 * a[i].storage.size()) == 0)
        << what << ' ' << i;
  }
}

/// Forward and backward against the reference; the same bits for 1, 2 and 3 threads; each gradient alone the same as
/// all of them together.
template <class T>
void check(const Case& c) {
  fake::Kernel kernel(plugin(), c.query);
  ASSERT_EQ(kernel.created().status, FP_OK) << kernel.created().text;
  const fake::Result bound = kernel.bind(c.parameters);
  ASSERT_EQ(bound.status, FP_OK) << bound.text;

  std::vector<Tensor> outputs, grad_inputs, grad_parameters;
  for (const int threads : {1, 2, 3}) {
    const std::string with = " with " + std::to_string(threads) + " threads";
    fake::Call forward = c.call(FP_PASS_FORWARD, threads);
    forward.outputs = unwritten<T>(c.outputs);
    const fake::Result ran = kernel.run(forward);
    ASSERT_EQ(ran.status, FP_OK) << ran.text;
    fake::Call backward = c.call(FP_PASS_BACKWARD, threads);
    backward.grad_inputs = unwritten<T>(c.grad_inputs);
    backward.grad_parameters = unwritten<T>(c.grad_parameters);
    const fake::Result ran_back = kernel.run(backward);
    ASSERT_EQ(ran_back.status, FP_OK) << ran_back.text;
    if (threads == 1) {
      expect_close<T>(forward.outputs, c.outputs, "output");
      expect_close<T>(backward.grad_inputs, c.grad_inputs, "gradient of input");
      expect_close<T>(backward.grad_parameters, c.grad_parameters, "gradient of parameter");
      outputs = forward.outputs;
      grad_inputs = backward.grad_inputs;
      grad_parameters = backward.grad_parameters;
    } else {
      expect_same_bits(forward.outputs, outputs, "output" + with);
      expect_same_bits(backward.grad_inputs, grad_inputs, "gradient of input" + with);
      expect_same_bits(backward.grad_parameters, grad_parameters, "gradient of parameter" + with);
    }
  }

  const auto alone = [&](bool of_parameter, std::size_t i) {
    fake::Call backward = c.call(FP_PASS_BACKWARD, 2);
    backward.grad_inputs.resize(c.grad_inputs.size());
    backward.grad_parameters.resize(c.grad_parameters.size());
    std::vector<Tensor>& list = of_parameter ? backward.grad_parameters : backward.grad_inputs;
    const std::vector<Tensor>& together = of_parameter ? grad_parameters : grad_inputs;
    if (!together[i].present) return;
    list[i] = Tensor::unwritten<T>(together[i].shape);
    const fake::Result ran = kernel.run(backward);
    ASSERT_EQ(ran.status, FP_OK) << ran.text;
    // How rows are cut may depend on which gradients are wanted, so to rounding only.
    EXPECT_LE(fake::difference(list[i].values<T>(), together[i].values<T>()), kTolerance<T>) << "gradient alone " << i;
  };
  for (std::size_t i = 0; i < c.grad_inputs.size(); ++i) alone(false, i);
  for (std::size_t i = 0; i < c.grad_parameters.size(); ++i) alone(true, i);
}

template <class T>
class CpuRef : public testing::Test {};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(CpuRef, Scalars, );

template <class T, class Config>
Case make_case(const Config& config) {
  Case c;
  c.query.op = Config::kOp;
  c.query.config = config.attributes();
  c.query.dtype = sdk::dtype_of<T>();
  return c;
}

// ---- spherical harmonics
// ---------------------------------------------------------------------------------------------

template <class T>
void spherical_harmonics_case(const sdk::SphericalHarmonicsConfig& config, std::int64_t n, unsigned seed) {
  SCOPED_TRACE("l_max " + std::to_string(config.l_max) + ", edges " + std::to_string(n));
  Random random(seed);
  Case c = make_case<T>(config);
  c.n_edges = n;
  c.inputs = {random.normal<T>({n, 3}, 2.0)};
  if (n > 3) std::fill_n(c.inputs[0].template data<T>() + 3, 3, T(0));  // a vector without direction
  c.grad_outputs = {random.normal<T>({n, config.dim()})};
  c.outputs = {Tensor::zeros<T>({n, config.dim()})};
  c.grad_inputs = {Tensor::zeros<T>({n, 3})};
  const T* v = c.inputs[0].template data<T>();
  ops::spherical_harmonics_forward<T>(config, n, v, c.outputs[0].template data<T>());
  ops::spherical_harmonics_backward<T>(config, n, v, c.grad_outputs[0].template data<T>(),
                                       c.grad_inputs[0].template data<T>());
  check<T>(c);
}

TYPED_TEST(CpuRef, SphericalHarmonicsAgreeWithTheReference) {
  for (const int l_max : {0, 1, 3, 4, 12}) {
    for (const auto normalization :
         {sdk::Normalization::component, sdk::Normalization::norm, sdk::Normalization::integral}) {
      spherical_harmonics_case<TypeParam>({l_max, true, normalization}, 200, 1);
    }
  }
  spherical_harmonics_case<TypeParam>({3, false, sdk::Normalization::component}, 70, 2);
  spherical_harmonics_case<TypeParam>({3, true, sdk::Normalization::component}, 1, 3);
  spherical_harmonics_case<TypeParam>({3, true, sdk::Normalization::component}, 0, 4);
}

// ---- radial basis
// ----------------------------------------------------------------------------------------------------

template <class T>
void radial_basis_case(const sdk::RadialBasisConfig& config, std::int64_t n_edges, bool with_envelope, unsigned seed) {
  Random random(seed);
  Case c = make_case<T>(config);
  const bool transform = config.transform != sdk::DistanceTransform::none;
  const std::int64_t n_nodes = 9;
  const fake::Graph graph = random.graph(n_nodes, n_nodes, n_edges);
  if (transform) c.graph = &graph;
  c.n_edges = n_edges;
  c.inputs = {random.uniform<T>({n_edges}, 0.4, 1.05 * config.r_max), Tensor::absent()};
  if (n_edges > 4) {
    T* r = c.inputs[0].template data<T>();
    r[0] = T(0), r[1] = T(1e-3), r[2] = static_cast<T>(config.r_max), r[3] = static_cast<T>(config.r_max * 0.999);
  }
  if (transform) c.inputs[1] = random.indices(n_nodes, static_cast<std::int64_t>(config.species_radii.size()));
  std::vector<double> weights;
  for (std::int64_t n = 1; n <= config.n_basis; ++n) weights.push_back(3.14159265 * double(n) / config.r_max);
  c.parameters = {Tensor::of<T>({config.n_basis}, weights)};
  c.grad_outputs = {random.normal<T>({n_edges, config.n_basis}), Tensor::absent()};
  c.outputs = {Tensor::zeros<T>({n_edges, config.n_basis}), Tensor::absent()};
  if (with_envelope) c.grad_outputs[1] = random.normal<T>({n_edges});
  if (with_envelope) c.outputs[1] = Tensor::zeros<T>({n_edges});
  c.grad_inputs = {Tensor::zeros<T>({n_edges}), Tensor::absent()};
  c.grad_parameters = {Tensor::zeros<T>({config.n_basis})};
  const auto data = [](auto& tensor) { return tensor.template data<T>(); };
  const std::int32_t* species = c.inputs[1].template data<std::int32_t>();
  ops::radial_basis_forward<T>(config, n_edges, data(c.inputs[0]), graph.sender.data(), graph.receiver.data(), species,
                               data(c.parameters[0]), data(c.outputs[0]), data(c.outputs[1]));
  ops::radial_basis_backward<T>(config, n_edges, data(c.inputs[0]), graph.sender.data(), graph.receiver.data(), species,
                                data(c.parameters[0]), data(c.grad_outputs[0]), data(c.grad_outputs[1]),
                                data(c.grad_inputs[0]), data(c.grad_parameters[0]));
  check<T>(c);
}

TYPED_TEST(CpuRef, RadialBasisAgreesWithTheReference) {
  sdk::RadialBasisConfig config;
  config.r_max = 5.0;
  config.prefactor = std::sqrt(2.0 / config.r_max);
  config.species_radii = {0.31, 0.76, 0.66};
  config.alpha = 2.5;  // not the default: kernels must read the constants they are given
  config.a = 1.3;
  config.q_exponent = 0.8;
  config.p_exponent = 4.2;
  for (const auto transform :
       {sdk::DistanceTransform::none, sdk::DistanceTransform::agnesi, sdk::DistanceTransform::soft}) {
    for (const bool apply_cutoff : {true, false}) {
      for (const std::int64_t n_basis : {8, 1}) {
        for (const std::int64_t n_edges : {700, 20, 0}) {
          SCOPED_TRACE("transform " + std::to_string(static_cast<int>(transform)) + ", cutoff " +
                       std::to_string(apply_cutoff) + ", basis " + std::to_string(n_basis) + ", edges " +
                       std::to_string(n_edges));
          config.transform = transform;
          config.apply_cutoff = apply_cutoff;
          config.n_basis = n_basis;
          config.p = apply_cutoff ? 5 : 6;
          config.frequencies.clear();  // with some, which are not the parameter: they come first
          for (std::int64_t n = 1; n <= n_basis && !apply_cutoff; ++n) {
            config.frequencies.push_back(0.61 * static_cast<double>(n));
          }
          radial_basis_case<TypeParam>(config, n_edges, !apply_cutoff, 7);
        }
      }
    }
  }
}

// ---- radial mlp
// ------------------------------------------------------------------------------------------------------

template <class T>
void radial_mlp_case(std::vector<std::int64_t> widths, std::int64_t n, unsigned seed) {
  SCOPED_TRACE("layers " + std::to_string(widths.size() - 1) + ", rows " + std::to_string(n));
  sdk::RadialMlpConfig config;
  config.widths = std::move(widths);
  for (std::size_t i = 0; i + 1 < config.widths.size(); ++i) {
    config.scales.push_back(1.0 / std::sqrt(static_cast<double>(config.widths[i])));
  }
  Random random(seed);
  Case c = make_case<T>(config);
  c.n_rows = n;
  c.inputs = {random.normal<T>({n, config.widths.front()})};
  c.grad_outputs = {random.normal<T>({n, config.widths.back()})};
  c.outputs = {Tensor::zeros<T>({n, config.widths.back()})};
  c.grad_inputs = {Tensor::zeros<T>({n, config.widths.front()})};
  std::vector<const T*> weights;
  std::vector<T*> grad_weights;
  for (std::size_t i = 0; i < config.n_layers(); ++i) {
    c.parameters.push_back(random.normal<T>({config.widths[i], config.widths[i + 1]}));
    c.grad_parameters.push_back(Tensor::zeros<T>({config.widths[i], config.widths[i + 1]}));
  }
  for (const Tensor& w : c.parameters) weights.push_back(w.data<T>());
  for (Tensor& w : c.grad_parameters) grad_weights.push_back(w.data<T>());
  const T* x = c.inputs[0].template data<T>();
  ops::radial_mlp_forward<T>(config, n, x, weights.data(), c.outputs[0].template data<T>());
  ops::radial_mlp_backward<T>(config, n, x, weights.data(), c.grad_outputs[0].template data<T>(),
                              c.grad_inputs[0].template data<T>(), grad_weights.data());
  check<T>(c);
}

TYPED_TEST(CpuRef, RadialMlpAgreesWithTheReference) {
  radial_mlp_case<TypeParam>({8, 64, 64, 64, 640}, 300, 11);
  radial_mlp_case<TypeParam>({3, 7, 5}, 131, 12);
  radial_mlp_case<TypeParam>({5, 6}, 40, 13);
  radial_mlp_case<TypeParam>({1, 1, 1}, 2000, 14);
  radial_mlp_case<TypeParam>({8, 16, 20}, 0, 15);
}

// ---- linear maps
// -----------------------------------------------------------------------------------------------------

template <class T>
void irreps_linear_case(const char* in, const char* out, bool bias, std::int64_t n, unsigned seed) {
  SCOPED_TRACE(std::string(in) + " to " + out + ", rows " + std::to_string(n));
  const sdk::IrrepsLinearConfig config{sdk::Irreps::parse(in), sdk::Irreps::parse(out), bias, 0.7};
  Random random(seed);
  Case c = make_case<T>(config);
  c.n_rows = n;
  c.inputs = {random.normal<T>({n, config.in.dim()})};
  c.parameters = {random.normal<T>({config.weight_numel()}), Tensor::absent()};
  c.grad_outputs = {random.normal<T>({n, config.out.dim()})};
  c.outputs = {Tensor::zeros<T>({n, config.out.dim()})};
  c.grad_inputs = {Tensor::zeros<T>({n, config.in.dim()})};
  c.grad_parameters = {Tensor::zeros<T>({config.weight_numel()}), Tensor::absent()};
  if (bias) c.parameters[1] = random.normal<T>({config.bias_numel()});
  if (bias) c.grad_parameters[1] = Tensor::zeros<T>({config.bias_numel()});
  const auto data = [](auto& tensor) { return tensor.template data<T>(); };
  ops::irreps_linear_forward<T>(config, n, data(c.inputs[0]), data(c.parameters[0]), data(c.parameters[1]),
                                data(c.outputs[0]));
  ops::irreps_linear_backward<T>(config, n, data(c.inputs[0]), data(c.parameters[0]), data(c.grad_outputs[0]),
                                 data(c.grad_inputs[0]), data(c.grad_parameters[0]), data(c.grad_parameters[1]));
  check<T>(c);
}

TYPED_TEST(CpuRef, IrrepsLinearAgreesWithTheReference) {
  irreps_linear_case<TypeParam>("32x0e+32x1o", "32x0e+32x1o", false, 150, 21);
  irreps_linear_case<TypeParam>("2x0e+1x1o+1x0e+3x2e", "2x0e+2x1o+5x3o", true, 67, 22);
  irreps_linear_case<TypeParam>("33x0e+17x1o+5x4e", "19x0e+41x1o+7x4e+3x0e", true, 33, 23);
  irreps_linear_case<TypeParam>("3x0e", "2x1o", false, 20, 24);
  irreps_linear_case<TypeParam>("4x0e+4x1o", "4x0e+4x1o", true, 0, 25);
  irreps_linear_case<TypeParam>("1x0e", "1x0e", false, 1, 26);
}

template <class T>
void species_linear_case(const char* in, const char* out, std::int64_t n_species, std::int64_t n, unsigned seed) {
  SCOPED_TRACE(std::string(in) + " to " + out + ", rows " + std::to_string(n));
  const sdk::SpeciesLinearConfig config{sdk::Irreps::parse(in), sdk::Irreps::parse(out), n_species};
  Random random(seed);
  Case c = make_case<T>(config);
  c.n_rows = n;
  c.inputs = {random.normal<T>({n, config.in.dim()}), random.indices(n, std::max<std::int64_t>(1, n_species - 1))};
  c.parameters = {random.normal<T>({config.weight_numel()})};
  c.grad_outputs = {random.normal<T>({n, config.out.dim()})};
  c.outputs = {Tensor::zeros<T>({n, config.out.dim()})};
  c.grad_inputs = {Tensor::zeros<T>({n, config.in.dim()}), Tensor::absent()};
  c.grad_parameters = {Tensor::zeros<T>({config.weight_numel()})};
  const auto data = [](auto& tensor) { return tensor.template data<T>(); };
  const std::int32_t* species = c.inputs[1].template data<std::int32_t>();
  ops::species_linear_forward<T>(config, n, data(c.inputs[0]), species, data(c.parameters[0]), data(c.outputs[0]));
  ops::species_linear_backward<T>(config, n, data(c.inputs[0]), species, data(c.parameters[0]), data(c.grad_outputs[0]),
                                  data(c.grad_inputs[0]), data(c.grad_parameters[0]));
  check<T>(c);
}

TYPED_TEST(CpuRef, SpeciesLinearAgreesWithTheReference) {
  species_linear_case<TypeParam>("32x0e+32x1o", "32x0e+32x1o", 4, 150, 31);
  species_linear_case<TypeParam>("1x0e+1x1o+3x2e", "2x0e+1x1o+5x3o", 3, 67, 32);
  species_linear_case<TypeParam>("17x0e+5x1o", "33x0e+2x1o", 1, 40, 33);
  species_linear_case<TypeParam>("4x0e+4x1o", "4x0e+4x1o", 5, 0, 34);
}

// ---- conv tensor product
// ---------------------------------------------------------------------------------------------

/// All paths of operators.md 2.7 into the irreps of `target`, in enumeration order.
sdk::ConvTensorProductConfig conv_config(const std::string& in, const std::string& edge, const std::string& target) {
  sdk::ConvTensorProductConfig config{sdk::Irreps::parse(in), sdk::Irreps::parse(edge), {}, {}};
  const sdk::Irreps wanted = sdk::Irreps::parse(target);
  std::vector<sdk::IrrepsBlock> out;
  for (std::size_t i = 0; i < config.in.size(); ++i) {
    for (std::size_t j = 0; j < config.edge.size(); ++j) {
      const sdk::Irrep a = config.in[i].ir, b = config.edge[j].ir;
      for (int l = std::abs(a.l - b.l); l <= a.l + b.l; ++l) {
        if (wanted.count({l, a.parity * b.parity}) == 0) continue;
        config.instructions.push_back({i, j, out.size(), std::sqrt(2.0 * l + 1.0)});
        out.push_back({config.in[i].mul, {l, a.parity * b.parity}});
      }
    }
  }
  config.out = sdk::Irreps(std::move(out));
  config.check();
  return config;
}

template <class T>
Case conv_case(const sdk::ConvTensorProductConfig& config, const fake::Graph& graph, Random& random) {
  Case c = make_case<T>(config);
  const std::int64_t n_edges = graph.n_edges();
  c.graph = &graph;
  c.inputs = {random.normal<T>({graph.n_nodes, config.in.dim()}), random.normal<T>({n_edges, config.edge.dim()}),
              random.normal<T>({n_edges, config.weight_numel()})};
  c.grad_outputs = {random.normal<T>({graph.n_receivers, config.out.dim()})};
  c.outputs = {Tensor::zeros<T>({graph.n_receivers, config.out.dim()})};
  for (const Tensor& input : c.inputs) c.grad_inputs.push_back(Tensor::zeros<T>(input.shape));
  const auto data = [](auto& tensor) { return tensor.template data<T>(); };
  const ops::GraphView view{n_edges,
                            graph.n_nodes,
                            graph.n_receivers,
                            graph.sender.data(),
                            graph.receiver.data(),
                            graph.receiver_ptr.data(),
                            graph.sender_ptr.data(),
                            graph.sender_edge.data()};
  ops::conv_tensor_product_forward<T>(config, view, data(c.inputs[0]), data(c.inputs[1]), data(c.inputs[2]),
                                      data(c.outputs[0]));
  ops::conv_tensor_product_backward<T>(config, view, data(c.inputs[0]), data(c.inputs[1]), data(c.inputs[2]),
                                       data(c.grad_outputs[0]), data(c.grad_inputs[0]), data(c.grad_inputs[1]),
                                       data(c.grad_inputs[2]));
  return c;
}

struct ConvShape {
  const char *in, *edge, *target;
  std::int64_t n_nodes, n_receivers, n_edges;
};

TYPED_TEST(CpuRef, ConvTensorProductAgreesWithTheReference) {
  const ConvShape shapes[] = {
      {"16x0e+16x1o", "1x0e+1x1o+1x2e+1x3o", "1x0e+1x1o+1x2e+1x3o", 30, 30, 400},
      {"1x0e+1x1o", "1x0e+1x1o+1x2e", "1x0e+1x1o+1x2e", 5, 5, 17},
      {"13x0e", "1x0e+1x1o+1x2e+1x3o", "1x0e+1x1o+1x2e+1x3o", 12, 12, 60},
      {"3x0e+5x1o+2x2e+1x3o+1x4e", "1x0e+1x1o+1x2e+1x3o+1x4e", "1x0e+1x1o+1x2e+1x3o+1x4e", 7, 7, 40},
      {"9x0e+4x0o+3x1o+7x1e", "1x0e+1x1o+1x2e", "1x0e+1x0o+1x1o+1x1e+1x2e+1x2o", 8, 8, 50},  // unequal, both parities
      {"8x0e+8x1o", "1x0e+1x1o", "1x0e+1x1o", 20, 6, 90},                                    // ghosts
      {"8x0e+8x1o", "1x0e+1x1o", "1x0e+1x1o", 4, 4, 0},
      {"8x0e+8x1o", "1x0e+1x1o", "1x0e+1x1o", 0, 0, 0},
      {"2x0e+2x1o", "1x0e+1x1o", "1x0e+1x1o", 2, 2, 3000},  // one receiver with very many edges
  };
  unsigned seed = 40;
  for (const ConvShape& shape : shapes) {
    SCOPED_TRACE(std::string(shape.in) + ", edges " + std::to_string(shape.n_edges));
    Random random(++seed);
    const fake::Graph graph = random.graph(shape.n_nodes, shape.n_receivers, shape.n_edges);
    check<TypeParam>(conv_case<TypeParam>(conv_config(shape.in, shape.edge, shape.target), graph, random));
  }
}

TYPED_TEST(CpuRef, ConvTensorProductAddsPathsThatShareAnOutputBlock) {
  sdk::ConvTensorProductConfig config{sdk::Irreps::parse("4x0e+4x1o"),
                                      sdk::Irreps::parse("1x0e+1x1o"),
                                      sdk::Irreps::parse("4x1o"),
                                      {{0, 1, 0, 1.5}, {1, 0, 0, -0.5}}};
  Random random(51);
  const fake::Graph graph = random.graph(6, 6, 30);
  check<TypeParam>(conv_case<TypeParam>(config, graph, random));
}

TEST(CpuRefConv, EdgesIntoGhostsHaveNoOutputAndNoGradient) {
  const sdk::ConvTensorProductConfig config = conv_config("4x0e+4x1o", "1x0e+1x1o", "1x0e+1x1o");
  // Node 2 is a ghost that receives: with n_receivers 2 its edge must not matter.
  const fake::Graph with = fake::Graph::from(3, 2, {{0, 1}, {1, 2}, {2, 0}});
  const fake::Graph without = fake::Graph::from(3, 2, {{0, 1}, {1, 2}});
  Random random(52);
  const Case expected = conv_case<double>(config, without, random);
  Case c = expected;
  c.graph = &with;
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {  // one more row for y and w
    std::vector<double> values = c.inputs[i].values<double>();
    const std::int64_t width = c.inputs[i].shape[1];
    values.insert(values.end(), static_cast<std::size_t>(width), 3.0);
    c.inputs[i] = Tensor::of<double>({3, width}, values);
    values = expected.grad_inputs[i].values<double>();
    values.insert(values.end(), static_cast<std::size_t>(width), 0.0);
    c.grad_inputs[i] = Tensor::of<double>({3, width}, values);
  }
  check<double>(c);
}

// ---- symmetric contraction
// -------------------------------------------------------------------------------------------

template <class T>
Case symmetric_case(int l_max, std::vector<int> targets, int correlation, std::int64_t channels, std::int64_t n_species,
                    std::int64_t n, unsigned seed) {
  sdk::SymmetricContractionConfig config;
  config.channels = channels;
  config.dim = std::int64_t{l_max + 1} * (l_max + 1);
  config.correlation = correlation;
  config.n_species = n_species;
  config.targets = std::move(targets);
  Random random(seed);
  std::vector<Tensor> parameters;
  for (const int target : config.targets) {
    auto& counts = config.n_paths.emplace_back();
    for (int nu = 1; nu <= correlation; ++nu) {
      std::int64_t k = 0;
      const std::vector<double> u = ops::u_matrix(l_max, target, nu, &k);
      counts.push_back(k);
      std::vector<std::int64_t> shape;
      if (target != 0) shape.push_back(2 * target + 1);
      shape.insert(shape.end(), static_cast<std::size_t>(nu), config.dim);
      shape.push_back(k);
      parameters.push_back(Tensor::of<T>(shape, u));
      parameters.push_back(random.normal<T>({n_species, k, channels}));
    }
  }
  Case c = make_case<T>(config);
  c.n_rows = n;
  c.parameters = std::move(parameters);
  c.inputs = {random.normal<T>({n, channels, config.dim}), random.indices(n, std::max<std::int64_t>(1, n_species - 1))};
  c.grad_outputs = {random.normal<T>({n, config.out_dim()})};
  c.outputs = {Tensor::zeros<T>({n, config.out_dim()})};
  c.grad_inputs = {Tensor::zeros<T>(c.inputs[0].shape), Tensor::absent()};
  std::vector<const T*> u, weights;
  std::vector<T*> grad_weights;
  for (std::size_t i = 0; i < c.parameters.size(); ++i) {
    c.grad_parameters.push_back(i % 2 == 0 ? Tensor::absent() : Tensor::zeros<T>(c.parameters[i].shape));
  }
  for (std::size_t i = 0; i < c.parameters.size(); i += 2) {
    u.push_back(c.parameters[i].template data<T>());
    weights.push_back(c.parameters[i + 1].template data<T>());
    grad_weights.push_back(c.grad_parameters[i + 1].template data<T>());
  }
  const auto polynomial = sdk::SymmetricPolynomial::build(config, u.data());
  const T* x = c.inputs[0].template data<T>();
  const std::int32_t* species = c.inputs[1].template data<std::int32_t>();
  ops::symmetric_contraction_forward<T>(config, polynomial, n, x, species, weights.data(),
                                        c.outputs[0].template data<T>());
  ops::symmetric_contraction_backward<T>(config, polynomial, n, x, species, weights.data(),
                                         c.grad_outputs[0].template data<T>(), c.grad_inputs[0].template data<T>(),
                                         grad_weights.data());
  return c;
}

TYPED_TEST(CpuRef, SymmetricContractionAgreesWithTheReference) {
  check<TypeParam>(symmetric_case<TypeParam>(2, {0, 1}, 3, 16, 3, 50, 61));
  check<TypeParam>(symmetric_case<TypeParam>(1, {1, 0, 2}, 2, 5, 2, 23, 62));
  check<TypeParam>(symmetric_case<TypeParam>(1, {0}, 4, 1, 1, 9, 63));
  check<TypeParam>(symmetric_case<TypeParam>(3, {0, 1}, 3, 33, 4, 7, 64));
  check<TypeParam>(symmetric_case<TypeParam>(2, {0, 1}, 3, 4, 3, 0, 65));
  check<TypeParam>(symmetric_case<TypeParam>(0, {0}, 1, 3, 2, 5, 66));
}

TEST(CpuRefSymmetric, FollowsParametersOnlyWhenTheirVersionChanges) {
  const Case a = symmetric_case<double>(1, {0, 1}, 2, 4, 2, 10, 71),
             b = symmetric_case<double>(1, {0, 1}, 2, 4, 2, 10, 72);
  fake::Kernel kernel(plugin(), a.query);
  const auto evaluate = [&](const Case& c) {
    fake::Call call = c.call(FP_PASS_FORWARD, 1);
    call.outputs = unwritten<double>(c.outputs);
    EXPECT_EQ(kernel.run(call).status, FP_OK);
    return call.outputs[0].values<double>();
  };
  ASSERT_EQ(kernel.bind(a.parameters, 5).status, FP_OK);
  EXPECT_LE(fake::difference(evaluate(a), a.outputs[0].values<double>()), 1e-14);
  ASSERT_EQ(kernel.bind(b.parameters, 5).status, FP_OK);
  EXPECT_LE(fake::difference(evaluate(a), a.outputs[0].values<double>()), 1e-14);
  ASSERT_EQ(kernel.bind(b.parameters, 6).status, FP_OK);
  EXPECT_LE(fake::difference(evaluate(b), b.outputs[0].values<double>()), 1e-14);
}

// ---- refusals
// --------------------------------------------------------------------------------------------------------

using Blockers = std::vector<std::pair<std::int32_t, std::string>>;

TEST(CpuRefQuery, SaysYesWithItsPromises) {
  const fake::Query query{.op = "spherical_harmonics", .config = sdk::SphericalHarmonicsConfig{3}.attributes()};
  const fake::Answer answer = fake::ask(plugin(), query);
  EXPECT_EQ(answer.result.status, FP_OK);
  EXPECT_EQ(answer.c.verdict, FP_ANSWER_YES);
  EXPECT_EQ(answer.c.flags, FP_KERNEL_DETERMINISTIC | FP_KERNEL_THREAD_SAFE);
  EXPECT_EQ(answer.c.tolerance, 0.0);
  EXPECT_EQ(answer.c.min_edges, 0);
  EXPECT_EQ(answer.c.max_edges, 0);
}

TEST(CpuRefQuery, TellsFromHowManyEdgesOnItWasMeasuredToBeFaster) {
  const auto prior = [](const char* op, const sdk::Attributes& config, sdk::DType dtype, std::uint32_t passes) {
    const fake::Query query{.op = op, .config = config, .dtype = dtype, .passes = passes};
    const fake::Answer answer = fake::ask(plugin(), query);
    EXPECT_EQ(answer.c.verdict, FP_ANSWER_YES);
    return answer.c.prior_edges;
  };
  const std::uint32_t forces = FP_PASS_FORWARD | FP_PASS_BACKWARD;
  const sdk::Attributes mlp = sdk::RadialMlpConfig{{8, 16, 16}, {0.3, 0.2}}.attributes();
  EXPECT_EQ(prior("radial_mlp", mlp, sdk::kFloat32, forces), 0);
  EXPECT_EQ(prior("radial_mlp", mlp, sdk::kFloat64, FP_PASS_FORWARD), 0);
  EXPECT_LT(prior("radial_mlp", mlp, sdk::kFloat64, forces | FP_PASS_FORWARD_TANGENT), 0);
  EXPECT_LT(prior("spherical_harmonics", sdk::SphericalHarmonicsConfig{3}.attributes(), sdk::kFloat64, forces), 0);
}

TEST(CpuRefQuery, NamesEveryBlocker) {
  const fake::Query query{.op = "spherical_harmonics",
                          .config = sdk::SphericalHarmonicsConfig{13}.attributes(),
                          .dtype = {FP_CODE_FLOAT, 16, 1},
                          .passes = FP_PASS_FORWARD | 16,
                          .device_type = FP_DEVICE_CUDA};
  const fake::Answer answer = fake::ask(plugin(), query);
  EXPECT_EQ(answer.c.verdict, FP_ANSWER_NO);
  EXPECT_EQ(answer.blockers, (Blockers{{FP_REASON_DEVICE, "device type 2, only the CPU"},
                                       {FP_REASON_DTYPE, "float16, only float32 and float64"},
                                       {FP_REASON_PASS, "passes 17, only forward, backward and their tangents"},
                                       {FP_REASON_DEGREE, "l_max 13, at most 12"}}));
}

TEST(CpuRefQuery, RefusesUnknownOpsVersionsAndConfigurations) {
  EXPECT_EQ(fake::ask(plugin(), {.op = "org.acme.op", .config = {}}).blockers,
            (Blockers{{FP_REASON_OP, "op 'org.acme.op' is not known here"}}));
  EXPECT_EQ(fake::ask(plugin(), {.op = "radial_mlp", .version = 2, .config = {}}).blockers,
            (Blockers{{FP_REASON_OP_VERSION, "version 2 of radial_mlp, only 1"}}));
  EXPECT_EQ(fake::ask(plugin(), {.op = "radial_mlp", .config = {}}).blockers,
            (Blockers{{FP_REASON_CONFIG, "attribute 'widths' is missing"}}));
  sdk::SymmetricContractionConfig five{.correlation = 5, .targets = {0}, .n_paths = {{1, 1, 1, 1, 1}}};
  EXPECT_EQ(fake::ask(plugin(), {.op = "symmetric_contraction", .config = five.attributes()}).blockers,
            (Blockers{{FP_REASON_CONFIG, "correlation 5, at most 4"}}));
}

TEST(CpuRefQuery, ARefusedQueryCreatesNoKernel) {
  const fake::Query query{.op = "spherical_harmonics", .config = sdk::SphericalHarmonicsConfig{13}.attributes()};
  const fake::Kernel kernel(plugin(), query);
  EXPECT_EQ(kernel.created().status, FP_E_UNSUPPORTED);
  EXPECT_EQ(kernel.created().text, "l_max 13, at most 12");
}

class CpuRefRun : public testing::Test {
 protected:
  CpuRefRun() : random_(81), graph_(random_.graph(5, 5, 12)) {
    case_ = conv_case<double>(conv_config("2x0e+2x1o", "1x0e+1x1o", "1x0e+1x1o"), graph_, random_);
    kernel_ = std::make_unique<fake::Kernel>(plugin(), case_.query);
  }
  fake::Result run(std::uint32_t pass, const std::function<void(fake::Call&)>& change) {
    fake::Call call = case_.call(pass, 2);
    call.outputs = unwritten<double>(case_.outputs);
    call.grad_inputs = unwritten<double>(case_.grad_inputs);
    change(call);
    return kernel_->run(call);
  }
  void expect(const fake::Result& result, std::int32_t status, const std::string& text) {
    EXPECT_EQ(result.status, status);
    EXPECT_EQ(result.text, text);
  }
  Random random_;
  fake::Graph graph_;
  Case case_;
  std::unique_ptr<fake::Kernel> kernel_;
};

TEST_F(CpuRefRun, RefusesWrongShapes) {
  expect(run(FP_PASS_FORWARD,
             [&](auto& c) {
               c.inputs[0] = Tensor::zeros<double>({4, 8});
             }),
         FP_E_INVALID_ARGUMENT, "input 'x' has shape [4, 8], expected [5, 8]");
  expect(run(FP_PASS_FORWARD, [&](auto& c) { c.inputs[2] = Tensor::zeros<double>({12}); }), FP_E_INVALID_ARGUMENT,
         "input 'w' has shape [12], expected [12, 8]");
  expect(run(FP_PASS_FORWARD,
             [&](auto& c) {
               c.outputs[0] = Tensor::zeros<double>({5, 17});
             }),
         FP_E_INVALID_ARGUMENT, "output 'out' has shape [5, 17], expected [5, 16]");
  expect(run(FP_PASS_BACKWARD,
             [&](auto& c) {
               c.grad_outputs[0] = Tensor::zeros<double>({6, 16});
             }),
         FP_E_INVALID_ARGUMENT, "gradient of output 'out' has shape [6, 16], expected [5, 16]");
  expect(run(FP_PASS_BACKWARD,
             [&](auto& c) {
               c.grad_inputs[1] = Tensor::zeros<double>({12, 3});
             }),
         FP_E_INVALID_ARGUMENT, "gradient of input 'y' has shape [12, 3], expected [12, 4]");
}

TEST_F(CpuRefRun, RefusesAnotherDtypeAndDevice) {
  expect(run(FP_PASS_FORWARD,
             [&](auto& c) {
               c.inputs[0] = Tensor::zeros<float>({5, 8});
             }),
         FP_E_INVALID_ARGUMENT, "input 'x' is float32, expected float64");
  expect(run(FP_PASS_FORWARD, [&](auto& c) { c.inputs[0].device_type = FP_DEVICE_CUDA; }), FP_E_INVALID_ARGUMENT,
         "a tensor on device type 2, expected the CPU");
}

TEST_F(CpuRefRun, RefusesWhatIsMissing) {
  expect(run(FP_PASS_FORWARD, [&](auto& c) { c.inputs[1] = Tensor::absent(); }), FP_E_INVALID_ARGUMENT,
         "input 'y' is absent, but needed");
  expect(run(FP_PASS_FORWARD, [&](auto& c) { c.outputs.clear(); }), FP_E_INVALID_ARGUMENT,
         "output 'out' is absent, but needed");
  expect(run(FP_PASS_FORWARD, [&](auto& c) { c.graph = nullptr; }), FP_E_INVALID_ARGUMENT,
         "the op needs a graph, and none is given");
  EXPECT_THAT(run(FP_PASS_FORWARD, [&](auto& c) { c.scratch_missing = 1; }).status, FP_E_INVALID_ARGUMENT);
}

TEST_F(CpuRefRun, LeavesStridedTensorsAndUnknownPassesToTheReference) {
  expect(run(FP_PASS_FORWARD,
             [&](auto& c) {
               c.inputs[0].strides = {1, 5};
             }),
         FP_E_UNSUPPORTED, "a strided tensor of shape [5, 8], expected a contiguous one");
  expect(run(16, [&](auto&) {}), FP_E_UNSUPPORTED, "pass 16, expected one of forward, backward and their tangents");
}

TEST_F(CpuRefRun, HonoursTheByteOffset) {
  fake::Call plain = case_.call(FP_PASS_FORWARD, 1);
  plain.outputs = unwritten<double>(case_.outputs);
  ASSERT_EQ(kernel_->run(plain).status, FP_OK);
  fake::Call moved = case_.call(FP_PASS_FORWARD, 1);
  moved.outputs = unwritten<double>(case_.outputs);
  auto& storage = moved.inputs[0].storage;
  storage.insert(storage.begin(), 3, std::numeric_limits<double>::quiet_NaN());
  moved.inputs[0].byte_offset = 24;
  ASSERT_EQ(kernel_->run(moved).status, FP_OK);
  EXPECT_EQ(moved.outputs[0].values<double>(), plain.outputs[0].values<double>());
}

TEST(CpuRefParameters, AreNeededBeforeTheFirstRunAndInTheirShape) {
  const sdk::IrrepsLinearConfig config{sdk::Irreps::parse("2x0e"), sdk::Irreps::parse("3x0e")};
  fake::Kernel kernel(plugin(), {.op = "irreps_linear", .config = config.attributes()});
  fake::Call call;
  call.n_rows = 1;
  call.inputs = {Tensor::zeros<double>({1, 2})};
  call.outputs = {Tensor::zeros<double>({1, 3})};
  EXPECT_EQ(kernel.run(call).text, "parameters were not bound yet");
  const fake::Result bound = kernel.bind({Tensor::zeros<double>({7})});
  EXPECT_EQ(bound.status, FP_E_INVALID_ARGUMENT);
  EXPECT_EQ(bound.text, "parameter 'weight' has shape [7], expected [6]");
}

TEST(CpuRefSpecies, OutOfRangeIsNamed) {
  const sdk::SpeciesLinearConfig config{sdk::Irreps::parse("1x0e"), sdk::Irreps::parse("1x0e"), 2};
  fake::Kernel kernel(plugin(), {.op = "species_linear", .config = config.attributes()});
  ASSERT_EQ(kernel.bind({Tensor::zeros<double>({2})}).status, FP_OK);
  fake::Call call;
  call.n_rows = 2;
  call.inputs = {Tensor::zeros<double>({2, 1}), Tensor::of<std::int32_t>({2}, std::vector<int>{1, 2})};
  call.outputs = {Tensor::zeros<double>({2, 1})};
  const fake::Result ran = kernel.run(call);
  EXPECT_EQ(ran.status, FP_E_INVALID_ARGUMENT);
  EXPECT_EQ(ran.text, "species 2 of row 1, expected 0..1");
}

}  // namespace
