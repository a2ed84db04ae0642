#include <algorithm>
#include <cctype>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "problem.hpp"

/// Devices and their memory.
namespace fastpath::conformance {
namespace {

std::string name_of(const fp_device_info& device) {
  return "device type " + std::to_string(device.type) + " index " + std::to_string(device.index);
}

void check_enumerate(Trial& trial) {
  Session session(trial);
  std::vector<fp_device_info> first, second;
  const Outcome outcome = session.enumerate(first);
  if (outcome.status == FP_E_UNAVAILABLE) trial.skip("no device on this machine: " + outcome.text);
  trial.expect(outcome.ok(), "P-36", "enumerate gets " + outcome.shown(), "ok");
  session.enumerate(second);
  constexpr std::size_t kMost = 1024;
  trial.expect(first.size() <= kMost, "P-36", std::to_string(first.size()) + " devices", "at most 1024");
  std::set<std::pair<std::int32_t, std::int32_t>> seen;
  for (const fp_device_info& device : first) {
    trial.expect(device.index >= 0 && (device.type != FP_DEVICE_CPU || device.index == 0), "P-36", name_of(device),
                 "no negative index, and the CPU with index 0 alone");
    trial.expect(seen.emplace(device.type, device.index).second, "P-36", name_of(device) + " twice", "each once");
    trial.expect(device.struct_size >= FP_SIZE_DEVICE_INFO, "P-08",
                 "fp_device_info of " + std::to_string(device.struct_size) + " bytes",
                 std::to_string(FP_SIZE_DEVICE_INFO));
  }
  bool same = first.size() == second.size();
  for (std::size_t i = 0; same && i < first.size(); ++i) {
    same = first[i].type == second[i].type && first[i].index == second[i].index && first[i].dtypes == second[i].dtypes;
  }
  trial.expect(same, "P-36", "another list at the second time", "the same one");
}

void check_none(Trial& trial) {
  Session session(trial);
  std::vector<fp_device_info> found;
  const Outcome outcome = session.enumerate(found);
  if (outcome.ok() && !found.empty()) trial.skip("there are devices on this machine");
  if (outcome.ok()) return;
  trial.expect(outcome.status == FP_E_UNAVAILABLE && !outcome.text.empty(), "P-38", "enumerate gets " + outcome.shown(),
               "unavailable with a text that says what is missing, or an empty list");
}

void check_identity(Trial& trial) {
  Session session(trial);
  for (const fp_device_info& device : session.devices()) {
    const std::string uuid(sdk::text_view(device.uuid, std::min<std::uint64_t>(device.uuid_size, 100)));
    const std::string pci(sdk::text_view(device.pci, std::min<std::uint64_t>(device.pci_size, 100)));
    const auto hex = [](const std::string& text) {
      return std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isxdigit(c) != 0; });
    };
    trial.expect(uuid.empty() || (uuid.size() == 32 && hex(uuid)), "P-39", "uuid '" + uuid + "'",
                 "32 hexadecimal digits");
    const bool address = pci.size() == 12 && pci[4] == ':' && pci[7] == ':' && pci[10] == '.' &&
                         hex(pci.substr(0, 4)) && hex(pci.substr(5, 2)) && hex(pci.substr(8, 2)) && hex(pci.substr(11));
    trial.expect(pci.empty() || address, "P-39", "pci '" + pci + "'", "the form 0000:3b:00.0");
  }
}

void check_open(Trial& trial) {
  Session session(trial);
  for (const fp_device_info& device : session.devices()) {
    trial.step("opening and closing " + name_of(device));
    fp_device* first = session.open(device);
    session.close(first);
    fp_device* second = session.open(device);
    fp_device* third = nullptr;
    const Outcome again = session.try_open(&device, &third);
    trial.expect(again.ok() && third != nullptr, "P-40", "opening it a second time gets " + again.shown(), "ok");
    if (third != nullptr) session.close(third);
    session.close(second);
  }
}

void check_memory(Trial& trial) {
  Session session(trial);
  if (!session.has_memory) trial.skip("the plugin brings no memory");
  const fp_memory_api& m = session.memory;
  for (const fp_device_info& info : session.devices()) {
    if (info.type == FP_DEVICE_CPU) continue;
    OpenDevice device(session, info);
    const auto good = [&](const char* what, const Outcome& outcome) {
      trial.expect(outcome.ok(), "P-41", std::string(what) + " gets " + outcome.shown(), "ok");
      return outcome.ok();
    };
    for (const std::uint64_t bytes : {std::uint64_t{1}, std::uint64_t{1000}, std::uint64_t{1} << 20}) {
      trial.step(std::to_string(bytes) + " bytes on " + name_of(info));
      void *memory = nullptr, *other = nullptr;
      if (!good("allocate",
                session.call("allocate",
                             [&](const fp_error_sink* e) { return m.allocate(device.get(), bytes, &memory, e); })) ||
          !good("allocate", session.call("allocate", [&](const fp_error_sink* e) {
            return m.allocate(device.get(), bytes, &other, e);
          }))) {
        continue;
      }
      trial.expect(reinterpret_cast<std::uintptr_t>(memory) % 256 == 0 || info.type == FP_DEVICE_OPENCL, "P-41",
                   "memory that is not aligned to 256 bytes", "that it is");
      std::vector<char> data(bytes), back(bytes);
      for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 7 + 1);
      good("copy_to_device", session.call("copy_to_device", [&](const fp_error_sink* e) {
        return m.copy_to_device(device.get(), memory, 0, data.data(), bytes, nullptr, e);
      }));
      good("copy_on_device", session.call("copy_on_device", [&](const fp_error_sink* e) {
        return m.copy_on_device(device.get(), other, 0, memory, 0, bytes, nullptr, e);
      }));
      good("copy_from_device", session.call("copy_from_device", [&](const fp_error_sink* e) {
        return m.copy_from_device(device.get(), back.data(), other, 0, bytes, nullptr, e);
      }));
      trial.expect(data == back, "P-41", "other bytes than were copied there", "the same");
      const std::uint64_t half = bytes / 2;
      good("fill_zero", session.call("fill_zero", [&](const fp_error_sink* e) {
        return m.fill_zero(device.get(), other, half, bytes - half, nullptr, e);
      }));
      good("copy_from_device", session.call("copy_from_device", [&](const fp_error_sink* e) {
        return m.copy_from_device(device.get(), back.data(), other, 0, bytes, nullptr, e);
      }));
      std::fill(data.begin() + static_cast<std::ptrdiff_t>(half), data.end(), '\0');
      trial.expect(data == back, "P-41", "fill_zero filled something else than it was asked to", "its bytes alone");
      // Each kind of copy with offsets that are not equal.
      const std::uint64_t third = bytes / 3;
      std::vector<char> piece(bytes - half, 'p');
      good("copy_to_device", session.call("copy_to_device", [&](const fp_error_sink* e) {
        return m.copy_to_device(device.get(), other, half, piece.data(), piece.size(), nullptr, e);
      }));
      std::copy(piece.begin(), piece.end(), data.begin() + static_cast<std::ptrdiff_t>(half));
      good("copy_on_device", session.call("copy_on_device", [&](const fp_error_sink* e) {
        return m.copy_on_device(device.get(), other, 0, memory, half, third, nullptr, e);
      }));
      for (std::size_t i = 0; i < third; ++i) data[i] = static_cast<char>((half + i) * 7 + 1);
      good("copy_from_device", session.call("copy_from_device", [&](const fp_error_sink* e) {
        return m.copy_from_device(device.get(), back.data(), other, 0, bytes, nullptr, e);
      }));
      trial.expect(data == back, "P-41", "copies to offsets ended up somewhere else",
                   "that they are where they should");
      std::vector<char> end(bytes - half, '?');
      good("copy_from_device", session.call("copy_from_device", [&](const fp_error_sink* e) {
        return m.copy_from_device(device.get(), end.data(), other, half, end.size(), nullptr, e);
      }));
      trial.expect(end == piece, "P-41", "a copy from an offset holds other bytes", "those that lie there");
      session.call_void("release", [&] { m.release(device.get(), memory); });
      session.call_void("release", [&] { m.release(device.get(), other); });
    }
    trial.step("memory that is taken and given back on " + name_of(info));
    const auto free_bytes = [&] {
      std::uint64_t free = 0, total = 0;
      good("memory_info", session.call("memory_info", [&](const fp_error_sink* e) {
        return m.memory_info(device.get(), &free, &total, e);
      }));
      trial.expect(free <= total, "P-41", std::to_string(free) + " free bytes of " + std::to_string(total),
                   "no more than there are");
      return static_cast<std::int64_t>(free);
    };
    // A pool takes what it wants once; what leaks is missing after each batch. Others may use the device too.
    constexpr std::int64_t kBlock = 1 << 20, kBlocks = 8, kBatches = 4;
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (int batch = 0; batch < kBatches; ++batch) {
      const std::int64_t before = free_bytes();
      for (int block = 0; block < kBlocks; ++block) {
        void* taken = nullptr;
        if (good("allocate", session.call("allocate", [&](const fp_error_sink* e) {
              return m.allocate(device.get(), kBlock, &taken, e);
            }))) {
          session.call_void("release", [&] { m.release(device.get(), taken); });
        }
      }
      least = std::min(least, before - free_bytes());
    }
    trial.expect(least < kBlock * kBlocks / 2, "P-28",
                 "taking " + std::to_string(kBlocks) + " MiB and giving them back leaves " + std::to_string(least) +
                     " bytes less, each time",
                 "that they are there again");
    trial.step("more memory than there is on " + name_of(info));
    void* memory = nullptr;
    const Outcome much = session.call("allocate", [&](const fp_error_sink* e) {
      return m.allocate(device.get(), std::uint64_t{1} << 60, &memory, e);
    });
    trial.expect(much.status == FP_E_OUT_OF_MEMORY, "P-24", "2^60 bytes get " + much.shown(), "out_of_memory");
  }
}

void check_streams(Trial& trial) {
  Session session(trial);
  if (!session.has_memory) trial.skip("the plugin brings no memory");
  const fp_memory_api& m = session.memory;
  Random random(trial.options.seed);
  for (const fp_device_info& info : session.devices()) {
    if (info.type == FP_DEVICE_CPU) continue;
    OpenDevice device(session, info);
    fp_stream *one = nullptr, *two = nullptr;
    fp_event* event = nullptr;
    const auto good = [&](const char* what, const Outcome& outcome) {
      trial.expect(outcome.ok(), "P-42", std::string(what) + " gets " + outcome.shown(), "ok");
      return outcome.ok();
    };
    if (!good("create_stream",
              session.call("create_stream",
                           [&](const fp_error_sink* e) { return m.create_stream(device.get(), &one, e); })) ||
        !good("create_stream",
              session.call("create_stream",
                           [&](const fp_error_sink* e) { return m.create_stream(device.get(), &two, e); })) ||
        !good("create_event", session.call("create_event", [&](const fp_error_sink* e) {
          return m.create_event(device.get(), &event, e);
        }))) {
      trial.stop();
    }
    constexpr std::uint64_t kBytes = 1 << 20;
    std::vector<char> data(kBytes, 'x'), back(kBytes, '?');
    void* memory = nullptr;
    good("allocate", session.call("allocate", [&](const fp_error_sink* e) {
      return m.allocate(device.get(), kBytes, &memory, e);
    }));
    good("copy_to_device", session.call("copy_to_device", [&](const fp_error_sink* e) {
      return m.copy_to_device(device.get(), memory, 0, data.data(), kBytes, one, e);
    }));
    good("record",
         session.call("record", [&](const fp_error_sink* e) { return m.record(device.get(), event, one, e); }));
    good("wait", session.call("wait", [&](const fp_error_sink* e) { return m.wait(device.get(), two, event, e); }));
    good("copy_from_device", session.call("copy_from_device", [&](const fp_error_sink* e) {
      return m.copy_from_device(device.get(), back.data(), memory, 0, kBytes, two, e);
    }));
    good("synchronize",
         session.call("synchronize", [&](const fp_error_sink* e) { return m.synchronize(device.get(), two, e); }));
    trial.expect(data == back, "P-42", "a stream that waits for another one's event reads older bytes",
                 "those copied before");
    session.call_void("release", [&] { m.release(device.get(), memory); });
    session.call_void("destroy_event", [&] { m.destroy_event(device.get(), event); });
    session.call_void("destroy_stream", [&] { m.destroy_stream(device.get(), one); });
    session.call_void("destroy_stream", [&] { m.destroy_stream(device.get(), two); });
  }
  trial.step("kernels on a stream");
  for (const Subject& subject : subjects(session)) {
    if (subject.device.type == FP_DEVICE_CPU) continue;
    OpenDevice device(session, subject.device);
    Kernel kernel(session, device.get(), subject.device, {&subject.op, subject.dtype, subject.passes});
    const Problem problem(subject.op, subject.dtype, ordinary_graph(3, random), 7, random);
    if (!prepare(session, kernel, problem)) continue;
    Evaluation plain = problem.forward(), streamed = problem.forward();
    RunOptions options;
    options.stream = true;
    if (!run_well(session, kernel, plain) || !run_well(session, kernel, streamed, options, "P-62")) continue;
    for (std::size_t i = 0; i < results_of(plain).size(); ++i) {
      const double error = difference(*results_of(streamed)[i], *results_of(plain)[i]);
      trial.expect(error <= tolerance_of(subject.dtype, subject.answer.c.tolerance), "P-62",
                   "results on a stream differ by " + std::to_string(error), "those without one");
    }
  }
}

/// Only a plugin can lose a device on purpose, so it is asked to, by a setting that it need not know.
void check_lost(Trial& trial) {
  Session session(trial);
  Random random(trial.options.seed);
  session.host.set("fastpath.lose_device", "1");
  const Subject subject = subjects(session).front();
  const Problem problem(subject.op, subject.dtype, ordinary_graph(3, random), 7, random);
  OpenDevice device(session, subject.device);
  Kernel kernel(session, device.get(), subject.device, {&subject.op, subject.dtype, subject.passes});
  if (!prepare(session, kernel, problem)) trial.stop();
  const bool has_memory = session.has_memory && subject.device.type != FP_DEVICE_CPU;
  const fp_memory_api& m = session.memory;
  void* memory = nullptr;
  std::vector<char> bytes(64);
  if (has_memory) {
    session.call("allocate",
                 [&](const fp_error_sink* e) { return m.allocate(device.get(), bytes.size(), &memory, e); });
  }
  const auto lost = [&](const char* what, auto body) {
    trial.step(std::string(what) + " on a device that was lost");
    const Outcome after = session.call(what, body);
    trial.expect(after.status == FP_E_DEVICE_LOST, "P-43", std::string(what) + " gets " + after.shown(), "device_lost");
  };
  RunOptions options;
  options.after = [&](std::int32_t status, const fp_run_args& args) {
    // The same once more, while its arrays are still there: none can be put on the device afterwards.
    if (status != FP_E_DEVICE_LOST) return;
    lost("run", [&](const fp_error_sink* e) {
      fp_run_args again = args;
      again.errors = e;
      return session.kernels.run(kernel.handle(), &again);
    });
  };
  Evaluation evaluation = problem.forward();
  if (kernel.run(evaluation, options).status != FP_E_DEVICE_LOST) {
    trial.skip("a device cannot be lost on purpose: the plugin does not know the setting fastpath.lose_device");
  }
  Structs structs(session.dialect);
  const Asked asked{&subject.op, subject.dtype, subject.passes};
  const fp_kernel_query* query = put_query(structs, session.dialect, asked, subject.device);
  fp_kernel* another = nullptr;
  lost("create", [&](const fp_error_sink* e) {
    fp_create_args args = sdk::abi_struct<fp_create_args>();
    args.device = device.get();
    args.query = query;
    args.errors = e;
    return session.kernels.create(session.plugin, &args, &another);
  });
  if (!has_memory) return;
  void* fresh = nullptr;
  fp_stream* stream = nullptr;
  fp_event* event = nullptr;
  std::uint64_t free_bytes = 0, total_bytes = 0;
  lost("allocate", [&](const fp_error_sink* e) { return m.allocate(device.get(), 64, &fresh, e); });
  lost("copy_to_device", [&](const fp_error_sink* e) {
    return m.copy_to_device(device.get(), memory, 0, bytes.data(), bytes.size(), nullptr, e);
  });
  lost("copy_from_device", [&](const fp_error_sink* e) {
    return m.copy_from_device(device.get(), bytes.data(), memory, 0, bytes.size(), nullptr, e);
  });
  lost("copy_on_device",
       [&](const fp_error_sink* e) { return m.copy_on_device(device.get(), memory, 0, memory, 32, 32, nullptr, e); });
  lost("fill_zero",
       [&](const fp_error_sink* e) { return m.fill_zero(device.get(), memory, 0, bytes.size(), nullptr, e); });
  lost("create_stream", [&](const fp_error_sink* e) { return m.create_stream(device.get(), &stream, e); });
  lost("create_event", [&](const fp_error_sink* e) { return m.create_event(device.get(), &event, e); });
  lost("synchronize", [&](const fp_error_sink* e) { return m.synchronize(device.get(), nullptr, e); });
  lost("memory_info",
       [&](const fp_error_sink* e) { return m.memory_info(device.get(), &free_bytes, &total_bytes, e); });
  session.call_void("release", [&] { m.release(device.get(), memory); });
}

}  // namespace

void add_device_checks(std::vector<Check>& list) {
  list.push_back(
      {{"devices.enumerate", "P-36", "the list of devices is well formed and repeats itself"}, "", check_enumerate});
  list.push_back({{"devices.none", "P-38", "where there is no device, it says so"}, "", check_none});
  list.push_back({{"devices.identity", "P-39", "devices are named as their vendor names them"}, "", check_identity});
  list.push_back({{"devices.open", "P-40", "devices open, close and open again"}, "", check_open});
  list.push_back({{"devices.memory", "P-41",
                   "memory is aligned, copies are complete, and what is released is there "
                   "again; P-24, P-28"},
                  "",
                  check_memory});
  list.push_back(
      {{"devices.streams", "P-42", "streams and events order what they are given; P-62"}, "", check_streams});
  list.push_back({{"devices.lost", "P-43", "a device that was lost stays lost"}, "", check_lost});
}

}  // namespace fastpath::conformance
