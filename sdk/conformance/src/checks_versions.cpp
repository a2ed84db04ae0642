#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "problem.hpp"

/// Hosts that are older, newer, or unlike this one.
namespace fastpath::conformance {
namespace {

/// Everything that a host calls for one kernel of each op; results of each pass.
std::vector<Evaluation> life_cycle(Trial& trial, const Dialect& dialect, const char* obligation) {
  std::vector<Evaluation> results;
  Session session(trial, dialect);
  Random random(trial.options.seed);
  for (const Subject& subject : subjects(session)) {
    if (dialect.older && subject.device.type != FP_DEVICE_CPU) continue;  // its byte_offset would be lost
    trial.step(subject.name());
    OpenDevice device(session, subject.device);
    Kernel kernel(session, device.get(), subject.device, {&subject.op, subject.dtype, subject.passes});
    const Problem problem(subject.op, subject.dtype, ordinary_graph(3, random), 7, random);
    if (!prepare(session, kernel, problem)) continue;
    for (const std::uint32_t pass : passes_of(subject)) {
      Evaluation evaluation = problem.of(pass);
      if (run_well(session, kernel, evaluation, {}, obligation)) results.push_back(std::move(evaluation));
    }
  }
  return results;
}

/// A host of this dialect must get what a plain one gets. Each lives in a process of its own, so the plain results come
/// from the same plugin under another host table: the plugin keeps the first one it was shown.
/// @param served  The obligation that is broken where such a host is not served at all.
void same_as_plain(Trial& trial, const Dialect& dialect, const char* obligation, const char* served, const char* what) {
  const std::vector<Evaluation> odd = life_cycle(trial, dialect, served);
  trial.step("the same calls in the form of this header");
  const std::vector<Evaluation> plain = life_cycle(trial, {}, "P-48");
  if (odd.size() != plain.size() && !dialect.older) {
    trial.fail(obligation, std::to_string(odd.size()) + " results " + what, std::to_string(plain.size()));
  }
  for (std::size_t i = 0; i < std::min(odd.size(), plain.size()); ++i) {
    const auto a = results_of(odd[i]), b = results_of(plain[i]);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const double error = difference(*a[j], *b[j]);
      trial.expect(error <= tolerance_of(b[j]->dtype, 0), obligation,
                   std::string("results ") + what + " differ by " + std::to_string(error), "the same results");
    }
  }
}

/// A host that a plugin may keep for the life of the process.
HostTable* lasting_host(Trial& trial, const Dialect& dialect) {
  static auto* const kept = new std::vector<std::unique_ptr<HostTable>>;
  return kept->emplace_back(std::make_unique<HostTable>(trial, dialect)).get();
}

void check_plugin_struct(Trial& trial) {
  Session session(trial);
  const auto exact = [&](const char* name, std::uint32_t found, std::uint32_t size) {
    // A later header has larger structs; one of this version has exactly these.
    const bool right = session.c.abi_version == FP_ABI_VERSION ? found == size : found >= size;
    trial.expect(right, "P-08", std::string(name) + " of " + std::to_string(found) + " bytes", std::to_string(size));
  };
  exact("fp_plugin", session.plugin->struct_size, FP_SIZE_PLUGIN);
  exact("fp_kernel_api", session.c.kernels->struct_size, FP_SIZE_KERNEL_API);
  if (session.has_memory) exact("fp_memory_api", session.c.memory->struct_size, FP_SIZE_MEMORY_API);
  std::vector<fp_device_info> devices;
  if (session.enumerate(devices).ok()) {
    for (const fp_device_info& device : devices) exact("fp_device_info", device.struct_size, FP_SIZE_DEVICE_INFO);
  }
  Structs structs(session.dialect);
  fp_op_list* list = structs.put(sdk::abi_struct<fp_op_list>());
  if (session.call("ops", [&](const fp_error_sink* errors) { return session.c.ops(session.plugin, list, errors); })
          .ok()) {
    for (std::uint64_t i = 0; i < list->count; ++i)
      exact("fp_op_info", sdk::element(*list, i).struct_size, FP_SIZE_OP_INFO);
  }
  for (const fp_extension* extension = session.c.extensions; extension != nullptr; extension = extension->next) {
    trial.expect(extension->struct_size >= FP_SIZE_EXTENSION, "P-08",
                 "an extension of " + std::to_string(extension->struct_size) + " bytes",
                 "at least " + std::to_string(FP_SIZE_EXTENSION));
    if (extension->struct_size < FP_SIZE_EXTENSION) break;
  }
}

void check_entries(Trial& trial) {
  Session session(trial);  // it looks at the mandatory ones
  if (!session.has_memory) return;
  const fp_memory_api& m = session.memory;
  const bool complete = m.allocate != nullptr && m.release != nullptr && m.copy_to_device != nullptr &&
                        m.copy_from_device != nullptr && m.copy_on_device != nullptr && m.fill_zero != nullptr &&
                        m.create_stream != nullptr && m.destroy_stream != nullptr && m.synchronize != nullptr &&
                        m.create_event != nullptr && m.destroy_event != nullptr && m.record != nullptr &&
                        m.wait != nullptr && m.memory_info != nullptr;
  trial.expect(complete, "P-14", "an entry of fp_memory_api is null", "all of them but `native`");
}

void check_fenced(Trial& trial) {
  Dialect dialect;
  dialect.fenced = true;
  same_as_plain(trial, dialect, "P-09", "P-09", "with structs that end where readable memory ends");
}

void check_older(Trial& trial) {
  Dialect dialect;
  dialect.fenced = dialect.older = true;
  same_as_plain(trial, dialect, "P-09", "P-09", "of a host with smaller structs");
}

void check_newer(Trial& trial) {
  Dialect dialect;
  dialect.extra = 40;
  same_as_plain(trial, dialect, "P-10", "P-09", "of a host with larger structs");
}

void check_strides(Trial& trial) {
  Dialect dialect;
  dialect.gap = 56;
  same_as_plain(trial, dialect, "P-11", "P-11", "with gaps between the items of lists");
}

void check_extensions(Trial& trial) {
  static constexpr std::string_view kId = "org.example.conformance.unknown";
  static const fp_extension second{FP_SIZE_EXTENSION, 0, kId.data(), kId.size(), nullptr};
  static const fp_extension first{FP_SIZE_EXTENSION, 0, kId.data(), kId.size(), &second};
  Dialect dialect;
  dialect.extensions = &first;
  same_as_plain(trial, dialect, "P-16", "P-16", "with unknown extensions");
}

void check_reserved(Trial& trial) {
  Dialect dialect;
  dialect.reserved = 0xDEADBEEF;
  same_as_plain(trial, dialect, "P-17", "P-17", "with rubbish in reserved members");
  Session session(trial);
  trial.expect(session.kernels.reserved == 0, "P-17", "reserved of fp_kernel_api is not 0", "0");
  trial.expect(!session.has_memory || session.memory.reserved == 0, "P-17", "reserved of fp_memory_api is not 0", "0");
  Structs structs(session.dialect);
  fp_op_list* list = structs.put(sdk::abi_struct<fp_op_list>());
  if (session.call("ops", [&](const fp_error_sink* errors) { return session.c.ops(session.plugin, list, errors); })
          .ok()) {
    for (std::uint64_t i = 0; i < list->count; ++i) {
      trial.expect(sdk::element(*list, i).reserved == 0, "P-17", "reserved of fp_op_info is not 0", "0");
    }
  }
}

void check_range(Trial& trial) {
  const fp_plugin_query_fn query = Session::query_function(trial, Session::load(trial));
  const auto ask_with = [&](std::uint32_t abi_min, std::uint32_t abi_max, const fp_plugin** out) {
    Dialect dialect;
    dialect.abi_min = abi_min;
    dialect.abi_max = abi_max;
    HostTable* host = lasting_host(trial, dialect);
    *out = nullptr;
    return query(host->c(), out);
  };
  const fp_plugin* plugin = nullptr;
  trial.step("a host that speaks this ABI");
  const std::int32_t status = ask_with(FP_ABI_MAJOR << 16, FP_ABI_VERSION, &plugin);
  if (status == FP_E_UNAVAILABLE) trial.skip("the plugin is idle");
  trial.expect(status == FP_OK && plugin != nullptr, "P-12", "a host of ABI 1.0 is refused: " + status_name(status),
               "ok");
  if (status != FP_OK || plugin == nullptr) return;
  const std::uint32_t low = plugin->abi_min, high = plugin->abi_max;
  trial.expect(low <= high && low != 0 && plugin->abi_version >= low && plugin->abi_version <= high, "P-12",
               "abi_version " + std::to_string(plugin->abi_version) + " in " + std::to_string(low) + " to " +
                   std::to_string(high),
               "a range that contains it, without 0");
  const auto refused = [&](std::uint32_t abi_min, std::uint32_t abi_max, const char* what) {
    trial.step(what);
    const std::int32_t answer = ask_with(abi_min, abi_max, &plugin);
    trial.expect(answer == FP_E_INCOMPATIBLE, "P-12", std::string(what) + " gets " + status_name(answer),
                 "incompatible");
  };
  refused(high + 1, high + 9, "a host that is too new");
  refused((FP_ABI_MAJOR + 1) << 16, ((FP_ABI_MAJOR + 1) << 16) + 3, "a host of the next major version");
  if (low > 1) refused(1, low - 1, "a host that is too old");
  refused(0, 0, "a host that states no version");
  const auto served = [&](std::uint32_t abi_min, std::uint32_t abi_max, const char* what) {
    trial.step(what);
    const std::int32_t answer = ask_with(abi_min, abi_max, &plugin);
    trial.expect(answer == FP_OK && plugin != nullptr, "P-12", std::string(what) + " gets " + status_name(answer),
                 "ok");
  };
  served(low, high + 9, "a host that also speaks later versions");
  served(high, high + 9, "a host that speaks the plugin's latest version and later ones");
  if (low > 1) served(1, low, "a host that speaks the plugin's first version and earlier ones");
}

void check_query_function(Trial& trial) {
  const fp_plugin_query_fn query = Session::query_function(trial, Session::load(trial));
  const fp_plugin* plugin = nullptr;
  HostTable* host = lasting_host(trial, {});
  const auto bad = [&](const char* what, const fp_host* h, const fp_plugin** out) {
    trial.step(what);
    const std::int32_t status = query(h, out);
    trial.expect(status == FP_E_INVALID_ARGUMENT, "P-15", std::string(what) + " gets " + status_name(status),
                 "invalid_argument");
  };
  bad("a null host", nullptr, &plugin);
  bad("no place for the plugin", host->c(), nullptr);
  bad("both null", nullptr, nullptr);
  trial.step("asked three times");
  const fp_plugin* first = nullptr;
  for (int i = 0; i < 3; ++i) {
    plugin = nullptr;
    const std::int32_t status = query(host->c(), &plugin);
    if (status == FP_E_UNAVAILABLE) trial.skip("the plugin is idle");
    trial.expect(status == FP_OK, "P-15", "it gets " + status_name(status), "ok");
    trial.expect(plugin != nullptr, "P-15", "no plugin was set", "one");
    if (i == 0) first = plugin;
    trial.expect(plugin == first, "P-15", "another plugin than before", "the same one in every call");
  }
}

}  // namespace

void add_version_checks(std::vector<Check>& list) {
  list.push_back({{"versions.struct_sizes", "P-08", "structs it hands out have the size of their header"},
                  "",
                  check_plugin_struct});
  list.push_back(
      {{"versions.reads_within_structs", "P-09", "it reads nothing past the end of a struct"}, "P-09", check_fenced});
  list.push_back({{"versions.older_host", "P-09", "a host with smaller structs is served"}, "P-09", check_older});
  list.push_back({{"versions.newer_host", "P-10",
                   "a host with larger structs is served, and nothing is written past what is known"},
                  "P-10",
                  check_newer});
  list.push_back({{"versions.strides", "P-11", "lists are stepped through by their stride"}, "P-11", check_strides});
  list.push_back({{"versions.range", "P-12", "hosts of other versions are refused, and of its own are served"},
                  "P-12",
                  check_range});
  list.push_back({{"versions.entries", "P-14", "no mandatory entry is null"}, "", check_entries});
  list.push_back({{"versions.query_function", "P-15", "the query function checks its arguments and repeats itself"},
                  "P-15",
                  check_query_function});
  list.push_back({{"versions.extensions", "P-16", "unknown extensions are skipped"}, "P-16", check_extensions});
  list.push_back({{"versions.reserved", "P-17", "reserved members are zero and not read"}, "P-17", check_reserved});
}

}  // namespace fastpath::conformance
