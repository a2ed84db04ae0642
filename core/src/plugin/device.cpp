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

/// The kind of native handles that a kind of device has.
std::int32_t native_kind(DeviceKind kind) noexcept {
  switch (kind) {
    case DeviceKind::cuda:
      return FP_NATIVE_CUDA;
    case DeviceKind::hip:
      return FP_NATIVE_HIP;
    case DeviceKind::opencl:
      return FP_NATIVE_OPENCL;
    case DeviceKind::extension:
      return FP_NATIVE_EXT;
    case DeviceKind::cpu:
      break;
  }
  return FP_NATIVE_NONE;
}

}  // namespace

bool same_device(const DeviceInfo& a, const DeviceInfo& b) noexcept {
  if (a.device.kind != b.device.kind) return false;
  if (a.device.is_cpu()) return true;
  if (!a.uuid.empty() && !b.uuid.empty()) return a.uuid == b.uuid;
  if (!a.pci.empty() && !b.pci.empty()) return a.pci == b.pci;
  return a.device.index == b.device.index;
}

PluginDevice::PluginDevice(const PluginTables& tables, LoadedPlugin& plugin, const DeviceInfo& info,
                           std::shared_ptr<PluginDevice> owner)
    : tables_(tables), plugin_(plugin), info_(info), owner_(std::move(owner)) {
  const fp_device_info c_info = to_c(info_);
  ErrorSink sink;
  fp_open_args args{};
  args.struct_size = FP_SIZE_OPEN_ARGS;
  args.device = &c_info;
  args.errors = sink.get();
  const auto fail = [&](ErrorCode code, std::string_view text) {
    throw Error(code, fmt::format("plugin {} cannot open {}{}: {}", tables_.id, to_string(info_.device),
                                  borrows() ? " on the memory of " + owner_->tables_.id : "", text));
  };
  fp_native native{};
  if (borrows()) {
    const CallStatus status = owner_->native(nullptr, native, sink);
    if (!status.ok()) fail(error_code(status.status, ErrorCode::unavailable), status.text);
    args.native = &native;
  }
  const CallStatus status = call(sink, [&] { return tables_.plugin.open(tables_.original, &args, &handle_); });
  if (!status.ok()) fail(error_code(status.status, ErrorCode::unavailable), status.text);
  if (handle_ == nullptr) fail(ErrorCode::unavailable, "it reported success and gave no device");
}

PluginDevice::~PluginDevice() {
  if (forked()) return;  // it is the parent's
  Lease lease;
  if (handle_ == nullptr || !hold(lease)) return;
  guarded_void([&] { tables_.plugin.close(tables_.original, handle_); });
}

bool PluginDevice::hold(Lease& lease) {
  const auto add = [&](PluginDevice& device) {
    Ending* const ending = device.plugin_.ending();
    return ending == nullptr || lease.add(ending->life());
  };
  return add(*this) && (owner_ == nullptr || add(*owner_));
}

void PluginDevice::lose() noexcept {
  lost_.store(true, std::memory_order_relaxed);
  if (owner_ != nullptr) owner_->lose();  // it is the same device
}

Support PluginDevice::lends() {
  ErrorSink sink;
  fp_native out{};
  const CallStatus status = native(nullptr, out, sink);
  if (status.ok()) return Support::yes();
  const ReasonCode code = status.status == FP_E_DEVICE_LOST ? ReasonCode::device_lost : ReasonCode::device;
  return Support::no(code, fmt::format("{}: {}", tables_.id, status.text));
}

CallStatus PluginDevice::native(fp_stream* stream, fp_native& out, ErrorSink& sink) {
  out = {};
  out.struct_size = FP_SIZE_NATIVE;
  if (!has_memory() || tables_.memory.native == nullptr) {
    return {FP_E_UNAVAILABLE, "has no native handles to lend"};
  }
  CallStatus status = call(sink, [&] { return tables_.memory.native(handle_, stream, &out); });
  if (!status.ok()) {
    status.text = "its native handles cannot be had: " + status.text;
  } else if (const std::int32_t expected = native_kind(info_.device.kind); out.kind != expected) {
    status = {FP_E_UNAVAILABLE, fmt::format("its native handles are of kind {}, for {} kind {} is expected", out.kind,
                                            to_string(info_.device.kind), expected)};
  }
  return status;
}

CallStatus PluginDevice::take_memory(std::uint64_t bytes, void*& memory, ErrorSink& sink) {
  memory = nullptr;
  Lease lease;
  hold(lease);  // what is taken is noted before a shutdown looks
  CallStatus status = call(sink, [&] { return tables_.memory.allocate(handle_, bytes, &memory, sink.get()); });
  if (status.ok() && memory == nullptr) status = {FP_E_INTERNAL, "reported success and gave no memory"};
  if (!status.ok()) return status;
  const std::lock_guard lock(mutex_);
  memory_.insert(memory);
  return status;
}

void PluginDevice::give_memory(void* memory) noexcept {
  if (forked()) return;
  Lease lease;
  if (!hold(lease)) return;  // the shutdown gives it back
  {
    const std::lock_guard lock(mutex_);
    memory_.erase(memory);
  }
  guarded_void([&] { tables_.memory.release(handle_, memory); });
}

CallStatus PluginDevice::take_stream(fp_stream*& stream, ErrorSink& sink) {
  stream = nullptr;
  Lease lease;
  hold(lease);
  CallStatus status = call(sink, [&] { return tables_.memory.create_stream(handle_, &stream, sink.get()); });
  if (status.ok() && stream == nullptr) status = {FP_E_INTERNAL, "the device reported success and gave no stream"};
  if (!status.ok()) return status;
  const std::lock_guard lock(mutex_);
  streams_.insert(stream);
  return status;
}

void PluginDevice::give_stream(fp_stream* stream) noexcept {
  if (forked()) return;
  Lease lease;
  if (!hold(lease)) return;
  {
    const std::lock_guard lock(mutex_);
    streams_.erase(stream);
  }
  guarded_void([&] { tables_.memory.destroy_stream(handle_, stream); });
}

void PluginDevice::give_kernel(fp_kernel* kernel) noexcept {
  if (forked()) return;
  Lease lease;
  if (!hold(lease)) return;
  {
    const std::lock_guard lock(mutex_);
    kernels_.erase(kernel);
  }
  guarded_void([&] { tables_.kernels.destroy(kernel); });
}

std::vector<std::shared_ptr<PluginDevice>> PluginDevice::borrowers() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<PluginDevice>> result;
  for (const auto& borrower : borrowers_) {
    if (auto device = borrower.lock()) result.push_back(std::move(device));
  }
  return result;
}

void PluginDevice::destroy_kernels() noexcept {
  if (forked()) return;
  for (const auto& borrower : borrowers()) borrower->destroy_kernels();
  const std::set<fp_kernel*> kernels = std::exchange(kernels_, {});
  for (fp_kernel* kernel : kernels) guarded_void([&] { tables_.kernels.destroy(kernel); });
}

void PluginDevice::close() noexcept {
  if (forked()) return;
  for (const auto& borrower : borrowers()) borrower->close();
  fp_device* const handle = std::exchange(handle_, nullptr);
  if (handle == nullptr) return;
  for (fp_stream* stream : std::exchange(streams_, {})) {
    guarded_void([&] { tables_.memory.destroy_stream(handle, stream); });
  }
  for (void* memory : std::exchange(memory_, {})) guarded_void([&] { tables_.memory.release(handle, memory); });
  guarded_void([&] { tables_.plugin.close(tables_.original, handle); });
}

void PluginDevice::check(const CallStatus& status, std::string_view action) const {
  if (status.ok()) return;
  throw Error(error_code(status.status, plugin_.ended() ? ErrorCode::unavailable : ErrorCode::kernel_failed),
              fmt::format("plugin {}, {} on {}: {}", tables_.id, action, to_string(info_.device), status.text));
}

Tensor PluginDevice::allocate(const Shape& shape, DType dtype) {
  if (borrows()) return owner_->allocate(shape, dtype);
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
  check(take_memory(bytes, memory, sink), fmt::format("allocation of {} bytes", bytes));
  auto self = shared_from_this();
  std::shared_ptr<const void> owner(memory,
                                    [self](const void* pointer) { self->give_memory(const_cast<void*>(pointer)); });
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
  if (borrows()) return owner_->copy_to_device(host, device, stream);
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
  if (borrows()) return owner_->copy_from_device(device, host, stream);
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
  if (borrows()) return owner_->create_queue();
  if (!owns_memory()) return nullptr;
  return std::make_unique<PluginQueue>(shared_from_this());
}

PluginQueue::PluginQueue(std::shared_ptr<PluginDevice> device) : device_(std::move(device)) {
  ErrorSink sink;
  device_->check(device_->take_stream(stream_, sink), "creation of a stream");
}

PluginQueue::~PluginQueue() { device_->give_stream(stream_); }

CallStatus PluginQueue::native(const fp_native*& out, ErrorSink& sink) {
  if (native_.struct_size == 0) {
    if (CallStatus status = device_->native(stream_, native_, sink); !status.ok()) {
      native_ = {};
      return status;
    }
  }
  out = &native_;
  return {};
}

void PluginQueue::synchronize() {
  ErrorSink sink;
  device_->check(
      device_->call(sink, [&] { return device_->tables().memory.synchronize(device_->handle(), stream_, sink.get()); }),
      "synchronization");
}

void PluginDevice::fill_zero(const Tensor& device) {
  if (borrows()) return owner_->fill_zero(device);
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
  Lease lease;
  if (!hold(lease)) fail(ErrorCode::unavailable, shut_down_reason().text);
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
  {
    const std::lock_guard lock(mutex_);
    kernels_.insert(kernel);
  }
  return adopt_kernel(shared_from_this(), kernel, traits);
}

CallStatus Workspace::reserve(std::uint64_t bytes, ErrorSink& sink) {
  if (bytes <= capacity_) return {};
  release();
  if (device_.owns_memory()) {
    const CallStatus status = device_.memory_device().take_memory(bytes, memory_, sink);
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
    device_.memory_device().give_memory(memory_);
  } else {
    std::free(memory_);
  }
  memory_ = nullptr;
  capacity_ = 0;
}

std::shared_ptr<PluginDevice> open_device(const PluginTables& tables, LoadedPlugin& plugin, const DeviceInfo& info,
                                          const std::shared_ptr<OpenDevice>& owner) {
  auto lender = std::dynamic_pointer_cast<PluginDevice>(owner);
  auto device = std::make_shared<PluginDevice>(tables, plugin, info, lender);
  if (lender != nullptr) lender->add_borrower(device);
  return device;
}

}  // namespace fastpath::plugin
