#include "fastpath/error.hpp"
#include "fuzz.hpp"
#include "plugin/trust.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fastpath;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const plugin::AllowList list = plugin::AllowList::parse(text, "list");
    FASTPATH_FUZZ_REQUIRE(list.size() <= size / 64);
    FASTPATH_FUZZ_REQUIRE(!list.contains(""));
  } catch (const Error& error) {
    FASTPATH_FUZZ_REQUIRE(error.code() == ErrorCode::bad_file);
    FASTPATH_FUZZ_REQUIRE(std::string_view(error.what()).starts_with("list:"));
  }
  return 0;
}
