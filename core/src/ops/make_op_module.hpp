#pragma once

#include <memory>

#include "ops/op_module.hpp"

namespace fastpath::ops {

/// The reference of an op that fastpath defines, made from a configuration alone: parameters are zero, constants are
/// those of a new model. A symmetric contraction has as many couplings as its configuration says: those of the full
/// basis first, then sparse random ones (a checkpoint may have another basis of any size).
/// @throws Error(unsupported) for an op or a version without a schema; Error(invalid_argument) for a configuration that
///   is none, or that has attributes beyond the schema.
std::unique_ptr<OpModule> make_op_module(const OpSpec& spec);

}  // namespace fastpath::ops
