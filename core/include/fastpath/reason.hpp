#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fastpath/export.hpp"

namespace fastpath {

/// Why something is, or is not, used. A closed list; docs/reasons.md has a paragraph on each.
enum class ReasonCode {
  // What decided a module's path.
  forced_reference,   ///< use_fast is false.
  forced_fast,        ///< use_fast is true, or auto without a policy, and a kernel is usable.
  policy_fast,        ///< The policy's threshold is reached on this device.
  policy_reference,   ///< The policy's threshold is not reached.
  lock,               ///< A lock file that is replayed says so.
  environment,        ///< FASTPATH_OP_<NAME> says so.
  measured,           ///< It was measured on a device like this one.
  tie,                ///< Measured: a kernel is not faster by more than 3 %, so the reference.
  inconclusive,       ///< It was measured, and nothing can be said.
  prior,              ///< What was measured elsewhere on such a device, by the vendor or by fastpath.
  policy_default,     ///< Off the CPU: the policy's threshold for devices that its tables do not name.
  unmeasured,         ///< auto: nothing was measured, here or elsewhere, that speaks for a kernel.
  no_kernel,          ///< No plugin has a usable kernel; the candidates say why.
  covered_by_parent,  ///< A fused parent runs fast and does this module's work.
  in_parts,           ///< No fused kernel runs; the parts of this module are decided one by one.
  no_fast_path,       ///< The module computes something no plugin was asked for.
  deactivated,        ///< deactivate() was called.
  fallback,           ///< A kernel was chosen but failed during the run; the reference ran.
  chosen,             ///< A candidate: this kernel runs.
  not_chosen,         ///< A candidate: usable, but another kernel is preferred.
  // Why a kernel refuses (the plugin's own words follow).
  op,
  op_version,
  device,
  arch,
  dtype,
  pass,
  config,
  degree,
  multiplicity,
  instructions,
  math_mode,
  memory,
  size,
  other,
  bad_answer,     ///< The plugin's answer contradicts itself.
  create_failed,  ///< The kernel could not be created.
  run_failed,     ///< The kernel failed before in this process and was taken out.
  not_verified,   ///< It does not agree with the reference on the inputs that the core tries before it is used.
  wrong_result,   ///< It disagreed with the reference in an evaluation that was compared, and was taken out.
  device_lost,    ///< The device was lost earlier in this process; nothing on it works any more.
  forked,         ///< The process was forked after the device was opened; the child cannot use it.
  shut_down,      ///< The host has shut its plugins down; the reference runs until the process ends.
  // The state of a plugin file.
  usable,
  no_directory,        ///< A search directory does not exist.
  relative_path,       ///< A search directory is given by a relative path, so it is not searched.
  unreadable,          ///< A directory or file cannot be read.
  not_a_file,          ///< Not a regular file.
  not_elf,             ///< Not an ELF file.
  truncated,           ///< Shorter than its own headers say: would kill the process if it were loaded.
  wrong_class,         ///< 32-bit, big-endian, or not a shared object.
  wrong_machine,       ///< For another CPU.
  no_query_symbol,     ///< The query function is not exported.
  no_metadata,         ///< The metadata section is missing.
  bad_metadata,        ///< The metadata record is malformed.
  abi_incompatible,    ///< No common ABI version.
  missing_dependency,  ///< A library it needs is not found.
  load_failed,         ///< The dynamic linker refused it for another cause.
  query_failed,        ///< The query function returned an error or nothing, or threw.
  bad_plugin,          ///< A mandatory entry is null, or a struct is too small.
  metadata_mismatch,   ///< The loaded plugin names itself differently from its metadata.
  enumerate_failed,    ///< Listing devices failed.
  no_device,           ///< No driver or no device.
  disabled,            ///< Disabled by configuration.
  shadowed,            ///< The same id was found earlier in search order.
  duplicate,           ///< The same file, by inode or content, was found earlier.
  not_needed,          ///< Not loaded, because this evaluation cannot use it.
  not_reached,         ///< A step that was not taken, because one before it settled the matter.
  not_cached,          ///< Nothing is kept about this file and this machine from earlier.
  cache_unusable,      ///< What is kept between runs cannot be read or written.
  // Why a measurement does not count, or not as much.
  stale,          ///< It was made with another driver or library, or long ago; it counts until there is a newer one.
  superseded,     ///< Another one of the same kernel counts.
  other_device,   ///< It belongs to a device, or to a number of threads, that this machine does not have.
  other_build,    ///< It belongs to another build of the plugin, or to a plugin that is not here.
  bad_record,     ///< The line is not a whole record: torn, changed, or of numbers that mean nothing.
  record_format,  ///< The line is of a format that this version does not read.
  // Why a plugin file is not trusted, or not safe to load.
  ignored_elevated,    ///< A search directory that the caller's environment names, in a process with elevated rights.
  unsafe_owner,        ///< The file, or a directory above it, belongs to a user who is neither root nor this one.
  unsafe_mode,         ///< Others than its owner may write to the file or to a directory above it.
  untrusted,           ///< Its SHA-256 is not in the list of allowed plugins.
  changed,             ///< The file was replaced between its examination and its loading.
  probe_timeout,       ///< Trying it in a helper process took too long: it hangs.
  probe_crashed,       ///< The helper process was killed by a signal.
  probe_exited,        ///< The plugin ended the helper process.
  probe_garbage,       ///< The helper process answered what cannot be read.
  probe_output,        ///< The plugin printed more than a plugin may.
  probe_memory,        ///< It took more memory than a probe may.
  probe_side_effects,  ///< It changed the process it was loaded into: locale, signals, floating-point mode, children.
  probe_unavailable,   ///< The helper program is missing or cannot be started.
};

/// The stable name, e.g. "forced_reference".
FASTPATH_EXPORT std::string_view to_string(ReasonCode code) noexcept;
/// What a person can do about it: a sentence, the one of docs/reasons.md. "Nothing." where there is nothing to do.
FASTPATH_EXPORT std::string_view advice(ReasonCode code) noexcept;

struct Reason {
  ReasonCode code = ReasonCode::other;
  std::string text;  ///< A sentence: what was found, what would be accepted.
};

/// An answer to "can this run there": yes, or every reason why not.
class Support {
 public:
  static Support yes() { return {}; }
  /// A refusal with one reason.
  static Support no(ReasonCode code, std::string text) {
    Support answer;
    return answer.blocked(code, std::move(text));
  }
  /// Adds a reason; the answer is then no.
  Support& blocked(ReasonCode code, std::string text) {
    reasons_.push_back({code, std::move(text)});
    return *this;
  }
  bool supported() const noexcept { return reasons_.empty(); }
  explicit operator bool() const noexcept { return supported(); }
  const std::vector<Reason>& reasons() const noexcept { return reasons_; }

 private:
  std::vector<Reason> reasons_;
};

}  // namespace fastpath
