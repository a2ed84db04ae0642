#include "fastpath/tensor.hpp"
