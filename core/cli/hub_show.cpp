#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "command_line.hpp"
#include "fastpath/error.hpp"
#include "fastpath/hub.hpp"
#include "fastpath/model.hpp"
#include "hub.hpp"
#include "json.hpp"
#include "terminal.hpp"

namespace fastpath::cli {

namespace {

/// What stands in a README.md, as much as a terminal shows well; empty if there is none.
std::string read_readme(const std::filesystem::path& folder) {
  constexpr std::size_t kMost = 65536;
  const std::filesystem::path path = folder / "README.md";
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return {};
  std::ifstream in(path, std::ios::binary);
  std::string text(kMost, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  return text;
}

}  // namespace

int run_hub_show(const Arguments& arguments) {
  CommandLine line("fastpath hub show", "NAME", "what one model is");
  line.describe(
      "NAME is the name of a model in a hub, or a model folder. The model is loaded,\n"
      "so what is shown can be used.");
  line.add()("json", po::bool_switch(), "print everything as JSON");
  line.operands("name", 1);
  line.example("fastpath hub show silicon");
  if (!line.parse(arguments)) return 0;
  if (line.list("name").empty()) line.fail("no model was named");
  const std::string name = line.list("name")[0];

  const auto model = Model::load(name);
  std::error_code ignored;
  const std::filesystem::path folder = std::filesystem::is_directory(name, ignored)
                                           ? std::filesystem::path(name)
                                           : find_hub_model(name, false).directory;
  const std::string readme = read_readme(folder);
  if (line.get<bool>("json")) {
    print_json({{"name", name},
                {"directory", folder.string()},
                {"architecture", model->architecture()},
                {"dtype", to_string(model->stored_dtype())},
                {"atomic_numbers", model->atomic_numbers()},
                {"r_max", json_of(model->r_max(), "r_max")},
                {"num_interactions", model->num_interactions()},
                {"heads", model->heads()},
                {"parameters", model->parameter_count()},
                {"readme", readme},
                {"config", Json::parse(model->config_text())}},
               Layout::indented);
    return 0;
  }
  std::string heads;
  for (const std::string& head : model->heads())
    heads += fmt::format("{}{}", heads.empty() ? "" : ", ", one_line(head));
  print(fmt::format(
      "{}\n  architecture   {}, {} layers, {} parameters, stored in {}\n  elements       {}\n  cutoff         {} A\n"
      "  heads          {}\n",
      one_line(folder.string()), model->architecture(), model->num_interactions(), model->parameter_count(),
      to_string(model->stored_dtype()), fmt::join(model->atomic_numbers(), ", "), model->r_max(), heads));
  std::string shown;
  for (std::size_t start = 0; start < readme.size();) {
    const std::size_t end = std::min(readme.find('\n', start), readme.size());
    shown += fmt::format("  {}\n", one_line(readme.substr(start, end - start)));
    start = end + 1;
  }
  if (!shown.empty()) print("\nREADME.md:\n" + shown);
  return 0;
}

}  // namespace fastpath::cli
