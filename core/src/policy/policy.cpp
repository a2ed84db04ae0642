#include "fastpath/policy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "fastpath/error.hpp"
#include "io/file.hpp"
#include "io/json_reader.hpp"
#include "io/printable.hpp"

namespace fastpath {
namespace {

std::string lower(const std::string& text) {
  std::string result = text;
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

using io::Json;  // in order: a table is an object whose order counts
constexpr std::size_t kMostBytes = std::size_t{1} << 20;

/// Reads the members of a policy from one file.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& file) : file_(file) {}

  [[noreturn]] void bad(const std::string& text) const {
    throw Error(ErrorCode::bad_file, fmt::format("{}: {}", file_.string(), text));
  }
  std::int64_t edges(const std::string& name, const Json& json) const {
    if (!json.is_number_integer() || json.get<double>() < 0 || json.get<double>() > 9e18) {
      bad(fmt::format("{} is {}, expected a number of edges", name, io::shown(json)));
    }
    return json.get<std::int64_t>();
  }
  bool truth(const std::string& name, const Json& json) const {
    if (!json.is_boolean()) bad(fmt::format("{} is {}, expected true or false", name, io::shown(json)));
    return json.get<bool>();
  }
  AutoPolicy::Table table(const std::string& name, const Json& json) const {
    if (!json.is_object()) bad(fmt::format("{} is {}, expected an object: device to edges", name, io::shown(json)));
    AutoPolicy::Table table;
    for (const auto& [device, value] : json.items()) {
      if (device.empty()) bad(fmt::format("{} has an entry without a name, which every device would match", name));
      table.emplace_back(device, edges(fmt::format("{}: {}", name, io::printable(device)), value));
    }
    return table;
  }
  std::vector<std::string> words(const std::string& name, const Json& json) const {
    const bool good =
        json.is_array() && std::all_of(json.begin(), json.end(), [](const Json& word) { return word.is_string(); });
    if (!good) bad(fmt::format("{} is {}, expected a list of globs", name, io::shown(json)));
    return json.get<std::vector<std::string>>();
  }

 private:
  const std::filesystem::path& file_;
};

}  // namespace

std::optional<std::int64_t> AutoPolicy::entry(const DeviceInfo& device, DType dtype) const {
  const std::string name = lower(device.name);
  for (const auto& [part, edges] : dtype == DType::float64 ? min_edges_float64 : min_edges) {
    if (name.find(lower(part)) != std::string::npos) return edges;
  }
  return std::nullopt;
}

std::int64_t AutoPolicy::threshold(const DeviceInfo& device, DType dtype) const {
  return entry(device, dtype).value_or(dtype == DType::float64 ? default_min_edges_float64 : default_min_edges);
}

bool AutoPolicy::decide(const DeviceInfo& device, DType dtype, std::int64_t num_edges) const {
  return !device.device.is_cpu() && num_edges >= threshold(device, dtype);
}

std::shared_ptr<const AutoPolicy> AutoPolicy::load(const std::filesystem::path& file) {
  const std::string text = io::read_small_file(file, kMostBytes);
  const Reader reader(file);
  const Json json = io::parse_json(text, file.string());
  if (!json.is_object()) reader.bad(fmt::format("is {}, expected an object", io::shown(json)));
  auto policy = std::make_shared<AutoPolicy>();
  for (const auto& [name, value] : json.items()) {
    if (name == "min_edges") {
      policy->min_edges = reader.table(name, value);
    } else if (name == "min_edges_float64") {
      policy->min_edges_float64 = reader.table(name, value);
    } else if (name == "default_min_edges") {
      policy->default_min_edges = reader.edges(name, value);
    } else if (name == "default_min_edges_float64") {
      policy->default_min_edges_float64 = reader.edges(name, value);
    } else if (name == "preference") {
      policy->preference = reader.words(name, value);
    } else if (name == "thresholds_are_priors") {
      policy->thresholds_are_priors = reader.truth(name, value);
    } else if (name == "use_priors") {
      policy->use_priors = reader.truth(name, value);
    } else {
      reader.bad(fmt::format(
          "has {}; a policy has min_edges, min_edges_float64, default_min_edges, default_min_edges_float64, "
          "preference, thresholds_are_priors and use_priors",
          io::printable(name)));
    }
  }
  return policy;
}

const std::shared_ptr<const AutoPolicy>& AutoPolicy::builtin() {
  static const auto* policy = new std::shared_ptr<const AutoPolicy>(std::make_shared<const AutoPolicy>(
      AutoPolicy{.min_edges = {{"A100", 50'000}, {"H100", 60'000}, {"H200", 60'000}, {"L40S", 30'000}},
                 .min_edges_float64 = {{"A100", 25'000}, {"H100", 30'000}, {"H200", 30'000}, {"L40S", 0}},
                 .default_min_edges = 50'000,
                 .default_min_edges_float64 = 25'000,
                 .preference = {},
                 .thresholds_are_priors = true}));
  return *policy;
}

}  // namespace fastpath
