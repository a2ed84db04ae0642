#include "models/program.hpp"

#include <algorithm>

namespace fastpath::models {

SlotId Program::add_input(std::string name, Rows rows, Shape trailing, bool real, bool from_positions, bool wide) {
  slots_.push_back({std::move(name), rows, std::move(trailing), real, wide, from_positions});
  return static_cast<SlotId>(slots_.size()) - 1;
}

SlotId Program::add_slot(std::string name, Rows rows, Shape trailing, bool wide) {
  slots_.push_back({std::move(name), rows, std::move(trailing), true, wide});
  return static_cast<SlotId>(slots_.size()) - 1;
}

void Program::add(Step step) {
  bool moves = false;
  for (const SlotId id : step.inputs) {
    if (id == kAbsent) continue;
    Slot& slot = slots_[static_cast<std::size_t>(id)];
    moves |= slot.from_positions;
    ++(step.fused ? slot.n_fused_readers : slot.n_plain_readers);
  }
  for (const SlotId id : step.outputs) {
    if (id != kAbsent) slots_[static_cast<std::size_t>(id)].from_positions = moves;
  }
  steps_.push_back(std::move(step));
}

std::vector<bool> Program::gradient_slots(bool parameters) const {
  std::vector<bool> needed(slots_.size());
  for (std::size_t i = 0; i < slots_.size(); ++i) needed[i] = slots_[i].real && slots_[i].from_positions;
  if (!parameters) return needed;
  for (const Step& step : steps_) {
    bool any =
        std::any_of(step.parameters.begin(), step.parameters.end(), [](const auto& name) { return !name.empty(); });
    for (const SlotId id : step.inputs) any = any || (id != kAbsent && needed[static_cast<std::size_t>(id)]);
    for (const SlotId id : step.outputs) {
      if (id != kAbsent && any) needed[static_cast<std::size_t>(id)] = true;
    }
  }
  return needed;
}

bool Program::is_done(const Step& step) {
  if (step.fused) return step.op->fast_active();
  return step.replaced_by.empty() || !std::all_of(step.replaced_by.begin(), step.replaced_by.end(),
                                                  [](const ops::OpModule* op) { return op->fast_active(); });
}

std::uint64_t Program::bytes(std::int64_t n_edges, std::int64_t n_nodes, DType dtype, bool backward) const {
  std::uint64_t total = 0;
  const std::vector<bool> needed = gradient_slots(false);
  std::vector<bool> used(slots_.size(), false);
  for (const Step& step : steps_) {
    if (!is_done(step)) continue;
    for (const auto* list : {&step.inputs, &step.outputs}) {
      for (const SlotId id : *list) {
        if (id != kAbsent) used[static_cast<std::size_t>(id)] = true;
      }
    }
  }
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (!used[i]) continue;
    const Slot& slot = slots_[i];
    std::int64_t elements = slot.rows == Rows::edges ? n_edges : n_nodes;
    for (const std::int64_t size : slot.trailing) elements *= size;
    const std::uint64_t planes = backward && needed[i] ? 2 : 1;
    total += planes * static_cast<std::uint64_t>(elements) * (slot.wide ? 8 : slot.real ? size_of(dtype) : 4);
  }
  return total;
}

std::uint64_t Program::saved_bytes(ProblemSize size, DType dtype, Passes passes) const {
  std::uint64_t total = 0;
  for (const Step& step : steps_) {
    if (step.op == nullptr || !is_done(step) || step.inputs.empty()) continue;
    const SlotId first = step.inputs.front();
    const bool of_edges = first != kAbsent && slots_[static_cast<std::size_t>(first)].rows == Rows::edges;
    total += step.op->saved_bytes(size, of_edges ? size.n_edges : size.n_nodes, dtype, passes);
  }
  return total;
}

}  // namespace fastpath::models
