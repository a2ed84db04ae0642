#include <algorithm>
#include <cmath>
#include <cstring>

#include "fastpath/sdk/check.hpp"
#include "op.hpp"

namespace fastpath_gpu {
namespace {

/// One work-item an edge. In float32 the argument w r of the sine is kept as a sum of two floats, since rounding it
/// would cost the digits that it has before the point. A distance transform is computed in float64 for both dtypes: the
/// sine multiplies its error by w.
class RadialBasis final : public PartOp {
 public:
  /// @param trains  Whether the weights have gradients.
  explicit RadialBasis(sdk::RadialBasisConfig config, bool trains = true)
      : PartOp(config.signature()), config_(std::move(config)), trains_(trains) {}

  void write(Source& source, std::uint32_t passes) override {
    if (transformed() && !source.target().fp64) {
      throw sdk::Refused("radial_basis with a distance transform computes in float64, which the device does not");
    }
    wide_ = source.dtype() == sdk::kFloat64 || transformed();
    helpers(source);
    if ((passes & FP_PASS_FORWARD) != 0) forward(source);
    if ((passes & FP_PASS_BACKWARD) != 0) {
      backward(source);
      if (trains_) grad_weights(source);
    }
  }
  void add_tables(Program& program) const override {
    if (!transformed()) return;
    program.tables.emplace_back(config_.species_radii.size() * sizeof(double));
    std::memcpy(program.tables[0].data(), config_.species_radii.data(), program.tables[0].size());
  }

  void plan(const Call& call, Plan& plan) const override {
    std::vector<Argument> inputs{Buffer{Role::input, 0}, Buffer{Role::parameter, 0}};
    if (transformed()) {
      inputs.insert(inputs.end(), {Buffer{Role::input, 1}, Buffer{Role::table, 0}, graph_array(GraphArray::sender),
                                   graph_array(GraphArray::receiver)});
    }
    const auto with = [&](std::vector<Argument> more) {
      std::vector<Argument> result = inputs;
      result.insert(result.end(), more.begin(), more.end());
      return result;
    };
    if (call.pass == sdk::Pass::forward) {
      // What is not wanted gets an address that is there, and is not touched.
      const bool envelope = call.outputs.size() > 1 && call.outputs[1];
      plan.launch_items("radial_basis_forward", call.n_edges,
                        with({Buffer{Role::output, 0}, Buffer{Role::output, envelope ? 1u : 0u}, std::int64_t{envelope},
                              call.n_edges}));
      return;
    }
    const bool envelope = call.grad_outputs.size() > 1 && call.grad_outputs[1];
    const Buffer grad_embedding{Role::grad_output, 0}, grad_envelope{Role::grad_output, envelope ? 1u : 0u};
    if (call.grad_inputs[0]) {
      plan.launch_items(
          "radial_basis_backward", call.n_edges,
          with({grad_embedding, grad_envelope, std::int64_t{envelope}, Buffer{Role::grad_input, 0}, call.n_edges}));
    }
    if (!trains_) return;
    const std::int64_t blocks = (call.n_edges + kBlock - 1) / kBlock;
    const Buffer partial =
        plan.scratch(static_cast<std::uint64_t>(std::max<std::int64_t>(blocks * config_.n_basis, 1)) * sizeof(double));
    if (!call.grad_parameters.empty() && call.grad_parameters[0]) {
      plan.launch("radial_basis_grad_weights", blocks * config_.n_basis, with({grad_embedding, partial, call.n_edges}));
      plan.launch_items("radial_basis_sum", config_.n_basis, {partial, Buffer{Role::grad_parameter, 0}, blocks});
    }
  }

 private:
  static constexpr std::uint32_t kGroup = 64;
  static constexpr std::int64_t kBlock = 1024;  ///< Edges that one group sums for a weight.

  bool transformed() const { return config_.transform != sdk::DistanceTransform::none; }
  std::string number(double value) const { return wide_ ? literal(value) : literal(static_cast<float>(value)); }
  const char* type() const { return wide_ ? "double" : "real"; }
  std::string call(const char* function, const std::string& argument) const {
    return (wide_ ? std::string(function) : "fp_" + std::string(function)) + "(" + argument + ")";
  }

  /// Functions of the program. `wide` is the type that they compute in; an argument of the sine is head + tail.
  void helpers(Source& s) const {
    s.line("typedef ", type(), " wide;");
    s.line("typedef struct { wide value, slope; } ValueAndSlope;");
    s.gap();
    s.line("// sin(t) / t and its derivative; below 1 by their series, which does not cancel.");
    s.line("FP_DEVICE ValueAndSlope sinc(wide head, wide tail) {");
    s.line("const wide t = head + tail;");
    s.line("ValueAndSlope result;");
    s.line("if (t >= ", number(1), " || t <= ", number(-1), " || !(t == t)) {");
    s.line("const wide sine = ", call("sin", "head"), ", cosine = ", call("cos", "head"), ";");
    s.line("const wide s = (sine + tail * cosine) / t;");
    s.line("result.value = s;");
    s.line("result.slope = (cosine - tail * sine - s) / t;");
    s.line("return result;");
    s.line("}");
    const int last = wide_ ? 9 : 5;
    double factorial = 1.0;
    std::vector<double> terms{1.0};
    for (int k = 1; k <= last; ++k) terms.push_back(factorial *= -1.0 / (2.0 * k * (2.0 * k + 1.0)));
    s.line("const wide q = t * t;");
    std::string value = number(terms.back()), slope = number(2.0 * last * terms.back());
    for (int k = last - 1; k >= 0; --k) {
      value = number(terms[static_cast<std::size_t>(k)]) + " + q * (" + value + ")";
      if (k > 0) slope = number(2.0 * k * terms[static_cast<std::size_t>(k)]) + " + q * (" + slope + ")";
    }
    s.line("result.value = ", value, ";");
    s.line("result.slope = t * (", slope, ");");
    s.line("return result;");
    s.line("}");
    s.gap();

    const int p = config_.p;
    s.line("// The envelope as (1-u)^3 q(u), which keeps its digits near r_max; 0 from there on.");
    s.line("FP_DEVICE ValueAndSlope envelope_of(wide r) {");
    s.line("ValueAndSlope result;");
    s.line("result.value = r == r ? ", number(0), " : r;");
    s.line("result.slope = result.value;");
    s.line("if (!(r < ", number(config_.r_max), ")) return result;");
    s.line("const wide u = r / ", number(config_.r_max), ", rest = (", number(config_.r_max), " - r) / ",
           number(config_.r_max), ";");
    s.line("wide power = ", number(1), ", q = ", number(1), ";");
    for (int k = 1; k < p; ++k) {
      s.line("power *= u;");
      s.line("q += ", number(0.5 * (k + 1) * (k + 2)), " * power;");
    }
    s.line("result.value = rest * rest * rest * q;");
    s.line("result.slope = ", number(-0.5 * p * (p + 1) * (p + 2) / config_.r_max), " * power * rest * rest;");
    s.line("return result;");
    s.line("}");
    s.gap();
    if (transformed()) transform(s);
  }

  void transform(Source& s) const {
    s.line("// The distance that the basis takes, and its derivative; sum: of the covalent radii of both ends.");
    s.line("FP_DEVICE ValueAndSlope transformed(wide r, wide sum) {");
    s.line("ValueAndSlope result;");
    if (config_.transform == sdk::DistanceTransform::agnesi) {
      // x = 1 / (1 + s), s = a y^q / (1 + y^(q-p)) = a y^p / (1 + y^(p-q)), which is defined at y = 0.
      const double q = config_.q_exponent, p = config_.p_exponent;
      s.line("const wide y = 2.0 * r / sum, t = pow(y, ", number(p - q), ");");
      s.line("const wide x = 1.0 / (1.0 + ", number(config_.a), " * pow(y, ", number(p), ") / (1.0 + t));");
      s.line("const wide slope = ", number(config_.a), " * pow(y, ", number(p - 1.0), ") * (", number(p), " + ",
             number(q), " * t) / ((1.0 + t) * (1.0 + t));");
      s.line("result.value = x;");
      s.line("result.slope = -x * x * slope * 2.0 / sum;");
    } else {
      s.line("const wide p0 = 0.75 * sum, p1 = ", number(4.0 / 3.0), " * sum, alpha = ", number(config_.alpha),
             " / (p1 - p0);");
      s.line("// (1 + tanh z) / 2 and (1 - tanh z) / 2 as they keep their digits where one of them is small.");
      s.line("const wide z = 2.0 * alpha * (r - 0.5 * (p0 + p1));");
      s.line("const wide part = 1.0 / (1.0 + exp(-z)), rest = 1.0 / (1.0 + exp(z));");
      s.line("result.value = p0 + (r - p0) * part;");
      s.line("result.slope = part * (1.0 + (r - p0) * 2.0 * alpha * rest);");
    }
    s.line("return result;");
    s.line("}");
    s.line("FP_DEVICE wide radius(i32 species, FP_GLOBAL const double* radii) {");
    s.line("return species >= 0 && species < ", config_.species_radii.size(), " ? radii[species] : sqrt(-1.0);");
    s.line("}");
    s.gap();
  }

  std::vector<Source::Parameter> parameters(std::vector<Source::Parameter> more) const {
    std::vector<Source::Parameter> result{Source::in("lengths"), Source::in("bessel_weights")};
    if (transformed()) {
      result.insert(result.end(), {Source::in("species", "i32"), Source::in("radii", "double"),
                                   Source::in("sender", "i32"), Source::in("receiver", "i32")});
    }
    result.insert(result.end(), more.begin(), more.end());
    return result;
  }
  /// r, f (envelope and slope), x (what the basis takes).
  void edge(Source& s) const {
    s.line("const wide r = lengths[e];");
    s.line("const ValueAndSlope f = envelope_of(r);");
    if (transformed()) {
      s.line(
          "const ValueAndSlope to = transformed(r, radius(species[sender[e]], radii) + "
          "radius(species[receiver[e]], radii));");
      s.line("const wide x = to.value, slope = to.slope;");
    } else {
      s.line("const wide x = r, slope = ", number(1), ";");
    }
    s.line("const wide cut = ", config_.apply_cutoff ? "f.value" : number(1), ";");
  }
  /// weight: the frequency n, and head + tail = weight * x.
  void argument(Source& s, std::int64_t n) const {
    double rest = 0.0;
    if (config_.frequencies.empty()) {
      s.line("const wide weight = bessel_weights[", n, "];");
    } else {
      const double w = config_.frequencies[static_cast<std::size_t>(n)];
      s.line("const wide weight = ", number(w), ";");
      rest = w - static_cast<double>(static_cast<float>(w));
    }
    s.line("const wide head = weight * x;");
    if (wide_) {
      s.line("const wide tail = 0.0;");
    } else {
      s.line("const wide tail = fp_fma(weight, x, -head)", rest == 0.0 ? "" : " + " + number(rest) + " * x", ";");
    }
  }

  void forward(Source& s) const {
    s.begin_kernel("radial_basis_forward", kGroup,
                   parameters({Source::out("embedding"), Source::out("envelope"), Source::integer("want_envelope"),
                               Source::integer("n_edges")}));
    s.item("e", "n_edges");
    edge(s);
    s.line("if (want_envelope) envelope[e] = (real)f.value;");
    for (std::int64_t n = 0; n < config_.n_basis; ++n) {
      s.line("{");
      argument(s, n);
      s.line("embedding[e * ", config_.n_basis, " + ", n, "] = (real)(", number(config_.prefactor),
             " * cut * weight * sinc(head, tail).value);");
      s.line("}");
    }
    s.end_kernel();
  }
  void backward(Source& s) const {
    s.begin_kernel(
        "radial_basis_backward", kGroup,
        parameters({Source::in("grad_embedding"), Source::in("grad_envelope"), Source::integer("has_envelope"),
                    Source::out("grad_lengths"), Source::integer("n_edges")}));
    s.item("e", "n_edges");
    edge(s);
    s.line("wide grad_x = ", number(0), ", grad_f = has_envelope ? grad_envelope[e] : ", number(0), ";");
    for (std::int64_t n = 0; n < config_.n_basis; ++n) {
      s.line("{");
      argument(s, n);
      s.line("const wide g = ", number(config_.prefactor), " * grad_embedding[e * ", config_.n_basis, " + ", n, "];");
      s.line("const ValueAndSlope s = sinc(head, tail);");
      s.line("grad_x += g * cut * weight * weight * s.slope;");
      if (config_.apply_cutoff) s.line("grad_f += g * weight * s.value;");
      s.line("}");
    }
    s.line("grad_lengths[e] = (real)(grad_x * slope + grad_f * f.slope);");
    s.end_kernel();
  }

  /// A group sums one weight over a block of edges, in a fixed order; then one item a weight adds the blocks.
  void grad_weights(Source& s) const {
    const auto n_basis = config_.n_basis;
    s.begin_kernel(
        "radial_basis_grad_weights", kGroup,
        parameters({Source::in("grad_embedding"), Source::out("partial", "wide"), Source::integer("n_edges")}));
    s.shared("sums", kGroup, wide_ ? "double" : "real");
    s.line("const i64 block = FP_GROUP / ", n_basis, ", n = FP_GROUP % ", n_basis, ";");
    s.line("const i64 first = block * ", kBlock, ";");
    s.line("const i64 end = first + ", kBlock, " < n_edges ? first + ", kBlock, " : n_edges;");
    s.line("wide sum = ", number(0), ";");
    s.line("for (i64 e = first + FP_LANE; e < end; e += ", kGroup, ") {");
    edge(s);
    s.line("wide cosine = ", number(0), ";");
    for (std::int64_t n = 0; n < n_basis; ++n) {
      s.line("if (n == ", n, ") {");
      argument(s, n);
      s.line("cosine = ", call("cos", "head"), " - tail * ", call("sin", "head"), ";");
      s.line("}");
    }
    s.line("sum += ", number(config_.prefactor), " * grad_embedding[e * ", n_basis, " + n] * cut * cosine;");
    s.line("}");
    s.line("sums[FP_LANE] = sum;");
    s.line("FP_BARRIER();");
    for (std::uint32_t half = kGroup / 2; half > 0; half /= 2) {
      s.line("if (FP_LANE < ", half, ") sums[FP_LANE] += sums[FP_LANE + ", half, "];");
      s.line("FP_BARRIER();");
    }
    s.line("if (FP_LANE == 0) partial[block * ", n_basis, " + n] = sums[0];");
    s.end_kernel();

    s.begin_kernel("radial_basis_sum", 1,
                   {Source::in("partial", "wide"), Source::out("grad_weights"), Source::integer("n_blocks")});
    s.item("n", std::to_string(n_basis));
    s.line("wide sum = ", number(0), ", lost = ", number(0), ";");
    s.line("for (i64 block = 0; block < n_blocks; ++block) {");
    s.line("const wide term = partial[block * ", n_basis, " + n], total = sum + term, back = total - sum;");
    s.line("lost += (sum - (total - back)) + (term - back);");
    s.line("sum = total;");
    s.line("}");
    s.line("grad_weights[n] = (real)(sum + lost);");
    s.end_kernel();
  }

  sdk::RadialBasisConfig config_;
  bool trains_;
  bool wide_ = true;
};

}  // namespace

std::unique_ptr<PartOp> radial_basis_part(const sdk::RadialBasisConfig& config) {
  return std::make_unique<RadialBasis>(config, false);
}

OpFactory radial_basis() {
  using Config = sdk::RadialBasisConfig;
  return {
      Config::kOp, Config::kVersion,
      [](const sdk::Attributes& config, sdk::KernelAnswer&) { static_cast<void>(sdk::known_config<Config>(config)); },
      create<RadialBasis, Config>};
}

}  // namespace fastpath_gpu
