#include <fmt/format.h>

#include <filesystem>

#include "command_line.hpp"
#include "fastpath/hub.hpp"
#include "held_signals.hpp"
#include "hub.hpp"
#include "json.hpp"
#include "terminal.hpp"

namespace fastpath::cli {

int run_hub_add(const Arguments& arguments) {
  CommandLine line("fastpath hub add", "DIR", "copies a model folder into the hub");
  line.describe(
      "The model is loaded first, so what is added can be used. Its README.md comes\n"
      "with it; where there is none, one is written that says what the model is. The\n"
      "copy appears whole or not at all, with checksums in SHA256SUMS. Nothing is\n"
      "replaced.");
  line.add()("name", po::value<std::string>()->value_name("NAME"), "its name in the hub; default: that of the folder");
  line.add()("hub", po::value<std::string>()->value_name("HUB"),
             "the hub; default: the first one (see `fastpath hub list`)");
  line.add()("json", po::bool_switch(), "print what was made as JSON");
  line.operands("folder", 1);
  line.example("fastpath hub add /tmp/silicon --name silicon-2");
  if (!line.parse(arguments)) return 0;
  if (line.list("folder").empty()) line.fail("no model folder was given");
  const std::filesystem::path folder = line.list("folder")[0];
  std::string name = line.text("name");
  if (!line.given("name")) {
    name = folder.lexically_normal().filename().string();
    if (name.empty()) name = folder.lexically_normal().parent_path().filename().string();
  }
  if (line.given("hub") && line.text("hub").empty()) line.fail("--hub: the name of the directory is empty");

  HubModel model;
  {
    const HeldSignals held;
    model = add_to_hub(folder, name, line.text("hub"));
  }
  if (line.get<bool>("json")) {
    print_json({{"name", model.name}, {"directory", model.directory.string()}, {"bytes", model.bytes}},
               Layout::indented);
  } else {
    print(fmt::format("{}: added as {}, {} bytes\n", one_line(folder.string()), one_line(model.directory.string()),
                      model.bytes));
  }
  return 0;
}

int run_hub_remove(const Arguments& arguments) {
  CommandLine line("fastpath hub remove", "NAME", "removes a model from the hub");
  line.describe(
      "Removes the folder that NAME means, the first of this name. A symbolic link is\n"
      "removed, not what it names. A folder with other files than those of a model is\n"
      "left as it is.");
  line.add()("json", po::bool_switch(), "print what was removed as JSON");
  line.operands("name", 1);
  line.example("fastpath hub remove silicon-2");
  if (!line.parse(arguments)) return 0;
  if (line.list("name").empty()) line.fail("no model was named");

  HubModel model;
  {
    const HeldSignals held;
    model = remove_from_hub(line.list("name")[0]);
  }
  if (line.get<bool>("json")) {
    print_json({{"name", model.name}, {"directory", model.directory.string()}}, Layout::indented);
  } else {
    print(fmt::format("{}: removed\n", one_line(model.directory.string())));
  }
  return 0;
}

}  // namespace fastpath::cli
