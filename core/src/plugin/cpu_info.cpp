#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>

#include "fastpath/registry.hpp"

namespace fastpath {
namespace {

std::string trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(" \t") - first + 1));
}

/// The level of the x86-64 psABI this CPU has, by the features that code generation for it uses.
/// Elsewhere the name of the machine, as the kernel gives it.
std::string architecture() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool v2 = __builtin_cpu_supports("ssse3") && __builtin_cpu_supports("sse4.1") &&
                  __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt");
  const bool v3 = v2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  return v4 ? "x86-64-v4" : v3 ? "x86-64-v3" : v2 ? "x86-64-v2" : "x86-64";
#else
  utsname names{};
  return ::uname(&names) == 0 ? names.machine : "";
#endif
}

DeviceInfo read_cpu_info() {
  DeviceInfo info;
  info.device = Device::cpu();
  info.arch = architecture();
  info.units = std::max(1u, std::thread::hardware_concurrency());
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long page = ::sysconf(_SC_PAGESIZE);
  if (pages > 0 && page > 0) info.memory_bytes = static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page);
  info.dtypes = {DType::float32, DType::float64};
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.empty()) {
      if (!info.name.empty()) break;  // the first processor stands for all
      continue;
    }
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string key = trimmed(std::string_view(line).substr(0, colon));
    std::string value = trimmed(std::string_view(line).substr(colon + 1));
    if (key == "vendor_id" || key == "CPU implementer")
      info.vendor = std::move(value);
    else if (key == "model name" || key == "Model" || key == "cpu model")
      info.name = std::move(value);
    else if (key == "CPU part" && info.name.empty())
      info.name = "part " + value;
  }
  if (info.name.empty()) info.name = info.arch;
  return info;
}

}  // namespace

const DeviceInfo& cpu_info() {
  static const DeviceInfo info = read_cpu_info();
  return info;
}

}  // namespace fastpath
