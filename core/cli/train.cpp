#include <fmt/format.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "command_line.hpp"
#include "fastpath/error.hpp"
#include "fastpath/train.hpp"
#include "json.hpp"
#include "model_options.hpp"
#include "table.hpp"
#include "terminal.hpp"

namespace fastpath::cli {

namespace {

volatile std::sig_atomic_t stop_signal = 0;

/// While an object lives, a signal by which a user or a system ends the program is remembered, so that the run ends
/// with a checkpoint; a second one ends it at once.
class StopSignals {
 public:
  StopSignals() {
    stop_signal = 0;
    struct sigaction action {};
    action.sa_handler = [](int signal) { stop_signal = signal; };
    sigemptyset(&action.sa_mask);
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      ::sigaction(kSignals[i], nullptr, &before_[i]);
      if (before_[i].sa_handler == SIG_DFL) ::sigaction(kSignals[i], &action, nullptr);
    }
  }
  ~StopSignals() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
  }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

 private:
  static constexpr std::array kSignals{SIGINT, SIGTERM, SIGHUP};
  std::array<struct sigaction, kSignals.size()> before_{};
};

/// "1 h 05 min", "3 min 20 s", "40 s".
std::string duration(double seconds) {
  const auto s = static_cast<long>(seconds + 0.5);
  if (s >= 3600) return fmt::format("{} h {:02} min", s / 3600, s % 3600 / 60);
  if (s >= 60) return fmt::format("{} min {:02} s", s / 60, s % 60);
  return fmt::format("{} s", s);
}

std::string status_text(const TrainingProgress& progress) {
  return fmt::format("epoch {}/{}, batch {}/{}, loss {:.4g}{}", progress.epoch, progress.epochs, progress.batch,
                     progress.batches, progress.loss,
                     progress.seconds_left < 0 ? std::string() : ", " + duration(progress.seconds_left) + " left");
}

std::string number(const std::optional<double>& value) { return value ? fmt::format("{:.5f}", *value) : "-"; }

void print_header() {
  print(fmt::format("{:>6} {:>10} {:>12} {:>12} {:>10} {:>10} {:>10}\n", "epoch", "rate", "training", "validation",
                    "eV/atom", "eV/A", "eV/A^3"));
}

void print_epoch(const TrainingEpoch& epoch) {
  const std::string training = epoch.epoch > 0 ? fmt::format("{:.5g}", epoch.training_loss) : "-";
  print(fmt::format("{:>6} {:>10.3g} {:>12} {:>12.5g} {:>10} {:>10} {:>10}{}\n", epoch.epoch, epoch.learning_rate,
                    training, epoch.validation_loss, number(epoch.errors.energy), number(epoch.errors.forces),
                    number(epoch.errors.stress), epoch.best ? " *" : ""));
  finish_output();
}

Json json_of(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

Json json_of(const TrainingResult& result, const TrainingConfig& config) {
  Json best = nullptr;
  if (result.best.best) {
    best = {{"epoch", result.best.epoch},
            {"training_loss", result.best.epoch > 0 ? Json(result.best.training_loss) : Json(nullptr)},
            {"validation_loss", result.best.validation_loss},
            {"energy_rmse", json_of(result.best.errors.energy)},
            {"forces_rmse", json_of(result.best.errors.forces)},
            {"stress_rmse", json_of(result.best.errors.stress)}};
  }
  return {{"finished", result.finished},
          {"resumed", result.resumed},
          {"stopped_early", result.stopped_early},
          {"output", config.output.string()},
          {"model", result.finished ? Json(result.model.string()) : Json(nullptr)},
          {"use_fast", std::string(to_string(config.use_fast))},
          {"parameters", result.parameters},
          {"epochs", result.epochs},
          {"best", std::move(best)}};
}

}  // namespace

int run_train(const Arguments& arguments) {
  CommandLine line("fastpath train", "CONFIG", "fits a model to energies, forces and stresses");
  line.describe(
      "CONFIG is a JSON file; the smallest one names data, a model and a folder:\n\n"
      "  {\"data\": {\"training\": \"train.xyz\", \"validation\": \"validation.xyz\"},\n"
      "   \"model\": {\"r_max\": 5.0, \"num_bessel\": 8, \"polynomial_cutoff_p\": 5,\n"
      "             \"radial_mlp\": [16, 16], \"l_max\": 2, \"hidden_irreps\": \"8x0e+8x1o\",\n"
      "             \"num_interactions\": 2, \"correlation\": 2,\n"
      "             \"interaction_first\": \"RealAgnosticInteractionBlock\",\n"
      "             \"interaction\": \"RealAgnosticResidualInteractionBlock\"},\n"
      "   \"output\": \"run\"}\n\n"
      "The data are extended XYZ with energy (eV), forces (eV/A) and stress (eV/A^3).\n"
      "Everything else has a default: losses, optimizer, schedule, epochs, seed. All\n"
      "keys are explained in docs/training.md; a wrong one is an error that says what\n"
      "was expected.\n\n"
      "In the output folder: log.jsonl (a line per epoch), curves.svg, and at the end\n"
      "model, the folder of the model with the best weights, for 'fastpath eval'.\n"
      "A checkpoint is written after every epoch and every minute. Whatever ends the\n"
      "program, the same command goes on from there, and the result is the same to the\n"
      "last bit. Ctrl-C writes a checkpoint first.\n\n"
      "\"model\": {\"start_from\": \"DIR\"} goes on from a model, by folder or by its name in\n"
      "a hub, in place of random weights: fine-tuning.");
  line.add()("output,o", po::value<std::string>()->value_name("DIR"), "use this folder in place of the one in CONFIG");
  line.add()("epochs", po::value<std::string>()->value_name("N"),
             "use this number of epochs; also to go on with a run that has finished");
  line.add()("use-fast", po::value<std::string>()->value_name("WHEN"),
             "false, true or auto, in place of what CONFIG says");
  line.add()("resume", po::bool_switch(), "fail where there is no checkpoint to go on from");
  line.add()("restart", po::bool_switch(), "begin anew, and replace what the output folder holds");
  line.add()("threads", po::value<std::string>()->value_name("N"), "CPU threads; default: all");
  line.add()("json", po::bool_switch(), "print the result as JSON, and no table");
  add_plugin_options(line);
  line.operands("config", 1);
  line.example("fastpath train examples/train_silicon/config.json --output /tmp/silicon");
  if (!line.parse(arguments)) return 0;

  const std::vector<std::string> configs = line.list("config");
  if (configs.empty()) line.fail("no config was given");
  TrainingConfig config = TrainingConfig::read(configs[0]);
  if (line.given("output")) {
    if (line.text("output").empty()) line.fail("--output: the folder's name is empty");
    config.output = line.text("output");
  }
  if (line.given("epochs")) {
    const std::uint64_t epochs = line.number("epochs");
    if (epochs < 1 || epochs > 100000000) line.fail(fmt::format("--epochs: {} is not between 1 and 100000000", epochs));
    config.epochs = static_cast<std::int64_t>(epochs);
  }
  if (line.given("use-fast")) {
    try {
      config.use_fast = resolve_use_fast(std::string_view(line.text("use-fast")));
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("--use-fast: {}", error.what()));
    }
  }
  TrainingOptions options;
  options.restart = line.get<bool>("restart");
  if (line.get<bool>("resume")) {
    if (options.restart) line.fail("--resume and --restart exclude each other");
    std::error_code error;
    if (!std::filesystem::exists(config.output / "checkpoint.safetensors", error)) {
      throw Error(ErrorCode::not_found,
                  fmt::format("--resume: {} has no checkpoint to go on from", config.output.string()));
    }
  }
  ModelSetup setup;  // for the end of its context
  if (line.given("threads")) {
    const std::uint64_t threads = line.number("threads");
    constexpr std::uint64_t kMost = 4096;
    if (threads < 1 || threads > kMost) line.fail(fmt::format("--threads: {} is not between 1 and {}", threads, kMost));
    options.threads = static_cast<int>(threads);
  }
  ContextOptions context;
  context.registry = registry_options(line);
  context.threads = options.threads;
  setup.context = std::make_unique<Context>(std::move(context));
  options.context = setup.context.get();

  const bool json = line.get<bool>("json");
  StatusLine progress;
  bool header = false;
  options.warn = [&](const std::string& text) { print_error("warning", text); };
  options.note = [&](const std::string& text) {
    if (!json) print(one_line(text) + "\n");
  };
  options.progress = [&](const TrainingProgress& now) {
    if (progress.due()) progress.show(status_text(now));
  };
  options.epoch = [&](const TrainingEpoch& epoch) {
    progress.clear();
    if (json) return;
    if (!header) print_header();
    header = true;
    print_epoch(epoch);
  };
  options.stop = [] { return stop_signal != 0; };
  TrainingResult result;
  {
    const StopSignals signals;
    result = train(config, options);
  }
  progress.clear();
  if (json) {
    print_json(json_of(result, config), Layout::indented);
  } else if (result.finished) {
    const std::string which = result.best.epoch > 0
                                  ? fmt::format("the model of epoch {} of {}", result.best.epoch, result.epochs)
                                  : fmt::format("the starting model, as none of {} epochs is better", result.epochs);
    print(fmt::format("{}: {}{}; on the validation set {} eV per atom, {} eV/A\n", one_line(result.model.string()),
                      which, result.stopped_early ? ", which ended early as no better one came" : "",
                      number(result.best.errors.energy), number(result.best.errors.forces)));
  } else {
    print(fmt::format("stopped after {} epochs; the same command goes on from {}\n", result.epochs,
                      one_line((config.output / "checkpoint.safetensors").string())));
  }
  if (!result.finished && stop_signal != 0) {
    finish_output();
    std::raise(stop_signal);  // so that who started the program sees what ended it
  }
  return 0;
}

}  // namespace fastpath::cli
