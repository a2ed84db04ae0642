#include "fastpath/sdk/check.hpp"
#include "op.hpp"

/// The small steps between the large ops, so that what lies on the device stays there. One work-item an element.
namespace fastpath_gpu {
namespace {

constexpr std::uint32_t kGroup = 128;

class RegroupChannels final : public Op {
 public:
  explicit RegroupChannels(const sdk::RegroupChannelsConfig& config) : Op(config.signature()), config_(config) {}

  Program generate(const Target& target, sdk::DType dtype, std::uint32_t passes) override {
    Source source(target, dtype);
    if ((passes & FP_PASS_FORWARD) != 0) kernel(source, "regroup_channels_forward", false);
    if ((passes & FP_PASS_BACKWARD) != 0) kernel(source, "regroup_channels_backward", true);
    return source.finish();
  }
  void plan(const Call& call, Plan& plan) const override {
    const std::int64_t n = call.n_rows * config_.channels;
    if (call.pass == sdk::Pass::forward) {
      plan.launch_items("regroup_channels_forward", n, {Buffer{Role::input, 0}, Buffer{Role::output, 0}, n});
    } else if (call.grad_inputs[0]) {
      plan.launch_items("regroup_channels_backward", n, {Buffer{Role::grad_output, 0}, Buffer{Role::grad_input, 0}, n});
    }
  }

 private:
  void kernel(Source& s, const std::string& name, bool backward) const {
    s.begin_kernel(name, s.group_size(kGroup), {Source::in("from"), Source::out("to"), Source::integer("n_items")});
    s.item("item", "n_items");
    s.line("const i64 row = item / ", config_.channels, ", c = item % ", config_.channels, ";");
    s.line("const i64 first = row * ", config_.channels * config_.dim(), ", grouped = item * ", config_.dim(), ";");
    for (std::int64_t l = 0; l <= config_.l_max; ++l) {
      for (std::int64_t m = 0; m <= 2 * l; ++m) {
        const std::string block =
            "[first + " + std::to_string(config_.channels * l * l + m) + " + " + std::to_string(2 * l + 1) + " * c]";
        const std::string group = "[grouped + " + std::to_string(l * l + m) + "]";
        s.line("to", backward ? block : group, " = from", backward ? group : block, ";");
      }
    }
    s.end_kernel();
  }
  sdk::RegroupChannelsConfig config_;
};

class Sum final : public Op {
 public:
  explicit Sum(const sdk::SumConfig& config) : Op(config.signature()), config_(config) {}

  Program generate(const Target& target, sdk::DType dtype, std::uint32_t passes) override {
    Source source(target, dtype);
    if ((passes & FP_PASS_FORWARD) != 0) {
      std::vector<Source::Parameter> parameters;
      std::string sum;
      for (std::int64_t i = 0; i < config_.n_inputs; ++i) {
        const std::string x = "x" + std::to_string(i);
        parameters.push_back(Source::in(x));
        sum += (i == 0 ? "" : " + ") + x + "[item]";
      }
      parameters.insert(parameters.end(), {Source::out("y"), Source::integer("n_items")});
      source.begin_kernel("sum_forward", source.group_size(kGroup), parameters);
      source.item("item", "n_items");
      source.line("y[item] = ", sum, ";");
      source.end_kernel();
    }
    if ((passes & FP_PASS_BACKWARD) != 0) {
      source.begin_kernel("sum_backward", source.group_size(kGroup),
                          {Source::in("grad_y"), Source::out("grad_x"), Source::integer("n_items")});
      source.item("item", "n_items");
      source.line("grad_x[item] = grad_y[item];");
      source.end_kernel();
    }
    return source.finish();
  }
  void plan(const Call& call, Plan& plan) const override {
    const std::int64_t n = call.n_rows * config_.width;
    std::vector<Argument> arguments;
    for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(config_.n_inputs); ++i) {
      if (call.pass == sdk::Pass::forward) {
        arguments.emplace_back(Buffer{Role::input, i});
      } else if (call.grad_inputs[i]) {
        plan.launch_items("sum_backward", n, {Buffer{Role::grad_output, 0}, Buffer{Role::grad_input, i}, n});
      }
    }
    if (call.pass != sdk::Pass::forward) return;
    arguments.insert(arguments.end(), {Buffer{Role::output, 0}, n});
    plan.launch_items("sum_forward", n, std::move(arguments));
  }

 private:
  sdk::SumConfig config_;
};

class ScaledSilu final : public Op {
 public:
  explicit ScaledSilu(const sdk::ScaledSiluConfig& config) : Op(config.signature()), config_(config) {}

  Program generate(const Target& target, sdk::DType dtype, std::uint32_t passes) override {
    Source s(target, dtype);
    const std::string one = s.real(1.0);
    if ((passes & FP_PASS_FORWARD) != 0) {
      s.begin_kernel("scaled_silu_forward", s.group_size(kGroup),
                     {Source::in("x"), Source::out("y"), Source::integer("n_items")});
      s.item("item", "n_items");
      s.line("y[item] = ", s.real(config_.constant), " * x[item] / (", one, " + fp_exp(-x[item]));");
      s.end_kernel();
    }
    if ((passes & FP_PASS_BACKWARD) != 0) {
      s.begin_kernel("scaled_silu_backward", s.group_size(kGroup),
                     {Source::in("x"), Source::in("grad_y"), Source::out("grad_x"), Source::integer("n_items")});
      s.item("item", "n_items");
      s.line("const real sigmoid = ", one, " / (", one, " + fp_exp(-x[item])), rest = ", one, " / (", one,
             " + fp_exp(x[item]));");
      s.line("grad_x[item] = ", s.real(config_.constant), " * grad_y[item] * sigmoid * (", one, " + x[item] * rest);");
      s.end_kernel();
    }
    return s.finish();
  }
  void plan(const Call& call, Plan& plan) const override {
    const std::int64_t n = call.n_rows * config_.width;
    if (call.pass == sdk::Pass::forward) {
      plan.launch_items("scaled_silu_forward", n, {Buffer{Role::input, 0}, Buffer{Role::output, 0}, n});
    } else if (call.grad_inputs[0]) {
      plan.launch_items("scaled_silu_backward", n,
                        {Buffer{Role::input, 0}, Buffer{Role::grad_output, 0}, Buffer{Role::grad_input, 0}, n});
    }
  }

 private:
  sdk::ScaledSiluConfig config_;
};

template <class K, class Config>
OpFactory factory() {
  return {
      Config::kOp, Config::kVersion,
      [](const sdk::Attributes& config, sdk::KernelAnswer&) { static_cast<void>(sdk::known_config<Config>(config)); },
      create<K, Config>};
}

}  // namespace

OpFactory regroup_channels() { return factory<RegroupChannels, sdk::RegroupChannelsConfig>(); }
OpFactory sum() { return factory<Sum, sdk::SumConfig>(); }
OpFactory scaled_silu() { return factory<ScaledSilu, sdk::ScaledSiluConfig>(); }

}  // namespace fastpath_gpu
