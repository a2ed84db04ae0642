#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "counters.h"
#include "fastpath/extxyz.hpp"
#include "fastpath/model.hpp"
#include "fastpath/plugin.h"

/// A model on the fake device, whose memory one plugin owns and to which another one may bring kernels. Plugins are in
/// a process once, so each test is a process of its own.
namespace on_two {

inline const std::string kData = FASTPATH_TEST_DATA "/refdata/mace_a/";

inline std::unique_ptr<fastpath::Context> context(std::vector<std::string> ids = {"fake_device", "fake_kernels"},
                                                  std::map<std::string, std::string> configuration = {}) {
  fastpath::ContextOptions options;
  options.registry.search_paths = {FASTPATH_TEST_PLUGINS};
  options.registry.files = {FASTPATH_TEST_KERNELS};
  options.registry.default_paths = false;
  options.registry.enable = std::move(ids);
  options.registry.use_cache = false;
  options.plugin_configuration = std::move(configuration);
  return std::make_unique<fastpath::Context>(std::move(options));
}

inline fastpath::EvaluateOptions options(fastpath::Context& context, const std::string& device = "ext:0") {
  fastpath::EvaluateOptions result;
  result.context = &context;
  result.device = fastpath::parse_device(device);
  result.use_fast = fastpath::UseFast::always;
  return result;
}

inline fastpath::EvaluationResult evaluate(fastpath::Model& model, const fastpath::EvaluateOptions& options) {
  return model.evaluate(fastpath::read_extxyz(kData + "molecule.xyz").front(), options);
}
inline fastpath::EvaluationResult by_reference(fastpath::Model& model) {
  fastpath::EvaluateOptions options;
  options.use_fast = fastpath::UseFast::never;
  return evaluate(model, options);
}
inline double largest_difference(const fastpath::EvaluationResult& a, const fastpath::EvaluationResult& b) {
  double result = std::abs(a.energy - b.energy) / std::abs(b.energy);
  double most = 0, size = 0;
  const auto x = a.forces.span<double>(), y = b.forces.span<double>();
  for (std::size_t i = 0; i < x.size(); ++i) {
    most = std::max(most, std::abs(x[i] - y[i]));
    size = std::max(size, std::abs(y[i]));
  }
  return std::max(result, most / size);
}

inline std::set<std::string> choices(const fastpath::Selection& selection) {
  std::set<std::string> result;
  for (const fastpath::Decision& decision : selection.decisions) result.insert(decision.choice);
  return result;
}
/// Why a plugin was refused for the modules of an op: codes, and all the words.
struct Refusals {
  std::set<std::string> codes;
  std::string words;
};
inline Refusals refusals(const fastpath::Selection& selection, const std::string& plugin) {
  Refusals result;
  for (const fastpath::Decision& decision : selection.decisions) {
    if (decision.op != "conv_tensor_product") continue;
    for (const fastpath::Candidate& candidate : decision.candidates) {
      if (candidate.plugin != plugin) continue;
      for (const fastpath::Reason& reason : candidate.reasons) {
        result.codes.insert(std::string(to_string(reason.code)));
        result.words += reason.text + "\n";
      }
    }
  }
  return result;
}

inline fake_device_counters counters(const std::string& file) {
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) throw std::runtime_error(file + " is not loaded");
  const auto query = reinterpret_cast<fp_plugin_query_fn>(::dlsym(library, FP_QUERY_SYMBOL));
  fp_host host{};
  host.struct_size = FP_SIZE_HOST;
  host.abi_min = host.abi_max = FP_ABI_VERSION;
  const fp_plugin* table = nullptr;
  if (query(&host, &table) != FP_OK) throw std::runtime_error(file + " does not answer");
  return *reinterpret_cast<const fake_device_counters*>(table->extensions);
}
inline fake_device_counters owner_counters() { return counters(FASTPATH_TEST_PLUGINS "/fastpath_fake_device.so"); }
inline fake_device_counters kernel_counters() { return counters(FASTPATH_TEST_KERNELS); }

}  // namespace on_two
