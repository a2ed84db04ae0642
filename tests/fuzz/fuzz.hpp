#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

/// What libFuzzer calls with each input; replay.cpp does the same without it.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

/// Ends the process, so that the input counts as a finding, if a reader broke one of its promises.
#define FASTPATH_FUZZ_REQUIRE(promise)                                                   \
  do {                                                                                   \
    if (!(promise)) {                                                                    \
      std::fprintf(stderr, "%s:%d: broken promise: %s\n", __FILE__, __LINE__, #promise); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)
