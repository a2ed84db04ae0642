#pragma once

#include <cstdint>
#include <memory>

#include "fastpath/export.hpp"
#include "fastpath/fast_path.hpp"

namespace fastpath {

/// A module of one op that fastpath defines, outside of any model: for hosts that build models of their own from such
/// modules, and for measurements. It has the reference, and select() gives it kernels as any other.
/// @param spec  A typed configuration of fastpath/sdk/ops.hpp gives it: {Config::kOp, Config::kVersion,
///   config.attributes().values()}.
/// @param seed  Of the parameters, uniform in [-sqrt(3), sqrt(3)) (variance 1); the same seed gives the same values
///   everywhere. Constants are those of a new model; the couplings of a symmetric contraction are its full basis as far
///   as the configuration has room for it, then sparse random ones.
/// @throws Error(unsupported) for an op or a version without a schema; Error(invalid_argument) for a configuration that
///   is none, or that has attributes beyond the schema.
FASTPATH_EXPORT std::shared_ptr<FastPathModule> create_op(const OpSpec& spec, std::uint64_t seed);

}  // namespace fastpath
