// The headers of the ABI alone, as C11: vendors may write a plugin in C.
#include "fastpath/compile.h"
#include "fastpath/plugin.h"
