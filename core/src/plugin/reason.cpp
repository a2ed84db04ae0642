#include "fastpath/reason.hpp"

#include <array>
#include <cstddef>

#include "probe_record.hpp"

namespace fastpath {
namespace {

struct Row {
  ReasonCode code;
  std::string_view name;
  std::string_view advice;  // as in docs/reasons.md; a test compares
};

// In the order of the enumerators.
constexpr std::array kRows{
    Row{ReasonCode::forced_reference, "forced_reference", "Nothing, or ask for true or auto."},
    Row{ReasonCode::forced_fast, "forced_fast", "Nothing."},
    Row{ReasonCode::policy_fast, "policy_fast", "Nothing."},
    Row{ReasonCode::policy_reference, "policy_reference",
        "true uses the kernel anyway; a host may bring its own AutoPolicy."},
    Row{ReasonCode::lock, "lock", "Nothing; leave out --replay to decide anew."},
    Row{ReasonCode::environment, "environment", "Unset the variable to decide anew."},
    Row{ReasonCode::measured, "measured", "Nothing."},
    Row{ReasonCode::tie, "tie", "Nothing; true uses the kernel."},
    Row{ReasonCode::inconclusive, "inconclusive",
        "fastpath tune again, on a machine that does nothing else meanwhile."},
    Row{ReasonCode::prior, "prior", "fastpath tune measures this machine; --no-priors ignores what others measured."},
    Row{ReasonCode::policy_default, "policy_default", "fastpath tune, or an entry for this device in the policy."},
    Row{ReasonCode::unmeasured, "unmeasured", "fastpath tune measures; true uses the kernel."},
    Row{ReasonCode::no_kernel, "no_kernel", "fastpath explain --verbose, fastpath list; install a plugin."},
    Row{ReasonCode::covered_by_parent, "covered_by_parent", "Nothing."},
    Row{ReasonCode::in_parts, "in_parts", "Nothing; the candidates say why not in one piece."},
    Row{ReasonCode::no_fast_path, "no_fast_path", "Nothing."},
    Row{ReasonCode::deactivated, "deactivated", "The next select() or evaluation decides anew."},
    Row{ReasonCode::fallback, "fallback",
        "The sentence has the kernel's words. --strict makes it an error. Report it to the vendor if it repeats."},
    Row{ReasonCode::chosen, "chosen", "Nothing."},
    Row{ReasonCode::not_chosen, "not_chosen", "AutoPolicy::preference orders plugins."},
    Row{ReasonCode::op, "op", "Another plugin."},
    Row{ReasonCode::op_version, "op_version", "A newer plugin, or a newer core."},
    Row{ReasonCode::device, "device", "Another device, another plugin."},
    Row{ReasonCode::arch, "arch", "A build of the plugin for it."},
    Row{ReasonCode::dtype, "dtype", "Another --dtype, another plugin."},
    Row{ReasonCode::pass, "pass", "Another plugin; energies alone need forward only."},
    Row{ReasonCode::config, "config", "Another plugin."},
    Row{ReasonCode::degree, "degree", "Another plugin."},
    Row{ReasonCode::multiplicity, "multiplicity", "Another plugin."},
    Row{ReasonCode::instructions, "instructions", "Another plugin."},
    Row{ReasonCode::math_mode, "math_mode", "Another plugin."},
    Row{ReasonCode::memory, "memory", "A smaller structure, another plugin."},
    Row{ReasonCode::size, "size", "Another plugin for this size."},
    Row{ReasonCode::other, "other", "As it says."},
    Row{ReasonCode::bad_answer, "bad_answer", "Report it to the vendor."},
    Row{ReasonCode::create_failed, "create_failed", "The sentence has its words."},
    Row{ReasonCode::run_failed, "run_failed", "Restart to try again; report it to the vendor."},
    Row{ReasonCode::not_verified, "not_verified", "Report it to the vendor; fastpath verify shows by how much."},
    Row{ReasonCode::wrong_result, "wrong_result", "Report it to the vendor; fastpath verify shows by how much."},
    Row{ReasonCode::device_lost, "device_lost", "Restart; check the device and its driver."},
    Row{ReasonCode::forked, "forked", "Fork first, or start a new program instead."},
    Row{ReasonCode::shut_down, "shut_down", "Evaluate first, shut down then; a process does it once."},
    Row{ReasonCode::usable, "usable", "Nothing."},
    Row{ReasonCode::no_directory, "no_directory",
        "Correct the path, or ignore it: default directories need not exist."},
    Row{ReasonCode::relative_path, "relative_path", "Give the absolute path."},
    Row{ReasonCode::unreadable, "unreadable", "Correct its permissions."},
    Row{ReasonCode::not_a_file, "not_a_file", "Remove it."},
    Row{ReasonCode::not_elf, "not_elf", "Remove it."},
    Row{ReasonCode::truncated, "truncated", "Copy it again."},
    Row{ReasonCode::wrong_class, "wrong_class", "A build for this system."},
    Row{ReasonCode::wrong_machine, "wrong_machine", "A build for this CPU."},
    Row{ReasonCode::no_query_symbol, "no_query_symbol", "A plugin for this core; authors: export the query function."},
    Row{ReasonCode::no_metadata, "no_metadata", "Authors: use the metadata macro of plugin.h."},
    Row{ReasonCode::bad_metadata, "bad_metadata", "Authors: use the metadata macro of plugin.h."},
    Row{ReasonCode::abi_incompatible, "abi_incompatible",
        "A plugin, or a core, of the version that the sentence names."},
    Row{ReasonCode::missing_dependency, "missing_dependency", "Install that library."},
    Row{ReasonCode::load_failed, "load_failed", "The sentence has the linker's words."},
    Row{ReasonCode::query_failed, "query_failed", "The sentence has the plugin's words. Report it to the vendor."},
    Row{ReasonCode::bad_plugin, "bad_plugin", "Report it to the vendor."},
    Row{ReasonCode::metadata_mismatch, "metadata_mismatch", "Report it to the vendor."},
    Row{ReasonCode::enumerate_failed, "enumerate_failed", "Check the device's driver."},
    Row{ReasonCode::no_device, "no_device", "Nothing, or install the driver."},
    Row{ReasonCode::disabled, "disabled", "Change that option."},
    Row{ReasonCode::shadowed, "shadowed", "Nothing, or reorder the search path."},
    Row{ReasonCode::duplicate, "duplicate", "Nothing, or remove the copy."},
    Row{ReasonCode::not_needed, "not_needed", "Nothing."},
    Row{ReasonCode::not_reached, "not_reached", "Nothing; see the step that failed."},
    Row{ReasonCode::not_cached, "not_cached", "Nothing."},
    Row{ReasonCode::cache_unusable, "cache_unusable",
        "Correct or remove what the sentence names; everything works without it, more slowly."},
    Row{ReasonCode::stale, "stale", "fastpath tune measures again."},
    Row{ReasonCode::superseded, "superseded", "Nothing; fastpath tune --merge removes it."},
    Row{ReasonCode::other_device, "other_device", "Nothing."},
    Row{ReasonCode::other_build, "other_build", "fastpath tune measures again."},
    Row{ReasonCode::bad_record, "bad_record", "fastpath tune --merge removes the line."},
    Row{ReasonCode::record_format, "record_format", "A newer fastpath reads it."},
    Row{ReasonCode::ignored_elevated, "ignored_elevated",
        "Install plugins in the system directory, or beside the library."},
    Row{ReasonCode::unsafe_owner, "unsafe_owner",
        "Let root or yourself own it: chown. For build trees of other users and for containers see docs/security.md."},
    Row{ReasonCode::unsafe_mode, "unsafe_mode",
        "chmod go-w on what the sentence names; for a shared group see --allow-group-writable."},
    Row{ReasonCode::untrusted, "untrusted", "Add the line that sha256sum prints to the list, if you trust the file."},
    Row{ReasonCode::changed, "changed", "Start again."},
    Row{ReasonCode::probe_timeout, "probe_timeout", "Report it to the vendor; --retry tries again."},
    Row{ReasonCode::probe_crashed, "probe_crashed", "Report it to the vendor; --retry tries again."},
    Row{ReasonCode::probe_exited, "probe_exited", "Report it to the vendor; --retry tries again."},
    Row{ReasonCode::probe_garbage, "probe_garbage", "Report it to the vendor; --retry tries again."},
    Row{ReasonCode::probe_output, "probe_output", "Report it to the vendor; --retry tries again."},
    Row{ReasonCode::probe_memory, "probe_memory", "Report it to the vendor; --retry tries again."},
    Row{ReasonCode::probe_side_effects, "probe_side_effects", "Report it to the vendor; --retry tries again."},
    Row{ReasonCode::probe_unavailable, "probe_unavailable",
        "Install fastpath-probe beside the library, or choose the probe in the process itself."},
};

constexpr bool in_order() {
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    if (static_cast<std::size_t>(kRows[i].code) != i) return false;
  }
  return true;
}
static_assert(in_order() && kRows.size() == static_cast<std::size_t>(ReasonCode::probe_unavailable) + 1);

const Row& row(ReasonCode code) noexcept {
  const auto index = static_cast<std::size_t>(code);
  return index < kRows.size() ? kRows[index] : kRows[static_cast<std::size_t>(ReasonCode::other)];
}

}  // namespace

std::string_view to_string(ReasonCode code) noexcept { return row(code).name; }

std::string_view advice(ReasonCode code) noexcept { return row(code).advice; }

std::optional<ReasonCode> plugin::parse_reason_code(std::string_view name) noexcept {
  for (const Row& candidate : kRows) {
    if (candidate.name == name) return candidate.code;
  }
  return std::nullopt;
}

}  // namespace fastpath
