#include <fmt/format.h>

#include <algorithm>

#include "models/glue.hpp"
#include "models/mace_runner.hpp"
#include "ops/message_step/module.hpp"
#include "ops/pair_zbl/module.hpp"
#include "ops/pointwise/module.hpp"

// The steps of an evaluation of a MACE model.
namespace fastpath::models {

using sdk::Irreps;

/// Writes the program of a model, from the geometry to the energies of the atoms.
class MaceModel::ProgramBuilder {
 public:
  ProgramBuilder(MaceModel& model, bool exchange)
      : model_(model),
        c_(model.config_),
        exchange_(exchange),
        runner_(std::make_unique<Runner>()),
        p_(runner_->program) {}

  std::unique_ptr<Runner> build() {
    add_inputs();
    add_edges();
    h_ = p_.add_slot("node_embedding", Rows::nodes, {c_.channels()});
    glue_step("node_embedding", node_embedding(part("node_embedding"), c_.n_species(), c_.channels()),
              {runner_->species_nodes}, {h_});
    if (c_.pair_repulsion) {
      const SlotId pair = p_.add_slot("pair_repulsion", Rows::receivers, {}, true);
      glue_step("pair_repulsion_fn", dynamic_cast<ops::PairZblModule&>(part("pair_repulsion_fn")).glue(),
                {exact_lengths_, runner_->species_nodes}, {pair});
      contributions_.push_back(pair);
    }
    for (std::int64_t t = 0; t < c_.num_interactions; ++t) add_layer(t);
    add_energy();
    add_gradient_sums();
    runner_->executor = std::make_unique<Executor>(p_);
    return std::move(runner_);
  }

 private:
  using Modules = std::vector<ops::OpModule*>;

  Module& part(const std::string& path) { return child(model_, path); }

  SlotId layer_slot(std::int64_t t, const char* name, Rows rows, Shape trailing) {
    return p_.add_slot(fmt::format("{}.{}", t, name), rows, std::move(trailing));
  }

  void op_step(const std::string& path, std::vector<SlotId> inputs, std::vector<SlotId> outputs,
               Modules replaced_by = {}) {
    Step step;
    step.name = path;
    step.replaced_by = std::move(replaced_by);
    step.fused = dynamic_cast<ops::MessageStepModule*>(&part(path)) != nullptr;
    step.op = dynamic_cast<ops::OpModule*>(&part(path));
    for (const ops::SchemaTensor& item : step.op->schema()) {
      step.parameters.push_back(item.trainable && !item.name.empty() ? path + "." + item.name : "");
    }
    step.inputs = std::move(inputs);
    step.outputs = std::move(outputs);
    p_.add(std::move(step));
  }

  void glue_step(const std::string& name, std::shared_ptr<Glue> glue, std::vector<SlotId> inputs,
                 std::vector<SlotId> outputs, Modules replaced_by = {}) {
    Step step;
    step.name = name;
    step.replaced_by = std::move(replaced_by);
    for (const ops::SchemaTensor& item : glue->schema()) step.parameters.push_back(name + "." + item.name);
    step.glue = std::move(glue);
    step.inputs = std::move(inputs);
    step.outputs = std::move(outputs);
    p_.add(std::move(step));
  }

  /// An op that a model has no module for: reference code on the CPU, a plugin's kernel on its device.
  template <typename OpModule, typename Config>
  ops::OpModule* small_op(const std::string& name, const Config& config) {
    auto known = std::find_if(model_.small_ops_.begin(), model_.small_ops_.end(),
                              [&](const NamedFastModule& op) { return op.name == name; });
    if (known == model_.small_ops_.end()) {
      model_.small_op_modules_.push_back(std::make_unique<OpModule>(config));
      known = model_.small_ops_.insert(known, {name, model_.small_op_modules_.back().get()});
    }
    return dynamic_cast<ops::OpModule*>(known->module);
  }

  template <typename OpModule, typename Config>
  void small_op_step(const std::string& name, const Config& config, std::vector<SlotId> inputs, SlotId output) {
    Step step;
    step.name = name;
    step.op = small_op<OpModule>(name, config);
    step.inputs = std::move(inputs);
    step.outputs = {output};
    p_.add(std::move(step));
  }

  void add_inputs();
  /// What all layers share: lengths, harmonics, radial basis.
  void add_edges();
  void add_layer(std::int64_t t);
  /// From the features of the senders to messages [receivers, conv.out]: one fused op, and the parts it replaces.
  SlotId add_messages(std::int64_t t, SlotId up);
  /// Messages through the linear, over the density where the block has one, and through skip_tp where that comes here.
  SlotId add_after_messages(std::int64_t t, SlotId messages);
  void add_readout(std::int64_t t);
  void add_energy();
  void add_gradient_sums();

  MaceModel& model_;
  const MaceConfig& c_;
  const bool exchange_;
  std::unique_ptr<Runner> runner_;
  Program& p_;
  SlotId exact_lengths_ = 0, lengths_ = 0, vectors_ = 0, sh_ = 0, basis_ = 0, envelope_ = 0;
  SlotId h_ = 0;   // features of the layer that was added last
  Modules fused_;  // the fused step of every layer
  std::vector<SlotId> contributions_;
  std::vector<Step> readouts_;  // the last steps of the program
};

void MaceModel::ProgramBuilder::add_inputs() {
  // Geometry, pair energies and the sum of the contributions stay in float64. None of it costs anything, and the short
  // bonds that a pair repulsion acts on turn a rounded length into a wrong force. What ops see is rounded once.
  runner_->vectors = p_.add_input("vectors", Rows::edges, {3}, true, true, true);
  runner_->species_nodes = p_.add_input("species", Rows::nodes, {}, false, false);
  runner_->species_receivers = p_.add_input("species of receivers", Rows::receivers, {}, false, false);
  runner_->head = p_.add_input("head", Rows::receivers, {}, false, false);
}

void MaceModel::ProgramBuilder::add_edges() {
  exact_lengths_ = p_.add_slot("exact lengths", Rows::edges, {}, true);
  glue_step("edge_lengths", edge_lengths(), {runner_->vectors}, {exact_lengths_});
  lengths_ = p_.add_slot("lengths", Rows::edges, {});
  glue_step("round_lengths", sum(), {exact_lengths_}, {lengths_});
  vectors_ = p_.add_slot("rounded vectors", Rows::edges, {3});
  glue_step("round_vectors", sum(), {runner_->vectors}, {vectors_});
  // Where all steps of the layers are done by fused kernels, nobody needs what they share.
  for (std::int64_t t = 0; t < c_.num_interactions; ++t) {
    fused_.push_back(dynamic_cast<ops::OpModule*>(&part(fmt::format("interactions.{}", t))));
  }
  sh_ = p_.add_slot("sh", Rows::edges, {std::int64_t{c_.l_max + 1} * (c_.l_max + 1)});
  op_step("spherical_harmonics", {vectors_}, {sh_}, fused_);
  basis_ = p_.add_slot("radial_basis", Rows::edges, {c_.num_bessel});
  envelope_ = c_.apply_cutoff ? kAbsent : p_.add_slot("envelope", Rows::edges, {});
  op_step("radial_embedding", {lengths_, runner_->species_nodes}, {basis_, envelope_},
          has_density(c_) ? Modules() : fused_);
}

void MaceModel::ProgramBuilder::add_layer(std::int64_t t) {
  const InteractionKind kind = interaction_kind(c_.block(t));
  const Irreps in = c_.irreps_in(t), out = c_.irreps_out(t);
  const std::string block = fmt::format("interactions.{}", t), product = fmt::format("products.{}", t);

  SlotId skip = kAbsent;
  if (kind.residual) {
    SlotId own = h_;
    if (t == 0) {
      own = layer_slot(t, "receivers", Rows::receivers, {in.dim()});
      glue_step(block + ".keep_receivers", keep_receivers(), {h_}, {own});
    }
    skip = layer_slot(t, "skip", Rows::receivers, {out.dim()});
    op_step(block + ".skip_tp", {own, runner_->species_receivers}, {skip});
  }
  // Features of layer 0 follow from the species, so ghosts have them; later ones exist on receivers only.
  SlotId up = layer_slot(t, "up", t == 0 || !exchange_ ? Rows::nodes : Rows::receivers, {in.dim()});
  op_step(block + ".linear_up", {h_}, {up});
  if (exchange_ && t > 0) {
    const SlotId with_ghosts = layer_slot(t, "exchange", Rows::nodes, {in.dim()});
    Step step;
    step.name = block + ".exchange";
    step.inputs = {up};
    step.outputs = {with_ghosts};
    step.exchange = true;
    step.layer = t;
    p_.add(std::move(step));
    up = with_ghosts;
  }
  const SlotId a = add_after_messages(t, add_messages(t, up));

  const SlotId x = layer_slot(t, "X", Rows::receivers, {c_.channels(), std::int64_t{c_.l_max + 1} * (c_.l_max + 1)});
  small_op_step<ops::RegroupChannelsModule>(product + ".regroup", sdk::RegroupChannelsConfig{c_.channels(), c_.l_max},
                                            {a}, x);
  const SlotId b = layer_slot(t, "contraction", Rows::receivers, {out.dim()});
  op_step(product + ".symmetric_contractions", {x, runner_->species_receivers}, {b});
  h_ = layer_slot(t, skip == kAbsent ? "h" : "product", Rows::receivers, {out.dim()});
  op_step(product + ".linear", {b}, {h_});
  if (skip != kAbsent) {
    const SlotId total = layer_slot(t, "h", Rows::receivers, {out.dim()});
    small_op_step<ops::SumModule>(product + ".add_skip", sdk::SumConfig{2, out.dim()}, {h_, skip}, total);
    h_ = total;
  }
  add_readout(t);
}

SlotId MaceModel::ProgramBuilder::add_messages(std::int64_t t, SlotId up) {
  const sdk::ConvTensorProductConfig& conv = c_.convolutions[static_cast<std::size_t>(t)];
  const std::string block = fmt::format("interactions.{}", t);
  const Modules fused{fused_[static_cast<std::size_t>(t)]};
  const SlotId messages = layer_slot(t, "messages", Rows::receivers, {conv.out.dim()});
  op_step(block, {up, vectors_, lengths_, runner_->species_nodes}, {messages});
  SlotId weights = layer_slot(t, "weights", Rows::edges, {conv.weight_numel()});
  op_step(block + ".conv_tp_weights", {basis_}, {weights}, fused);
  if (!c_.apply_cutoff) {
    const SlotId cut = layer_slot(t, "weights with envelope", Rows::edges, {conv.weight_numel()});
    glue_step(block + ".apply_cutoff", multiply_rows(conv.weight_numel()), {weights, envelope_}, {cut}, fused);
    weights = cut;
  }
  op_step(block + ".conv_tp", {up, sh_, weights}, {messages}, fused);
  return messages;
}

SlotId MaceModel::ProgramBuilder::add_after_messages(std::int64_t t, SlotId messages) {
  const InteractionKind kind = interaction_kind(c_.block(t));
  const Irreps message = c_.message();
  const std::string block = fmt::format("interactions.{}", t);
  SlotId a = layer_slot(t, "linear", Rows::receivers, {message.dim()});
  op_step(block + ".linear", {messages}, {a});
  if (kind.density) {
    const SlotId density = layer_slot(t, "density", Rows::receivers, {});
    glue_step(block + ".density_fn", edge_density(part(block + ".density_fn"), c_.num_bessel), {basis_, envelope_},
              {density});
    const SlotId divided = layer_slot(t, "divided", Rows::receivers, {message.dim()});
    glue_step(block + ".divide_by_density", divide_by_density(message.dim()), {a, density}, {divided});
    a = divided;
  }
  if (!kind.residual) {
    const SlotId mixed = layer_slot(t, "skip", Rows::receivers, {message.dim()});
    op_step(block + ".skip_tp", {a, runner_->species_receivers}, {mixed});
    a = mixed;
  }
  return a;
}

void MaceModel::ProgramBuilder::add_readout(std::int64_t t) {
  const std::string readout = fmt::format("readouts.{}", t);
  const auto n_heads = static_cast<std::int64_t>(c_.heads.size());
  const SlotId per_head = layer_slot(t, "readout of heads", Rows::receivers, {n_heads});
  if (t == c_.num_interactions - 1 && c_.num_interactions > 1) {
    const std::int64_t hidden = n_heads * c_.mlp[0].mul;
    const SlotId first = layer_slot(t, "readout hidden", Rows::receivers, {hidden});
    op_step(readout + ".linear_1", {h_}, {first});
    SlotId active = layer_slot(t, "readout active", Rows::receivers, {hidden});
    small_op_step<ops::ScaledSiluModule>(readout + ".activation", sdk::ScaledSiluConfig{hidden, c_.activation_constant},
                                         {first}, active);
    if (n_heads > 1) {
      const SlotId masked = layer_slot(t, "readout masked", Rows::receivers, {hidden});
      glue_step(readout + ".mask_heads", mask_heads(n_heads, c_.mlp[0].mul), {active, runner_->head}, {masked});
      active = masked;
    }
    op_step(readout + ".linear_2", {active}, {per_head});
  } else {
    op_step(readout + ".linear", {h_}, {per_head});
  }
  const SlotId energy = layer_slot(t, "readout", Rows::receivers, {});
  Step selection;
  selection.name = readout + ".select_head";
  selection.glue = select_head(n_heads);
  selection.inputs = {per_head, runner_->head};
  selection.outputs = {energy};
  selection.late = true;
  readouts_.push_back(std::move(selection));
  contributions_.push_back(energy);
}

void MaceModel::ProgramBuilder::add_energy() {
  runner_->result = p_.add_slot("interaction_energy", Rows::receivers, {}, true);
  Step total;
  total.name = "interaction_energy";
  total.glue = sum();
  total.inputs = contributions_;
  total.outputs = {runner_->result};
  total.late = true;
  readouts_.push_back(std::move(total));
  for (Step& step : readouts_) p_.add(std::move(step));
}

void MaceModel::ProgramBuilder::add_gradient_sums() {
  for (const Slot& slot : p_.slots()) {
    if (!slot.real || slot.wide || slot.n_readers() < 2) continue;
    std::int64_t width = 1;
    for (const std::int64_t size : slot.trailing) width *= size;
    const std::string name = fmt::format("gradients.{}", width);
    p_.add_gradient_sum(width, {name, small_op<ops::SumModule>(name, sdk::SumConfig{2, width})});
  }
}

std::unique_ptr<MaceModel::Runner> MaceModel::build_runner(bool exchange) const {
  return ProgramBuilder(const_cast<MaceModel&>(*this), exchange).build();
}

}  // namespace fastpath::models
