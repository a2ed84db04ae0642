#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "command_line.hpp"
#include "fastpath/error.hpp"
#include "fastpath/model.hpp"
#include "held_signals.hpp"
#include "json.hpp"
#include "terminal.hpp"

namespace fastpath::cli {

namespace {

std::string read_config(const std::filesystem::path& path) {
  std::error_code status;
  const std::filesystem::file_status found = std::filesystem::status(path, status);
  if (!std::filesystem::exists(found)) {
    if (found.type() == std::filesystem::file_type::not_found) {
      throw Error(ErrorCode::not_found, fmt::format("{}: there is no such file", path.string()));
    }
    throw Error(ErrorCode::io, fmt::format("{}: cannot be examined: {}", path.string(), status.message()));
  }
  if (!std::filesystem::is_regular_file(found)) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: is not a regular file", path.string()));
  }
  constexpr std::uintmax_t kLargest = std::uintmax_t{16} << 20;
  const std::uintmax_t size = std::filesystem::file_size(path, status);
  if (!status && size > kLargest) {
    throw Error(ErrorCode::bad_file,
                fmt::format("{}: has {} bytes, a config.json has at most {}", path.string(), size, kLargest));
  }
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  if (!in) throw Error(ErrorCode::io, fmt::format("{}: cannot be read: {}", path.string(), std::strerror(errno)));
  return text;
}

}  // namespace

int run_hub_create(const Arguments& arguments) {
  CommandLine line("fastpath hub create", "CONFIG", "makes a model folder with weights drawn from a seed");
  line.describe(
      "CONFIG is the config.json of the model (docs/model-format.md). The same seed\n"
      "gives the same weights on every machine. They are random, not trained: the\n"
      "model's energies mean nothing.");
  line.add()("seed", po::value<std::string>()->value_name("N"), "what the weights are drawn from (required)");
  line.add()("output,o", po::value<std::string>()->value_name("DIR"),
             "the folder to make; it must not exist or be empty (required)");
  line.add()("json", po::bool_switch(), "print what was made as JSON");
  line.operands("config", 1);
  line.example("fastpath hub create examples/models/demo.config.json --seed 7 --output /tmp/demo");
  if (!line.parse(arguments)) return 0;

  const std::vector<std::string> configs = line.list("config");
  if (configs.empty()) line.fail("no config was given");
  line.require("seed", "--seed N");
  line.require("output", "--output DIR");
  const std::uint64_t seed = line.number("seed");
  const std::string output = line.text("output");
  if (output.empty()) line.fail("--output: the folder's name is empty");

  const std::string config = read_config(configs[0]);
  std::shared_ptr<Model> model;
  try {
    model = Model::create(config, seed);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", configs[0], error.what()));
  }
  {
    const HeldSignals held;
    model->save(output);
  }
  if (line.get<bool>("json")) {
    print_json({{"directory", output}, {"seed", seed}, {"parameters", model->parameter_count()}}, Layout::indented);
  } else {
    print(fmt::format("{}: a {} model with {} parameters drawn from seed {}, not trained\n", one_line(output),
                      model->architecture(), model->parameter_count(), seed));
  }
  return 0;
}

}  // namespace fastpath::cli
