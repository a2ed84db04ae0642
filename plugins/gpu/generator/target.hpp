#pragma once

#include <cstdint>
#include <string>

namespace fastpath_gpu {

/// The languages that the generated kernels are written in. They share one dialect; a prelude hides the rest.
enum class Language {
  cuda,    ///< CUDA C++, for NVRTC.
  hip,     ///< HIP C++, for hipRTC.
  opencl,  ///< OpenCL C 1.2.
  host,    ///< C++ that tests run on the CPU, with the work-items of a group in any order between barriers.
};
const char* name_of(Language language);

/// What kernels are made for: the language, and the limits that tiles must fit.
struct Target {
  Language language = Language::opencl;
  std::string arch;                       ///< "sm_90", "gfx90a"; empty for OpenCL and the host.
  std::uint32_t max_group_size = 256;     ///< Work-items in a group.
  std::uint32_t local_bytes = 32 * 1024;  ///< Memory that a group shares.
  bool fp64 = true;                       ///< Whether the device computes in float64.
  std::uint32_t max_terms = 1500;         ///< Of a sum that is written out in one kernel: compilers want to end.

  /// What is known of an architecture without a device. @throws std::invalid_argument for one that is not known.
  static Target of(Language language, const std::string& arch);
};

}  // namespace fastpath_gpu
