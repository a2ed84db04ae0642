#include "device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "fastpath/error.hpp"

namespace fastpath::plugin {
namespace {

constexpr std::size_t kAlignment = 256;  // what fp_run_args promises for scratch

std::string joined(const std::vector<Reason>& reasons) {
  std::string text;
  for (const Reason& reason : reasons) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", to_string(reason.code), reason.text);
  }
  return text;
}

}  // namespace

PluginDevice::PluginDevice(const PluginTables& tables, LoadedPlugin& plugin, const DeviceInfo& info)
    : tables_(tables), plugin_(plugin), info_(info) {
  const fp_device_info c_info = to_c(info_);
  ErrorSink sink;
  fp_open_args args{};
  args.struct_size = FP_SIZE_OPEN_ARGS;
  args.device = &c_info;
  args.errors = sink.get();
  const CallStatus status = call(sink, [&] { return tables_.plugin.open(tables_.original, &args, &handle_); });
  const auto fail = [&](ErrorCode code, std::string_view text) {
    throw Error(code, fmt::format("plugin {} cannot open {}: {}", tables_.id, to_string(info_.device), text));
  };
  if (!status.ok()) fail(error_code(status.status, ErrorCode::unavailable), status.text);
  if (handle_ == nullptr) fail(ErrorCode::unavailable, "it reported success and gave no device");
}

PluginDevice::~PluginDevice() {
  if (forked()) return;  // it is the parent's
  guarded_void([&] { tables_.plugin.close(tables_.original, handle_); });
}

void PluginDevice::check(const CallStatus& status, std::string_view action) const {
  if (status.ok()) return;
  throw Error(error_code(status.status, ErrorCode::kernel_failed),
              fmt::format("plugin {}, {} on {}: {}", tables_.id, action, to_string(info_.device), status.text));
}

Tensor PluginDevice::allocate(const Shape& shape, DType dtype) {
  if (info_.device.is_cpu()) return Tensor::empty(shape, dtype);
  if (!owns_memory()) {
    throw Error(ErrorCode::unavailable,
                fmt::format("plugin {} brings kernels but no memory to {}", tables_.id, to_string(info_.device)));
  }
  // Validates the shape before it is multiplied out.
  const Tensor layout = Tensor::wrap(nullptr, shape, {}, dtype, info_.device, nullptr);
  ErrorSink sink;
  void* memory = nullptr;
  const std::uint64_t bytes = std::max<std::uint64_t>(layout.bytes(), 1);
  CallStatus status = call(sink, [&] { return tables_.memory.allocate(handle_, bytes, &memory, sink.get()); });
  if (status.ok() && memory == nullptr) status = {FP_E_INTERNAL, "reported success and gave no memory"};
  check(status, fmt::format("allocation of {} bytes", bytes));
  auto self = shared_from_this();
  std::shared_ptr<const void> owner(memory, [self](const void* pointer) {
    if (self->forked()) return;
    guarded_void([&] { self->tables_.memory.release(self->handle_, const_cast<void*>(pointer)); });
  });
  return Tensor::wrap(memory, shape, {}, dtype, info_.device, std::move(owner));
}

void PluginDevice::check_own(const Tensor& device, std::string_view action) const {
  if (device.defined() && device.device() == info_.device && device.is_contiguous()) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}: a tensor on {} is expected, contiguous; found {}", action, to_string(info_.device),
                          !device.defined()         ? "an undefined one"
                          : !device.is_contiguous() ? "one with gaps"
                                                    : "one on " + to_string(device.device())));
}

void PluginDevice::check_pair(const Tensor& host, const Tensor& device, std::string_view action) const {
  check_own(device, action);
  if (!host.defined() || !host.device().is_cpu() || !host.is_contiguous()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: a contiguous tensor on cpu is expected", action));
  }
  if (host.dtype() != device.dtype() || host.numel() != device.numel()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: {} {} on cpu, {} {} on {}", action, to_string(host.dtype()), to_string(host.shape()),
                            to_string(device.dtype()), to_string(device.shape()), to_string(info_.device)));
  }
}

void PluginDevice::copy_to_device(const Tensor& host, const Tensor& device) { copy_to_device(host, device, nullptr); }

void PluginDevice::copy_from_device(const Tensor& device, const Tensor& host) {
  copy_from_device(device, host, nullptr);
}

void PluginDevice::copy_to_device(const Tensor& host, const Tensor& device, fp_stream* stream) {
  check_pair(host, device, "copy to device");
  if (host.bytes() == 0) return;
  if (!owns_memory()) return device.copy_from(host);
  ErrorSink sink;
  check(call(sink,
             [&] {
               return tables_.memory.copy_to_device(handle_, device.base(), device.byte_offset(), host.raw(),
                                                    host.bytes(), stream, sink.get());
             }),
        "copy to device");
}

void PluginDevice::copy_from_device(const Tensor& device, const Tensor& host, fp_stream* stream) {
  check_pair(host, device, "copy from device");
  if (host.bytes() == 0) return;
  if (!owns_memory()) return host.copy_from(device);
  ErrorSink sink;
  check(call(sink,
             [&] {
               return tables_.memory.copy_from_device(handle_, host.raw(), device.base(), device.byte_offset(),
                                                      host.bytes(), stream, sink.get());
             }),
        "copy from device");
}

std::unique_ptr<Queue> PluginDevice::create_queue() {
  if (!owns_memory()) return nullptr;
  return std::make_unique<PluginQueue>(shared_from_this());
}

PluginQueue::PluginQueue(std::shared_ptr<PluginDevice> device) : device_(std::move(device)) {
  ErrorSink sink;
  const fp_memory_api& api = device_->tables().memory;
  CallStatus status = device_->call(sink, [&] { return api.create_stream(device_->handle(), &stream_, sink.get()); });
  if (status.ok() && stream_ == nullptr) status = {FP_E_INTERNAL, "reported success and gave no stream"};
  device_->check(status, "creation of a stream");
}

PluginQueue::~PluginQueue() {
  if (device_->forked()) return;
  guarded_void([&] { device_->tables().memory.destroy_stream(device_->handle(), stream_); });
}

void PluginQueue::synchronize() {
  ErrorSink sink;
  device_->check(
      device_->call(sink, [&] { return device_->tables().memory.synchronize(device_->handle(), stream_, sink.get()); }),
      "synchronization");
}

void PluginDevice::fill_zero(const Tensor& device) {
  check_own(device, "fill with zeros");
  if (device.bytes() == 0) return;
  if (!owns_memory()) return device.fill_zero();
  ErrorSink sink;
  check(call(sink,
             [&] {
               return tables_.memory.fill_zero(handle_, device.base(), device.byte_offset(), device.bytes(), nullptr,
                                               sink.get());
             }),
        "fill with zeros");
}

std::unique_ptr<Kernel> PluginDevice::create_kernel(const OpSpec& op, DType dtype, Passes passes) {
  const auto fail = [&](ErrorCode code, const std::string& text) {
    throw Error(code, fmt::format("plugin {} cannot create a kernel for {} on {}: {}", tables_.id, op.id,
                                  to_string(info_.device), text));
  };
  // Asked again: an answer that had to wait for an open device is due now.
  KernelTraits traits;
  const Support support = plugin_.query(op, info_, dtype, passes, &traits);
  if (!support) fail(ErrorCode::unavailable, joined(support.reasons()));
  const KernelQuery query(op, info_, dtype, passes);
  ErrorSink sink;
  fp_create_args args{};
  args.struct_size = FP_SIZE_CREATE_ARGS;
  args.device = handle_;
  args.query = &query.get();
  args.errors = sink.get();
  fp_kernel* kernel = nullptr;
  const CallStatus status = call(sink, [&] { return tables_.kernels.create(tables_.original, &args, &kernel); });
  if (!status.ok()) fail(error_code(status.status, ErrorCode::unavailable), status.text);
  if (kernel == nullptr) fail(ErrorCode::unavailable, "it reported success and gave no kernel");
  return adopt_kernel(shared_from_this(), kernel, traits);
}

CallStatus Workspace::reserve(std::uint64_t bytes, ErrorSink& sink) {
  if (bytes <= capacity_) return {};
  release();
  if (device_.owns_memory()) {
    const fp_memory_api& api = device_.tables().memory;
    CallStatus status = device_.call(sink, [&] { return api.allocate(device_.handle(), bytes, &memory_, sink.get()); });
    if (status.ok() && memory_ == nullptr) status = {FP_E_INTERNAL, "the device reported success and gave no memory"};
    if (!status.ok()) {
      memory_ = nullptr;
      return status;
    }
  } else {
    constexpr std::uint64_t kMax = std::uint64_t{1} << 62;
    if (bytes <= kMax) memory_ = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    if (memory_ == nullptr) {
      return {FP_E_OUT_OF_MEMORY, fmt::format("no memory for the {} bytes of scratch that the kernel asks for", bytes)};
    }
  }
  capacity_ = bytes;
  return {};
}

void Workspace::release() noexcept {
  if (memory_ == nullptr) return;
  if (device_.owns_memory()) {
    if (device_.forked()) return;
    guarded_void([&] { device_.tables().memory.release(device_.handle(), memory_); });
  } else {
    std::free(memory_);
  }
  memory_ = nullptr;
  capacity_ = 0;
}

std::shared_ptr<OpenDevice> open_device(const PluginTables& tables, LoadedPlugin& plugin, const DeviceInfo& info) {
  return std::make_shared<PluginDevice>(tables, plugin, info);
}

}  // namespace fastpath::plugin
