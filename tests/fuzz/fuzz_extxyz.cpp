#include <sstream>

#include "fastpath/error.hpp"
#include "fastpath/extxyz.hpp"
#include "fuzz.hpp"

namespace {

std::string written(const std::vector<fastpath::Structure>& frames) {
  std::ostringstream out;
  fastpath::write_extxyz(out, frames);
  return out.str();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fastpath;
  std::vector<Structure> frames;
  try {
    frames = parse_extxyz({reinterpret_cast<const char*>(data), size}, "input");
  } catch (const Error& error) {
    FASTPATH_FUZZ_REQUIRE(error.code() == ErrorCode::bad_file);
    return 0;
  }
  std::string text;
  try {
    text = written(frames);
  } catch (const Error& error) {
    FASTPATH_FUZZ_REQUIRE(error.code() == ErrorCode::invalid_argument);  // values that may be read and not written
    return 0;
  }
  // What was written is read back to the same, to the last bit of every number.
  FASTPATH_FUZZ_REQUIRE(written(parse_extxyz(text, "written")) == text);
  return 0;
}
