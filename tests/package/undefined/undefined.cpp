// Refers to something that is nowhere: found when it is linked, not on a user's machine.
#include "fastpath/plugin.h"

extern "C" int nobody_has_this();
extern "C" FP_EXPORT int32_t fastpath_plugin_query_v1(const fp_host*, const fp_plugin**) { return nobody_has_this(); }
