#include "fastpath/conformance/conformance.hpp"

namespace kit = fastpath::conformance;

int main(int argc, char** argv) {
  kit::add_check({"vendor.named_acme", "P-03", "the plugin is called acme"},
                 [](const kit::Options& options, kit::Report& report) {
                   if (options.plugin.find("fastpath_acme.so") == std::string::npos) {
                     report.fail("P-03", options.plugin, "fastpath_acme.so");
                   }
                 });
  return kit::main(argc, argv);
}
