#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "command_line.hpp"
#include "exit_code.hpp"
#include "fastpath/compile.hpp"
#include "fastpath/error.hpp"
#include "fastpath/model.hpp"
#include "json.hpp"
#include "model_options.hpp"
#include "table.hpp"

namespace fastpath::cli {

namespace {

using Verdict = CompiledModule::Verdict;

/// Words separated by commas, an option's values together.
std::vector<std::string> words(const CommandLine& line, const std::string& option) {
  std::vector<std::string> result;
  for (const std::string& value : line.list(option)) {
    std::size_t start = 0;
    while (start <= value.size()) {
      const std::size_t end = std::min(value.find(',', start), value.size());
      const std::string word = value.substr(start, end - start);
      if (word.empty()) line.fail(fmt::format("--{}: an empty name in '{}'", option, value));
      if (std::find(result.begin(), result.end(), word) == result.end()) result.push_back(word);
      start = end + 1;
    }
  }
  return result;
}

std::vector<DType> dtypes(const CommandLine& line) {
  std::vector<DType> result;
  for (const std::string& word : words(line, "dtype")) {
    DType dtype{};
    try {
      dtype = parse_dtype(word);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("--dtype: {}", error.what()));
    }
    if (!is_floating(dtype))
      line.fail(fmt::format("--dtype: kernels are made for float64 and float32, not for {}", word));
    result.push_back(dtype);
  }
  return result;
}

Passes passes(const CommandLine& line) {
  const std::string word = line.text("passes");
  if (word == "forces") return kPassesForces;
  if (word == "energy") return kPassesEnergy;
  line.fail(fmt::format("--passes: '{}', expected forces or energy", word));
}

bool matches(const std::string& glob, const CompiledModule& module) {
  return ::fnmatch(glob.c_str(), module.op.c_str(), 0) == 0 || ::fnmatch(glob.c_str(), module.module.c_str(), 0) == 0;
}

/// Modules of one source have the same kernels: they are shown once.
struct Group {
  const CompiledModule* first;
  std::size_t modules = 0;
};
std::vector<Group> grouped(const std::vector<CompiledModule>& modules) {
  std::vector<Group> groups;
  std::map<std::tuple<std::string, std::string, DType, std::string>, std::size_t> known;
  for (const CompiledModule& module : modules) {
    if (module.source.empty()) continue;
    const auto [place, added] =
        known.try_emplace({module.plugin, module.arch, module.dtype, module.source}, groups.size());
    if (added) groups.push_back({&module});
    ++groups[place->second].modules;
  }
  return groups;
}

std::string number(std::int64_t value) { return value < 0 ? "?" : fmt::format("{}", value); }

void print_sources(const std::vector<CompiledModule>& modules, const std::string& glob) {
  bool first = true;
  for (const Group& group : grouped(modules)) {
    const CompiledModule& module = *group.first;
    if (!matches(glob, module)) continue;
    print(fmt::format("{}// {} {} of {}{}, for {} on {}\n{}", first ? "" : "\n", module.plugin, module.op,
                      module.module, group.modules > 1 ? fmt::format(" and {} more", group.modules - 1) : "",
                      to_string(module.dtype), module.arch, module.source));
    first = false;
  }
}

void print_kernels(const std::vector<CompiledModule>& modules) {
  Table table;
  for (const char* title : {"arch", "dtype", "kernel"}) table.column(title);
  for (const char* title : {"registers", "shared", "spill", "code"}) table.column(title, Table::Align::right);
  table.column("modules", Table::Align::right);
  std::size_t rows = 0;
  for (const Group& group : grouped(modules)) {
    const CompiledModule& module = *group.first;
    for (const CompiledKernel& kernel : module.kernels) {
      table.row({module.arch, std::string(to_string(module.dtype)), kernel.name, number(kernel.registers),
                 number(kernel.shared_bytes),
                 Cell(number(kernel.spill_bytes), kernel.spill_bytes > 0 ? Style::bad : Style::plain),
                 number(kernel.code_bytes), fmt::format("{}", group.modules)});
      ++rows;
    }
  }
  if (rows > 0) print(table.text() + "\nBytes, but for registers; spill is what does not fit in them.\n");
}

/// What did not become a kernel, once for each op, architecture and dtype.
void print_rest(const std::vector<CompiledModule>& modules, Verdict verdict, const char* title) {
  std::set<std::string> lines;
  for (const CompiledModule& module : modules) {
    if (module.verdict != verdict) continue;
    std::string reasons;
    for (const Reason& reason : module.reasons) {
      reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", to_string(reason.code), reason.text);
    }
    lines.insert(fmt::format("  {} on {} in {}: {}\n", module.op, module.arch, to_string(module.dtype),
                             verdict == Verdict::failed ? reasons : one_line(reasons)));
  }
  if (lines.empty()) return;
  print(fmt::format("\n{}\n", title));
  for (const std::string& line : lines) print(line);
}

Json json_of(const std::vector<CompiledModule>& modules, bool sources) {
  Json result = Json::array();
  for (const CompiledModule& module : modules) {
    Json kernels = Json::array();
    const auto known = [](std::int64_t value) { return value < 0 ? Json(nullptr) : Json(value); };
    for (const CompiledKernel& kernel : module.kernels) {
      kernels.push_back({{"kernel", kernel.name},
                         {"registers", known(kernel.registers)},
                         {"shared_bytes", known(kernel.shared_bytes)},
                         {"spill_bytes", known(kernel.spill_bytes)},
                         {"code_bytes", known(kernel.code_bytes)}});
    }
    Json reasons = Json::array();
    for (const Reason& reason : module.reasons) reasons.push_back(cli::json_of(reason));
    Json entry = {{"module", module.module},
                  {"op", module.op},
                  {"plugin", module.plugin},
                  {"arch", module.arch},
                  {"dtype", std::string(to_string(module.dtype))},
                  {"verdict", std::string(to_string(module.verdict))},
                  {"reasons", std::move(reasons)},
                  {"cached", module.cached},
                  {"compiler", module.compiler},
                  {"kernels", std::move(kernels)}};
    if (sources) entry["source"] = module.source;
    result.push_back(std::move(entry));
  }
  return result;
}

}  // namespace

int run_compile(const Arguments& arguments) {
  CommandLine line("fastpath compile", "--arch NAMES --model DIR",
                   "makes a model's kernels for devices that need not be here");
  line.describe(
      "Plugins for GPUs generate kernels for the very shapes of a model and compile\n"
      "them when they are first needed, which takes seconds and a compiler. This\n"
      "compiles them now, for the architectures that are named, into the cache where\n"
      "the plugins look for them: then no compiler is needed at run time. No device is\n"
      "needed, only the compiler's library (NVRTC for NVIDIA, hipRTC for AMD).\n"
      "\n"
      "The table says what each kernel needs of a device: registers of a work-item,\n"
      "memory that its group shares, what did not fit in registers (spill: slow), and\n"
      "code. Exit status 1 if a kernel does not compile. An op that a plugin has no\n"
      "kernel for is named with the reason; its reference will run.");
  line.add()("model,m", po::value<std::string>()->value_name("DIR"),
             "model folder, or the name of a model in the hub (required)");
  line.add()("arch,a", po::value<std::vector<std::string>>()->value_name("NAMES")->composing(),
             "architectures, separated by commas: sm_80, sm_90 (NVIDIA), gfx90a, gfx1030 (AMD); may be repeated "
             "(required)");
  line.add()("dtype",
             po::value<std::vector<std::string>>()->value_name("NAMES")->composing()->default_value(
                 {"float64", "float32"}, "float64,float32"),
             "what the model will be evaluated in");
  line.add()("passes", po::value<std::string>()->value_name("WHAT")->default_value("forces"),
             "forces: energies with forces and stress; energy: energies alone. A plugin looks for code that was made "
             "for what it is asked for");
  line.add()("emit", po::value<std::string>()->value_name("GLOB"),
             "print the source of the ops or modules that match ('*': of all), and compile nothing");
  line.add()("json", po::bool_switch(), "print everything as JSON");
  add_plugin_options(line);
  line.operands("file", 0);
  line.example("fastpath compile --arch sm_80,sm_90 --model examples/models/demo");
  line.example("fastpath compile --arch gfx90a --model examples/models/demo --emit conv_tensor_product");
  if (!line.parse(arguments)) return 0;

  line.require("model", "--model DIR");
  line.require("arch", "--arch NAMES");
  CompileOptions options;
  options.archs = words(line, "arch");
  options.dtypes = dtypes(line);
  options.passes = passes(line);
  options.source_only = line.given("emit");
  const std::string glob = line.text("emit");
  if (options.source_only && glob.empty()) line.fail("--emit: the name is empty, expected an op, a module, or '*'");
  ContextOptions context_options;
  context_options.registry = registry_options(line);
  Context context(std::move(context_options));
  options.context = &context;
  const std::shared_ptr<Model> model = Model::load(line.text("model"));

  const std::size_t steps =
      options.archs.size() * options.dtypes.size() * (fast_modules(*model).size() + model->small_ops().size());
  std::vector<CompiledModule> modules;
  {
    Progress progress("compiling", steps);
    options.on_step = [&](std::size_t, std::size_t) { progress.step(); };
    modules = compile(*model, options);
  }
  const auto count = [&](auto predicate) { return std::count_if(modules.begin(), modules.end(), predicate); };
  const auto with = [&](Verdict verdict) {
    return count([&](const CompiledModule& module) { return module.verdict == verdict; });
  };
  if (options.source_only && count([&](const CompiledModule& module) { return matches(glob, module); }) == 0) {
    line.fail(fmt::format("--emit: no op and no module matches '{}'", glob));
  }
  if (line.get<bool>("json")) {
    if (options.source_only)
      std::erase_if(modules, [&](const CompiledModule& module) { return !matches(glob, module); });
    print_json({{"model", line.text("model")},
                {"passes", line.text("passes")},
                {"modules", json_of(modules, options.source_only)}},
               Layout::indented);
  } else if (options.source_only) {
    print_sources(modules, glob);
  } else {
    print_kernels(modules);
    print_rest(modules, Verdict::refused, "No kernel, so the reference will run:");
    print_rest(modules, Verdict::failed, "Does not compile:");
    const auto cached = count([](const CompiledModule& module) { return module.cached; });
    print(fmt::format("\n{} modules: {} compiled, {} in the cache before, {} without a kernel, {} failed\n",
                      modules.size(), with(Verdict::compiled) - cached, cached, with(Verdict::refused),
                      with(Verdict::failed)));
  }
  return with(Verdict::failed) > 0 ? kFindings : 0;
}

}  // namespace fastpath::cli
