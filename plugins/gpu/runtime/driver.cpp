#include "driver.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>
#include <utility>

#include "fastpath/sdk/error.hpp"

namespace fastpath_gpu {

DriverFault classify(int error) noexcept {
  switch (error) {
    case kDriverOk:
      return DriverFault::none;
    case kDriverOutOfMemory:
      return DriverFault::out_of_memory;
    case kDriverOutOfResources:
      return DriverFault::resources;
    case kDriverDeviceBusy:
      return DriverFault::busy;
    case kDriverInvalidImage:
    case kDriverNoBinary:
    case kDriverInvalidPtx:
    case kDriverNoJitCompiler:
    case kDriverUnsupportedPtx:
    case kDriverJitDisabled:
      return DriverFault::code;
    case kDriverNotSupported:
      return DriverFault::not_supported;
    case kDriverNotInitialized:
    case kDriverDeinitialized:
    case kDriverStub:
    case kDriverTooOld:
    case kDriverNoDevice:
      return DriverFault::no_driver;
    case kDriverEcc:
    case kDriverNvlink:
    case kDriverContained:
    case kDriverIllegalAddress:
    case kDriverLaunchTimeout:
    case kDriverContextDestroyed:
    case kDriverAssert:
      return DriverFault::lost;
    default:  // from the stack error to the failed launch: what a kernel did wrong, and its context is gone
      return error >= kDriverStackError && error <= kDriverLaunchFailed ? DriverFault::lost : DriverFault::other;
  }
}

/// The device's context is the thread's while this lives; what was before comes back.
class DriverDevice::Scope {
 public:
  explicit Scope(DriverDevice& device) : device_(device) {
    device.check(device.driver_->enter(device.ordinal_, device.context_, &previous_), "its context");
  }
  ~Scope() { device_.driver_->leave(previous_); }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  DriverDevice& device_;
  int previous_ = 0;
};

class DriverDevice::LoadedModule final : public Module {
 public:
  LoadedModule(DriverDevice& device, void* module) : device_(device), module_(module) {}
  ~LoadedModule() override {
    device_.quietly([&] { device_.functions_.unload_module(module_); });
  }
  struct Function {
    std::string name;
    void* handle;
    std::uint32_t group_size;
  };
  std::vector<Function> functions;

 private:
  DriverDevice& device_;
  void* module_;
};

template <class Action>
void DriverDevice::quietly(Action action) noexcept {
  try {
    const Scope scope(*this);
    action();
  } catch (...) {  // nobody is left to be told; a lost device takes everything with it
  }
}

DriverDevice::DriverDevice(std::shared_ptr<Driver> driver, Backend& compiler, int ordinal, std::string name,
                           Target target)
    : driver_(std::move(driver)),
      compiler_(compiler),
      functions_(driver_->functions()),
      ordinal_(ordinal),
      name_(std::move(name)),
      target_(std::move(target)) {
  check(driver_->retain(ordinal_, &context_), "its context");
  try {
    const Scope scope(*this);
    check(functions_.create_stream(&own_stream_, 1), "a stream");  // 1: does not wait for the default stream
  } catch (...) {
    driver_->release(ordinal_);
    throw;
  }
}

DriverDevice::~DriverDevice() {
  quietly([&] { functions_.destroy_stream(own_stream_); });
  driver_->release(ordinal_);
}

void DriverDevice::check(int error, const char* doing, const char* kernel) const {
  const DriverFault fault = classify(error);
  if (fault == DriverFault::none) return;
  const std::string of = kernel == nullptr ? std::string() : " '" + std::string(kernel) + "'";
  const std::string text = name_ + ": " + doing + of + ": " + driver_->error_text(error);
  switch (fault) {
    case DriverFault::out_of_memory:
      throw sdk::Failure(FP_E_OUT_OF_MEMORY, text);
    case DriverFault::busy:
      throw sdk::Failure(FP_E_BUSY, text);
    case DriverFault::resources:
    case DriverFault::code:
    case DriverFault::not_supported:
      throw sdk::Refused(text);
    case DriverFault::no_driver:
      throw sdk::Unavailable(text);
    case DriverFault::lost:
      throw DeviceLost(text);
    case DriverFault::none:
    case DriverFault::other:
      break;
  }
  throw sdk::Failure(FP_E_INTERNAL, text);
}

void DriverDevice::synchronize_all() {
  const std::lock_guard lock(mutex_);  // so that no stream is destroyed meanwhile
  for (void* stream : streams_) {
    const int error = functions_.synchronize_stream(stream);
    if (classify(error) == DriverFault::lost) check(error, "waiting for a stream");  // what else: its caller is told
  }
}

void* DriverDevice::begin(fp_stream* stream) {
  if (stream != nullptr) return stream;
  synchronize_all();
  return own_stream_;
}

void DriverDevice::end(fp_stream* stream, const char* doing, const char* kernel) {
  if (stream == nullptr) check(functions_.synchronize_stream(own_stream_), doing, kernel);
}

void* DriverDevice::allocate(std::uint64_t bytes) {
  const Scope scope(*this);
  void* memory = nullptr;
  const std::size_t wanted = bytes == 0 ? 1 : static_cast<std::size_t>(bytes);
  const int error = functions_.allocate(&memory, wanted);
  if (classify(error) == DriverFault::out_of_memory) {
    std::size_t free_bytes = 0, total_bytes = 0;
    const bool known = functions_.memory_info(&free_bytes, &total_bytes) == kDriverOk;
    throw sdk::Failure(FP_E_OUT_OF_MEMORY, name_ + ": no memory for " + std::to_string(bytes) + " bytes" +
                                               (known ? ", " + std::to_string(free_bytes) + " of " +
                                                            std::to_string(total_bytes) + " are free"
                                                      : std::string()));
  }
  check(error, "memory");
  return memory;
}

void DriverDevice::release(void* memory) noexcept {
  if (memory == nullptr) return;
  quietly([&] { functions_.release(memory); });
}

void DriverDevice::copy_to_device(void* to, std::uint64_t to_offset, const void* from, std::uint64_t bytes,
                                  fp_stream* stream) {
  const Scope scope(*this);
  void* const queue = begin(stream);
  if (bytes != 0) {
    check(functions_.copy_to_device(static_cast<char*>(to) + to_offset, from, bytes, queue), "a copy to the device");
  }
  end(stream, "a copy to the device");
}

void DriverDevice::copy_from_device(void* to, const void* from, std::uint64_t from_offset, std::uint64_t bytes,
                                    fp_stream* stream) {
  const Scope scope(*this);
  void* const queue = begin(stream);
  if (bytes != 0) {
    char* const source = static_cast<char*>(const_cast<void*>(from)) + from_offset;
    check(functions_.copy_from_device(to, source, bytes, queue), "a copy from the device");
  }
  end(stream, "a copy from the device");
}

void DriverDevice::copy_on_device(void* to, std::uint64_t to_offset, const void* from, std::uint64_t from_offset,
                                  std::uint64_t bytes, fp_stream* stream) {
  const Scope scope(*this);
  void* const queue = begin(stream);
  if (bytes != 0) {
    char* const source = static_cast<char*>(const_cast<void*>(from)) + from_offset;
    check(functions_.copy_on_device(static_cast<char*>(to) + to_offset, source, bytes, queue), "a copy on the device");
  }
  end(stream, "a copy on the device");
}

void DriverDevice::fill_zero(void* memory, std::uint64_t offset, std::uint64_t bytes, fp_stream* stream) {
  const Scope scope(*this);
  void* const queue = begin(stream);
  if (bytes != 0) check(functions_.fill(static_cast<char*>(memory) + offset, 0, bytes, queue), "a fill with zeros");
  end(stream, "a fill with zeros");
}

fp_stream* DriverDevice::create_stream() {
  const Scope scope(*this);
  void* stream = nullptr;
  check(functions_.create_stream(&stream, 1), "a stream");
  const std::lock_guard lock(mutex_);
  streams_.insert(stream);
  return static_cast<fp_stream*>(stream);
}

void DriverDevice::destroy_stream(fp_stream* stream) noexcept {
  if (stream == nullptr) return;
  {
    const std::lock_guard lock(mutex_);
    streams_.erase(stream);
  }
  quietly([&] { functions_.destroy_stream(stream); });
}

void DriverDevice::synchronize(fp_stream* stream) {
  const Scope scope(*this);
  if (stream == nullptr) synchronize_all();
  check(functions_.synchronize_stream(stream == nullptr ? own_stream_ : stream), "waiting for a stream");
}

fp_event* DriverDevice::create_event() {
  const Scope scope(*this);
  void* event = nullptr;
  check(functions_.create_event(&event, 2), "an event");  // 2: takes no time stamps
  return static_cast<fp_event*>(event);
}

void DriverDevice::destroy_event(fp_event* event) noexcept {
  if (event == nullptr) return;
  quietly([&] { functions_.destroy_event(event); });
}

void DriverDevice::record(fp_event* event, fp_stream* stream) {
  const Scope scope(*this);
  check(functions_.record(event, begin(stream)), "recording an event");
  end(stream, "recording an event");
}

void DriverDevice::wait(fp_stream* stream, fp_event* event) {
  const Scope scope(*this);
  check(functions_.wait(stream == nullptr ? own_stream_ : stream, event, 0), "waiting for an event");
  end(stream, "waiting for an event");
}

void DriverDevice::memory_info(std::uint64_t* free_bytes, std::uint64_t* total_bytes) {
  const Scope scope(*this);
  std::size_t unused = 0, total = 0;
  check(functions_.memory_info(&unused, &total), "how much memory is free");
  *free_bytes = unused;
  *total_bytes = total;
}

fp_native DriverDevice::native(fp_stream* stream) { return driver_->native(ordinal_, context_, stream); }

Binary DriverDevice::compile(const Program& program, std::unique_ptr<Module>& module) {
  static_cast<void>(module);
  return compiler_.compile(program, target_);
}

std::unique_ptr<Module> DriverDevice::load(const Program& program, const Binary& binary) {
  const Scope scope(*this);
  void* handle = nullptr;
  const int error = functions_.load_module(&handle, binary.code.data());
  if (classify(error) == DriverFault::code) {
    const std::string here = compiler_.compiler(target_);
    throw sdk::Refused(name_ + ": compiled code for " + target_.arch + " is not taken by the " +
                       driver_->version_text() + ": " + driver_->error_text(error) +
                       "; the compiler here: " + (here.empty() ? "none" : here.substr(0, here.find(" -"))));
  }
  check(error, "loading code");
  auto module = std::make_unique<LoadedModule>(*this, handle);
  for (const KernelInfo& kernel : program.kernels) {
    void* function = nullptr;
    check(functions_.find_function(&function, handle, kernel.name.c_str()), "kernel", kernel.name.c_str());
    module->functions.push_back({kernel.name, function, kernel.group_size});
  }
  return module;
}

void DriverDevice::launch(Module& module, std::size_t kernel, std::int64_t groups,
                          std::span<const BoundArgument> arguments, fp_stream* stream) {
  const LoadedModule::Function& function = static_cast<LoadedModule&>(module).functions.at(kernel);
  if (groups <= 0) return;
  constexpr std::int64_t kMostGroups = std::numeric_limits<std::int32_t>::max();
  const std::int64_t most = driver_->max_items() == 0
                                ? kMostGroups
                                : std::min(kMostGroups, driver_->max_items() / std::int64_t{function.group_size});
  if (groups > most) {
    throw sdk::Refused(name_ + ": kernel '" + function.name + "' for " + std::to_string(groups) + " groups, at most " +
                       std::to_string(most) + " in one launch");
  }
  // A buffer is its address and a byte offset, an integer itself: each is taken from where it lies.
  constexpr std::size_t kMostArguments = 64;
  std::array<void*, 2 * kMostArguments> addresses{};
  if (arguments.size() > kMostArguments) throw std::logic_error("a kernel with too many arguments");
  std::size_t used = 0;
  for (const BoundArgument& argument : arguments) {
    if (argument.is_buffer) addresses[used++] = const_cast<void**>(&argument.memory);
    addresses[used++] = const_cast<std::int64_t*>(&argument.value);
  }
  const Scope scope(*this);
  void* const queue = begin(stream);
  check(functions_.launch(function.handle, static_cast<unsigned>(groups), 1, 1, function.group_size, 1, 1, 0, queue,
                          addresses.data(), nullptr),
        "kernel", function.name.c_str());
  end(stream, "kernel", function.name.c_str());
}

}  // namespace fastpath_gpu
