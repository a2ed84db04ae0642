#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "fastpath/registry.hpp"
#include "fastpath/version.hpp"
#include "harness.hpp"

/// What every benchmark here says about where, when and with what it was measured.
namespace bench {

/// How many processes wanted a CPU in the last minute; negative where that is not known.
inline double load_average() {
  double load = -1;
  return getloadavg(&load, 1) == 1 ? load : -1;
}

/// Members "date" and "build", and those of "machine" that need no measuring; "machine" stays open.
inline void put_identity(JsonWriter& json) {
  const fastpath::BuildInfo& build = fastpath::build_info();
  const fastpath::DeviceInfo& cpu = fastpath::cpu_info();
  json.put("date", date_text());
  json.begin_object("build").put("version", build.version).put("compiler", build.compiler);
  json.put("build_type", build.build_type).put("sanitizer", build.sanitizer).put("flags", BENCH_FLAGS).end();
  json.begin_object("machine").put("cpu", cpu.name).put("arch", cpu.arch).put("units", static_cast<int>(cpu.units));
  json.put("memory_bytes", cpu.memory_bytes).put("system", build.system);
  json.put("load_average", load_average());
}

/// One line: CPU, compiler, flags.
inline std::string identity_text() {
  const fastpath::BuildInfo& build = fastpath::build_info();
  const fastpath::DeviceInfo& cpu = fastpath::cpu_info();
  return cpu.name + ", " + std::to_string(cpu.units) + " units; fastpath " + build.version + ", " + build.compiler +
         ", " + build.build_type + " (" + BENCH_FLAGS + ")\n" +
         (load_average() > 0.5 ? "Other processes were busy on " + fixed(load_average(), 1) +
                                     " CPUs in the last minute: look at the spreads, mistrust 2 threads\n"
                               : "") +
         (build.build_type == "Release" ? "" : "NOT a release build: these times say nothing\n");
}

/// The members that every arm of a result has.
inline void put_timing(JsonWriter& json, const Timing& timing) {
  json.put("name", timing.name).put("threads", timing.threads).put("median_seconds", timing.median());
  json.put("mad_seconds", timing.mad()).put("min_seconds", timing.minimum());
  json.put("runs", static_cast<int>(timing.seconds.size()));
}

/// Collects what should not be; see slower().
class Findings {
 public:
  void add(const std::string& where, const std::vector<Timing>& timings) {
    for (const Slower& each : slower(timings)) {
      entries_.push_back({where, each.text(), each.slow->name, each.fast->name, each.slow->threads, each.fast->threads,
                          each.factor()});
    }
  }
  std::string text() const {
    if (entries_.empty())
      return "\nNothing is slower than an arm before it, or on more threads, by more than the spread.\n";
    std::string result = "\nSlower by more than the spread:\n";
    for (const Entry& entry : entries_) result += "  " + entry.where + ": " + entry.text + "\n";
    return result;
  }
  /// Member "slower".
  void put(JsonWriter& json) const {
    json.begin_array("slower");
    for (const Entry& entry : entries_) {
      json.begin_object().put("where", entry.where).put("text", entry.text).put("slow", entry.slow);
      json.put("slow_threads", entry.slow_threads).put("fast", entry.fast).put("fast_threads", entry.fast_threads);
      json.put("factor", entry.factor).end();
    }
    json.end();
  }

 private:
  struct Entry {
    std::string where, text, slow, fast;
    int slow_threads, fast_threads;
    double factor;
  };
  std::vector<Entry> entries_;
};

}  // namespace bench
