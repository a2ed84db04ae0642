#include "program.hpp"

#include <stdexcept>

namespace fastpath_gpu {

std::size_t Program::kernel(const std::string& name) const {
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    if (kernels[i].name == name) return i;
  }
  throw std::logic_error("the program has no kernel '" + name + "'");
}

void Plan::launch(const std::string& kernel, std::int64_t groups, std::vector<Argument> arguments) {
  Launch launch{program_.kernel(kernel), groups, std::move(arguments)};
  const std::vector<bool>& expected = program_.kernels[launch.kernel].buffers;
  bool same = launch.arguments.size() == expected.size();
  for (std::size_t i = 0; same && i < expected.size(); ++i) same = launch.arguments[i].is_buffer == expected[i];
  if (!same) throw std::logic_error("a launch of kernel '" + kernel + "' with arguments that are not its own");
  if (groups > 0) launches_.push_back(std::move(launch));
}

void Plan::launch_items(const std::string& kernel, std::int64_t n, std::vector<Argument> arguments) {
  const std::int64_t size = program_.kernels[program_.kernel(kernel)].group_size;
  launch(kernel, n / size + (n % size != 0 ? 1 : 0), std::move(arguments));
}

Buffer Plan::scratch(std::uint64_t bytes) {
  constexpr std::uint64_t kAlignment = 256;
  const Buffer result{Role::scratch, 0, scratch_bytes_};
  scratch_bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return result;
}

void Plan::append(const std::function<void(Plan& part)>& plan_part, const std::function<Buffer(const Buffer&)>& place) {
  Plan part(program_);
  plan_part(part);
  const Buffer own = scratch(part.scratch_bytes());
  for (Launch launch : part.launches()) {
    for (Argument& argument : launch.arguments) {
      if (!argument.is_buffer) continue;
      Buffer target = argument.buffer.role == Role::scratch ? own : place(argument.buffer);
      target.offset += argument.buffer.offset;
      argument.buffer = target;
    }
    launches_.push_back(std::move(launch));
  }
}

}  // namespace fastpath_gpu
