#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "fastpath/error.hpp"
#include "fastpath/safetensors.hpp"
#include "fuzz.hpp"

namespace {

/// A file in memory that lives as long as the object.
class MemoryFile {
 public:
  MemoryFile(const std::uint8_t* data, std::size_t size) : descriptor_(::memfd_create("input", MFD_CLOEXEC)) {
    FASTPATH_FUZZ_REQUIRE(descriptor_ >= 0);
    FASTPATH_FUZZ_REQUIRE(::write(descriptor_, data, size) == static_cast<ssize_t>(size));
  }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

volatile unsigned sum;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fastpath;
  const MemoryFile file(data, size);
  try {
    const SafetensorsFile content = read_safetensors(file.path());
    std::size_t bytes = 0;
    for (const auto& [name, tensor] : content.tensors) {
      bytes += tensor.bytes();
      // Every byte that a tensor claims can be read.
      const auto* at = static_cast<const std::uint8_t*>(tensor.raw());
      for (std::size_t i = 0; i < tensor.bytes(); ++i) sum = sum + at[i];
    }
    FASTPATH_FUZZ_REQUIRE(bytes < size || size == 0);
  } catch (const Error& error) {
    FASTPATH_FUZZ_REQUIRE(error.code() == ErrorCode::bad_file);
  }
  return 0;
}
