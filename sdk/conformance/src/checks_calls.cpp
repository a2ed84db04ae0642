#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "problem.hpp"

/// How calls end, whatever they are given.
namespace fastpath::conformance {
namespace {

/// One of everything, as a host does it.
void life_cycle(Session& session, const char* obligation = "P-48") {
  Random random(session.trial.options.seed);
  for (const Subject& subject : subjects(session)) {
    session.trial.step(subject.name());
    OpenDevice device(session, subject.device);
    Kernel kernel(session, device.get(), subject.device, {&subject.op, subject.dtype, subject.passes});
    const Problem problem(subject.op, subject.dtype, ordinary_graph(3, random), 7, random);
    if (!prepare(session, kernel, problem)) continue;
    for (const std::uint32_t pass : passes_of(subject)) {
      session.trial.step(subject.name() + ", " + pass_name(pass));
      Evaluation evaluation = problem.of(pass);
      run_well(session, kernel, evaluation, {}, obligation);
    }
  }
}

void check_statuses(Trial& trial) {
  Session session(trial);  // every call is looked at: its status, its text, what it throws
  life_cycle(session);
}

void check_texts(Trial& trial) {
  Session session(trial);
  const auto text = [&](const char* what, const char* data, std::uint64_t size) {
    constexpr std::uint64_t kLongest = 1024;
    trial.expect(
        size <= kLongest && (size == 0 || data != nullptr), "P-25",
        std::string(what) + " has " + std::to_string(size) + " bytes at " + (data == nullptr ? "null" : "an address"),
        "at most 1024 bytes at an address");
    if (size > kLongest || data == nullptr) return;
    trial.expect(valid_text({data, static_cast<std::size_t>(size)}), "P-25",
                 std::string(what) + " holds bytes that are not UTF-8, or control characters",
                 "UTF-8 without control characters");
  };
  text("id", session.c.id, session.c.id_size);
  text("vendor", session.c.vendor, session.c.vendor_size);
  text("version", session.c.version, session.c.version_size);
  std::vector<fp_device_info> devices;
  if (session.enumerate(devices).ok()) {
    for (const fp_device_info& device : devices) {
      text("vendor of a device", device.vendor, device.vendor_size);
      text("name of a device", device.name, device.name_size);
      text("arch of a device", device.arch, device.arch_size);
      text("uuid of a device", device.uuid, device.uuid_size);
      text("pci of a device", device.pci, device.pci_size);
      text("driver of a device", device.driver, device.driver_size);
    }
  }
  for (const Claim& claim : session.claims()) text("name of an op", claim.op.data(), claim.op.size());
  // Texts of this host end without a zero, in the middle of other letters: who reads on finds another op.
  life_cycle(session, "P-25");
}

void check_pointers(Trial& trial) {
  Session session(trial);
  const auto bytes = [](const void* data, std::size_t size) {
    return data == nullptr ? std::string() : std::string(static_cast<const char*>(data), size);
  };
  Structs structs(session.dialect);
  fp_device_list* devices = structs.put(sdk::abi_struct<fp_device_list>());
  fp_op_list* ops = structs.put(sdk::abi_struct<fp_op_list>());
  if (!session
           .call("enumerate", [&](const fp_error_sink* e) { return session.c.enumerate(session.plugin, devices, e); })
           .ok()) {
    trial.skip("no device on this machine");
  }
  session.call("ops", [&](const fp_error_sink* e) { return session.c.ops(session.plugin, ops, e); });
  const auto all = [&] {
    std::string content = bytes(session.plugin, FP_SIZE_PLUGIN);
    content += bytes(session.c.kernels, FP_SIZE_KERNEL_API) + bytes(session.c.id, session.c.id_size);
    content += bytes(devices->items, devices->count * devices->stride) + bytes(ops->items, ops->count * ops->stride);
    for (std::uint64_t i = 0; i < ops->count; ++i) {
      const fp_op_info item = sdk::element(*ops, i);
      content += bytes(item.op, item.op_size);
    }
    for (std::uint64_t i = 0; i < devices->count; ++i) {
      const fp_device_info item = sdk::element(*devices, i);
      content += bytes(item.name, item.name_size) + bytes(item.arch, item.arch_size);
    }
    return content;
  };
  const std::string before = all();
  life_cycle(session);
  std::vector<fp_device_info> again;
  session.enumerate(again);
  std::vector<Claim> claims;
  session.ops(claims);
  trial.step("reading what was handed out before");
  trial.expect(all() == before, "P-26", "what it handed out by pointer has changed", "that it stays as it is");
}

void check_null_sinks(Trial& trial) {
  Session session(trial);
  Random random(trial.options.seed);
  const fp_plugin* p = session.plugin;
  const auto status = [&](const char* what, std::int32_t s) {
    trial.expect(known_status(s), "P-18", std::string(what) + " returned " + status_name(s), "a status of the list");
  };
  fp_error_sink without = sdk::abi_struct<fp_error_sink>();
  for (const fp_error_sink* sink :
       {static_cast<const fp_error_sink*>(nullptr), static_cast<const fp_error_sink*>(&without)}) {
    const std::string with = sink == nullptr ? " with a null sink" : " with a sink without `report`";
    // Each also with arguments that make it fail, for then it would report.
    trial.step("enumerate" + with);
    fp_device_list devices = sdk::abi_struct<fp_device_list>();
    status("enumerate", session.c.enumerate(p, &devices, sink));
    status("enumerate", session.c.enumerate(p, nullptr, sink));
    trial.step("ops" + with);
    fp_op_list ops = sdk::abi_struct<fp_op_list>();
    status("ops", session.c.ops(p, &ops, sink));
    status("ops", session.c.ops(p, nullptr, sink));
    for (const Subject& subject : subjects(session)) {
      trial.step("query" + with);
      Structs structs(session.dialect);
      const Asked asked{&subject.op, subject.dtype, subject.passes};
      fp_kernel_answer answer = sdk::abi_struct<fp_kernel_answer>();
      status("query",
             session.kernels.query(p, put_query(structs, session.dialect, asked, subject.device), &answer, sink));
      status("query", session.kernels.query(p, nullptr, &answer, sink));
      // An answer without `add_blocker` must not be reported to either.
      OpCase unknown = subject.op;
      unknown.op = "org.example.unknown";
      const Asked no{&unknown, subject.dtype, subject.passes};
      status("query", session.kernels.query(p, put_query(structs, session.dialect, no, subject.device), &answer, sink));
      OpenDevice device(session, subject.device);
      Kernel kernel(session, device.get(), subject.device, asked);
      const Problem problem(subject.op, subject.dtype, ordinary_graph(3, random), 7, random);
      if (!prepare(session, kernel, problem)) continue;
      trial.step("bind" + with);
      fp_bind_args bind = sdk::abi_struct<fp_bind_args>();
      bind.version = 77;
      bind.errors = sink;
      status("bind", session.kernels.bind(kernel.handle(), &bind));
      if (!prepare(session, kernel, problem, 78)) continue;
      trial.step("workspace" + with);
      fp_sizes sizes = sdk::abi_struct<fp_sizes>();
      sizes.pass = FP_PASS_FORWARD;
      fp_workspace workspace = sdk::abi_struct<fp_workspace>();
      status("workspace", session.kernels.workspace(kernel.handle(), &sizes, &workspace, sink));
      status("workspace", session.kernels.workspace(kernel.handle(), nullptr, &workspace, sink));
      trial.step("run" + with);
      RunOptions options;
      options.wants_text = false;
      options.edit = [&](fp_run_args& args, Structs&) {
        args.errors = sink;
        args.pass = 1u << 20;
      };
      Evaluation evaluation = problem.forward();
      session.watch = false;
      kernel.run(evaluation, options);
      session.watch = true;
    }
  }
}

// ---- Bad arguments --------------------------------------------------------------------------------------------------

/// A call with such an argument has to end with invalid_argument or unsupported.
void expect_refused(Trial& trial, const Outcome& outcome) {
  if (!known_status(outcome.status)) return;  // said already
  const bool right = outcome.status == FP_E_INVALID_ARGUMENT || outcome.status == FP_E_UNSUPPORTED;
  trial.expect(right, "P-23", "it gets " + outcome.shown(), "invalid_argument, or unsupported");
}

void check_bad_plugin_arguments(Trial& trial) {
  Session session(trial);
  const auto refused = [&](const char* what, auto body) {
    trial.step(what);
    expect_refused(trial, session.call(what, body));
  };
  const fp_plugin* p = session.plugin;
  fp_device_list devices = sdk::abi_struct<fp_device_list>();
  fp_op_list ops = sdk::abi_struct<fp_op_list>();
  refused("enumerate of a null plugin",
          [&](const fp_error_sink* e) { return session.c.enumerate(nullptr, &devices, e); });
  refused("enumerate into nothing", [&](const fp_error_sink* e) { return session.c.enumerate(p, nullptr, e); });
  refused("ops of a null plugin", [&](const fp_error_sink* e) { return session.c.ops(nullptr, &ops, e); });
  refused("ops into nothing", [&](const fp_error_sink* e) { return session.c.ops(p, nullptr, e); });

  const fp_device_info info = session.devices().front();
  fp_device* device = nullptr;
  refused("open into nothing", [&](const fp_error_sink* e) {
    fp_open_args args = sdk::abi_struct<fp_open_args>();
    args.device = &info;
    args.errors = e;
    return session.c.open(p, &args, nullptr);
  });
  refused("open of a null plugin", [&](const fp_error_sink* e) {
    fp_open_args args = sdk::abi_struct<fp_open_args>();
    args.device = &info;
    args.errors = e;
    return session.c.open(nullptr, &args, &device);
  });
  trial.step("open without arguments");
  const Outcome nothing = session.call(
      "open", [&](const fp_error_sink*) { return session.c.open(p, nullptr, &device); }, false);
  expect_refused(trial, nothing);
  fp_device_info other = info;
  other.type = 77;
  const auto open_other = [&](const char* what, const fp_device_info* which) {
    trial.step(what);
    device = nullptr;
    const Outcome outcome = session.try_open(which, &device);
    const bool right = outcome.status == FP_E_INVALID_ARGUMENT || outcome.status == FP_E_UNSUPPORTED ||
                       outcome.status == FP_E_UNAVAILABLE;
    if (known_status(outcome.status)) {
      trial.expect(right, "P-23", "it gets " + outcome.shown(), "invalid_argument, unsupported or unavailable");
    }
    if (outcome.ok() && device != nullptr) session.close(device);
  };
  open_other("open without a device", nullptr);
  open_other("open of a device of unknown type", &other);
  other = info;
  other.index = 4711;
  other.uuid_size = other.pci_size = 0;
  open_other("open of a device with an index that is not there", &other);

  const Subject subject = subjects(session).front();
  const Asked asked{&subject.op, subject.dtype, subject.passes};
  Structs structs(session.dialect);
  const fp_kernel_query* query = put_query(structs, session.dialect, asked, subject.device);
  fp_kernel_answer answer = sdk::abi_struct<fp_kernel_answer>();
  refused("query of a null plugin",
          [&](const fp_error_sink* e) { return session.kernels.query(nullptr, query, &answer, e); });
  refused("query without a question",
          [&](const fp_error_sink* e) { return session.kernels.query(p, nullptr, &answer, e); });
  refused("query into nothing", [&](const fp_error_sink* e) { return session.kernels.query(p, query, nullptr, e); });
  OpenDevice open(session, subject.device);
  fp_kernel* kernel = nullptr;
  const auto create = [&](const fp_error_sink* e, fp_device* d, const fp_kernel_query* q) {
    fp_create_args args = sdk::abi_struct<fp_create_args>();
    args.device = d;
    args.query = q;
    args.errors = e;
    return args;
  };
  refused("create of a null plugin", [&](const fp_error_sink* e) {
    const fp_create_args args = create(e, open.get(), query);
    return session.kernels.create(nullptr, &args, &kernel);
  });
  refused("create on no device", [&](const fp_error_sink* e) {
    const fp_create_args args = create(e, nullptr, query);
    return session.kernels.create(p, &args, &kernel);
  });
  refused("create without a query", [&](const fp_error_sink* e) {
    const fp_create_args args = create(e, open.get(), nullptr);
    return session.kernels.create(p, &args, &kernel);
  });
  refused("create into nothing", [&](const fp_error_sink* e) {
    const fp_create_args args = create(e, open.get(), query);
    return session.kernels.create(p, &args, nullptr);
  });
  trial.step("create without arguments");
  expect_refused(
      trial, session.call(
                 "create", [&](const fp_error_sink*) { return session.kernels.create(p, nullptr, &kernel); }, false));
  trial.step("bind, workspace and run of a null kernel");
  refused("bind of a null kernel", [&](const fp_error_sink* e) {
    fp_bind_args args = sdk::abi_struct<fp_bind_args>();
    args.version = 1;
    args.errors = e;
    return session.kernels.bind(nullptr, &args);
  });
  refused("workspace of a null kernel", [&](const fp_error_sink* e) {
    fp_sizes sizes = sdk::abi_struct<fp_sizes>();
    fp_workspace workspace = sdk::abi_struct<fp_workspace>();
    return session.kernels.workspace(nullptr, &sizes, &workspace, e);
  });
  refused("run of a null kernel", [&](const fp_error_sink* e) {
    fp_run_args args = sdk::abi_struct<fp_run_args>();
    args.pass = FP_PASS_FORWARD;
    args.errors = e;
    return session.kernels.run(nullptr, &args);
  });
}

/// Those that are given wrong arguments, of which there are very many; in a quick run one dtype of each op.
std::vector<Subject> subjects_for_faults(Session& session) {
  std::vector<Subject> all = subjects(session);
  if (!session.trial.options.quick) return all;
  std::vector<Subject> chosen;
  for (const Subject& subject : all) {
    const bool again = std::any_of(chosen.begin(), chosen.end(), [&](const Subject& earlier) {
      return earlier.op.op == subject.op.op && earlier.device.type == subject.device.type;
    });
    if (!again) chosen.push_back(subject);
  }
  return chosen;
}

/// Ways in which a tensor can be wrong; the memory behind it stays what it is.
struct TensorFault {
  const char* what;
  std::function<void(fp_tensor&, std::vector<std::int64_t>& shape)> apply;
  bool optional_too = true;  ///< Also wrong for an argument that may be absent.
};

const std::vector<TensorFault>& tensor_faults() {
  static const std::vector<TensorFault> faults{
      {"absent", [](fp_tensor& t, auto&) { t.access = FP_ACCESS_ABSENT; }, false},
      {"of another dtype", [](fp_tensor& t, auto&) { t.dtype_bits = t.dtype_bits == 64 ? 32 : 64; }},
      {"of 16 bits", [](fp_tensor& t, auto&) { t.dtype_bits = 16; }},
      {"with four lanes", [](fp_tensor& t, auto&) { t.dtype_lanes = 4; }},
      {"of another kind of number", [](fp_tensor& t, auto&) { t.dtype_code = FP_CODE_UINT; }},
      {"on another device",
       [](fp_tensor& t, auto&) { t.device_type = t.device_type == FP_DEVICE_CPU ? FP_DEVICE_CUDA : FP_DEVICE_CPU; }},
      {"with a null address",
       [](fp_tensor& t, auto&) {
         t.data = nullptr;
         t.byte_offset = 0;
       }},
      {"of rank 0", [](fp_tensor& t, auto&) { t.ndim = 0; }},
      {"of negative rank", [](fp_tensor& t, auto&) { t.ndim = -3; }},
      {"of one rank more",
       [](fp_tensor& t, auto& shape) {
         shape.push_back(1);
         t.ndim += 1;
       }},
      {"with one row more",
       [](fp_tensor& t, auto& shape) {
         if (t.ndim > 0)
           shape[0] += 1;
         else
           t.ndim = 1;
       }},
      {"with one column more",
       [](fp_tensor& t, auto& shape) {
         if (t.ndim > 0)
           shape[static_cast<std::size_t>(t.ndim) - 1] += 1;
         else
           t.ndim = 1;
       }},
      {"with a negative size",
       [](fp_tensor& t, auto& shape) {
         if (t.ndim > 0)
           shape[0] = -5;
         else
           t.ndim = -1;
       }},
      {"with 2^62 rows",
       [](fp_tensor& t, auto& shape) {
         if (t.ndim > 0)
           shape[0] = std::int64_t{1} << 62;
         else
           t.ndim = -1;
       }},
      {"without a shape",
       [](fp_tensor& t, auto&) {
         t.shape = nullptr;
         if (t.ndim == 0) t.ndim = 1;
       }},
      {"without strides",
       [](fp_tensor& t, auto&) {
         t.strides = nullptr;
         if (t.ndim == 0) t.ndim = 1;
       }},
      {"without the access it needs",
       [](fp_tensor& t, auto&) { t.access = t.access == FP_ACCESS_READ ? FP_ACCESS_WRITE : FP_ACCESS_READ; }},
  };
  return faults;
}

/// Applies a fault with a shape of its own, valid as long as `keep`.
void apply(const TensorFault& fault, fp_tensor& tensor, std::vector<std::vector<std::int64_t>>& keep) {
  keep.emplace_back(tensor.shape, tensor.shape + tensor.ndim);
  keep.emplace_back(tensor.strides, tensor.strides + tensor.ndim);
  std::vector<std::int64_t>& shape = keep[keep.size() - 2];
  std::vector<std::int64_t>& strides = keep.back();
  tensor.shape = shape.data();
  fault.apply(tensor, shape);
  strides.resize(shape.size(), 1);
  if (tensor.shape != nullptr) tensor.shape = shape.data();
  if (tensor.strides != nullptr) tensor.strides = strides.data();
}

void check_bad_bind(Trial& trial) {
  Session session(trial);
  Random random(trial.options.seed);
  for (const Subject& subject : subjects_for_faults(session)) {
    OpenDevice device(session, subject.device);
    Kernel kernel(session, device.get(), subject.device, {&subject.op, subject.dtype, subject.passes});
    const Problem problem(subject.op, subject.dtype, ordinary_graph(3, random), 7, random);
    if (problem.parameters.empty() || !kernel) continue;
    Evaluation early = problem.forward();
    trial.step(subject.name() + ": run before the first bind");
    expect_refused(trial, kernel.run(early));
    std::uint64_t version = 100;
    const auto bind = [&](const std::vector<fp_tensor>* tensors) {
      return session.call("bind", [&](const fp_error_sink* e) {
        fp_tensor_list list = sdk::abi_struct<fp_tensor_list>();
        list.stride = sizeof(fp_tensor);
        list.count = tensors == nullptr ? 3 : tensors->size();
        list.items = tensors == nullptr ? nullptr : tensors->data();
        fp_bind_args args = sdk::abi_struct<fp_bind_args>();
        args.version = ++version;
        args.parameters = &list;
        args.errors = e;
        return session.kernels.bind(kernel.handle(), &args);
      });
    };
    trial.step(subject.name() + ": bind without arguments");
    expect_refused(
        trial,
        session.call(
            "bind", [&](const fp_error_sink*) { return session.kernels.bind(kernel.handle(), nullptr); }, false));
    trial.step(subject.name() + ": bind of a list without items");
    expect_refused(trial, bind(nullptr));
    trial.step(subject.name() + ": bind of an empty list");
    const std::vector<fp_tensor> none;
    expect_refused(trial, bind(&none));
    std::deque<Placed> placed;
    std::vector<fp_tensor> good;
    for (const Array& parameter : problem.parameters) {
      placed.emplace_back(session, device.get(), subject.device, parameter, Layout::plain);
      good.push_back(placed.back().c(FP_ACCESS_READ));
    }
    for (std::size_t i = 0; i < good.size(); ++i) {
      if (!problem.parameters[i].present || problem.parameters[i].numel() == 0) continue;
      for (const TensorFault& fault : tensor_faults()) {
        if (!fault.optional_too && subject.op.signature.parameters[i].optional) continue;
        trial.step(subject.name() + ": bind with parameter '" + subject.op.signature.parameters[i].name + "' " +
                   fault.what);
        std::vector<std::vector<std::int64_t>> keep;
        keep.reserve(4);
        std::vector<fp_tensor> tensors = good;
        apply(fault, tensors[i], keep);
        expect_refused(trial, bind(&tensors));
      }
    }
    for (Placed& parameter : placed) {
      if (!parameter.unchanged().empty()) trial.fail("P-57", "a parameter was written to", "that it is not");
    }
    trial.step(subject.name() + ": an ordinary call after that");
    if (!prepare(session, kernel, problem, 999)) continue;
    Evaluation evaluation = problem.forward();
    run_well(session, kernel, evaluation, {}, "P-65");
  }
}

void check_bad_run(Trial& trial) {
  Session session(trial);
  Random random(trial.options.seed);
  session.watch = false;  // looked at elsewhere; here are very many calls
  for (const Subject& subject : subjects_for_faults(session)) {
    OpenDevice device(session, subject.device);
    Kernel kernel(session, device.get(), subject.device, {&subject.op, subject.dtype, subject.passes});
    const Problem problem(subject.op, subject.dtype, ordinary_graph(3, random), 7, random);
    if (!prepare(session, kernel, problem)) continue;
    for (const std::uint32_t pass : passes_of(subject)) {
      const std::string name = subject.name() + ", " + pass_name(pass) + ": ";
      Evaluation first = problem.of(pass);
      if (!run_well(session, kernel, first)) continue;
      const auto edited = [&](const std::string& what, std::function<void(fp_run_args&, Structs&)> edit) {
        trial.step(name + what);
        RunOptions options;
        options.edit = std::move(edit);
        Evaluation evaluation = problem.of(pass);
        expect_refused(trial, kernel.run(evaluation, options));
      };
      edited("an unknown pass", [](fp_run_args& a, Structs&) { a.pass = 1u << 9; });
      edited("no pass", [](fp_run_args& a, Structs&) { a.pass = 0; });
      edited("two passes at once", [](fp_run_args& a, Structs&) { a.pass = FP_PASS_FORWARD | FP_PASS_BACKWARD; });
      if (subject.op.signature.needs_graph) {
        edited("no graph", [](fp_run_args& a, Structs&) { a.graph = nullptr; });
      }
      edited("no inputs", [](fp_run_args& a, Structs&) { a.inputs = nullptr; });
      if (first.grad_outputs.empty()) {
        edited("no outputs", [](fp_run_args& a, Structs&) { a.outputs = nullptr; });
      } else {
        edited("no grad_outputs", [](fp_run_args& a, Structs&) { a.grad_outputs = nullptr; });
      }
      fp_workspace workspace{};
      if (kernel.workspace(first, workspace).ok() && workspace.scratch_bytes > 0) {
        edited("no scratch memory", [](fp_run_args& a, Structs&) {
          a.scratch = nullptr;
          a.scratch_bytes = 0;
        });
        trial.step(name + "scratch memory of half the size");
        RunOptions options;
        options.scratch_missing = static_cast<std::int64_t>((workspace.scratch_bytes + 1) / 2);
        Evaluation evaluation = problem.of(pass);
        expect_refused(trial, kernel.run(evaluation, options));
      }
      struct Argument {
        std::string list;
        std::size_t index;
        const sdk::Argument* argument;
        bool may_be_absent;
      };
      std::vector<Argument> arguments;
      const auto add = [&](const char* list, const std::vector<sdk::Argument>& from, const std::vector<Array>& arrays,
                           bool wanted) {
        for (std::size_t i = 0; i < arrays.size(); ++i) {
          if (arrays[i].present && arrays[i].numel() > 0)
            arguments.push_back({list, i, &from[i], wanted || from[i].optional});
        }
      };
      add("inputs", subject.op.signature.inputs, first.inputs, false);
      add("outputs", subject.op.signature.outputs, first.outputs, false);
      add("grad_outputs", subject.op.signature.outputs, first.grad_outputs, false);
      add("grad_inputs", subject.op.signature.inputs, first.grad_inputs, true);
      add("grad_parameters", subject.op.signature.parameters, first.grad_parameters, true);
      add("inputs_t", subject.op.signature.inputs, first.inputs_t, true);
      add("parameters_t", subject.op.signature.parameters, first.parameters_t, true);
      add("outputs_t", subject.op.signature.outputs, first.outputs_t, true);
      add("grad_outputs_t", subject.op.signature.outputs, first.grad_outputs_t, true);
      add("grad_inputs_t", subject.op.signature.inputs, first.grad_inputs_t, true);
      add("grad_parameters_t", subject.op.signature.parameters, first.grad_parameters_t, true);
      for (const Argument& argument : arguments) {
        for (const TensorFault& fault : tensor_faults()) {
          if (!fault.optional_too && argument.may_be_absent) continue;
          trial.step(name + argument.list + " '" + argument.argument->name + "' " + fault.what);
          std::vector<std::vector<std::int64_t>> keep;
          keep.reserve(4);
          RunOptions options;
          options.edit_tensor = [&](const std::string& list, std::size_t index, fp_tensor& tensor) {
            if (list == argument.list && index == argument.index) apply(fault, tensor, keep);
          };
          Evaluation evaluation = problem.of(pass);
          expect_refused(trial, kernel.run(evaluation, options));
        }
      }
      trial.step(name + "an ordinary call after that");
      Evaluation last = problem.of(pass);
      if (run_well(session, kernel, last, {}, "P-65")) {
        for (std::size_t i = 0; i < results_of(last).size(); ++i) {
          const double error = difference(*results_of(last)[i], *results_of(first)[i]);
          trial.expect(error <= tolerance_of(subject.dtype, subject.answer.c.tolerance), "P-65",
                       "results after failed calls differ by " + std::to_string(error), "the same results as before");
        }
      }
    }
  }
}

// ---- Memory ---------------------------------------------------------------------------------------------------------

void check_allocation_failure(Trial& trial) {
  Session session(trial);
  Random random(trial.options.seed);
  session.watch = false;
  const std::vector<Subject> all = subjects(session);
  std::int64_t refused = 0, total = 0;
  for (const Subject& subject : all) {
    const Problem problem(subject.op, subject.dtype, ordinary_graph(3, random), 7, random);
    // True once every call went well.
    const auto cycle = [&](std::int64_t k) {
      bool all_ok = true;
      const auto judge = [&](const char* what, const Outcome& outcome) {
        if (outcome.ok()) return true;
        all_ok = false;
        const bool right = outcome.status == FP_E_OUT_OF_MEMORY && session.host.allocation_failed();
        trial.expect(right, "P-24", std::string(what) + " gets " + outcome.shown(), "out_of_memory");
        return false;
      };
      session.host.fail_allocation(k);
      fp_device* device = nullptr;
      if (judge("open", session.try_open(&subject.device, &device)) && device != nullptr) {
        {
          Kernel kernel(session, device, subject.device, {&subject.op, subject.dtype, subject.passes});
          if (judge("create", kernel.created())) {
            bool ok = problem.parameters.empty() || judge("bind", kernel.bind(problem.parameters, 1));
            for (const std::uint32_t pass : passes_of(subject)) {
              if (!ok) continue;
              Evaluation evaluation = problem.of(pass);
              const Outcome outcome = kernel.run(evaluation);
              if (judge("run", outcome)) continue;
              // The memory is there again: now the same object must do it.
              session.host.fail_allocation(0);
              evaluation = problem.of(pass);
              run_well(session, kernel, evaluation, {}, "P-24");
            }
          }
        }
        session.close(device);
      }
      return all_ok && !session.host.allocation_failed();
    };
    cycle(0);
    const HostTable::Counts before = session.host.counts();
    cycle(0);
    total += session.host.counts().allocations - before.allocations;
    constexpr std::int64_t kMost = 1000;
    for (std::int64_t k = 1; k <= kMost; ++k) {
      trial.step(subject.name() + ": allocation " + std::to_string(k) + " of the host fails");
      if (cycle(k)) break;
      ++refused;
      const HostTable::Counts after = session.host.counts();
      trial.expect(after.outstanding <= before.outstanding, "P-24",
                   std::to_string(after.outstanding - before.outstanding) + " blocks of the host were not given back",
                   "that nothing leaks after a failed allocation");
    }
    session.host.fail_allocation(0);
  }
  if (total == 0) {
    trial.skip("it takes no memory from the host; what it takes elsewhere cannot be refused from outside");
  }
  trial.note(std::to_string(refused) + " allocations of the host were refused");
}

void check_growth(Trial& trial) {
  Session session(trial);
  Random random(trial.options.seed);
  session.watch = false;
  const int cycles = trial.options.quick ? 20 : 50;
  constexpr int kBatches = 4, kMostBatches = 24;
  constexpr std::int64_t kNoise = 16;
  for (const Subject& subject : subjects(session)) {
    const Problem problem(subject.op, subject.dtype, ordinary_graph(3, random), 7, random);
    const auto cycle = [&](bool runs) {
      OpenDevice device(session, subject.device);
      Kernel kernel(session, device.get(), subject.device, {&subject.op, subject.dtype, subject.passes});
      if (!prepare(session, kernel, problem)) trial.stop();
      Evaluation evaluation = problem.forward();
      if (runs && (subject.passes & FP_PASS_FORWARD) != 0 && !run_well(session, kernel, evaluation)) trial.stop();
    };
    trial.step(subject.name() + ": opened, created, bound, run, destroyed and closed again and again");
    for (int i = 0; i < 8; ++i) cycle(true);  // caches fill
    const HostTable::Counts before = session.host.counts();
    const std::int64_t resident = resident_bytes();
    // What grows steadily grows in every batch; what a cache takes, among them those of the allocator for each thread
    // of a pool, in some of them. Whoever seems to grow gets more batches to show that it stops.
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    int batches = 0;
    for (; batches < kBatches || (batches < kMostBatches && least / cycles >= kNoise); ++batches) {
      const std::int64_t start = heap_bytes();
      for (int i = 0; i < cycles; ++i) cycle(true);
      least = std::min(least, heap_bytes() - start);
    }
    const HostTable::Counts after = session.host.counts();
    trial.expect(after.outstanding <= before.outstanding, "P-28",
                 std::to_string(after.outstanding - before.outstanding) + " blocks of the host were not given back",
                 "all of them");
    const std::int64_t per_cycle = least / cycles;
    trial.expect(per_cycle < kNoise, "P-28", "each cycle leaves " + std::to_string(per_cycle) + " bytes behind",
                 "memory that does not grow");
    constexpr std::int64_t kMostResident = 64 << 20;
    const std::int64_t grown = resident_bytes() - resident;
    trial.expect(grown < kMostResident, "P-28",
                 "the process grew by " + std::to_string(grown >> 20) + " MiB in " + std::to_string(batches * cycles) +
                     " cycles",
                 "memory that does not grow");
  }
}

void check_shutdown(Trial& trial) {
  Session session(trial);
  life_cycle(session);
  trial.step("shutdown");
  if (session.c.shutdown == nullptr) trial.skip("the plugin has no shutdown");
  session.call_void("shutdown", [&] { session.c.shutdown(session.plugin); });
  session.host.forbid("no call to the host after shutdown");
  const std::int64_t kept = session.host.counts().outstanding;
  trial.expect(kept == 0, "P-29", std::to_string(kept) + " blocks of the host were not given back by then",
               "all of them");
  trial.step("the end of the process after shutdown");
}

// ---- Threads --------------------------------------------------------------------------------------------------------

void check_threads(Trial& trial) {
  Session session(trial);
  Random random(trial.options.seed);
  session.watch = false;  // the state of the process is not one thread's
  constexpr int kThreads = 4;
  const int rounds = trial.options.quick ? 3 : 8;
  for (const Subject& subject : subjects(session)) {
    trial.step(subject.name() + ": one kernel in each of several threads");
    const double tolerance = tolerance_of(subject.dtype, subject.answer.c.tolerance);
    OpenDevice device(session, subject.device);
    // Each thread has numbers of its own, of equal sizes: what kernels share that they should not would else hold what
    // everybody expects.
    const GraphData graph = ordinary_graph(3, random);
    std::deque<Problem> problems;
    std::vector<std::vector<Evaluation>> all_right(kThreads);
    bool good = true;
    for (int thread = 0; thread < kThreads && good; ++thread) {
      const Problem& problem = problems.emplace_back(subject.op, subject.dtype, graph, 7, random);
      Kernel kernel(session, device.get(), subject.device, {&subject.op, subject.dtype, subject.passes});
      good = prepare(session, kernel, problem);
      for (const std::uint32_t pass : passes_of(subject)) {
        if (!good) continue;
        std::vector<Evaluation>& right = all_right[static_cast<std::size_t>(thread)];
        right.push_back(problem.of(pass));
        if (!run_well(session, kernel, right.back())) trial.stop();
      }
    }
    if (!good) continue;
    std::atomic<int> ready{0};
    const auto work = [&](int thread) {
      const Problem& problem = problems[static_cast<std::size_t>(thread)];
      const std::vector<Evaluation>& right = all_right[static_cast<std::size_t>(thread)];
      try {
        ++ready;
        while (ready < kThreads) std::this_thread::yield();
        for (int round = 0; round < rounds; ++round) {
          std::vector<fp_device_info> devices;
          std::vector<Claim> claims;
          session.enumerate(devices);
          session.ops(claims);
          const Asked asked{&subject.op, subject.dtype, subject.passes};
          trial.expect(ask(session, asked, subject.device).yes(), "P-27", "query says no in a thread",
                       "yes, as before");
          Kernel kernel(session, device.get(), subject.device, asked);
          if (!prepare(session, kernel, problem, static_cast<std::uint64_t>(1 + thread))) return;
          for (const Evaluation& expected : right) {
            Evaluation evaluation = problem.of(expected.pass);
            RunOptions options;
            options.threads = 1 + (round + thread) % 2;
            if (!run_well(session, kernel, evaluation, options, "P-27")) return;
            for (std::size_t i = 0; i < results_of(expected).size(); ++i) {
              const double error = difference(*results_of(evaluation)[i], *results_of(expected)[i]);
              trial.expect(error <= tolerance, "P-27", "results differ by " + std::to_string(error) + " among threads",
                           "the results of one thread alone");
            }
          }
        }
      } catch (const Stop&) {
      } catch (const std::exception& error) {
        trial.fail("kit", error.what(), "no fault of the kit");
      }
    };
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) threads.emplace_back(work, t);
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace

void add_call_checks(std::vector<Check>& list) {
  list.push_back({{"calls.statuses", "P-18",
                   "every call ends with a status of the list, and a text where it fails; P-19, P-20, P-21"},
                  "",
                  check_statuses});
  list.push_back({{"calls.null_sinks", "P-22", "null error sinks are accepted"}, "P-22", check_null_sinks});
  list.push_back({{"calls.bad_arguments", "P-23", "wrong arguments of the plugin's functions are refused"},
                  "P-23",
                  check_bad_plugin_arguments});
  list.push_back({{"calls.bad_parameters", "P-23", "wrong parameters are refused by bind"}, "P-23", check_bad_bind});
  list.push_back(
      {{"calls.bad_tensors", "P-23", "wrong tensors, passes and memory are refused by run, and it goes on; P-65"},
       "P-23",
       check_bad_run});
  list.push_back({{"calls.no_memory", "P-24", "memory that the host refuses is out_of_memory, and nothing leaks"},
                  "P-24",
                  check_allocation_failure});
  list.push_back({{"calls.texts", "P-25", "texts are read and given by their size"}, "P-25", check_texts});
  list.push_back({{"calls.pointers", "P-26", "what is handed out by pointer stays as it is"}, "", check_pointers});
  list.push_back({{"calls.threads", "P-27", "several threads get the results of one"}, "P-27", check_threads});
  list.push_back({{"calls.growth", "P-28", "creating and destroying again and again does not grow"}, "", check_growth});
  list.push_back({{"calls.shutdown", "P-29", "after shutdown the plugin is silent"}, "P-29", check_shutdown});
}

}  // namespace fastpath::conformance
