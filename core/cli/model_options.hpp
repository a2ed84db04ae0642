#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "command_line.hpp"
#include "fastpath/context.hpp"
#include "fastpath/model.hpp"

namespace fastpath::cli {

/// @param option  "--plugin-path", for the message. @throws Error(io) if there is no current directory any more.
std::filesystem::path absolute_path(const std::string& path, const std::string& option);

/// Options that choose plugins, say how they are tried and what makes one trusted: --plugin-path, --enable, --disable,
/// --probe,
/// --retry, --no-cache, --trust, --allow-list, --allow-group-writable, --no-owner-check.
void add_plugin_options(CommandLine& line);
RegistryOptions registry_options(const CommandLine& line);

/// Options that choose a model and how it is evaluated: --model, --device, --dtype, --use-fast, --threads, --head,
/// --strict.
void add_model_options(CommandLine& line);
/// Options that say by which rules kernels are chosen: --policy, --no-priors, --replay, --deterministic.
void add_selection_options(CommandLine& line);

/// --passes: of which evaluations something is asked.
void add_passes_option(CommandLine& line);
Passes passes_option(const CommandLine& line);

/// A model, a context and the options of an evaluation as a command line asks for them. Its end shuts the plugins down;
/// one that does not end well is told of.
struct ModelSetup {
  ModelSetup() = default;
  ModelSetup(ModelSetup&&) = default;
  ModelSetup& operator=(ModelSetup&&) = delete;
  ~ModelSetup();

  std::unique_ptr<Context> context;  ///< First: outlives the model.
  std::shared_ptr<Model> model;
  EvaluateOptions options;
  UseFast use_fast = UseFast::automatic;  ///< What counts: the option, else the model's own setting.
};
/// Every option is checked before the model is read.
ModelSetup load_model(const CommandLine& line);

}  // namespace fastpath::cli
