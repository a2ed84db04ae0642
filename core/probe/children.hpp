#pragma once

#include <cstddef>
#include <cstdint>

namespace fastpath::probe {

/// Number of processes that were started and are still there, running or not, also those whose parent has ended.
std::size_t child_count();
/// Ends them, and what they leave behind, and waits for their end.
void end_children();
/// The most memory that was resident since this program started; 0 where the system does not tell.
std::uint64_t peak_memory();

}  // namespace fastpath::probe
