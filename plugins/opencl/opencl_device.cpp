#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <set>
#include <utility>

#include "opencl_backend.hpp"
#include "process_state.hpp"

namespace fastpath_opencl {
namespace {

constexpr std::size_t kMostLog = 1500;  // bytes of a compiler's words in an error
constexpr int kMostLogLines = 12;

/// An OpenCL object that is released with its owner.
template <class T>
class Owned {
 public:
  Owned(T object, cl_int (*const release)(T)) : object_(object), release_(release) {}
  Owned(Owned&& other) noexcept : object_(std::exchange(other.object_, nullptr)), release_(other.release_) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(object_, other.object_);
    std::swap(release_, other.release_);
    return *this;
  }
  ~Owned() {
    if (object_ != nullptr) release_(object_);
  }
  T get() const noexcept { return object_; }

 private:
  T object_;
  cl_int (*release_)(T);
};

std::string first_lines(const std::string& log) {
  std::string text;
  int lines = 0;
  for (std::size_t start = 0; start < log.size() && lines < kMostLogLines && text.size() < kMostLog;) {
    const std::size_t end = std::min(log.find('\n', start), log.size());
    const std::string line = log.substr(start, std::min(end - start, kMostLog - text.size()));
    if (line.find_first_not_of(" \t\r") != std::string::npos) {
      text += (text.empty() ? "" : "\n") + line;
      ++lines;
    }
    start = end + 1;
  }
  return text.empty() ? "the compiler says nothing" : text;
}

class OpenClModule final : public gpu::Module {
 public:
  struct Kernel {
    Owned<cl_kernel> kernel;
    std::uint32_t group_size;
    std::mutex mutex;  // arguments are set on the kernel itself
    bool launched = false;
    Kernel(Owned<cl_kernel> k, std::uint32_t size) : kernel(std::move(k)), group_size(size) {}
  };
  explicit OpenClModule(Owned<cl_program> program) : program_(std::move(program)) {}
  std::vector<std::unique_ptr<Kernel>> kernels;

  cl_program program() const noexcept { return program_.get(); }

 private:
  Owned<cl_program> program_;
};

struct Event {
  std::mutex mutex;
  cl_event event = nullptr;  // of the last record; null: nothing to wait for
};

cl_mem as_memory(const void* memory) { return static_cast<cl_mem>(const_cast<void*>(memory)); }

class OpenClDevice final : public gpu::BackendDevice {
 public:
  OpenClDevice(const Icd& cl, const Handle& handle, std::shared_ptr<Context> context)
      : cl_(cl),
        handle_(handle),
        context_(std::move(context)),
        own_queue_(nullptr, cl.clReleaseCommandQueue),
        cpu_((device_number<cl_device_type>(cl, handle.device, CL_DEVICE_TYPE) & CL_DEVICE_TYPE_CPU) != 0),
        options_(build_options(cl, handle.device)) {
    own_queue_ = {new_queue(), cl.clReleaseCommandQueue};

    constexpr std::size_t kMostGroup = 256;
    constexpr cl_ulong kMostLocal = 64 * 1024;  // what GPUs have; a CPU's may be any
    target_.language = gpu::Language::opencl;
    pocl_ = is_pocl(cl, handle.platform);
    for (const cl_platform_info what : {CL_PLATFORM_NAME, CL_PLATFORM_VERSION}) {
      target_.arch += platform_text(cl, handle.platform, what) + "; ";
    }
    for (const cl_device_info what : {CL_DEVICE_NAME, CL_DEVICE_VERSION, CL_DRIVER_VERSION}) {
      target_.arch += device_text(cl, handle.device, what) + "; ";
    }
    target_.arch += options_;
    target_.max_group_size = static_cast<std::uint32_t>(
        std::min(kMostGroup, device_number<std::size_t>(cl, handle.device, CL_DEVICE_MAX_WORK_GROUP_SIZE)));
    target_.local_bytes = static_cast<std::uint32_t>(
        std::min(kMostLocal, device_number<cl_ulong>(cl, handle.device, CL_DEVICE_LOCAL_MEM_SIZE)));
    target_.fp64 = device_number<cl_device_fp_config>(cl, handle.device, CL_DEVICE_DOUBLE_FP_CONFIG) != 0;
    total_bytes_ = device_number<cl_ulong>(cl, handle.device, CL_DEVICE_GLOBAL_MEM_SIZE);
  }

  const gpu::Target& target() const override { return target_; }
  // For a binary PoCL would compile each kernel for any size too.
  bool driver_keeps_code() const override { return pocl_; }
  void lost() noexcept override { context_->abandon(); }
  std::shared_ptr<gpu::Module> build_module(const gpu::Program& program) override;
  gpu::Binary compile(const gpu::Program& program, std::unique_ptr<gpu::Module>& module) override;
  std::unique_ptr<gpu::Module> load(const gpu::Program& program, const gpu::Binary& binary) override;
  void launch(gpu::Module& module, std::size_t kernel, std::int64_t groups,
              std::span<const gpu::BoundArgument> arguments, fp_stream* stream) override;

  void* allocate(std::uint64_t bytes) override;
  void release(void* memory) noexcept override;
  void copy_to_device(void* to, std::uint64_t to_offset, const void* from, std::uint64_t bytes,
                      fp_stream* stream) override {
    if (bytes == 0) return;
    const cl_bool blocking = stream == nullptr ? CL_TRUE : CL_FALSE;
    enqueued(cl_.clEnqueueWriteBuffer(queue_of(stream), as_memory(to), blocking, to_offset, bytes, from, 0, nullptr,
                                      nullptr),
             "copying to the device", stream);
  }
  void copy_from_device(void* to, const void* from, std::uint64_t from_offset, std::uint64_t bytes,
                        fp_stream* stream) override {
    if (bytes == 0) return;
    const cl_bool blocking = stream == nullptr ? CL_TRUE : CL_FALSE;
    enqueued(cl_.clEnqueueReadBuffer(queue_of(stream), as_memory(from), blocking, from_offset, bytes, to, 0, nullptr,
                                     nullptr),
             "copying from the device", stream);
  }
  void copy_on_device(void* to, std::uint64_t to_offset, const void* from, std::uint64_t from_offset,
                      std::uint64_t bytes, fp_stream* stream) override {
    if (bytes == 0) return;
    enqueued(cl_.clEnqueueCopyBuffer(queue_of(stream), as_memory(from), as_memory(to), from_offset, to_offset, bytes, 0,
                                     nullptr, nullptr),
             "copying on the device", stream);
  }
  void fill_zero(void* memory, std::uint64_t offset, std::uint64_t bytes, fp_stream* stream) override {
    if (bytes == 0) return;
    const unsigned char zero = 0;
    enqueued(cl_.clEnqueueFillBuffer(queue_of(stream), as_memory(memory), &zero, 1, offset, bytes, 0, nullptr, nullptr),
             "filling with zeros", stream);
  }
  fp_stream* create_stream() override;
  void destroy_stream(fp_stream* stream) noexcept override;
  void synchronize(fp_stream* stream) override;
  fp_event* create_event() override { return reinterpret_cast<fp_event*>(new Event); }
  void destroy_event(fp_event* event) noexcept override;
  void record(fp_event* event, fp_stream* stream) override;
  void wait(fp_stream* stream, fp_event* event) override;
  void memory_info(std::uint64_t* free_bytes, std::uint64_t* total_bytes) override {
    // OpenCL does not tell what is free: what others have taken is not seen.
    *total_bytes = total_bytes_;
    *free_bytes = total_bytes_ - std::min<std::uint64_t>(total_bytes_, used_bytes_);
  }
  fp_native native(fp_stream* stream) override {
    fp_native result = sdk::abi_struct<fp_native>();
    result.kind = FP_NATIVE_OPENCL;
    result.context = context_->get();
    result.stream = stream;
    result.device = reinterpret_cast<std::uint64_t>(handle_.device);
    return result;
  }

 private:
  cl_command_queue new_queue() {
    cl_int code = CL_SUCCESS;
    cl_command_queue queue = cl_.clCreateCommandQueue(context_->get(), handle_.device, 0, &code);
    check(code, "making an OpenCL command queue");
    return queue;
  }
  cl_command_queue queue_of(fp_stream* stream) const noexcept {
    return stream == nullptr ? own_queue_.get() : reinterpret_cast<cl_command_queue>(stream);
  }
  /// After something was put into the queue of `stream`: started there, complete without one.
  void enqueued(cl_int code, const char* action, fp_stream* stream) {
    check(code, action);
    if (stream != nullptr) {
      check(cl_.clFlush(queue_of(stream)), action);
    } else {
      check_finished(cl_.clFinish(own_queue_.get()), action);
    }
  }
  void build(cl_program program);
  std::unique_ptr<OpenClModule> module_of(Owned<cl_program> owned, const gpu::Program& program);
  std::unique_ptr<OpenClModule> built(const gpu::Program& program);

  const Icd& cl_;
  Handle handle_;
  std::shared_ptr<Context> context_;
  Owned<cl_command_queue> own_queue_;  // of calls without a stream
  bool cpu_;
  std::string options_;
  bool pocl_ = false;
  gpu::Target target_;
  std::uint64_t total_bytes_ = 0;
  std::atomic<std::uint64_t> used_bytes_{0};
  std::mutex streams_mutex_;
  std::set<cl_command_queue> streams_;
};

void OpenClDevice::build(cl_program program) {
  const cl_int code = cl_.clBuildProgram(program, 1, &handle_.device, options_.c_str(), nullptr, nullptr);
  if (code == CL_SUCCESS) return;
  if (code == CL_OUT_OF_HOST_MEMORY || code == CL_OUT_OF_RESOURCES || code == CL_DEVICE_NOT_AVAILABLE ||
      code == CL_COMPILER_NOT_AVAILABLE) {
    check(code, "building an OpenCL program");
  }
  std::size_t size = 0;
  std::string log;
  if (cl_.clGetProgramBuildInfo(program, handle_.device, CL_PROGRAM_BUILD_LOG, 0, nullptr, &size) == CL_SUCCESS) {
    log.resize(size);
    cl_.clGetProgramBuildInfo(program, handle_.device, CL_PROGRAM_BUILD_LOG, size, log.data(), nullptr);
    while (!log.empty() && log.back() == '\0') log.pop_back();
  }
  throw sdk::Refused("the OpenCL driver does not build the kernel's source, " + error_name(code) + ": " +
                     first_lines(log));
}

std::unique_ptr<OpenClModule> OpenClDevice::module_of(Owned<cl_program> owned, const gpu::Program& program) {
  auto module = std::make_unique<OpenClModule>(std::move(owned));
  for (const gpu::KernelInfo& info : program.kernels) {
    cl_int code = CL_SUCCESS;
    Owned<cl_kernel> kernel(cl_.clCreateKernel(module->program(), info.name.c_str(), &code), cl_.clReleaseKernel);
    if (code == CL_INVALID_KERNEL_NAME || code == CL_INVALID_PROGRAM_EXECUTABLE) {
      throw sdk::Refused("the program that was built has no kernel '" + info.name + "'");
    }
    check(code, "taking a kernel of an OpenCL program");
    std::size_t most = 0;
    if (cl_.clGetKernelWorkGroupInfo(kernel.get(), handle_.device, CL_KERNEL_WORK_GROUP_SIZE, sizeof most, &most,
                                     nullptr) == CL_SUCCESS &&
        most < info.group_size) {
      throw sdk::Refused("kernel '" + info.name + "' can run in groups of " + std::to_string(most) +
                         " items on this device, and needs " + std::to_string(info.group_size));
    }
    module->kernels.push_back(std::make_unique<OpenClModule::Kernel>(std::move(kernel), info.group_size));
  }
  return module;
}

std::unique_ptr<OpenClModule> OpenClDevice::built(const gpu::Program& program) {
  const char* text = program.source.data();
  const std::size_t length = program.source.size();
  cl_int code = CL_SUCCESS;
  Owned<cl_program> owned(cl_.clCreateProgramWithSource(context_->get(), 1, &text, &length, &code),
                          cl_.clReleaseProgram);
  check(code, "making an OpenCL program");
  build(owned.get());
  return module_of(std::move(owned), program);
}

std::shared_ptr<gpu::Module> OpenClDevice::build_module(const gpu::Program& program) {
  return context_->code(program.source, [&] {
    const KeepProcessState keep;
    return built(program);
  });
}

gpu::Binary OpenClDevice::compile(const gpu::Program& program, std::unique_ptr<gpu::Module>& module) {
  const KeepProcessState keep;
  std::unique_ptr<OpenClModule> made = built(program);
  gpu::Binary binary;
  std::size_t size = 0;
  if (cl_.clGetProgramInfo(made->program(), CL_PROGRAM_BINARY_SIZES, sizeof size, &size, nullptr) == CL_SUCCESS &&
      size > 0) {
    binary.code.resize(size);
    unsigned char* to = binary.code.data();
    if (cl_.clGetProgramInfo(made->program(), CL_PROGRAM_BINARIES, sizeof to, &to, nullptr) != CL_SUCCESS) {
      binary.code.clear();
    }
  }
  for (std::size_t i = 0; i < program.kernels.size(); ++i) {
    gpu::KernelResources& resources = binary.resources.emplace_back();
    resources.kernel = program.kernels[i].name;
    cl_ulong local = 0;
    if (cl_.clGetKernelWorkGroupInfo(made->kernels[i]->kernel.get(), handle_.device, CL_KERNEL_LOCAL_MEM_SIZE,
                                     sizeof local, &local, nullptr) == CL_SUCCESS) {
      resources.shared_bytes = static_cast<std::int64_t>(local);
    }
  }
  module = std::move(made);
  return binary;
}

std::unique_ptr<gpu::Module> OpenClDevice::load(const gpu::Program& program, const gpu::Binary& binary) {
  const KeepProcessState keep;
  const unsigned char* code_bytes = binary.code.data();
  const std::size_t length = binary.code.size();
  cl_int status = CL_SUCCESS, code = CL_SUCCESS;
  Owned<cl_program> owned(
      cl_.clCreateProgramWithBinary(context_->get(), 1, &handle_.device, &length, &code_bytes, &status, &code),
      cl_.clReleaseProgram);
  if (code == CL_INVALID_BINARY || code == CL_INVALID_VALUE || (code == CL_SUCCESS && status != CL_SUCCESS)) {
    throw sdk::Refused("the OpenCL driver refuses a program that was compiled earlier: " +
                       error_name(code != CL_SUCCESS ? code : status));
  }
  check(code, "loading an OpenCL program");
  build(owned.get());
  return module_of(std::move(owned), program);
}

void OpenClDevice::launch(gpu::Module& module, std::size_t index, std::int64_t groups,
                          std::span<const gpu::BoundArgument> arguments, fp_stream* stream) {
  OpenClModule::Kernel& kernel = *static_cast<OpenClModule&>(module).kernels.at(index);
  const std::lock_guard lock(kernel.mutex);
  cl_uint next = 0;
  for (const gpu::BoundArgument& argument : arguments) {
    if (argument.is_buffer) {
      const cl_mem memory = as_memory(argument.memory);
      check(cl_.clSetKernelArg(kernel.kernel.get(), next++, sizeof memory, &memory), "giving a kernel memory");
    }
    const cl_long value = argument.value;
    check(cl_.clSetKernelArg(kernel.kernel.get(), next++, sizeof value, &value), "giving a kernel a number");
  }
  const std::size_t local = kernel.group_size;
  if (groups > static_cast<std::int64_t>(std::numeric_limits<std::int64_t>::max() / kernel.group_size)) {
    throw sdk::Refused("a launch of " + std::to_string(groups) + " groups");
  }
  const std::size_t global = static_cast<std::size_t>(groups) * local;
  const auto enqueue = [&] {
    enqueued(cl_.clEnqueueNDRangeKernel(queue_of(stream), kernel.kernel.get(), 1, nullptr, &global, &local, 0, nullptr,
                                        nullptr),
             "launching a kernel", stream);
  };
  // Drivers compile the rest of a kernel at its first launch, and PoCL again for other sizes.
  if (cpu_ || !kernel.launched) {
    const KeepProcessState keep;
    enqueue();
    kernel.launched = true;
  } else {
    enqueue();
  }
}

void* OpenClDevice::allocate(std::uint64_t bytes) {
  cl_int code = CL_SUCCESS;
  const std::size_t size = std::max<std::uint64_t>(bytes, 1);
  cl_mem memory = cl_.clCreateBuffer(context_->get(), CL_MEM_READ_WRITE, size, nullptr, &code);
  check(code, ("allocating " + std::to_string(bytes) + " bytes").c_str());
  used_bytes_ += size;
  return memory;
}

void OpenClDevice::release(void* memory) noexcept {
  if (memory == nullptr) return;
  std::size_t size = 0;
  if (cl_.clGetMemObjectInfo(as_memory(memory), CL_MEM_SIZE, sizeof size, &size, nullptr) == CL_SUCCESS) {
    used_bytes_ -= size;
  }
  cl_.clReleaseMemObject(as_memory(memory));
}

fp_stream* OpenClDevice::create_stream() {
  cl_command_queue queue = new_queue();
  const std::lock_guard lock(streams_mutex_);
  streams_.insert(queue);
  return reinterpret_cast<fp_stream*>(queue);
}

void OpenClDevice::destroy_stream(fp_stream* stream) noexcept {
  if (stream == nullptr) return;
  cl_command_queue queue = queue_of(stream);
  {
    const std::lock_guard lock(streams_mutex_);
    streams_.erase(queue);
  }
  cl_.clReleaseCommandQueue(queue);
}

void OpenClDevice::synchronize(fp_stream* stream) {
  if (stream != nullptr) return check_finished(cl_.clFinish(queue_of(stream)), "waiting for a stream");
  const std::lock_guard lock(streams_mutex_);  // none may go meanwhile
  for (cl_command_queue queue : streams_) check_finished(cl_.clFinish(queue), "waiting for the device");
}

void OpenClDevice::destroy_event(fp_event* event) noexcept {
  if (event == nullptr) return;
  auto* own = reinterpret_cast<Event*>(event);
  if (own->event != nullptr) cl_.clReleaseEvent(own->event);
  delete own;
}

void OpenClDevice::record(fp_event* event, fp_stream* stream) {
  if (event == nullptr) throw sdk::InvalidArgument("a null event");
  cl_event marker = nullptr;  // without a stream everything is complete already
  if (stream != nullptr) {
    enqueued(cl_.clEnqueueMarkerWithWaitList(queue_of(stream), 0, nullptr, &marker), "recording an event", stream);
  }
  auto& own = *reinterpret_cast<Event*>(event);
  const std::lock_guard lock(own.mutex);
  std::swap(own.event, marker);
  if (marker != nullptr) cl_.clReleaseEvent(marker);
}

void OpenClDevice::wait(fp_stream* stream, fp_event* event) {
  if (event == nullptr) throw sdk::InvalidArgument("a null event");
  auto& own = *reinterpret_cast<Event*>(event);
  const std::lock_guard lock(own.mutex);
  if (own.event == nullptr) return;
  if (stream == nullptr) return check_finished(cl_.clWaitForEvents(1, &own.event), "waiting for an event");
  enqueued(cl_.clEnqueueBarrierWithWaitList(queue_of(stream), 1, &own.event, nullptr), "waiting for an event", stream);
}

}  // namespace

std::unique_ptr<gpu::BackendDevice> open_device(const Icd& cl, const Handle& handle, std::shared_ptr<Context> context) {
  return std::make_unique<OpenClDevice>(cl, handle, std::move(context));
}

}  // namespace fastpath_opencl
