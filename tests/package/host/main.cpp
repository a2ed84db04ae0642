// A host as a stranger writes it. With a directory as argument it expects the plugin `minimal` there, usable.
#include <iostream>

#include "fastpath/registry.hpp"
#include "fastpath/tensor.hpp"

int main(int argc, char** argv) {
  const fastpath::Tensor tensor = fastpath::Tensor::zeros({2, 3}, fastpath::DType::float64);
  std::cout << fastpath::to_string(tensor.shape()) << '\n';
  if (fastpath::to_string(tensor.shape()) != "[2, 3]") return 1;
  if (argc < 2) return 0;

  fastpath::RegistryOptions options;
  options.search_paths = {argv[1]};
  options.default_paths = false;
  fastpath::PluginRegistry registry(options);
  for (const fastpath::PluginInfo& plugin : registry.plugins()) {
    std::cout << plugin.id << ": " << fastpath::to_string(plugin.state) << ", " << plugin.reason.text << '\n';
    if (plugin.id == "minimal" && plugin.state == fastpath::PluginState::usable) return 0;
  }
  return 1;
}
