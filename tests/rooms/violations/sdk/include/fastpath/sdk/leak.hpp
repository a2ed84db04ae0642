#include <vector>
#include "fastpath/tensor.hpp"
