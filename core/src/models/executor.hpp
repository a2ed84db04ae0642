#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fastpath/graph.hpp"
#include "fastpath/model.hpp"
#include "models/program.hpp"
#include "plugin/plugin.hpp"

namespace fastpath::models {

/// Memory that survives from one evaluation to the next, so that the steady state allocates nothing large.
class BufferPool {
 public:
  /// Of the host, or of a device.
  explicit BufferPool(std::shared_ptr<plugin::OpenDevice> device = nullptr) : device_(std::move(device)) {}
  /// A buffer of at least this size; its content is undefined.
  Tensor take(const Shape& shape, DType dtype);
  /// Takes a buffer back; one that is not of this pool is left to its owner.
  void give(Tensor&& tensor);
  std::uint64_t bytes() const { return bytes_; }
  void clear();

 private:
  std::shared_ptr<plugin::OpenDevice> device_;
  std::map<std::size_t, std::vector<Tensor>> free_;  // by capacity; in the shapes that they had
  std::map<const void*, std::size_t> capacity_;      // of every buffer, by address
  std::uint64_t bytes_ = 0;
};

/// Thrown out of a run when a kernel gave way to the reference and the run is to be repeated without kernels.
struct KernelGaveWay {
  std::string module;
  Reason reason;
};

/// What one run of a program is asked for.
struct RunSettings {
  DType dtype = DType::float64;
  bool tangent = false;
  bool parameter_gradients = false;
  int threads = 1;
  const OpGraph* graph = nullptr;
  const ExchangeCallback* exchange = nullptr;
  bool require_fast = false;
  /// When a kernel gives way to the reference: throw KernelGaveWay, or let the reference do the step and go on.
  bool repeat = false;
  Selection* selection = nullptr;  ///< Decisions are updated when a kernel fails and the reference takes over.
};

/// Runs a program: forward over the steps, backward over them in reverse. Keeps the tensors of every slot, on the host
/// or on a device, and copies between the two where consecutive steps live on different sides. What a device has to do
/// goes into one queue, which is waited for only where a step of the host needs a result.
class Executor {
 public:
  explicit Executor(const Program& program);
  ~Executor();

  /// Starts an evaluation: sets sizes, forgets the last one's tensors.
  void begin(const RunSettings& settings);
  /// Value of an input slot; `tangent` undefined means zero.
  void set_input(SlotId slot, const Tensor& value, const Tensor& tangent = {});
  void forward();
  /// Does the steps that forward() has left, those that nothing waits for but the result.
  void finish_forward();
  /// The gradient of the result with respect to an output slot; `tangent` undefined means zero.
  void seed(SlotId slot, const Tensor& gradient, const Tensor& tangent = {});
  void backward();

  /// Host tensors, after forward() and finish_forward(), or backward(). Undefined where nothing was computed.
  Tensor value(SlotId slot) { return host(slot, kValue); }
  Tensor tangent(SlotId slot) { return host(slot, kTangent); }
  Tensor gradient(SlotId slot) { return host(slot, kGrad); }
  Tensor gradient_tangent(SlotId slot) { return host(slot, kGradTangent); }
  StateDict parameter_gradients(bool tangent) const;
  /// Bytes copied between host and device in this evaluation.
  std::uint64_t copied_bytes() const { return copied_bytes_; }
  /// How often this evaluation has waited for a device.
  std::int64_t synchronizations() const { return synchronizations_; }
  /// Returns buffers to the pool.
  void end();

 private:
  enum Plane { kValue, kTangent, kGrad, kGradTangent, kPlanes };
  struct Buffer {
    Tensor host, device;
    bool host_valid = false, device_valid = false;
    bool pooled = false;  // the host tensor came from the pool
    bool defined() const { return host_valid || device_valid; }
  };
  using SlotBuffers = std::array<Buffer, kPlanes>;

  Buffer& buffer(SlotId slot, Plane plane) { return buffers_[static_cast<std::size_t>(slot)][plane]; }
  /// Valid until the next call.
  const Shape& shape_of(SlotId slot);
  DType dtype_of(SlotId slot) const;
  Tensor host(SlotId slot, Plane plane);
  /// The content of a buffer where a step wants to read it; undefined where there is none.
  const Tensor& read(SlotId slot, Plane plane, plugin::OpenDevice* device);
  /// Fresh memory for a buffer where a step wants to write it; marks it valid there.
  const Tensor& write(SlotId slot, Plane plane, plugin::OpenDevice* device);
  Tensor scratch(SlotId slot, plugin::OpenDevice* device);
  void release(Buffer& buffer);
  void release(Tensor& tensor);
  /// Memory, on the device or on the host.
  Tensor take(const Shape& shape, DType dtype, plugin::OpenDevice* device);
  /// A copy on the device, complete for what is enqueued after it.
  Tensor upload(const Tensor& host);
  /// Enqueues the copy to the host of a buffer that is only on the device; true if there was something to copy.
  bool fetch(SlotId slot, Plane plane);
  /// Of the inputs of late steps.
  void fetch_late();
  /// Waits for the device. @throws KernelGaveWay if work failed in a way that the reference can make up for.
  void synchronize();
  /// Waits for the device, whatever becomes of its work.
  void abandon() noexcept;
  void idle();
  /// Makes `device` the one that owns memory in this evaluation.
  void use(const std::shared_ptr<plugin::OpenDevice>& device);
  bool on_host(const Step& step) const;
  /// Before a step of the host in backward, when none of those left needs the device: brings everything they read.
  void fetch_rest(std::size_t index);
  void add_into(SlotId slot, Plane plane, const Tensor& term, plugin::OpenDevice* device);
  /// The same by a kernel; false if there is none.
  bool add_on_device(SlotId slot, Plane plane, const Tensor& term, plugin::OpenDevice* device);
  const OpGraph& graph_on(plugin::OpenDevice* device);

  void run_step(const Step& step, std::size_t index, bool backward);
  void run_forward(const Step& step, plugin::OpenDevice* device, std::size_t index);
  void run_backward(const Step& step, plugin::OpenDevice* device, std::size_t index);
  void run_exchange(const Step& step, bool backward);
  /// Fills in what every call has; the lists of its pass are the caller's.
  void prepare_call(const Step& step, plugin::OpenDevice* device, Pass pass);
  void call(const Step& step);
  /// Fresh memory for the gradients of a step's parameters, and for their tangents unless those are zero.
  void add_parameter_targets(const Step& step, plugin::OpenDevice* device, bool along);
  const std::vector<Tensor>& glue_parameters(Glue& glue);
  /// Says in the decisions that a kernel gave way. @throws KernelGaveWay, or Error under strict mode.
  void note_failure(const std::string& module, const Reason& reason);

  const Program& program_;
  RunSettings settings_;
  std::vector<SlotBuffers> buffers_;
  std::vector<bool> gradient_slots_;
  std::vector<bool> done_;                 // per step: is part of this evaluation, as the kernels were when it began
  std::vector<Tensor> saved_;              // per step
  std::vector<bool> forward_had_tangent_;  // per step: forward_tangent wrote what is saved
  BufferPool pool_, device_pool_;
  // The step under way. Kept between steps, so that these do not allocate.
  Shape shape_;
  OpCall call_;
  std::vector<Tensor> inputs_, inputs_t_, outputs_, outputs_t_, grad_outputs_, grad_outputs_t_, grad_inputs_,
      grad_inputs_t_, grad_parameters_, grad_parameters_t_;
  std::vector<std::pair<SlotId, Plane>> fresh_gradients_;
  struct Pending {
    SlotId slot;
    Plane plane;
    Tensor term;
  };
  std::vector<Pending> pending_;  // gradients of slots that another reader has contributed to already
  /// Parameters of glue in the dtype of an evaluation.
  struct GlueParameters {
    bool valid = false;
    std::vector<Tensor> tensors;
  };
  std::map<std::pair<const Glue*, DType>, GlueParameters> glue_parameters_;
  std::shared_ptr<plugin::OpenDevice> device_;  // the one that owns memory in this evaluation, once a step has used it
  std::unique_ptr<plugin::Queue> queue_;        // of device_
  bool busy_ = false;                           // the queue may have work
  std::vector<Tensor> held_;                    // given back to the pool, when the queue has no use for it any more
  std::vector<Tensor> references_;              // to memory of the host that the queue reads
  std::int64_t synchronizations_ = 0;
  OpGraph device_graph_;
  bool device_graph_valid_ = false;
  std::map<std::string, std::array<Tensor, 2>> parameter_gradients_;
  std::uint64_t copied_bytes_ = 0;
};

}  // namespace fastpath::models
