#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <new>

#include "command_line.hpp"
#include "decisions.hpp"
#include "fastpath/error.hpp"
#include "fastpath/extxyz.hpp"
#include "fastpath/hub.hpp"
#include "fastpath/lock.hpp"
#include "fastpath/safetensors.hpp"
#include "held_signals.hpp"
#include "json.hpp"
#include "model_options.hpp"
#include "output_file.hpp"
#include "table.hpp"

namespace fastpath::cli {

namespace {

struct Frame {
  std::string file;
  std::size_t index = 0;  ///< In its file.
  Structure structure;
  EvaluationResult result;

  /// For messages, which count frames from 1 as the reader of the files does.
  std::string name() const { return fmt::format("{}, frame {}", file, index + 1); }
};

std::vector<Frame> read_frames(const std::vector<std::string>& files) {
  std::vector<Frame> frames;
  for (const std::string& file : files) {
    std::vector<Structure> structures = read_extxyz(file);
    if (structures.empty()) throw Error(ErrorCode::bad_file, fmt::format("{}: has no frame", file));
    for (std::size_t i = 0; i < structures.size(); ++i) {
      frames.push_back({file, i, std::move(structures[i]), {}});
      if (frames.back().structure.size() == 0) {
        throw Error(ErrorCode::bad_file, fmt::format("{}: has no atoms, expected at least one", frames.back().name()));
      }
    }
  }
  return frames;
}

/// Runs a function for one frame, which errors then name.
template <class Function>
auto of_frame(const Frame& frame, const Function& function) {
  try {
    return function();
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", frame.name(), error.what()));
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::out_of_memory, fmt::format("{}: out of memory", frame.name()));
  }
}

/// Every file that is read besides structures: those of the model's folder, a policy, a lock.
std::vector<std::filesystem::path> settings_of(const CommandLine& line) {
  namespace fs = std::filesystem;
  std::vector<fs::path> result;
  fs::path folder = line.text("model");
  std::error_code error;
  if (!fs::is_directory(folder, error)) folder = find_hub_model(folder.string(), false).directory;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    result.push_back(entry->path());
  }
  for (const char* option : {"policy", "replay"}) {
    if (line.given(option)) result.emplace_back(line.text(option));
  }
  return result;
}

void evaluate(std::vector<Frame>& frames, ModelSetup& setup) {
  Progress progress("evaluating", frames.size());
  if (frames.size() == 1) {
    Frame& frame = frames.front();
    frame.result = of_frame(frame, [&] { return setup.model->evaluate(frame.structure, setup.options); });
    progress.step();
    return;
  }
  std::vector<Structure> structures;
  for (Frame& frame : frames) structures.push_back(std::move(frame.structure));
  try {
    (void)setup.model->evaluate(structures, setup.options, [&](std::size_t i, EvaluationResult& result) {
      result.edge_forces = {};  // which nobody reads, and which is the largest part by far
      frames[i].result = std::move(result);
      progress.step();
    });
  } catch (const StructureError& error) {
    throw Error(error.code(), fmt::format("{}: {}", frames[error.structure()].name(), error.cause()));
  }
  for (std::size_t i = 0; i < frames.size(); ++i) frames[i].structure = std::move(structures[i]);
}

/// Second derivatives of the energy of one frame, with what says which number is which.
StateDict hessian_of(const Frame& frame, ModelSetup& setup) {
  const Structure& structure = frame.structure;
  StateDict result;
  EvaluateOptions options = setup.options;
  Progress progress("second derivatives", 3 * static_cast<std::size_t>(structure.size()));
  options.on_direction = [&](std::int64_t, std::int64_t) { progress.step(); };
  result.add("hessian", of_frame(frame, [&] { return setup.model->hessian(structure, options); }));
  result.add("atomic_numbers", Tensor::from<std::int32_t>({structure.size()}, structure.atomic_numbers));
  std::vector<double> positions, cell;
  for (const Vec3& row : structure.positions) positions.insert(positions.end(), row.begin(), row.end());
  for (const Vec3& row : structure.cell) cell.insert(cell.end(), row.begin(), row.end());
  result.add("positions", Tensor::from<double>({structure.size(), 3}, positions));
  result.add("cell", Tensor::from<double>({3, 3}, cell));
  return result;
}

double largest_force(const Tensor& forces) {
  const auto values = forces.span<double>();
  double result = 0;
  for (std::size_t i = 0; i + 2 < values.size(); i += 3) {
    result = std::max(result, std::hypot(values[i], values[i + 1], values[i + 2]));
  }
  return result;
}

/// Without its decisions, which take most of the memory.
Json json_of(const Frame& frame) {
  const EvaluationResult& result = frame.result;
  const auto what = [&frame](const char* name) { return fmt::format("{}: {}", frame.name(), name); };
  Json stress = nullptr;
  if (result.stress) {
    stress = Json::array();
    for (const auto& row : *result.stress) {
      Json values = Json::array();
      for (const double value : row) values.push_back(cli::json_of(value, what("the stress")));
      stress.push_back(std::move(values));
    }
  }
  return {{"file", frame.file},
          {"index", frame.index},
          {"energy", cli::json_of(result.energy, what("the energy"))},
          {"node_energies", cli::json_of(result.node_energies, what("a node energy"))},
          {"forces", cli::json_of(result.forces, what("a force"))},
          {"stress", std::move(stress)},
          {"n_atoms", result.n_atoms},
          {"n_edges", result.n_edges},
          {"joined", result.n_joined},
          {"seconds", result.seconds},
          {"seconds_graph", result.seconds_graph},
          {"seconds_first_use", result.seconds_first_use},
          {"copied_bytes", result.copied_bytes},
          {"synchronizations", result.synchronizations}};
}

/// The structure as it was read, with this evaluation's results in place of any that it brought along.
Structure annotated(const Frame& frame) {
  Structure structure = frame.structure;
  const EvaluationResult& result = frame.result;
  structure.set_info("energy", std::vector<double>{result.energy});
  if (result.stress) {
    std::vector<double> stress;
    for (const auto& row : *result.stress) stress.insert(stress.end(), row.begin(), row.end());
    structure.set_info("stress", std::move(stress));
  } else {
    std::erase_if(structure.info, [](const auto& entry) { return entry.first == "stress"; });
  }
  if (result.forces.defined()) {
    const auto forces = result.forces.span<double>();
    structure.set_column({"forces", 3, std::vector<double>(forces.begin(), forces.end())});
  } else {
    std::erase_if(structure.columns, [](const AtomColumn& column) { return column.name == "forces"; });
  }
  return structure;
}

void write_results(const std::vector<Frame>& frames, const std::filesystem::path& path) {
  std::vector<Structure> structures;
  structures.reserve(frames.size());
  for (const Frame& frame : frames) structures.push_back(annotated(frame));
  write_extxyz(path, structures);
}

/// "cpu_ref 14/18": how many of the modules with a fast path, and work of their own, each plugin served.
std::string path_summary(const Selection& selection) {
  std::map<std::string, std::size_t> counts;
  std::size_t all = 0;
  for (const Decision& decision : selection.decisions) {
    if (has_own_work(decision)) ++all;
    if (decision.fast()) ++counts[decision.choice];
  }
  std::string result;
  for (const auto& [plugin, count] : counts) {
    result += fmt::format("{}{} {}/{}", result.empty() ? "" : ", ", plugin, count, all);
  }
  return result.empty() ? "reference" : result;
}

void print_table(const std::vector<Frame>& frames) {
  Table table;
  table.column("structure");
  for (const char* title : {"atoms", "edges", "energy, eV", "max |F|", "seconds"}) {
    table.column(title, Table::Align::right);
  }
  table.column("path");
  std::map<std::string, std::size_t> frames_of;
  for (const Frame& frame : frames) ++frames_of[frame.file];
  for (const Frame& frame : frames) {
    const EvaluationResult& result = frame.result;
    table.row({std::filesystem::path(frame.file).filename().string() +
                   (frames_of[frame.file] > 1 ? fmt::format("#{}", frame.index + 1) : std::string()),
               fmt::format("{}", result.n_atoms), fmt::format("{}", result.n_edges),
               fmt::format("{:.8f}", result.energy),
               result.forces.defined() ? fmt::format("{:.6f}", largest_force(result.forces)) : std::string("-"),
               fmt::format("{:.4f}", result.seconds), path_summary(result.selection)});
  }
  print(table.text());
}

void report_fallbacks(const std::vector<Frame>& frames) {
  for (const Frame& frame : frames) {
    for (const Decision& decision : frame.result.selection.decisions) {
      if (decision.reason.code != ReasonCode::fallback) continue;
      print_error("warning",
                  fmt::format("{}: {} ran its reference: {}", frame.name(), decision.module, decision.reason.text));
    }
  }
}

}  // namespace

int run_eval(const Arguments& arguments) {
  CommandLine line("fastpath eval", "FILE...", "energies, forces and stress of structures");
  line.describe(
      "Evaluates every frame of every extended-XYZ file. Energies are in eV, forces in\n"
      "eV/A, stress in eV/A^3 (only where all three directions are periodic). If one\n"
      "frame fails, nothing is written.");
  add_model_options(line);
  line.add()("output,o", po::value<std::string>()->value_name("FILE"),
             "write the frames with energy, forces and stress as extended XYZ");
  line.add()("hessian", po::value<std::string>()->value_name("FILE"),
             "also write the second derivatives of the energy of the only frame, eV/A^2, as safetensors");
  line.add()("no-forces", po::bool_switch(), "energies only");
  add_selection_options(line);
  line.add()("lock", po::value<std::string>()->value_name("FILE"),
             "write which kernel ran for each module, for --replay");
  line.add()("json", po::bool_switch(), "print results and decisions as JSON");
  add_plugin_options(line);
  line.operands("file", -1);
  line.example("fastpath eval --model examples/models/demo --use-fast true examples/structures/*.xyz");
  line.example(
      "fastpath eval --model examples/models/demo --hessian hessian.safetensors examples/structures/water.xyz");
  line.example("fastpath eval --model examples/models/demo --output out.xyz examples/structures/water.xyz");
  if (!line.parse(arguments)) return 0;

  const std::vector<std::string> files = line.list("file");
  if (files.empty()) line.fail("no structure file was given");
  const std::filesystem::path output = line.text("output");
  if (line.given("output")) {
    if (output.empty()) line.fail("--output: the file's name is empty");
    check_output(output, "--output", line);
  }
  const std::filesystem::path hessian = line.text("hessian");
  if (line.given("hessian")) {
    if (hessian.empty()) line.fail("--hessian: the file's name is empty");
    if (hessian == output) line.fail("--hessian and --output name the same file");
    check_output(hessian, "--hessian", line);
  }
  const std::filesystem::path lock_file = line.text("lock");
  if (line.given("lock")) {
    if (lock_file.empty()) line.fail("--lock: the file's name is empty");
    if (lock_file == output || lock_file == hessian) line.fail("--lock names a file that another option names");
    check_output(lock_file, "--lock", line);
  }

  ModelSetup setup = load_model(line);
  std::vector<std::filesystem::path> inputs = settings_of(line);
  // The output has all of the structures, and may take their place.
  if (line.given("output")) check_apart(output, "--output", inputs, line);
  inputs.insert(inputs.end(), files.begin(), files.end());
  if (line.given("hessian")) check_apart(hessian, "--hessian", inputs, line);
  if (line.given("lock")) check_apart(lock_file, "--lock", inputs, line);
  setup.options.forces = !line.get<bool>("no-forces");
  setup.options.stress = setup.options.forces;
  std::vector<Frame> frames = read_frames(files);
  if (line.given("hessian") && frames.size() != 1) {
    line.fail(fmt::format("--hessian: {} frames were given, expected one", frames.size()));
  }
  evaluate(frames, setup);
  StateDict second_derivatives;
  if (line.given("hessian")) second_derivatives = hessian_of(frames.front(), setup);

  SelectionLock lock;
  if (line.given("lock")) {
    for (const Frame& frame : frames) lock.add(frame.result.selection);
  }

  // A number that cannot be written stops both, before anything is.
  const bool as_json = line.get<bool>("json");
  Json json = {{"model", line.text("model")},
               {"device", to_string(setup.options.device)},
               {"dtype", std::string(to_string(setup.options.dtype))},
               {"use_fast", std::string(to_string(setup.use_fast))},
               {"frames", Json::array()}};
  for (const Frame& frame : frames) {
    Json result = json_of(frame);
    if (!as_json) continue;
    result["decisions"] = Json::array();
    for (const Decision& decision : frame.result.selection.decisions) {
      result["decisions"].push_back(cli::json_of(decision));
    }
    json["frames"].push_back(std::move(result));
  }
  if (line.given("output")) {
    const HeldSignals held;
    write_results(frames, output);
  }
  if (line.given("hessian")) {
    const HeldSignals held;
    write_safetensors(hessian, second_derivatives, {{"format", "fastpath-hessian"}, {"unit", "eV/angstrom^2"}});
  }
  if (line.given("lock")) {
    const HeldSignals held;
    lock.save(lock_file);
  }
  if (as_json) {
    print_json(json, Layout::compact);
  } else {
    print_table(frames);
  }
  report_fallbacks(frames);
  return 0;
}

}  // namespace fastpath::cli
