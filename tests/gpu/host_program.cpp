#include "host_program.hpp"

#include <dlfcn.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <set>
#include <sstream>
#include <stdexcept>

namespace fastpath_gpu::test {
namespace {

/// The work-items of a group as fibers, which leave the processor at barriers. There is one at a time, because the
/// functions that a kernel calls have no argument for it.
class Group {
 public:
  void run(const std::string& kernel, std::uint32_t size, long long index, const std::function<void()>& body,
           ItemOrder order, std::mt19937& random) {
    group = index;
    body_ = &body;
    poisoned_.clear();
    while (stacks_.size() < size) stacks_.emplace_back(new char[kStack]);
    items_.assign(size, {});
    for (std::uint32_t i = 0; i < size; ++i) {
      ucontext_t& context = items_[i].context;
      getcontext(&context);
      context.uc_stack.ss_sp = stacks_[i].get();
      context.uc_stack.ss_size = kStack;
      context.uc_link = &main_;
      makecontext(&context, &Group::enter, 0);
    }
    std::vector<std::uint32_t> turns(size);
    std::iota(turns.begin(), turns.end(), 0u);
    if (order == ItemOrder::descending) std::reverse(turns.begin(), turns.end());
    while (true) {
      if (order == ItemOrder::shuffled) std::shuffle(turns.begin(), turns.end(), random);
      for (const std::uint32_t i : turns) {
        lane = static_cast<int>(i);
        swapcontext(&main_, &items_[i].context);
      }
      // A line of 0 is the end of the kernel.
      for (const Item& item : items_) {
        if (item.line == items_[0].line) continue;
        const auto place = [](int line) {
          return line == 0 ? "the end" : "the barrier in line " + std::to_string(line);
        };
        throw std::runtime_error("kernel '" + kernel + "', group " + std::to_string(index) + ": item 0 is at " +
                                 place(items_[0].line) + ", item " + std::to_string(&item - items_.data()) + " at " +
                                 place(item.line));
      }
      if (items_[0].line == 0) return;
    }
  }

  void wait(int line) {
    Item& item = items_[static_cast<std::size_t>(lane)];
    item.line = line;
    swapcontext(&item.context, &main_);
  }
  void poison(void* memory, std::size_t bytes) {
    if (poisoned_.insert(memory).second) std::memset(memory, 0xff, bytes);
  }

  long long group = 0;
  int lane = 0;

 private:
  static constexpr std::size_t kStack = 512 * 1024;
  struct Item {
    ucontext_t context{};
    int line = 0;
  };
  static void enter();

  std::vector<std::unique_ptr<char[]>> stacks_;
  std::vector<Item> items_;
  ucontext_t main_{};
  const std::function<void()>* body_ = nullptr;
  std::set<void*> poisoned_;
};

Group& current() {
  static Group group;
  return group;
}

void Group::enter() {
  (*current().body_)();
  current().items_[static_cast<std::size_t>(current().lane)].line = 0;
}

/// As `fp_host_items` of the prelude.
struct HostItems {
  long long (*group)();
  int (*lane)();
  void (*barrier)(int line);
  void (*shared)(void* memory, long long bytes);
};
const HostItems kItems{
    [] { return current().group; }, [] { return current().lane; }, [](int line) { current().wait(line); },
    [](void* memory, long long bytes) { current().poison(memory, static_cast<std::size_t>(bytes)); }};

std::string text_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace

HostProgram::HostProgram(const Program& program) : infos_(program.kernels) {
  std::string pattern = std::filesystem::temp_directory_path() / "fastpath_host_XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no folder " + pattern);
  folder_ = pattern;
  const std::string file = folder_ + "/kernels";
  std::ofstream(file + ".cpp") << program.source;
  const std::string command = std::string(FASTPATH_CXX) + " -std=c++17 -O1 -w -shared -fPIC '" + file + ".cpp' -o '" +
                              file + ".so' > '" + file + ".log' 2>&1";
  if (std::system(command.c_str()) != 0) {
    const std::string words = text_of(file + ".log");
    std::filesystem::remove_all(folder_);
    throw std::runtime_error("generated source does not compile:\n" + words + program.source);
  }
  library_ = dlopen((file + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
  std::filesystem::remove_all(folder_);
  if (library_ == nullptr) throw std::runtime_error(dlerror());
  const auto connect = reinterpret_cast<void (*)(const HostItems*)>(dlsym(library_, "fp_connect"));
  connect(&kItems);
  for (const KernelInfo& info : infos_) {
    kernels_.push_back(reinterpret_cast<Kernel>(dlsym(library_, info.name.c_str())));
    if (kernels_.back() == nullptr) throw std::runtime_error(dlerror());
  }
}

HostProgram::~HostProgram() {
  if (library_ != nullptr) dlclose(library_);
}

void HostProgram::run(const Launch& launch, const std::function<void*(const Buffer&)>& memory, ItemOrder order) {
  std::vector<void*> buffers;
  std::vector<long long> values;
  for (const Argument& argument : launch.arguments) {
    buffers.push_back(argument.is_buffer ? memory(argument.buffer) : nullptr);
    values.push_back(argument.is_buffer ? static_cast<long long>(argument.buffer.offset) : argument.value);
  }
  const KernelInfo& info = infos_[launch.kernel];
  const std::function<void()> body = [&] { kernels_[launch.kernel](buffers.data(), values.data()); };
  std::mt19937 random(1);
  for (std::int64_t i = 0; i < launch.groups; ++i) {
    // Groups of a launch come in any order too.
    const std::int64_t index = order == ItemOrder::ascending ? i : launch.groups - 1 - i;
    current().run(info.name, info.group_size, index, body, order, random);
  }
}

}  // namespace fastpath_gpu::test
