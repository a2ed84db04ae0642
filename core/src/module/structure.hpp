#pragma once

#include <cstdint>

namespace fastpath {

/// Grows whenever any module of this process gets a child: a list of modules made before is then made anew.
std::uint64_t structure_epoch() noexcept;

}  // namespace fastpath
