#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "problem.hpp"

/// What kernels do with their arguments and their memory.
namespace fastpath::conformance {
namespace {

/// Notes under `obligation` where results differ by more than rounding.
void expect_same(Trial& trial, const Subject& subject, const Evaluation& found, const Evaluation& expected,
                 const char* obligation, const std::string& what) {
  const auto a = results_of(found), b = results_of(expected);
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double error = difference(*a[i], *b[i]);
    trial.expect(error <= 4 * tolerance_of(subject.dtype, subject.answer.c.tolerance), obligation,
                 what + " differs by " + std::to_string(error), "the same results");
  }
}

/// Calls `body(subject, device, problem)` for each subject.
template <class Body>
void for_each(Session& session, Body&& body) {
  Random random(session.trial.options.seed);
  for (const Subject& subject : subjects(session)) {
    session.trial.step(subject.name());
    OpenDevice device(session, subject.device);
    const Problem problem(subject.op, subject.dtype, ordinary_graph(3, random), 7, random);
    body(subject, device.get(), problem, random);
  }
}
Asked asked_of(const Subject& subject) { return {&subject.op, subject.dtype, subject.passes}; }

void check_independent(Trial& trial) {
  Session session(trial);
  for_each(session, [&](const Subject& subject, fp_device* device, const Problem& problem, Random& random) {
    // What create was given is gone by then, and its memory was given back.
    Kernel first(session, device, subject.device, asked_of(subject));
    if (!prepare(session, first, problem)) return;
    const Problem other(subject.op, subject.dtype, ordinary_graph(3, random), 11, random);
    for (const std::uint32_t pass : passes_of(subject)) {
      Evaluation expected = problem.of(pass), again = problem.of(pass), theirs = other.of(pass);
      if (!run_well(session, first, expected)) continue;
      {
        trial.step(subject.name() + ", " + pass_name(pass) + ": with another kernel beside it");
        Kernel second(session, device, subject.device, asked_of(subject));
        if (!prepare(session, second, other, 2) || !run_well(session, second, theirs)) continue;
      }
      trial.step(subject.name() + ", " + pass_name(pass) + ": after the other kernel was destroyed");
      if (run_well(session, first, again)) expect_same(trial, subject, again, expected, "P-53", "the first kernel");
    }
  });
}

void check_bind(Trial& trial) {
  Session session(trial);
  bool any = false;
  for_each(session, [&](const Subject& subject, fp_device* device, const Problem& problem, Random& random) {
    if (problem.parameters.empty()) return;
    any = true;
    Problem changed(subject.op, subject.dtype, problem.graph, 7, random);
    changed.inputs = problem.inputs;
    changed.cotangents = problem.cotangents;
    Kernel kernel(session, device, subject.device, asked_of(subject));
    Kernel fresh(session, device, subject.device, asked_of(subject));
    if (!prepare(session, kernel, problem, 1) || !prepare(session, fresh, changed, 1)) return;
    for (const std::uint32_t pass : passes_of(subject)) {
      trial.step(subject.name() + ", " + pass_name(pass) + ": other values under another version");
      Evaluation before = problem.of(pass), expected = changed.of(pass), found = changed.of(pass),
                 back = problem.of(pass);
      if (!prepare(session, kernel, problem, 10) || !run_well(session, kernel, before) ||
          !run_well(session, fresh, expected))
        continue;
      if (!prepare(session, kernel, changed, 11) || !run_well(session, kernel, found)) continue;
      expect_same(trial, subject, found, expected, "P-54", "a kernel that was bound anew");
      if (!prepare(session, kernel, problem, 12) || !run_well(session, kernel, back)) continue;
      expect_same(trial, subject, back, before, "P-54", "a kernel that was bound back");
    }
    // At the same address: the host changes values in place, and says so with another version.
    trial.step(subject.name() + ": other values at the same address");
    if (subject.device.type != FP_DEVICE_CPU) return;
    std::vector<Array> values = problem.parameters;
    std::vector<fp_tensor> tensors;
    std::vector<std::vector<std::int64_t>> strides;
    for (Array& value : values) {
      strides.emplace_back(value.shape.size(), 1);
      for (std::size_t axis = value.shape.size(); axis-- > 1;)
        strides.back()[axis - 1] = strides.back()[axis] * value.shape[axis];
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      fp_tensor tensor = sdk::abi_struct<fp_tensor>();
      if (values[i].present) {
        tensor.access = FP_ACCESS_READ;
        tensor.data = values[i].raw();
        tensor.device_type = FP_DEVICE_CPU;
        tensor.ndim = static_cast<std::int32_t>(values[i].shape.size());
        tensor.dtype_code = values[i].dtype.code;
        tensor.dtype_bits = values[i].dtype.bits;
        tensor.dtype_lanes = 1;
        tensor.shape = values[i].shape.data();
        tensor.strides = strides[i].data();
      }
      tensors.push_back(tensor);
    }
    const auto bind = [&](std::uint64_t version) {
      const Outcome outcome = session.call("bind", [&](const fp_error_sink* e) {
        fp_tensor_list list = sdk::abi_struct<fp_tensor_list>();
        list.stride = sizeof(fp_tensor);
        list.count = tensors.size();
        list.items = tensors.data();
        fp_bind_args args = sdk::abi_struct<fp_bind_args>();
        args.version = version;
        args.parameters = &list;
        args.errors = e;
        return session.kernels.bind(kernel.handle(), &args);
      });
      trial.expect(outcome.ok(), "P-54", "bind gets " + outcome.shown(), "ok");
      return outcome.ok();
    };
    Evaluation expected = changed.forward(), found = changed.forward();
    if ((subject.passes & FP_PASS_FORWARD) != 0 && bind(21) && run_well(session, fresh, expected)) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (values[i].present) std::memcpy(values[i].raw(), changed.parameters[i].raw(), values[i].bytes());
      }
      if (bind(22) && run_well(session, kernel, found)) {
        expect_same(trial, subject, found, expected, "P-54", "a kernel bound anew at the same address");
      }
    }
    kernel.destroy();  // before the arrays it was bound to
  });
  if (!any) trial.skip("no kernel has parameters");
}

void check_workspace(Trial& trial) {
  Session session(trial);
  for_each(session, [&](const Subject& subject, fp_device* device, const Problem& problem, Random& random) {
    Kernel kernel(session, device, subject.device, asked_of(subject));
    if (!prepare(session, kernel, problem)) return;
    const Problem other(subject.op, subject.dtype, ordinary_graph(3, random), 90, random);
    for (const std::uint32_t pass : passes_of(subject)) {
      trial.step(subject.name() + ", " + pass_name(pass));
      Evaluation evaluation = problem.of(pass), larger = other.of(pass);
      fp_workspace first{}, again{}, between{};
      const auto wanted = [&](const Evaluation& e, fp_workspace& out) {
        const Outcome outcome = kernel.workspace(e, out);
        trial.expect(outcome.ok(), "P-55", "workspace gets " + outcome.shown(), "ok");
      };
      wanted(evaluation, first);
      wanted(larger, between);
      run_well(session, kernel, larger, {}, "P-55");
      run_well(session, kernel, evaluation, {}, "P-55");
      wanted(evaluation, again);
      trial.expect(first.scratch_bytes == again.scratch_bytes && first.saved_bytes == again.saved_bytes, "P-55",
                   std::to_string(first.scratch_bytes) + " and " + std::to_string(first.saved_bytes) +
                       " bytes, later " + std::to_string(again.scratch_bytes) + " and " +
                       std::to_string(again.saved_bytes),
                   "the same bytes for the same sizes");
    }
  });
}

/// An element that holds what two different fillings put there was not written.
std::int64_t unwritten(const Array& a, const Array& b) {
  const std::size_t item = a.item_bytes();
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i) {
    const auto filled = [&](const Array& array, unsigned char poison) {
      const char* at = array.raw() + static_cast<std::size_t>(i) * item;
      return std::all_of(at, at + item, [&](char c) { return static_cast<unsigned char>(c) == poison; });
    };
    if (filled(a, kPoisonNaN) && filled(b, kPoisonFinite)) ++count;
  }
  return count;
}

void check_written(Trial& trial) {
  Session session(trial);
  Random random(trial.options.seed);
  for (const Subject& subject : subjects(session)) {
    OpenDevice device(session, subject.device);
    std::vector<Problem> problems;
    for (const std::int64_t rows : {0, 1, 7, 70}) {
      if (!subject.op.signature.needs_graph)
        problems.emplace_back(subject.op, subject.dtype, GraphData(), rows, random);
    }
    if (subject.op.signature.needs_graph) {
      std::vector<GraphData> graphs = odd_graphs(3, random);
      graphs.push_back(ordinary_graph(3, random));
      for (GraphData& graph : graphs) problems.emplace_back(subject.op, subject.dtype, std::move(graph), 7, random);
    }
    Kernel kernel(session, device.get(), subject.device, asked_of(subject));
    for (const Problem& problem : problems) {
      if (!prepare(session, kernel, problem, 1 + random() % 1000000)) break;
      for (const std::uint32_t pass : passes_of(subject)) {
        trial.step(subject.name() + ", " + pass_name(pass) + ", " +
                   (subject.op.signature.needs_graph ? problem.graph.name
                                                     : std::to_string(problem.rows(sdk::Axis::rows)) + " rows"));
        Evaluation a = problem.of(pass, kPoisonNaN), b = problem.of(pass, kPoisonFinite);
        if (!run_well(session, kernel, a) || !run_well(session, kernel, b)) continue;
        const auto x = results_of(a), y = results_of(b);
        for (std::size_t i = 0; i < x.size(); ++i) {
          const std::int64_t count = unwritten(*x[i], *y[i]);
          trial.expect(count == 0, "P-56",
                       std::to_string(count) + " of " + std::to_string(x[i]->numel()) + " elements of result " +
                           std::to_string(i) + " were not written",
                       "all of them");
          trial.expect(
              count != 0 || difference(*y[i], *x[i]) <= 4 * tolerance_of(subject.dtype, subject.answer.c.tolerance),
              "P-56", "result " + std::to_string(i) + " depends on what was in it before", "that it does not");
        }
        if (a.grad_outputs.empty()) continue;
        // Each gradient, and each tangent of one, alone: the others are not wanted, and must not be needed.
        for (std::size_t wanted = 0; wanted < x.size(); ++wanted) {
          Evaluation one = problem.of(pass);
          const std::vector<Array*> all = results_of(one);
          for (std::size_t i = 0; i < all.size(); ++i) {
            if (i != wanted) *all[i] = Array::absent();
          }
          if (!run_well(session, kernel, one)) continue;
          const double error = difference(*results_of(one)[0], *x[wanted]);
          trial.expect(error <= 4 * tolerance_of(subject.dtype, subject.answer.c.tolerance), "P-56",
                       "gradient " + std::to_string(wanted) + " asked for alone differs by " + std::to_string(error),
                       "the same gradient");
        }
      }
    }
  }
}

void check_guards(Trial& trial) {
  Session session(trial);  // the driver looks at the bytes around every array, at inputs, parameters and scratch
  Random random(trial.options.seed);
  for (const Subject& subject : subjects(session)) {
    OpenDevice device(session, subject.device);
    Kernel kernel(session, device.get(), subject.device, asked_of(subject));
    for (const std::int64_t rows : {1, 3, 8, 9, 33}) {
      const Problem problem(subject.op, subject.dtype, ordinary_graph(3, random), rows, random);
      if (!prepare(session, kernel, problem, static_cast<std::uint64_t>(rows) + 100)) break;
      for (const std::uint32_t pass : passes_of(subject)) {
        for (const int threads : {1, 2}) {
          trial.step(subject.name() + ", " + pass_name(pass) + ", " + std::to_string(rows) + " rows, " +
                     std::to_string(threads) + " threads");
          Evaluation evaluation = problem.of(pass);
          RunOptions options;
          options.threads = threads;
          run_well(session, kernel, evaluation, options);
        }
      }
    }
  }
}

void check_layouts(Trial& trial) {
  Session session(trial);
  int refused = 0, served = 0;
  for_each(session, [&](const Subject& subject, fp_device* device, const Problem& problem, Random&) {
    Kernel kernel(session, device, subject.device, asked_of(subject));
    if (!prepare(session, kernel, problem)) return;
    for (const std::uint32_t pass : passes_of(subject)) {
      trial.step(subject.name() + ", " + pass_name(pass) + ": rows with gaps between them");
      Evaluation expected = problem.of(pass), padded = problem.of(pass);
      if (!run_well(session, kernel, expected)) continue;
      RunOptions options;
      options.layout = Layout::padded;
      const Outcome outcome = kernel.run(padded, options);
      if (outcome.status == FP_E_UNSUPPORTED) {
        ++refused;
        continue;
      }
      trial.expect(outcome.ok(), "P-58", "it gets " + outcome.shown(), "ok, or unsupported");
      if (!outcome.ok()) continue;
      ++served;
      expect_same(trial, subject, padded, expected, "P-58", "a strided call");
    }
  });
  trial.note(std::to_string(served) + " strided calls were served, " + std::to_string(refused) + " refused");
}

void check_saved(Trial& trial) {
  Session session(trial);
  for_each(session, [&](const Subject& subject, fp_device* device, const Problem& problem, Random& random) {
    Problem other(subject.op, subject.dtype, ordinary_graph(3, random), 13, random);
    other.parameters = problem.parameters;
    for (const std::uint32_t pass : {FP_PASS_BACKWARD, FP_PASS_BACKWARD_TANGENT}) {
      if ((subject.passes & pass) == 0) continue;
      const std::string name = pass_name(pass);
      const std::uint32_t before = pass == FP_PASS_BACKWARD ? FP_PASS_FORWARD : FP_PASS_FORWARD_TANGENT;
      Kernel kernel(session, device, subject.device, asked_of(subject));
      Kernel fresh(session, device, subject.device, asked_of(subject));
      if (!prepare(session, kernel, problem) || !prepare(session, fresh, problem)) return;
      Evaluation expected = problem.of(pass), found = problem.of(pass), again = problem.of(pass);
      trial.step(subject.name() + ": " + name + " of a kernel that never ran forward");
      if (!run_well(session, fresh, expected)) continue;
      trial.step(subject.name() + ": " + name + " after another forward");
      if ((subject.passes & before) != 0) {
        Evaluation theirs = other.of(before);
        run_well(session, kernel, theirs);
      }
      if (run_well(session, kernel, found))
        expect_same(trial, subject, found, expected, "P-59", name + " after another forward");
      Evaluation theirs_back = other.of(pass);
      run_well(session, kernel, theirs_back);
      if (run_well(session, kernel, again))
        expect_same(trial, subject, again, expected, "P-59", name + " a second time");
    }
  });
}

void check_not_finite(Trial& trial) {
  Session session(trial);
  for_each(session, [&](const Subject& subject, fp_device* device, const Problem& problem, Random&) {
    Kernel kernel(session, device, subject.device, asked_of(subject));
    if (!prepare(session, kernel, problem)) return;
    for (const std::uint32_t pass : passes_of(subject)) {
      for (std::size_t input = 0; input < problem.inputs.size(); ++input) {
        if (!problem.inputs[input].present || problem.inputs[input].dtype.code != FP_CODE_FLOAT) continue;
        for (const double value : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
          trial.step(subject.name() + ", " + pass_name(pass) + ": input '" + subject.op.signature.inputs[input].name +
                     "' holds " + (std::isnan(value) ? "NaN" : "infinity"));
          Evaluation evaluation = problem.of(pass);
          Array& array = evaluation.inputs[input];
          // All of it, so that it reaches every result.
          for (std::int64_t i = 0; i < array.numel(); ++i) array.set(i, value);
          const Outcome outcome = kernel.run(evaluation);
          if (outcome.status == FP_E_NUMERICS) continue;
          trial.expect(outcome.ok(), "P-64", "it gets " + outcome.shown(), "ok, or numerics");
          if (!outcome.ok() || !std::isnan(value) || pass != FP_PASS_FORWARD) continue;
          bool shows = false;
          for (const Array* result : results_of(evaluation)) shows = shows || !std::isfinite(largest(*result));
          trial.expect(shows, "P-64", "all results are finite", "that NaN shows in the results, or numerics");
        }
      }
    }
    trial.step(subject.name() + ": an ordinary call after that");
    Evaluation evaluation = problem.forward();
    if ((subject.passes & FP_PASS_FORWARD) != 0 && run_well(session, kernel, evaluation, {}, "P-65")) {
      for (const Array* result : results_of(evaluation)) {
        trial.expect(std::isfinite(largest(*result)), "P-65", "its results are not finite", "finite results");
      }
    }
  });
}

void check_retry(Trial& trial) {
  Session session(trial);
  for_each(session, [&](const Subject& subject, fp_device* device, const Problem& problem, Random&) {
    Kernel kernel(session, device, subject.device, asked_of(subject));
    if (!prepare(session, kernel, problem)) return;
    for (const std::uint32_t pass : passes_of(subject)) {
      trial.step(subject.name() + ", " + pass_name(pass) + ": after calls that failed");
      Evaluation expected = problem.of(pass), found = problem.of(pass);
      if (!run_well(session, kernel, expected)) continue;
      for (int i = 0; i < 3; ++i) {
        RunOptions options;
        options.edit = [](fp_run_args& args, Structs&) { args.pass = 1u << 9; };
        Evaluation wrong = problem.of(pass);
        kernel.run(wrong, options);
        options.edit = {};
        options.edit_tensor = [](const std::string& list, std::size_t, fp_tensor& tensor) {
          if (list == "inputs") tensor.dtype_bits = 16;
        };
        kernel.run(wrong, options);
      }
      if (run_well(session, kernel, found, {}, "P-65"))
        expect_same(trial, subject, found, expected, "P-65", "a call after failed ones");
    }
  });
}

/// Bytes that can be had without swapping; 0 where that cannot be told.
std::uint64_t available_bytes() {
  std::FILE* file = std::fopen("/proc/meminfo", "r");
  if (file == nullptr) return 0;
  char line[256];
  unsigned long long kib = 0;
  while (std::fgets(line, sizeof line, file) != nullptr) {
    if (std::sscanf(line, "MemAvailable: %llu kB", &kib) == 1) break;
  }
  std::fclose(file);
  return std::uint64_t{kib} * 1024;
}

/// Pages that the system fills with zeros and gives back.
class Pages {
 public:
  explicit Pages(std::uint64_t bytes) : bytes_(bytes) {
    data_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~Pages() { ::munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  float* floats() const { return static_cast<float*>(data_); }
  void* get() const { return data_; }

 private:
  std::uint64_t bytes_;
  void* data_;
};

void check_large(Trial& trial) {
  if (!trial.options.large) trial.skip("needs 12 GiB of memory: only with --large");
  Session session(trial);
  session.watch = false;
  constexpr std::int64_t kWidth = 16;
  // More than 2^31 elements of output, of which the last rows lie past that.
  constexpr std::int64_t kRows = (std::int64_t{1} << 31) / kWidth + 4096;
  const OpCase op = cases::linear("1x0e", "16x0e");
  for (const fp_device_info& info : session.devices()) {
    if (info.type != FP_DEVICE_CPU) {
      trial.note("not tried on devices other than the CPU");
      continue;
    }
    const Asked asked{&op, sdk::kFloat32, FP_PASS_FORWARD};
    if (!ask(session, asked, info).yes()) trial.skip("it declines irreps_linear 1x0e -> 16x0e in float32");
    OpenDevice device(session, info);
    Kernel kernel(session, device.get(), info, asked);
    if (!kernel) trial.skip("create failed");
    Array weight = Array::zeros({kWidth}, sdk::kFloat32);
    for (std::int64_t i = 0; i < kWidth; ++i) weight.set(i, 1.0 + static_cast<double>(i));
    if (!kernel.bind({weight, Array::absent()}, 1).ok()) trial.skip("bind failed");
    Evaluation sizes;
    sizes.n_rows = kRows;
    fp_workspace wanted{};
    if (!kernel.workspace(sizes, wanted).ok()) trial.skip("workspace failed");
    const std::uint64_t needed =
        static_cast<std::uint64_t>(kRows) * 4 * (kWidth + 1) + wanted.scratch_bytes + wanted.saved_bytes;
    constexpr std::uint64_t kSpare = std::uint64_t{1} << 30;
    if (available_bytes() < needed + kSpare) {
      trial.skip("needs " + std::to_string(needed >> 20) + " MiB, " + std::to_string(available_bytes() >> 20) +
                 " MiB are available");
    }
    const Pages x(static_cast<std::uint64_t>(kRows) * 4), y(static_cast<std::uint64_t>(kRows) * kWidth * 4);
    const Pages scratch(std::max<std::uint64_t>(wanted.scratch_bytes, 1)),
        saved(std::max<std::uint64_t>(wanted.saved_bytes, 1));
    for (std::int64_t row = 0; row < kRows; ++row) x.floats()[row] = static_cast<float>(row % 97) - 48.0f;
    const std::int64_t x_shape[] = {kRows, 1}, y_shape[] = {kRows, kWidth}, x_strides[] = {1, 1},
                       y_strides[] = {kWidth, 1};
    fp_tensor in = sdk::abi_struct<fp_tensor>();
    in.access = FP_ACCESS_READ;
    in.data = x.get();
    in.device_type = FP_DEVICE_CPU;
    in.ndim = 2;
    in.dtype_code = FP_CODE_FLOAT;
    in.dtype_bits = 32;
    in.dtype_lanes = 1;
    in.shape = x_shape;
    in.strides = x_strides;
    fp_tensor out = in;
    out.access = FP_ACCESS_WRITE;
    out.data = y.get();
    out.shape = y_shape;
    out.strides = y_strides;
    fp_tensor_list inputs = sdk::abi_struct<fp_tensor_list>(), outputs = inputs;
    inputs.stride = outputs.stride = sizeof(fp_tensor);
    inputs.count = outputs.count = 1;
    inputs.items = &in;
    outputs.items = &out;
    fp_sizes size = sdk::abi_struct<fp_sizes>();
    size.pass = FP_PASS_FORWARD;
    size.n_edges = size.n_rows = kRows;
    trial.step("irreps_linear with 2^31 + 65536 elements of output");
    const Outcome outcome = session.call("run", [&](const fp_error_sink* e) {
      fp_run_args args = sdk::abi_struct<fp_run_args>();
      args.pass = FP_PASS_FORWARD;
      args.sizes = &size;
      args.inputs = &inputs;
      args.outputs = &outputs;
      args.scratch = wanted.scratch_bytes == 0 ? nullptr : scratch.get();
      args.scratch_bytes = wanted.scratch_bytes;
      args.saved = wanted.saved_bytes == 0 ? nullptr : saved.get();
      args.saved_bytes = wanted.saved_bytes;
      args.threads = 2;
      args.errors = e;
      return session.kernels.run(kernel.handle(), &args);
    });
    if (outcome.status == FP_E_UNSUPPORTED || outcome.status == FP_E_OUT_OF_MEMORY)
      trial.skip("it declines this size: " + outcome.shown());
    trial.expect(outcome.ok(), "P-58", "it gets " + outcome.shown(), "ok");
    if (!outcome.ok()) return;
    std::int64_t wrong = 0, first = -1;
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t k = 0; k < kWidth; ++k) {
        const float expected = (static_cast<float>(row % 97) - 48.0f) * (1.0f + static_cast<float>(k));
        if (std::abs(y.floats()[row * kWidth + k] - expected) <= 1e-5f * std::abs(expected)) continue;
        if (first < 0) first = row * kWidth + k;
        ++wrong;
      }
    }
    trial.expect(wrong == 0, "P-58",
                 std::to_string(wrong) + " elements are wrong, the first is number " + std::to_string(first),
                 "right results past 2^31 elements");
  }
}

/// Only for kernels that may run while a stream is captured: no others are run with the flag set.
void check_capturing(Trial& trial) {
  Session session(trial);
  Random random(trial.options.seed);
  bool any = false;
  for (const Subject& subject : subjects(session)) {
    if ((subject.answer.c.flags & FP_KERNEL_CAPTURE_SAFE) == 0) continue;
    any = true;
    OpenDevice device(session, subject.device);
    Kernel kernel(session, device.get(), subject.device, {&subject.op, subject.dtype, subject.passes});
    const Problem problem(subject.op, subject.dtype, ordinary_graph(3, random), 7, random);
    if (!prepare(session, kernel, problem)) continue;
    const bool has_memory = session.has_memory && subject.device.type != FP_DEVICE_CPU;
    for (const std::uint32_t pass : passes_of(subject)) {
      const std::string name = subject.name() + ", " + pass_name(pass);
      trial.step(name + ": the first time, when it may tune");
      Evaluation plain = problem.of(pass), captured = problem.of(pass);
      if (!run_well(session, kernel, plain)) continue;
      trial.step(name + ": while capturing");
      std::int64_t taken = 0;
      RunOptions options;
      options.stream = has_memory;
      options.edit = [&](fp_run_args& args, Structs&) {
        args.capturing = 1;
        taken = session.host.counts().allocations;
      };
      options.after = [&](std::int32_t, const fp_run_args&) {
        taken = session.host.counts().allocations - taken;
        trial.expect(taken == 0, "P-63", std::to_string(taken) + " allocations of the host", "none");
      };
      if (!run_well(session, kernel, captured, options, "P-63")) continue;
      for (std::size_t i = 0; i < results_of(plain).size(); ++i) {
        const double error = difference(*results_of(captured)[i], *results_of(plain)[i]);
        trial.expect(error <= tolerance_of(subject.dtype, subject.answer.c.tolerance), "P-63",
                     "results while capturing differ by " + std::to_string(error), "those of an ordinary run");
      }
    }
  }
  if (!any) trial.skip("no kernel says that it may run while a stream is captured");
}

}  // namespace

void add_kernel_checks(std::vector<Check>& list) {
  list.push_back(
      {{"kernels.independent", "P-53", "kernels do not depend on each other, nor on the query they were made for"},
       "P-53",
       check_independent});
  list.push_back({{"kernels.bind", "P-54", "new parameters count from their version on"}, "P-54", check_bind});
  list.push_back(
      {{"kernels.workspace", "P-55", "memory asked for is stable, enough, and not exceeded"}, "P-55", check_workspace});
  list.push_back({{"kernels.written", "P-56", "outputs and gradients are overwritten completely"}, "", check_written});
  list.push_back({{"kernels.guards", "P-57", "nothing else is written"}, "P-57", check_guards});
  list.push_back({{"kernels.layouts", "P-58", "strided arrays are served or refused"}, "P-58", check_layouts});
  list.push_back({{"kernels.large", "P-58", "offsets past 2^31 elements"}, "P-58", check_large});
  list.push_back({{"kernels.saved", "P-59", "backward depends on its arguments alone"}, "P-59", check_saved});
  list.push_back({{"kernels.not_finite", "P-64", "NaN and infinity hang nothing, and show"}, "P-64", check_not_finite});
  list.push_back({{"kernels.retry", "P-65", "after a failed call the kernel works"}, "P-65", check_retry});
  list.push_back(
      {{"kernels.capturing", "P-63", "what may run while a stream is captured takes no memory of the host then"},
       "P-63",
       check_capturing});
}

}  // namespace fastpath::conformance
