// A plugin that only brings kernels: to the fake device, whose memory and streams are those of another plugin. The two
// agree on what FP_NATIVE_EXT holds by the device's name: the FakeDevice, and a stream of it. It looks up
// `fake_kernels.open`, "refuse": it opens nothing then.
#include "fake_plugin.hpp"
#include "on_device.hpp"

namespace fake_device {
namespace {

/// Somebody else's device.
class Guest final : public sdk::Device {
 public:
  explicit Guest(FakeDevice& owner) : owner_(owner) { count(counters().open_devices); }
  ~Guest() override { count(counters().open_devices, -1); }
  FakeDevice& owner() const noexcept { return owner_; }

 private:
  FakeDevice& owner_;
};

class KernelsPlugin final : public FakePlugin {
 public:
  std::vector<sdk::DeviceDescription> devices() override {
    // The same device by its UUID; here it has another place in the list.
    std::vector<sdk::DeviceDescription> result = FakePlugin::devices();
    result.front().index = 3;
    return result;
  }
  bool owns_memory() const override { return false; }

  std::unique_ptr<sdk::Device> open(const sdk::OpenRequest& request) override {
    if (!devices().front().same_device(request.device)) throw sdk::Unavailable("fake kernels: no such device");
    if (host().lookup("fake_kernels.open").value_or("") == "refuse") throw sdk::Refused("fake kernels: not today");
    if (!request.native || request.native->kind != FP_NATIVE_EXT || request.native->context == nullptr) {
      throw sdk::InvalidArgument("fake kernels: a native handle of the fake device is expected");
    }
    return std::make_unique<Guest>(*static_cast<FakeDevice*>(request.native->context));
  }

  std::vector<sdk::OpDescription> ops() override {
    std::vector<sdk::OpDescription> result;
    for (sdk::OpDescription& op : FakePlugin::ops()) {
      if (serves(op.op)) result.push_back(std::move(op));
    }
    return result;
  }
  void query(const sdk::KernelQuery& query, sdk::KernelAnswer& answer) override {
    if (!serves(query.op)) return answer.blocked(sdk::Reason::op, "op '" + query.op + "' is not known here");
    FakePlugin::query(query, answer);
    answer.rank = 1;  // before the kernels of the memory's owner
  }
  std::unique_ptr<sdk::Kernel> create(const sdk::KernelQuery& query, sdk::Device& device) override {
    return std::make_unique<OnDevice>(make_kernel(query), static_cast<Guest&>(device).owner(), devices().front().index);
  }

 private:
  /// Not everything, so that steps of a model alternate between the two plugins.
  static bool serves(std::string_view op) { return op == "conv_tensor_product" || op == "radial_mlp"; }
};

}  // namespace
}  // namespace fake_device

FASTPATH_PLUGIN(fake_device::KernelsPlugin, "fake_kernels", "Example", "1.0.0", "ext", "test");
