// A plugin of the SDK whose kernels end in every way that there is; the op says which.
#include <cstdlib>
#include <cstring>

#include "fastpath/sdk/plugin.hpp"

namespace throws {

using namespace fastpath::sdk;

[[noreturn]] void end_as(const std::string& how) {
  if (how == "refused") throw Refused("not today");
  if (how == "invalid") throw InvalidArgument("found 3, expected 4");
  if (how == "unavailable") throw Unavailable("no driver");
  if (how == "lost") throw Failure(FP_E_DEVICE_LOST, "gone");
  if (how == "memory") throw std::bad_alloc();
  if (how == "config") throw ConfigError("attribute 'x' is missing");
  if (how == "standard") throw std::runtime_error("a bug");
  throw 42;
}

class Throwing final : public Kernel {
 public:
  explicit Throwing(std::string how) : how_(std::move(how)) {}
  void bind(const Bind&) override { end_as(how_); }
  Workspace workspace(const Sizes&) override { end_as(how_); }
  void run(const Run&) override { end_as(how_); }

 private:
  std::string how_;
};

/// Adds up what it is told about a call, so that a test can look at it: out = threads, rows, scratch, saved.
class Echo final : public Kernel {
 public:
  Workspace workspace(const Sizes& sizes) override {
    return {.scratch_bytes = static_cast<std::uint64_t>(sizes.n_rows), .saved_bytes = 16};
  }
  void run(const Run& run) override {
    const TensorView<double> out = run.outputs[0].view<double>();
    out[0] = run.threads;
    out[1] = static_cast<double>(run.sizes.n_rows);
    out[2] = static_cast<double>(run.scratch_bytes);
    out[3] = run.capturing ? 1.0 : 0.0;
  }
};

/// "Device memory" that lives on the heap.
class Heap final : public Device, public DeviceMemory {
 public:
  DeviceMemory* memory() noexcept override { return this; }
  void* allocate(std::uint64_t bytes) override {
    if (bytes > (1u << 20)) throw std::bad_alloc();
    return std::malloc(bytes);
  }
  void release(void* memory) noexcept override { std::free(memory); }
  void copy_to_device(void* to, std::uint64_t offset, const void* from, std::uint64_t bytes, fp_stream*) override {
    std::memcpy(static_cast<char*>(to) + offset, from, bytes);
  }
  void copy_from_device(void* to, const void* from, std::uint64_t offset, std::uint64_t bytes, fp_stream*) override {
    std::memcpy(to, static_cast<const char*>(from) + offset, bytes);
  }
  void copy_on_device(void* to, std::uint64_t to_offset, const void* from, std::uint64_t from_offset,
                      std::uint64_t bytes, fp_stream*) override {
    std::memmove(static_cast<char*>(to) + to_offset, static_cast<const char*>(from) + from_offset, bytes);
  }
  void fill_zero(void* memory, std::uint64_t offset, std::uint64_t bytes, fp_stream*) override {
    std::memset(static_cast<char*>(memory) + offset, 0, bytes);
  }
  fp_stream* create_stream() override { return reinterpret_cast<fp_stream*>(new int(0)); }
  void destroy_stream(fp_stream* stream) noexcept override { delete reinterpret_cast<int*>(stream); }
  void synchronize(fp_stream*) override { throw Failure(FP_E_DEVICE_LOST, "it fell off the bus"); }
  fp_event* create_event() override { return reinterpret_cast<fp_event*>(new int(0)); }
  void destroy_event(fp_event* event) noexcept override { delete reinterpret_cast<int*>(event); }
  void record(fp_event*, fp_stream*) override {}
  void wait(fp_stream*, fp_event*) override {}
  void memory_info(std::uint64_t* free_bytes, std::uint64_t* total_bytes) override {
    *free_bytes = 1;
    *total_bytes = 2;
  }
};

class Throws final : public Plugin {
 public:
  std::vector<DeviceDescription> devices() override {
    DeviceDescription device;
    device.type = FP_DEVICE_EXT;
    device.name = "heap";
    return {device, DeviceDescription{}};
  }
  std::vector<OpDescription> ops() override { return {{.op = "org.example.echo", .passes = FP_PASS_FORWARD}}; }
  bool owns_memory() const override { return true; }
  std::uint32_t numerics_version() const override { return 7; }
  std::unique_ptr<Device> open(const OpenRequest& request) override {
    if (request.device.type == FP_DEVICE_OPENCL) throw Unavailable("no OpenCL here");
    if (request.device.type == FP_DEVICE_EXT) return std::make_unique<Heap>();
    return std::make_unique<Device>();
  }
  void query(const KernelQuery& query, KernelAnswer& answer) override {
    if (query.op == "query_config") throw ConfigError("attribute 'x' is missing");
    if (query.op == "query_standard") throw std::runtime_error("a bug");
    if (query.op == "blocked") {
      answer.blocked(Reason::arch, "sm_50, at least sm_80");
      answer.blocked(Reason::size, "too small");
    }
    answer.min_edges = 10;
    answer.max_edges = 1000;
    answer.prior_edges = 100;
    answer.tolerance = 1e-3;
    answer.rank = 5;
    answer.unknown_until_open = query.op == "unknown";
  }
  std::unique_ptr<Kernel> create(const KernelQuery& query, Device&) override {
    if (query.op == "create_null") return nullptr;
    if (query.op == "org.example.echo") return std::make_unique<Echo>();
    return std::make_unique<Throwing>(query.op);
  }
};

}  // namespace throws

FASTPATH_PLUGIN(throws::Throws, "throws", "Example", "1.2.3", "ext,cpu", "test");
