#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

/// A driver whose device is host memory: the functions of CUDA's driver and of HIP's runtime that the plugins use, in a
/// library that a test puts in the place of the vendor's. The test finds the state by the symbol "fake_driver".
struct FakeDriver {
  // What it pretends.
  int devices = 2;
  int version = 0;  ///< As the vendor's function says; 0: a usual one.
  int init_error = 0;
  std::uint64_t memory_bytes = 64 << 20;  ///< Of each device.
  std::string failing;                    ///< The function that fails next, once, with `error`; "cuMemAlloc_v2".
  int error = 0;
  int lost = 0;  ///< Not 0: what every call that needs a context answers.

  // What it saw.
  int entered = 0, left = 0;  ///< Contexts pushed and popped; or devices set.
  int retained = 0;           ///< Primary contexts held.
  std::uint64_t used_bytes = 0;
  std::set<void*> memory, streams, events, modules;
  std::vector<std::string> calls;  ///< Streams: "synchronize 0x..", "launch 0x..".
  struct Launch {
    std::string kernel;
    unsigned groups = 0, items = 0;
    std::vector<std::int64_t> arguments;
    void* stream = nullptr;
  };
  std::vector<Launch> launches;
  std::size_t arguments = 0;  ///< How many 8-byte arguments a launch has: a driver reads it from the code.
};
