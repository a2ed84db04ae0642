#include <fmt/format.h>

#include <filesystem>

#include "command_line.hpp"
#include "fastpath/error.hpp"
#include "fastpath/model.hpp"
#include "fastpath/torchscript.hpp"
#include "held_signals.hpp"
#include "json.hpp"
#include "output_file.hpp"
#include "terminal.hpp"

namespace fastpath::cli {

namespace {

/// Finds out before the model is read that the file cannot be written.
void check_export(const std::filesystem::path& output, bool overwrite, const CommandLine& line) {
  check_output(output, "--torchscript", line);
  std::error_code error;
  if (!overwrite && std::filesystem::exists(std::filesystem::symlink_status(output, error))) {
    throw Error(ErrorCode::io,
                fmt::format("--torchscript: {} is there already; --overwrite replaces it", output.string()));
  }
}

}  // namespace

int run_export(const Arguments& arguments) {
  CommandLine line("fastpath export", "", "writes a model in a form that other programs load");
  line.describe(
      "--torchscript writes one file that libtorch (C++) and PyTorch (Python) load\n"
      "without fastpath. It computes the reference, whichever plugins are here, and its\n"
      "parameters have the names of the model's own. docs/export.md has inputs and\n"
      "outputs. It needs a fastpath that was built where libtorch is.");
  line.add()("torchscript", po::value<std::string>()->value_name("FILE"), "the file to make (required)");
  line.add()("model,m", po::value<std::string>()->value_name("DIR"),
             "model folder, or the name of a model in the hub (required)");
  line.add()("overwrite", po::bool_switch(), "replace FILE if it is there");
  line.add()("json", po::bool_switch(), "print what was made as JSON");
  line.operands("operand", 0);
  line.example("fastpath export --torchscript demo.pt --model examples/models/demo");
  if (!line.parse(arguments)) return 0;

  line.require("torchscript", "--torchscript FILE");
  line.require("model", "--model DIR");
  const std::string output = line.text("torchscript");
  if (output.empty()) line.fail("--torchscript: the file's name is empty");
  const bool overwrite = line.get<bool>("overwrite");
  check_export(output, overwrite, line);

  const std::shared_ptr<Model> model = Model::load(line.text("model"));
  TorchScriptExport made;
  {
    const HeldSignals held;
    made = export_torchscript(*model, output, overwrite);
  }
  if (line.get<bool>("json")) {
    print_json({{"file", output},
                {"model", line.text("model")},
                {"architecture", model->architecture()},
                {"dtype", std::string(to_string(model->stored_dtype()))},
                {"parameters", made.parameters},
                {"bytes", made.bytes}},
               Layout::indented);
  } else {
    print(fmt::format("{}: TorchScript of {}, {} parameters in {}, {} bytes\n", one_line(output),
                      one_line(line.text("model")), made.parameters, to_string(model->stored_dtype()), made.bytes));
  }
  return 0;
}

}  // namespace fastpath::cli
