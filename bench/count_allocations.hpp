#pragma once

#include <cstdint>

/// Allocations of C++ code so far in this process, the library's too: linking this file replaces operator new.
std::uint64_t allocations() noexcept;
