#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <thread>

#include "command_line.hpp"
#include "exit_code.hpp"
#include "fastpath/conformance/conformance.hpp"
#include "fastpath/error.hpp"
#include "fastpath/extxyz.hpp"
#include "fastpath/verify.hpp"
#include "json.hpp"
#include "model_options.hpp"
#include "table.hpp"

namespace fastpath::cli {
namespace {

namespace kit = conformance;

/// Adds the comparisons with the reference to the checks of the kit.
void add_numerical_checks() {
  for (const NumericalCheck& check : numerical_checks()) {
    kit::add_check({check.name, check.obligation, check.statement},
                   [name = check.name](const kit::Options& options, kit::Report& report) {
                     run_numerical_check(name, {options.plugin, options.seed, options.quick},
                                         {report.step, report.fail, report.note, report.skip});
                   });
  }
}

std::string own_program() {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) throw Error(ErrorCode::io, fmt::format("/proc/self/exe: {}", error.message()));
  return path.string();
}

const char* word_of(kit::Verdict verdict) {
  return verdict == kit::Verdict::passed ? "passed" : verdict == kit::Verdict::failed ? "failed" : "skipped";
}
std::string group_of(const std::string& check) { return check.substr(0, check.find('.')); }

/// How the same run is asked for again.
std::string repeat_command(const kit::Options& options, const std::string& check) {
  return fmt::format("fastpath verify {} --only {} --seed {}{}{}{}", options.plugin, check, options.seed,
                     options.quick ? " --quick" : "", options.large ? " --large" : "",
                     options.against.empty() ? "" : " --against " + options.against);
}

void print_results(const std::vector<kit::Result>& results, const kit::Options& options) {
  struct Group {
    std::string name;
    std::array<std::size_t, 3> counts{};
    double seconds = 0;
  };
  std::vector<Group> groups;
  Group all{"all", {}, 0};
  for (const kit::Result& result : results) {
    if (groups.empty() || groups.back().name != group_of(result.check))
      groups.push_back({group_of(result.check), {}, 0});
    for (Group* group : {&groups.back(), &all}) {
      ++group->counts[static_cast<std::size_t>(result.verdict)];
      group->seconds += result.seconds;
    }
  }
  groups.push_back(all);
  Table table;
  table.column("checks");
  for (const char* title : {"passed", "failed", "skipped", "seconds"}) table.column(title, Table::Align::right);
  for (const Group& group : groups) {
    table.row({group.name, fmt::format("{}", group.counts[0]),
               Cell(fmt::format("{}", group.counts[1]), group.counts[1] > 0 ? Style::bad : Style::plain),
               fmt::format("{}", group.counts[2]), fmt::format("{:.1f}", group.seconds)});
  }
  print(table.text());
  for (const kit::Verdict verdict : {kit::Verdict::skipped, kit::Verdict::failed}) {
    bool first = true;
    for (const kit::Result& result : results) {
      if (result.verdict != verdict) continue;
      if (first) print(verdict == kit::Verdict::failed ? "\nFailed:\n" : "\nSkipped:\n");
      first = false;
      if (verdict == kit::Verdict::skipped) {
        print(fmt::format("  {}  {}\n", result.check, one_line(result.note)));
        continue;
      }
      print(fmt::format("  {} ({}: {})\n", styled(result.check, Style::bad), result.obligation, result.statement));
      for (const kit::Failure& failure : result.failures) {
        print(fmt::format("    {} broken{}{}\n      found:    {}\n      expected: {}\n", failure.obligation,
                          failure.step.empty() ? "" : " in: ", one_line(failure.step), one_line(failure.found),
                          one_line(failure.expected)));
      }
      print(fmt::format("    again: {}\n", one_line(repeat_command(options, result.check))));
    }
  }
}

Json json_of(const std::vector<kit::Result>& results, const kit::Options& options) {
  std::map<std::string, std::size_t> counts{{"passed", 0}, {"failed", 0}, {"skipped", 0}};
  Json checks = Json::array();
  for (const kit::Result& result : results) {
    ++counts[word_of(result.verdict)];
    Json failures = Json::array();
    for (const kit::Failure& failure : result.failures) {
      failures.push_back({{"obligation", failure.obligation},
                          {"step", one_line(failure.step)},
                          {"found", one_line(failure.found)},
                          {"expected", one_line(failure.expected)}});
    }
    checks.push_back({{"check", result.check},
                      {"obligation", result.obligation},
                      {"statement", result.statement},
                      {"verdict", word_of(result.verdict)},
                      {"note", one_line(result.note)},
                      {"seconds", result.seconds},
                      {"failures", std::move(failures)}});
  }
  return {{"plugin", options.plugin},     {"seed", options.seed},       {"quick", options.quick},
          {"large", options.large},       {"passed", counts["passed"]}, {"failed", counts["failed"]},
          {"skipped", counts["skipped"]}, {"checks", std::move(checks)}};
}

int verify_plugin(const CommandLine& line) {
  kit::Options options;
  const std::vector<std::string> files = line.list("plugin");
  options.seed = line.number("seed");
  options.quick = line.get<bool>("quick");
  options.large = line.get<bool>("large");
  options.timeout = static_cast<double>(line.number("timeout"));
  if (options.timeout < 1) line.fail("--timeout: 0 seconds is no time, expected at least 1");
  const std::uint64_t jobs =
      line.given("jobs") ? line.number("jobs") : std::max(1u, std::thread::hardware_concurrency());
  constexpr std::uint64_t kMostJobs = 1024;
  if (jobs < 1 || jobs > kMostJobs) line.fail(fmt::format("--jobs: {}, expected 1 to {}", jobs, kMostJobs));
  options.jobs = static_cast<int>(jobs);
  options.only = line.list("only");
  for (const char* option :
       {"structure", "device", "dtype", "use-fast", "threads", "head", "enable", "disable", "plugin-path"}) {
    if (line.given(option) && !line.defaulted(option)) {
      line.fail(fmt::format("--{} is for --model, not for a plugin", option));
    }
  }
  add_numerical_checks();
  if (line.get<bool>("list-checks")) {
    for (const kit::CheckInfo& check : kit::chosen_checks(options)) {
      print(fmt::format("{:<40}{}  {}\n", check.name, check.obligation, check.statement));
    }
    return 0;
  }
  if (files.empty()) line.fail("neither a plugin nor --model DIR was given");
  options.plugin = std::filesystem::absolute(files[0]).lexically_normal().string();
  std::error_code error;
  if (!std::filesystem::exists(options.plugin, error)) {
    throw Error(ErrorCode::not_found, fmt::format("{}: there is no such file", options.plugin));
  }
  if (line.given("against")) {
    options.against = std::filesystem::absolute(line.text("against")).lexically_normal().string();
    if (!std::filesystem::exists(options.against, error)) {
      throw Error(ErrorCode::not_found, fmt::format("--against: {}: there is no such file", options.against));
    }
  }
  if (const std::string check = line.text("worker"); !check.empty()) return kit::run_worker(options, check);

  const std::vector<kit::CheckInfo> chosen = kit::chosen_checks(options);
  if (chosen.empty()) line.fail("--only: no check of that name; --list-checks shows them all");
  kit::WorkerCommand worker{own_program(), "verify", options.plugin, "--seed", fmt::format("{}", options.seed)};
  if (options.quick) worker.emplace_back("--quick");
  if (options.large) worker.emplace_back("--large");
  if (!options.against.empty()) worker.insert(worker.end(), {"--against", options.against});
  worker.emplace_back("--worker");
  std::vector<kit::Result> results;
  {
    Progress progress("checking", chosen.size());
    try {
      results = kit::run_all(options, worker, [&](const kit::Result&) { progress.step(); });
    } catch (const std::runtime_error& failure) {
      throw Error(ErrorCode::io, failure.what());
    }
  }
  if (line.get<bool>("json")) {
    print_json(json_of(results, options), Layout::indented);
  } else {
    print_results(results, options);
  }
  const bool failed = std::any_of(results.begin(), results.end(),
                                  [](const kit::Result& result) { return result.verdict == kit::Verdict::failed; });
  return failed ? kFindings : 0;
}

const char* word_of(ModelCheck::Verdict verdict) {
  return verdict == ModelCheck::Verdict::passed   ? "passed"
         : verdict == ModelCheck::Verdict::failed ? "failed"
                                                  : "skipped";
}

/// "cpu_ref 14 of 18 modules", or what there is instead.
std::string ran(const ModelVerification& result) {
  std::map<std::string, std::size_t> counts;
  for (const Decision& decision : result.selection.decisions) {
    if (decision.fast()) ++counts[decision.choice];
  }
  if (counts.empty()) return "no module ran fast: everything below is of the reference";
  std::string text;
  for (const auto& [plugin, count] : counts) {
    text += fmt::format("{}{} served {} of {} modules", text.empty() ? "" : ", ", plugin, count,
                        result.selection.decisions.size());
  }
  return text;
}

int verify_loaded_model(const CommandLine& line) {
  if (!line.list("plugin").empty()) line.fail("a plugin and --model: one of them at a time");
  for (const char* option : {"only", "large", "against", "list-checks", "jobs"}) {
    if (line.given(option) && !line.defaulted(option)) {
      line.fail(fmt::format("--{} is for a plugin, not for --model", option));
    }
  }
  ModelSetup setup = load_model(line);
  ModelVerificationOptions options;
  options.evaluate = setup.options;
  options.seed = line.number("seed");
  if (line.get<bool>("quick")) options.steps = 5;
  Structure structure;
  std::string name = "a small cell of the model's elements";
  if (line.given("structure")) {
    name = line.text("structure");
    std::vector<Structure> frames = read_extxyz(name);
    if (frames.empty() || frames[0].size() == 0)
      throw Error(ErrorCode::bad_file, fmt::format("{}: has no atoms", name));
    structure = std::move(frames[0]);
  } else {
    structure = sample_structure(*setup.model, options.seed);
  }
  ModelVerification result;
  {
    Progress progress("checking", 14);
    options.on_check = [&](const std::string&) { progress.step(); };
    result = verify_model(*setup.model, structure, options);
  }
  if (line.get<bool>("json")) {
    Json checks = Json::array();
    for (const ModelCheck& check : result.checks) {
      checks.push_back({{"check", check.name},
                        {"statement", check.statement},
                        {"verdict", word_of(check.verdict)},
                        {"error", cli::json_of(check.error, check.name)},
                        {"limit", check.limit},
                        {"text", check.text}});
    }
    Json decisions = Json::array();
    for (const Decision& decision : result.selection.decisions) decisions.push_back(cli::json_of(decision));
    print_json({{"model", line.text("model")},
                {"structure", name},
                {"device", to_string(setup.options.device)},
                {"dtype", std::string(to_string(setup.options.dtype))},
                {"seed", options.seed},
                {"passed", result.passed()},
                {"ran_fast", result.ran_fast},
                {"checks", std::move(checks)},
                {"decisions", std::move(decisions)}},
               Layout::indented);
  } else {
    print(fmt::format("{}, {} in {}: {}\n\n", one_line(name), to_string(setup.options.device),
                      to_string(setup.options.dtype), ran(result)));
    Table table;
    table.column("check");
    table.column("verdict");
    table.column("error", Table::Align::right);
    table.column("limit", Table::Align::right);
    table.column("what", Table::Align::left, 24);
    for (const ModelCheck& check : result.checks) {
      const bool skipped = check.verdict == ModelCheck::Verdict::skipped;
      table.row({check.name,
                 Cell(word_of(check.verdict), check.verdict == ModelCheck::Verdict::failed ? Style::bad
                                              : skipped                                    ? Style::dim
                                                                                           : Style::good),
                 skipped ? "" : fmt::format("{:.1e}", check.error), skipped ? "" : fmt::format("{:.1e}", check.limit),
                 check.statement + (check.text.empty() ? "" : ": " + check.text)});
    }
    print(table.text());
  }
  return result.passed() ? 0 : kFindings;
}

}  // namespace

int run_verify(const Arguments& arguments) {
  CommandLine line("fastpath verify", "PLUGIN.so | --model DIR",
                   "whether a plugin keeps its contract, or a model its physics");
  line.describe(
      "With a plugin: checks every obligation of docs/plugin-contract.md that can be\n"
      "checked, each in a process of its own, and its kernels against the definition of\n"
      "their ops. With --model: compares the fast path of a model with its reference, and\n"
      "both with what physics demands. Exit status 1 if a check failed.");
  add_model_options(line);
  line.add()("structure", po::value<std::string>()->value_name("FILE"),
             "with --model: the first frame of this file; default: a small cell of the model's elements");
  line.add()("only", po::value<std::vector<std::string>>()->value_name("GLOB")->composing(),
             "with a plugin: only checks whose name or obligation matches; may be repeated");
  line.add()("seed", po::value<std::string>()->value_name("N")->default_value("1"),
             "of random configurations and values; the same seed repeats a failure");
  line.add()("timeout", po::value<std::string>()->value_name("SECONDS")->default_value("120"),
             "with a plugin: what one step of a check may take");
  line.add()("jobs", po::value<std::string>()->value_name("N"),
             "with a plugin: checks that run side by side; default: one a hardware thread");
  line.add()("quick", po::bool_switch(), "fewer configurations, a shorter trajectory");
  line.add()("large", po::bool_switch(), "with a plugin: also what needs 12 GiB of memory");
  line.add()("against", po::value<std::string>()->value_name("FILE"),
             "with a plugin: an earlier version of it; results that differ need another numerics_version");
  line.add()("list-checks", po::bool_switch(), "with a plugin: print the checks and run none");
  line.add()("json", po::bool_switch(), "print the results as JSON");
  add_plugin_options(line);
  line.operands("plugin", 1);
  line.hidden_option("worker");
  line.example("fastpath verify build/release/lib/fastpath/plugins/fastpath_cpu_ref.so");
  line.example("fastpath verify --model examples/models/demo --structure examples/structures/water.xyz");
  if (!line.parse(arguments)) return 0;
  return line.given("model") ? verify_loaded_model(line) : verify_plugin(line);
}

}  // namespace fastpath::cli
