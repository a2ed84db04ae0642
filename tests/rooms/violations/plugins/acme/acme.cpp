#include <cuda.h>

#include "../../core/src/tensor/private.hpp"
#include "acme.hpp"
#include "fastpath/plugin.h"
#include "fastpath/sdk/entry.hpp"
#include "fastpath/tensor.hpp"
