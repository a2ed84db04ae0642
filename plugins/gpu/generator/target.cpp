#include "target.hpp"

#include <algorithm>
#include <stdexcept>

namespace fastpath_gpu {

const char* name_of(Language language) {
  switch (language) {
    case Language::cuda:
      return "cuda";
    case Language::hip:
      return "hip";
    case Language::opencl:
      return "opencl";
    case Language::host:
      return "host";
  }
  return "";
}

Target Target::of(Language language, const std::string& arch) {
  const auto starts = [&](const char* prefix, std::size_t shortest) {
    const std::string text(prefix);
    return arch.size() >= shortest && arch.compare(0, text.size(), text) == 0 &&
           std::all_of(arch.begin() + static_cast<std::ptrdiff_t>(text.size()), arch.end(),
                       [](unsigned char c) { return std::isalnum(c) != 0 || c == ':' || c == '+' || c == '-'; });
  };
  // What every device of the vendor has without asking for more.
  if (language == Language::cuda && starts("sm_", 5)) return {language, arch, 256, 48 * 1024, true};
  if (language == Language::hip && starts("gfx", 6)) return {language, arch, 256, 64 * 1024, true};
  if (language == Language::opencl || language == Language::host) return {language, arch, 256, 32 * 1024, true};
  throw std::invalid_argument("architecture '" + arch + "' is not one of " + name_of(language) + ", expected " +
                              (language == Language::cuda ? "sm_80, sm_90 and so on" : "gfx90a, gfx1030 and so on"));
}

}  // namespace fastpath_gpu
