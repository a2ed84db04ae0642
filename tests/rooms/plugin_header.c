// The ABI header alone, as C11: vendors may write a plugin in C.
#include "fastpath/plugin.h"
