#include "fastpath/error.hpp"
#include "fuzz.hpp"
#include "models/config.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fastpath;
  models::MaceConfig config;
  try {
    config = models::MaceConfig::parse(std::string(reinterpret_cast<const char*>(data), size), "input");
  } catch (const Error& error) {
    FASTPATH_FUZZ_REQUIRE(error.code() == ErrorCode::bad_file);
    return 0;
  }
  const std::string text = config.text();
  FASTPATH_FUZZ_REQUIRE(models::MaceConfig::parse(text, "written").text() == text);
  return 0;
}
