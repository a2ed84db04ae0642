#include <charconv>
#include <string_view>

#include "cuda_backend.hpp"
#include "runtime/elf_image.hpp"

namespace fastpath_cuda {
namespace {

/// The number right before `unit`: 24 of "Used 24 registers" for " registers"; -1 if the unit is not there.
std::int64_t number_before(std::string_view line, std::string_view unit) {
  const std::size_t end = line.find(unit);
  if (end == std::string_view::npos) return -1;
  std::size_t start = end;
  while (start > 0 && line[start - 1] >= '0' && line[start - 1] <= '9') --start;
  std::int64_t value = -1;
  std::from_chars(line.data() + start, line.data() + end, value);
  return value;
}

}  // namespace

std::vector<gpu::KernelResources> resources_of(const gpu::Program& program, const std::vector<std::uint8_t>& cubin,
                                               const std::string& log) {
  const gpu::ElfImage image(cubin);
  std::vector<gpu::KernelResources> result;
  for (const gpu::KernelInfo& kernel : program.kernels) {
    gpu::KernelResources& resources = result.emplace_back();
    resources.kernel = kernel.name;
    resources.code_bytes = image.code_bytes(kernel.name);
    const std::size_t start = log.find("Compiling entry function '" + kernel.name + "'");
    if (start == std::string::npos) continue;
    const std::size_t next = log.find("Compiling entry function", start + 1);
    const std::string_view part = std::string_view(log).substr(start, next == std::string::npos ? next : next - start);
    resources.registers = number_before(part, " registers");
    resources.shared_bytes = std::max<std::int64_t>(0, number_before(part, " bytes smem"));
    resources.spill_bytes =
        std::max(number_before(part, " bytes spill stores"), number_before(part, " bytes spill loads"));
  }
  return result;
}

}  // namespace fastpath_cuda
