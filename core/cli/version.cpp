#include "fastpath/version.hpp"

#include <fmt/format.h>

#include "command_line.hpp"
#include "json.hpp"
#include "terminal.hpp"

namespace fastpath::cli {

int run_version(const Arguments& arguments) {
  CommandLine line("fastpath --version", "", "the version and how it was built");
  line.add()("json", po::bool_switch(), "print the build facts as JSON");
  line.example("fastpath --version --json");
  if (!line.parse(arguments)) return 0;

  const BuildInfo& build = build_info();
  const std::string abi = fmt::format("{}.{}", build.abi_major, build.abi_minor);
  if (line.get<bool>("json")) {
    print_json({{"version", build.version},
                {"compiler", build.compiler},
                {"build_type", build.build_type},
                {"sanitizer", build.sanitizer},
                {"system", build.system},
                {"plugin_abi", abi}},
               Layout::indented);
  } else {
    print(fmt::format("fastpath {} (plugin ABI {}, {}, {}, {})\n", build.version, abi, build.compiler, build.build_type,
                      build.system));
  }
  return 0;
}

}  // namespace fastpath::cli
