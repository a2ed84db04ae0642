#include "fuzz.hpp"
#include "plugin/elf.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fastpath;
  const plugin::SpanSource source({reinterpret_cast<const std::byte*>(data), size});
  const plugin::ObjectReport report = plugin::inspect_object(source);
  if (report.reason.code == ReasonCode::usable) {
    FASTPATH_FUZZ_REQUIRE(report.metadata.has_value());
    FASTPATH_FUZZ_REQUIRE(plugin::is_plugin_id(report.metadata->id));
  } else {
    FASTPATH_FUZZ_REQUIRE(!report.reason.text.empty());
  }
  return 0;
}
