#pragma once

#include <optional>
#include <string>

#include "dispatch/module_state.hpp"
#include "dispatch/rules.hpp"
#include "fastpath/fast_path.hpp"

namespace fastpath::rules {

/// What a decision depends on, and what comes out on the way to it.
struct Setting {
  UseFast use_fast;
  const AutoPolicy* policy;
  Device device;
  DType dtype;
  ProblemSize size;
  Passes passes;
  Context& context;
  int threads;
  Sizes sizes = {};
  /// What was measured counts here.
  bool measured = false;
  /// What speaks for all modules together, if something does: always off the CPU.
  std::optional<Speech> group = {};
  /// Off the CPU the memory of one plugin is used in an evaluation: that of the first that gets a module.
  std::string memory_owner = {};
};

}  // namespace fastpath::rules
