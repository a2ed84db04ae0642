#include "fastpath/lock.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "fastpath/error.hpp"
#include "fastpath/measurement.hpp"
#include "io/file.hpp"
#include "io/json_reader.hpp"

namespace fastpath {
namespace {

using io::Json;

constexpr int kFormat = 1;
constexpr std::size_t kMostBytes = std::size_t{64} << 20;

bool same_question(const LockedChoice& a, const LockedChoice& b) {
  return a.module == b.module && a.op == b.op && a.op_version == b.op_version && a.config == b.config &&
         a.device == b.device && a.dtype == b.dtype && a.passes == b.passes;
}

[[noreturn]] void bad(const std::filesystem::path& file, const std::string& text) {
  throw Error(ErrorCode::bad_file, fmt::format("{}: {}", file.string(), text));
}

}  // namespace

void SelectionLock::add(const Selection& selection) {
  for (const Decision& decision : selection.decisions) {
    const LockedChoice choice{decision.module,
                              decision.op,
                              decision.op_version,
                              decision.config,
                              std::string(to_string(selection.device.kind)),
                              selection.dtype,
                              selection.passes.bits(),
                              selection.min_edges,
                              selection.max_edges,
                              decision.choice,
                              decision.fast() ? decision.build : std::string()};
    bool known = false;
    for (const LockedChoice& other : choices_) {
      if (!same_question(other, choice)) continue;
      if (other == choice) known = true;
      const bool apart = other.max_edges < choice.min_edges || choice.max_edges < other.min_edges;
      if (apart || (other.choice == choice.choice && other.build == choice.build)) continue;
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}: {} ran for {} to {} edges and {} for {} to {}: one lock cannot have both",
                              choice.module, other.choice, other.min_edges, other.max_edges, choice.choice,
                              choice.min_edges, choice.max_edges));
    }
    if (!known) choices_.push_back(choice);
  }
}

const LockedChoice* SelectionLock::find(const std::string& module, const OpSpec& op, const Device& device, DType dtype,
                                        Passes passes, std::int64_t n_edges, std::string& why) const {
  const std::string config = op_config(op);
  // The nearest is the one that agrees in most of these, in this order.
  std::size_t agreement = 0;
  why = fmt::format("the lock has no module {}", module);
  std::string sizes;
  for (const LockedChoice& choice : choices_) {
    if (choice.module != module) continue;
    const auto differs = [&](std::size_t step, std::string text) {
      if (step >= agreement) {
        agreement = step;
        why = std::move(text);
      }
    };
    if (choice.op != op.id || choice.op_version != op.version) {
      differs(1, fmt::format("{} is {} version {} in the lock, here {} version {}", module, choice.op,
                             choice.op_version, op.id, op.version));
    } else if (choice.config != config) {
      differs(2, fmt::format("{} has configuration {} in the lock, here {}", module, choice.config, config));
    } else if (choice.device != to_string(device.kind)) {
      differs(3, fmt::format("{} ran on {} in the lock, here {}", module, choice.device, to_string(device.kind)));
    } else if (choice.dtype != dtype) {
      differs(4, fmt::format("{} ran in {} in the lock, here {}", module, to_string(choice.dtype), to_string(dtype)));
    } else if (choice.passes != passes.bits()) {
      differs(5, fmt::format("{} ran for {} in the lock, here {}", module, to_string(Passes::from_bits(choice.passes)),
                             to_string(passes)));
    } else if (n_edges < choice.min_edges || n_edges > choice.max_edges) {
      sizes += fmt::format("{}{} to {}", sizes.empty() ? "" : ", ", choice.min_edges, choice.max_edges);
      differs(6, fmt::format("{} has choices for {} edges in the lock, here are {}", module, sizes, n_edges));
    } else {
      why.clear();
      return &choice;
    }
  }
  return nullptr;
}

void SelectionLock::save(const std::filesystem::path& path) const {
  Json list = Json::array();
  for (const LockedChoice& c : choices_) {
    list.push_back({{"module", c.module},
                    {"op", c.op},
                    {"op_version", c.op_version},
                    {"config", c.config},
                    {"device", c.device},
                    {"dtype", std::string(to_string(c.dtype))},
                    {"passes", c.passes},
                    {"min_edges", c.min_edges},
                    {"max_edges", c.max_edges},
                    {"choice", c.choice},
                    {"build", c.build}});
  }
  const std::string text = Json{{"fastpath_lock", kFormat}, {"choices", std::move(list)}}.dump(1) + "\n";
  io::ReplacingFile file(path);
  file.write(text);
  file.commit();
}

SelectionLock SelectionLock::load(const std::filesystem::path& path) {
  const std::string text = io::read_small_file(path, kMostBytes);
  SelectionLock lock;
  std::size_t at = 0;
  try {
    const Json json = io::parse_json(text, path.string());
    const Json& format = json.at("fastpath_lock");
    if (format != kFormat)
      bad(path, fmt::format("a lock of format {}, this version reads {}", io::shown(format), kFormat));
    for (const Json& entry : json.at("choices").get_ref<const Json::array_t&>()) {
      ++at;
      LockedChoice c;
      entry.at("module").get_to(c.module);
      entry.at("op").get_to(c.op);
      entry.at("op_version").get_to(c.op_version);
      entry.at("config").get_to(c.config);
      entry.at("device").get_to(c.device);
      c.dtype = parse_dtype(entry.at("dtype").get<std::string>());
      entry.at("passes").get_to(c.passes);
      entry.at("min_edges").get_to(c.min_edges);
      entry.at("max_edges").get_to(c.max_edges);
      entry.at("choice").get_to(c.choice);
      entry.at("build").get_to(c.build);
      if (c.choice.empty() || c.min_edges > c.max_edges) bad(path, fmt::format("choice {} means nothing", at));
      lock.choices_.push_back(std::move(c));
    }
  } catch (const Json::exception&) {
    bad(path, at == 0 ? "not a lock of fastpath: expected what --lock writes"
                      : fmt::format("choice {} is not one: expected what --lock writes", at));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument) throw;
    bad(path, fmt::format("choice {}: {}", at, error.what()));
  }
  return lock;
}

}  // namespace fastpath
