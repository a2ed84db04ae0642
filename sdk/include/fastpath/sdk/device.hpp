#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "fastpath/plugin.h"
#include "fastpath/sdk/abi.hpp"
#include "fastpath/sdk/error.hpp"

namespace fastpath::sdk {

/// Identity of a device; the members of fp_device_info. Devices of two plugins are the same if the type and the UUID
/// agree, or else the PCI address, or else the index.
struct DeviceDescription {
  std::int32_t type = FP_DEVICE_CPU;  ///< FP_DEVICE_*
  std::int32_t index = 0;
  std::uint32_t units = 0;  ///< Compute units, or cores.
  std::string vendor, name, arch, uuid, pci, driver;
  std::uint64_t memory_bytes = 0;  ///< 0 if not known.
  std::uint32_t dtypes = 0;        ///< FP_DTYPE_BIT_*
  std::uint32_t flags = 0;

  static DeviceDescription from(const fp_device_info* info) {
    const fp_device_info c = known(info);
    const auto text = [](const char* data, std::uint64_t size) { return std::string(text_view(data, size)); };
    return {.type = c.type,
            .index = c.index,
            .units = c.units,
            .vendor = text(c.vendor, c.vendor_size),
            .name = text(c.name, c.name_size),
            .arch = text(c.arch, c.arch_size),
            .uuid = text(c.uuid, c.uuid_size),
            .pci = text(c.pci, c.pci_size),
            .driver = text(c.driver, c.driver_size),
            .memory_bytes = c.memory_bytes,
            .dtypes = c.dtypes,
            .flags = c.flags};
  }
  /// The C form; it points into this object.
  fp_device_info c_info() const {
    fp_device_info c = abi_struct<fp_device_info>();
    c.type = type;
    c.index = index;
    c.units = units;
    c.vendor = vendor.data();
    c.vendor_size = vendor.size();
    c.name = name.data();
    c.name_size = name.size();
    c.arch = arch.data();
    c.arch_size = arch.size();
    c.uuid = uuid.data();
    c.uuid_size = uuid.size();
    c.pci = pci.data();
    c.pci_size = pci.size();
    c.driver = driver.data();
    c.driver_size = driver.size();
    c.memory_bytes = memory_bytes;
    c.dtypes = dtypes;
    c.flags = flags;
    return c;
  }
  /// Whether both name the same device, as two plugins may do.
  bool same_device(const DeviceDescription& other) const {
    if (type != other.type) return false;
    if (!uuid.empty() && !other.uuid.empty()) return uuid == other.uuid;
    if (!pci.empty() && !other.pci.empty()) return pci == other.pci;
    return index == other.index;
  }
  friend bool operator==(const DeviceDescription&, const DeviceDescription&) = default;
};

/// Native handles of somebody else's context and stream, for a plugin that only brings kernels.
using Native = std::optional<fp_native>;
inline Native native_from(const fp_native* native) { return native == nullptr ? Native() : Native(known(native)); }

/// Memory, copies, streams and events of an open device: what fp_memory_api says, with exceptions for statuses.
/// A null stream means: complete on return. Called from several threads.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual void* allocate(std::uint64_t bytes) = 0;  ///< 256-byte aligned. @throws std::bad_alloc
  virtual void release(void* memory) noexcept = 0;
  virtual void copy_to_device(void* to, std::uint64_t to_offset, const void* from, std::uint64_t bytes,
                              fp_stream* stream) = 0;
  virtual void copy_from_device(void* to, const void* from, std::uint64_t from_offset, std::uint64_t bytes,
                                fp_stream* stream) = 0;
  virtual void copy_on_device(void* to, std::uint64_t to_offset, const void* from, std::uint64_t from_offset,
                              std::uint64_t bytes, fp_stream* stream) = 0;
  virtual void fill_zero(void* memory, std::uint64_t offset, std::uint64_t bytes, fp_stream* stream) = 0;
  virtual fp_stream* create_stream() = 0;
  virtual void destroy_stream(fp_stream* stream) noexcept = 0;
  virtual void synchronize(fp_stream* stream) = 0;
  virtual fp_event* create_event() = 0;
  virtual void destroy_event(fp_event* event) noexcept = 0;
  virtual void record(fp_event* event, fp_stream* stream) = 0;
  virtual void wait(fp_stream* stream, fp_event* event) = 0;
  virtual void memory_info(std::uint64_t* free_bytes, std::uint64_t* total_bytes) = 0;
  /// What another plugin needs to work on this device. @throws Refused if there is no such thing.
  virtual fp_native native(fp_stream* stream) {
    static_cast<void>(stream);
    throw Refused("this device has no native handles to share");
  }
};

/// An open device. A plugin for the CPU needs nothing more than this.
class Device {
 public:
  virtual ~Device() = default;
  /// Null for the CPU and for a plugin that only brings kernels.
  virtual DeviceMemory* memory() noexcept { return nullptr; }
};

}  // namespace fastpath::sdk
