#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "probe_record.hpp"
#include "scan.hpp"

namespace fastpath::plugin {

/// What one helper process may take before it is ended.
struct ProbeLimits {
  std::chrono::milliseconds time{30000};
  std::uint64_t memory = std::uint64_t{4} << 30;  ///< Resident bytes.
  std::uint64_t output = std::uint64_t{1} << 20;  ///< Bytes on standard output and error together.
};

/// The helper program: `given` if it is not empty, else the one beside the library or the program. Not run yet.
/// @return Empty if there is none that can be run; `why` then says where it was looked for.
std::filesystem::path find_probe_program(const std::filesystem::path& given, std::string& why);

/// Tries plugins, each in a process of its own, several at a time. Files must have passed their examination. Nothing of
/// a plugin runs in this process. Starts processes without copying this one (vfork), touches no signal handler, and
/// waits only for the processes it started.
/// @param program  As find_probe_program() gives it.
/// @return One record for each candidate, in their order. Reason probe_unavailable where the program could not be run.
std::vector<ProbeRecord> probe(const std::filesystem::path& program, std::span<const Candidate* const> candidates,
                               const ProbeLimits& limits);

}  // namespace fastpath::plugin
