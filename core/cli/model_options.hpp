#pragma once

#include <memory>

#include "command_line.hpp"
#include "fastpath/context.hpp"
#include "fastpath/model.hpp"

namespace fastpath::cli {

/// Options that choose plugins, and say how they are tried: --plugin-path, --enable, --disable, --probe, --retry,
/// --no-cache.
void add_plugin_options(CommandLine& line);
RegistryOptions registry_options(const CommandLine& line);

/// Options that choose a model and how it is evaluated: --model, --device, --dtype, --use-fast, --threads, --head,
/// --strict.
void add_model_options(CommandLine& line);

/// A model, a context and the options of an evaluation as a command line asks for them.
struct ModelSetup {
  std::unique_ptr<Context> context;  ///< First: outlives the model.
  std::shared_ptr<Model> model;
  EvaluateOptions options;
  UseFast use_fast = UseFast::automatic;  ///< What counts: the option, else the model's own setting.
};
/// Every option is checked before the model is read.
ModelSetup load_model(const CommandLine& line);

}  // namespace fastpath::cli
