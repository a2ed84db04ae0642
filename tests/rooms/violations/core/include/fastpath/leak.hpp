#include <dlfcn.h>
#include <boost/dll.hpp>
#include <vector>

#include "fastpath/plugin.h"
#include "fastpath/sdk/entry.hpp"
#include "fastpath/tensor.hpp"
#include "tensor/private.hpp"
