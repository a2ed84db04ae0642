#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "fastpath/fast_path.hpp"
#include "fastpath/measurement.hpp"
#include "fastpath/registry.hpp"
#include "fastpath/tensor.hpp"

namespace fastpath::cli {

/// Keys in the order in which they are added: what is printed is also read by people.
using Json = nlohmann::ordered_json;

/// A number that reads back to the same double.
/// @throws Error(numerics) naming `what` if it is not finite: JSON has no word for it.
Json json_of(double value, const std::string& what);
/// A contiguous float64 tensor as nested lists of its shape; null where it is undefined. @throws as above.
Json json_of(const Tensor& tensor, const std::string& what);
Json json_of(const Reason& reason);
Json json_of(const Decision& decision);
Json json_of(const DeviceInfo& device);
Json json_of(const std::vector<SizeWindow>& windows);
Json json_of(const PluginInfo& plugin);
/// The plugin with its hash and whether it is trusted.
Json json_of(const FileReport& file);
Json json_of(const SearchDirectory& directory);

/// Prints a document and a line end: indented, or on one line.
enum class Layout { indented, compact };
void print_json(const Json& json, Layout layout);

}  // namespace fastpath::cli
