#include "fastpath/version.hpp"

#include "fastpath/plugin.h"

namespace fastpath {

namespace {

#define FASTPATH_TEXT_OF(x) FASTPATH_TEXT(x)
#define FASTPATH_TEXT(x) #x
#if defined(__clang__)
constexpr const char* kCompiler = "Clang " __clang_version__;
#else
constexpr const char* kCompiler =
    "GCC " FASTPATH_TEXT_OF(__GNUC__) "." FASTPATH_TEXT_OF(__GNUC_MINOR__) "." FASTPATH_TEXT_OF(__GNUC_PATCHLEVEL__);
#endif

}  // namespace

const BuildInfo& build_info() {
  static const BuildInfo info{FASTPATH_VERSION, kCompiler,    FASTPATH_BUILD_TYPE, FASTPATH_SANITIZER_NAME,
                              FASTPATH_SYSTEM,  FP_ABI_MAJOR, FP_ABI_MINOR};
  return info;
}

}  // namespace fastpath
