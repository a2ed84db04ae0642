#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fastpath/export.hpp"
#include "fastpath/fast_path.hpp"
#include "fastpath/op.hpp"
#include "fastpath/reason.hpp"
#include "fastpath/registry.hpp"
#include "fastpath/types.hpp"

/// What is known about the speed of kernels on a machine, and where it is kept (docs/policy.md).
namespace fastpath {

/// What makes two devices equal for timing: kind, name, arch and units.
FASTPATH_EXPORT std::string device_class(const DeviceInfo& device);

/// What a measurement belongs to. Two keys are equal if all members are.
struct MeasurementKey {
  std::string op;  ///< Of an op; "model" for whole evaluations of a model.
  std::int64_t op_version = 1;
  std::string config;  ///< 16 hexadecimal digits: op_config(), or model_config() of a whole model.
  std::string device;  ///< device_class().
  DType dtype = DType::float64;
  std::uint32_t passes = 0;  ///< Passes::bits().
  int threads = 0;           ///< CPU threads that both arms may use; 0 off the CPU.
  std::string plugin;        ///< Id; kEveryPlugin for a whole model.
  friend bool operator==(const MeasurementKey&, const MeasurementKey&) = default;
};

/// MeasurementKey::op and MeasurementKey::plugin of a whole model, whose arms are use_fast false and true.
inline constexpr std::string_view kModelOp = "model";
inline constexpr std::string_view kEveryPlugin = "use_fast";

/// The configuration of an op as keys name it: its hash as 16 hexadecimal digits.
FASTPATH_EXPORT std::string op_config(const OpSpec& op);
/// The same of a whole model: of the ops and configurations of all modules of a selection, in their order.
FASTPATH_EXPORT std::string model_config(const std::vector<NamedFastModule>& modules);

/// @param threads  CPU threads of the evaluation; not looked at off the CPU.
FASTPATH_EXPORT MeasurementKey measurement_key(const OpSpec& op, const std::string& plugin, const DeviceInfo& device,
                                               DType dtype, Passes passes, int threads);
/// The key of the whole evaluation of a model: `modules` as a selection for that device has them, fast_modules(model),
/// and off the CPU model.small_ops() behind them.
FASTPATH_EXPORT MeasurementKey measurement_key(const std::vector<NamedFastModule>& modules, const DeviceInfo& device,
                                               DType dtype, Passes passes, int threads);

/// What tells the build of a usable plugin from every other one: it changes when the content of the file does. For
/// kEveryPlugin of all usable plugins for devices of this kind together. Loads plugins of that kind. Empty if there is
/// none.
FASTPATH_EXPORT std::string plugin_build(Context& context, DeviceKind kind, std::string_view plugin);

/// Both arms at one size.
struct MeasuredPoint {
  std::int64_t n_edges = 0, n_nodes = 0;
  bool conclusive = false;                        ///< False: the numbers below are 0 and mean nothing.
  double reference_seconds = 0;                   ///< Of one evaluation: a robust centre.
  double kernel_seconds = 0;                      ///< The same of the fast arm.
  double reference_spread = 0, kernel_spread = 0; /*!< Relative half width of the central half of the samples. */
  int repeats = 0;                                ///< Samples of each arm.
  friend bool operator==(const MeasuredPoint&, const MeasuredPoint&) = default;
};

/// Sizes for which the fast arm is faster: from min_edges up to and with max_edges.
struct SizeWindow {
  std::int64_t min_edges = 0;
  std::int64_t max_edges = 0;            ///< 0: no end.
  double min_spread = 0, max_spread = 0; /*!< Relative uncertainty of the bounds: the bound lies within
                                            bound * (1 +- spread). */
  friend bool operator==(const SizeWindow&, const SizeWindow&) = default;
};

struct Measurement {
  MeasurementKey key;
  std::vector<MeasuredPoint> points;  ///< By size, each size once.
  std::vector<SizeWindow> windows;    ///< By size, apart from each other. Empty: the reference is faster everywhere,
  bool inconclusive = false;          ///< or nothing can be said.
  std::string plugin_version;
  std::string plugin_build;     ///< plugin_build().
  std::string library_version;  ///< build_info().version; empty: filled in when it is added.
  std::string driver;           ///< DeviceInfo::driver.
  std::string host;             ///< Empty: filled in when it is added, as is the time if it is 0.
  std::int64_t unix_time = 0;   ///< Seconds since 1970.
  friend bool operator==(const Measurement&, const Measurement&) = default;
};

enum class Arm { reference, kernel };

/// The largest number of edges with a conclusive point; 0 if there is none. What a record says of more than twice as
/// many is a guess where its last window is open, and nothing where it is not.
FASTPATH_EXPORT std::int64_t largest_measured(const Measurement& measurement) noexcept;

/// Seconds of one evaluation of this size: between measured sizes by a straight line through their logarithms, up to a
/// factor of 2 beyond the first and the last by the line of the two nearest. Nothing farther away, or if no point is
/// conclusive. Pure.
FASTPATH_EXPORT std::optional<double> predict_seconds(const std::vector<MeasuredPoint>& points, std::int64_t n_edges,
                                                      Arm arm);

/// Where a record lies. A later layer counts more than an earlier one.
enum class MeasurementLayer {
  system,   ///< Comes with the installation; only read.
  user,     ///< Where measurements of this machine go.
  project,  ///< `.fastpath/measurements` below the current directory, if that exists.
};
FASTPATH_EXPORT std::string_view to_string(MeasurementLayer layer) noexcept;

/// The directories of a store. An empty path is a layer that does not exist; without any, a store is kept in memory.
struct FASTPATH_EXPORT MeasurementDirectories {
  std::vector<std::filesystem::path> system;
  std::filesystem::path user;
  std::filesystem::path project;
  /// Those of this process: docs/cli.md. With elevated rights the system's alone.
  /// @throws Error(invalid_argument) if FASTPATH_MEASUREMENTS or FASTPATH_SYSTEM_MEASUREMENTS is not an absolute path.
  static MeasurementDirectories defaults();
};

/// What a record must agree with to count here and now.
struct MeasurementSituation {
  std::vector<DeviceInfo> devices;            ///< Of this machine.
  std::map<std::string, std::string> builds;  ///< plugin_build() by id, and of kEveryPlugin by "use_fast KIND".
  std::int64_t now = 0;                       ///< Seconds since 1970; 0: the time of the call.
  /// Of this machine as a context finds it; loads every usable plugin that serves `kinds`.
  FASTPATH_EXPORT static MeasurementSituation of(Context& context, const std::vector<DeviceKind>& kinds);
};

/// A line of a store.
struct MeasurementRecord {
  Measurement measurement;  ///< As far as it could be read: empty where `reasons` says bad_record or record_format.
  MeasurementLayer layer = MeasurementLayer::user;
  std::filesystem::path file;  ///< Empty for what was added to a store without a directory.
  std::int64_t line = 0;       ///< In the file, from 1.
  bool counts = false;         ///< Decisions use it.
  /// Why it does not count (bad_record, record_format, other_device, other_build, superseded), or why a new measurement
  /// would be better though it does (stale).
  std::vector<Reason> reasons;
};

/// What was done to a store.
struct MeasurementChange {
  std::size_t kept = 0;         ///< Records that are there now, of those that were looked at.
  std::size_t removed = 0;      ///< Records that went: superseded, forgotten.
  std::size_t added = 0;        ///< Records that came.
  std::size_t known = 0;        ///< Records that were there before.
  std::vector<Reason> skipped;  ///< Lines that are no records: each names file, line and what is wrong with it.
};

/// Measurements in directories: files of one JSON line each, to which every process adds a file of its own, so that
/// many may do so at the same time, on one machine or several. Reading accepts any bytes: what is wrong with a line
/// costs that line. Thread-safe.
class FASTPATH_EXPORT MeasurementStore {
 public:
  /// Reads nothing yet. Empty directories: in memory alone.
  explicit MeasurementStore(MeasurementDirectories directories = {});
  ~MeasurementStore();
  MeasurementStore(const MeasurementStore&) = delete;
  MeasurementStore& operator=(const MeasurementStore&) = delete;

  const MeasurementDirectories& directories() const noexcept;

  /// Adds a record: to the layer's directory, which is made if need be, in one write that other processes see whole or
  /// not at all; in memory where the user's layer has no directory.
  /// @throws Error(invalid_argument) for a record that is not complete (a key without op, configuration, device, plugin
  ///   or build; a number that is not finite; sizes out of order), for the system layer, and for a project layer
  ///   without a directory. Error(io) naming file and cause if it cannot be written, on a full disk too: nothing of it
  ///   is then left, and what was there is as it was.
  void add(Measurement measurement, MeasurementLayer layer = MeasurementLayer::user);

  struct Found {
    std::shared_ptr<const Measurement> measurement;
    MeasurementLayer layer = MeasurementLayer::user;
    std::optional<Reason> stale;  ///< Another driver or library, or old: it counts, but measuring anew would be better.
  };
  /// The record that counts for a key and a build: one that is conclusive before one that is not, then one that is not
  /// stale, then that of the later layer, then the newest.
  /// @param driver  DeviceInfo::driver of the device now.
  std::optional<Found> find(const MeasurementKey& key, std::string_view plugin_build, std::string_view driver) const;

  /// Every line of every layer, in the order of layers, files and lines.
  std::vector<MeasurementRecord> records(const MeasurementSituation& situation) const;
  /// Directories and files that are there and cannot be read.
  std::vector<Reason> problems() const;
  /// Whether there is any record.
  bool empty() const;

  /// Looks again at what other processes have written.
  void reload();
  /// Changes whenever find() may answer differently. Never 0.
  std::uint64_t generation() const noexcept;

  /// Writes the records for which `wanted` is true, of all layers, to one file, that import_file() reads.
  /// @throws Error(io) naming the path. @return kept: how many were written.
  MeasurementChange export_file(const std::filesystem::path& file,
                                const std::function<bool(const Measurement&)>& wanted = {}) const;
  /// Adds the records of such a file, or of a directory of them, that the layer does not have yet.
  /// @throws Error(bad_file) naming the first line if none is a record; Error(not_found), Error(io), and as add().
  MeasurementChange import_file(const std::filesystem::path& file, MeasurementLayer layer = MeasurementLayer::user);
  /// Makes one file of all of a layer, without lines that are no records and without what a newer record of the same
  /// key, build, driver and library says better.
  /// @throws Error(io); everything is then as before.
  MeasurementChange merge(MeasurementLayer layer = MeasurementLayer::user);
  /// Removes records from a layer. Those of the system stay.
  /// @param which  True for what goes. Lines that are no records stay; merge() removes them.
  /// @throws Error(io); everything is then as before.
  MeasurementChange forget(const std::function<bool(const Measurement&)>& which,
                           MeasurementLayer layer = MeasurementLayer::user);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fastpath
