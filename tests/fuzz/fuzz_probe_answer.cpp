#include "fuzz.hpp"
#include "plugin/probe_record.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fastpath;
  std::string why;
  const auto answer = plugin::read_answer({reinterpret_cast<const char*>(data), size}, why);
  if (!answer) {
    FASTPATH_FUZZ_REQUIRE(!why.empty());
    return 0;
  }
  FASTPATH_FUZZ_REQUIRE(!answer->complete || answer->record);
  if (!answer->record) return 0;
  // What was read of a record is written and read back to the same.
  const std::string text = plugin::write_record(*answer->record);
  plugin::RecordReader reader;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    FASTPATH_FUZZ_REQUIRE(reader.add(std::string_view(text).substr(at, end - at)));
    at = end + 1;
  }
  const auto again = reader.finish();
  FASTPATH_FUZZ_REQUIRE(again && plugin::write_record(*again) == text);
  return 0;
}
