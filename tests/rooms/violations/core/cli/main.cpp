#include "fastpath/tensor.hpp"
#include "options.hpp"
#include "tensor/private.hpp"
