#include "model_options.hpp"

#include <fmt/format.h>
#include <sys/auxv.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <limits>

#include "fastpath/error.hpp"
#include "fastpath/lock.hpp"
#include "fastpath/policy.hpp"
#include "terminal.hpp"

namespace fastpath::cli {

namespace {

po::typed_value<std::vector<std::string>>* many(const char* name) {
  return po::value<std::vector<std::string>>()->value_name(name)->composing();
}

po::typed_value<std::string>* one(const char* name) { return po::value<std::string>()->value_name(name); }

template <class Parse>
auto parsed(const CommandLine& line, const std::string& option, Parse parse) {
  try {
    return parse(line.text(option));
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("--{}: {}", option, error.what()));
  }
}

}  // namespace

std::filesystem::path absolute_path(const std::string& path, const std::string& option) {
  std::error_code error;
  std::filesystem::path result = std::filesystem::absolute(path, error);
  if (error) throw Error(ErrorCode::io, fmt::format("{}: {}: {}", option, path, error.message()));
  return result;
}

void add_plugin_options(CommandLine& line) {
  line.add()("plugin-path", many("DIR"), "search this directory first; may be repeated");
  line.add()("enable", many("GLOB"), "use only plugins whose id matches; may be repeated");
  line.add()("disable", many("GLOB"), "do not use plugins whose id matches; may be repeated");
  line.add()("probe", one("HOW"),
             "helper: try each plugin in a process of its own first; in-process: do not; automatic (default): where "
             "the helper program is installed");
  line.add()("retry", po::bool_switch(), "try again plugins that were quarantined in an earlier run");
  line.add()("no-cache", po::bool_switch(), "neither use nor keep what trying plugins found");
  line.add()("trust", one("WHEN"),
             "off (default), warn or require: what becomes of a plugin that the list of allowed ones does not name");
  line.add()("allow-list", one("FILE"), "the list of allowed plugins, lines of sha256sum");
  line.add()("allow-group-writable", po::bool_switch(), "what a group may write to counts as safe");
  line.add()("no-owner-check", po::bool_switch(), "load files whoever owns them or may write to them");
}

RegistryOptions registry_options(const CommandLine& line) {
  RegistryOptions options;
  for (const std::string& path : line.list("plugin-path")) {
    if (path.empty()) line.fail("--plugin-path: the directory's name is empty");
    options.search_paths.push_back(absolute_path(path, "--plugin-path").lexically_normal());
  }
  if (line.given("enable")) options.enable = line.list("enable");
  options.disable = line.list("disable");
  if (line.given("probe")) {
    options.probe = parsed(line, "probe", [](std::string text) {
      std::replace(text.begin(), text.end(), '-', '_');
      return parse_probe_mode(text);
    });
  }
  options.retry = line.get<bool>("retry");
  options.use_cache = !line.get<bool>("no-cache");
  // An option is stronger than its variable, also where it says what is the default.
  if (line.given("trust")) {
    options.trust = parsed(line, "trust", [](const std::string& text) { return parse_trust_mode(text); });
    ::unsetenv("FASTPATH_TRUST");
  }
  if (line.given("allow-list")) {
    if (line.text("allow-list").empty()) line.fail("--allow-list: the file's name is empty");
    options.allow_list = absolute_path(line.text("allow-list"), "--allow-list");
  }
  for (const char* option : {"allow-group-writable", "no-owner-check"}) {
    // Who starts a program with more rights than their own may not say what it loads.
    if (line.get<bool>(option) && ::getauxval(AT_SECURE) != 0) {
      throw Error(ErrorCode::unavailable, fmt::format("--{}: not in a program with elevated rights", option));
    }
  }
  options.allow_group_writable = line.get<bool>("allow-group-writable");
  options.check_owner = !line.get<bool>("no-owner-check");
  return options;
}

void add_model_options(CommandLine& line) {
  line.add()("model,m", one("DIR"), "model folder, or the name of a model in the hub (required)");
  line.add()("device", one("NAME")->default_value("cpu"), "cpu, cuda:0, hip:0, opencl:0");
  line.add()("dtype", one("NAME")->default_value("float64"), "float64 or float32");
  line.add()("use-fast", one("WHEN"),
             "false: always the reference; true: a plugin's kernel wherever there is one; auto (default): where it is "
             "also known to be faster");
  line.add()("strict", po::bool_switch(), "fail where a module that has a fast path would run, or runs, its reference");
  line.add()("threads", one("N"), "CPU threads; default: all");
  line.add()("head", one("NAME"), "head of a multi-head model; default: the frame's head=, else the first");
}

void add_selection_options(CommandLine& line) {
  line.add()("policy", one("FILE"), "decide under auto by this policy instead of the built-in one (docs/policy.md)");
  line.add()("no-priors", po::bool_switch(), "under auto ignore what others measured on such devices");
  line.add()("replay", one("FILE"), "choose as this lock says (written by eval --lock), or fail naming what differs");
  line.add()("deterministic", po::bool_switch(), "choose as if nothing was ever measured on this machine");
}

void add_passes_option(CommandLine& line) {
  line.add()("passes", one("WHICH")->default_value("forces"), "energy, forces or training");
}

Passes passes_option(const CommandLine& line) {
  const std::string text = line.text("passes");
  if (text == "energy") return kPassesEnergy;
  if (text == "forces") return kPassesForces;
  if (text == "training") return kPassesTraining;
  line.fail(fmt::format("--passes: '{}', expected energy, forces or training", one_line(text)));
}

ModelSetup::~ModelSetup() {
  if (context == nullptr) return;  // moved from
  model.reset();
  try {
    for (const PluginInfo& plugin : context->registry().shutdown()) {
      if (plugin.reason.text.empty()) continue;
      print_error("warning", fmt::format("{}: {}", plugin.id, plugin.reason.text));
    }
  } catch (const std::exception& error) {
    print_error("warning", error.what());
  }
}

namespace {

/// The policy that the options of add_selection_options() ask for; null: the model's own.
std::shared_ptr<const AutoPolicy> policy_of(const CommandLine& line) {
  std::shared_ptr<const AutoPolicy> policy;
  if (line.given("policy")) {
    policy = parsed(line, "policy", [](const std::string& text) { return AutoPolicy::load(text); });
  }
  if (line.given("no-priors") && line.get<bool>("no-priors")) {
    AutoPolicy without = policy ? *policy : *AutoPolicy::builtin();
    without.use_priors = false;
    policy = std::make_shared<const AutoPolicy>(std::move(without));
  }
  return policy;
}

}  // namespace

ModelSetup load_model(const CommandLine& line) {
  line.require("model", "--model DIR");
  ModelSetup setup;
  setup.options.device = parsed(line, "device", [](const std::string& text) { return parse_device(text); });
  setup.options.dtype = parsed(line, "dtype", [](const std::string& text) { return parse_dtype(text); });
  if (!is_floating(setup.options.dtype)) {
    line.fail(
        fmt::format("--dtype: a model is evaluated in float64 or float32, not in {}", to_string(setup.options.dtype)));
  }
  if (line.given("use-fast")) {
    setup.options.use_fast =
        parsed(line, "use-fast", [](const std::string& text) { return resolve_use_fast(std::string_view(text)); });
  }
  setup.options.require_fast = line.get<bool>("strict");
  setup.options.head = line.text("head");
  if (line.given("head") && setup.options.head.empty()) line.fail("--head: the name is empty");
  if (line.given("threads")) {
    const std::uint64_t threads = line.number("threads");
    constexpr std::uint64_t kMost = 4096;
    if (threads < 1 || threads > kMost) line.fail(fmt::format("--threads: {} is not between 1 and {}", threads, kMost));
    setup.options.threads = static_cast<int>(threads);
  }
  ContextOptions context;
  context.registry = registry_options(line);
  context.threads = setup.options.threads;
  std::shared_ptr<const AutoPolicy> policy = policy_of(line);
  context.deterministic = line.given("deterministic") && line.get<bool>("deterministic");
  if (line.given("replay")) {
    if (setup.options.use_fast == UseFast::never) line.fail("--replay: under --use-fast false nothing is chosen");
    context.replay = std::make_shared<const SelectionLock>(
        parsed(line, "replay", [](const std::string& text) { return SelectionLock::load(text); }));
  }
  setup.context = std::make_unique<Context>(std::move(context));
  setup.options.context = setup.context.get();
  setup.model = Model::load(line.text("model"));
  if (policy) setup.model->set_policy(std::move(policy));
  setup.use_fast = setup.options.use_fast.value_or(setup.model->use_fast());
  return setup;
}

}  // namespace fastpath::cli
