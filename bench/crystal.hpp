#pragma once

#include <cstdint>

#include "fastpath/structure.hpp"

/// Structures that measurements are made on.
namespace bench {

/// A periodic simple cubic crystal of spacing 2.2 angstrom whose atoms are shaken a little, so many of them in a box as
/// near to a cube as that number allows: about 50 neighbours closer than 5 angstrom each. Elements H, C, O, Si by
/// chance. The same at every call.
fastpath::Structure crystal(std::int64_t atoms);

/// The atoms of that crystal that are nearest to a corner of it, not periodic: a molecule.
fastpath::Structure cluster(std::int64_t atoms);

}  // namespace bench
