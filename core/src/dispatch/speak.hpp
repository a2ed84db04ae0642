#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "dispatch/setting.hpp"

/// The rules of docs/policy.md that do not name a kernel: who of them speaks, and what it says.
namespace fastpath::rules {

/// Position of a plugin in the caller's list of preferences; the length of the list if it is not there.
std::size_t preference(const AutoPolicy* policy, const std::string& id);
/// Whether a kernel takes so many edges. False, with the reason, if not.
bool in_window(const plugin::KernelTraits& traits, Setting& s, Support& support);
/// The rule that speaks for the whole group, if there is one. On the CPU each module may have its own.
std::optional<Speech> rule_of_all(const std::vector<NamedFastModule>& modules, Setting& s, const DeviceInfo& device);
/// The rule that speaks for or against one kernel on the CPU, where none does for all.
Speech rule_of_one(const FastPathModule::State::Answer& answer, const std::optional<MeasurementStore::Found>& found,
                   Setting& s);

}  // namespace fastpath::rules
