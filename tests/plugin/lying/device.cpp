#include <dlfcn.h>

#include <string>
#include <string_view>

#include "fake_plugin.hpp"

/// The fake device, which keeps its contract but for one way: the one that its file is named after,
/// fastpath_lying_device_WAY.so. One file is built and copied under each name.
namespace lying {

using fake_device::FakeDevice;

bool is(std::string_view way) {
  static const std::string name = [] {
    Dl_info info{};
    if (::dladdr(reinterpret_cast<const void*>(&is), &info) == 0 || info.dli_fname == nullptr) return std::string();
    std::string path = info.dli_fname;
    path = path.substr(path.find_last_of('/') + 1);
    constexpr std::string_view kPrefix = "fastpath_lying_device_", kSuffix = ".so";
    if (path.size() <= kPrefix.size() + kSuffix.size()) return std::string();
    return path.substr(kPrefix.size(), path.size() - kPrefix.size() - kSuffix.size());
  }();
  return name == way;
}

class Device final : public FakeDevice {
 public:
  Device() { strict_ = !is("ignores_events") && !is("defers_copies"); }

  void* allocate(std::uint64_t bytes) override {
    if (is("misaligned")) next_address_ += 64;
    if (is("leaks")) FakeDevice::allocate(bytes);
    return FakeDevice::allocate(bytes);
  }
  void release(void* memory) noexcept override {
    const std::uint64_t before = used_;
    FakeDevice::release(memory);
    if (is("does_not_count_releases")) used_ = before;
  }
  void copy_to_device(void* to, std::uint64_t to_offset, const void* from, std::uint64_t bytes,
                      fp_stream* stream) override {
    if (is("copies_to_the_start")) to_offset = 0;
    if (is("defers_copies") && stream == nullptr) {
      if (hidden_ == nullptr) hidden_ = create_stream();
      stream = hidden_;
    }
    FakeDevice::copy_to_device(to, to_offset, from, bytes, stream);
  }
  void copy_from_device(void* to, const void* from, std::uint64_t from_offset, std::uint64_t bytes,
                        fp_stream* stream) override {
    FakeDevice::copy_from_device(to, from, is("copies_from_the_start") ? 0 : from_offset, bytes, stream);
  }
  void copy_on_device(void* to, std::uint64_t to_offset, const void* from, std::uint64_t from_offset,
                      std::uint64_t bytes, fp_stream* stream) override {
    if (is("swaps_offsets")) std::swap(to_offset, from_offset);
    FakeDevice::copy_on_device(to, to_offset, from, from_offset, bytes, stream);
  }
  void fill_zero(void* memory, std::uint64_t offset, std::uint64_t bytes, fp_stream* stream) override {
    FakeDevice::fill_zero(memory, offset, is("fills_half") ? bytes / 2 : bytes, stream);
  }
  void synchronize(fp_stream* stream) override {
    if (!is("does_not_wait")) FakeDevice::synchronize(stream);
  }
  void wait(fp_stream* stream, fp_event* event) override {
    if (!is("ignores_events")) FakeDevice::wait(stream, event);
  }
  void need() override {
    const bool was_lost = lost_;
    if (was_lost && is("comes_back")) lost_ = false;
    if (was_lost) throw fake_device::sdk::Failure(FP_E_DEVICE_LOST, "fake device: it was lost");
  }
  bool checks_access() const override { return !is("ignores_access"); }

 private:
  fp_stream* hidden_ = nullptr;
};

class Plugin final : public fake_device::FakePlugin {
  std::unique_ptr<FakeDevice> make_device() override { return std::make_unique<Device>(); }
};

}  // namespace lying

FASTPATH_PLUGIN(lying::Plugin, "lying_device", "fastpath tests", "1.0", "ext", "lying");
