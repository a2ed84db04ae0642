#include "fuzz.hpp"
#include "plugin/probe_cache.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fastpath;
  constexpr std::string_view kEnvironment = "core=0.1.0\n";
  plugin::CacheContent content;
  std::string why;
  if (!plugin::read_cache({reinterpret_cast<const char*>(data), size}, kEnvironment, content, why)) {
    FASTPATH_FUZZ_REQUIRE(!why.empty());
    return 0;
  }
  const std::string text = plugin::write_cache(kEnvironment, content);
  plugin::CacheContent again;
  FASTPATH_FUZZ_REQUIRE(plugin::read_cache(text, kEnvironment, again, why));
  FASTPATH_FUZZ_REQUIRE(plugin::write_cache(kEnvironment, again) == text);
  return 0;
}
