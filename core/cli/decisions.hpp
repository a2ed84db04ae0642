#pragma once

#include "fastpath/fast_path.hpp"

namespace fastpath::cli {

/// False where others do the work of a module: a fused one around it, or the parts of a fused one.
inline bool has_own_work(const Decision& decision) {
  return decision.reason.code != ReasonCode::covered_by_parent && decision.reason.code != ReasonCode::in_parts;
}

}  // namespace fastpath::cli
