#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "driver.hpp"

/// Small problems with drawn values, and what is done with them again and again.
namespace fastpath::conformance {

using Random = std::mt19937_64;
double uniform(Random& random, double low, double high);
double normal(Random& random);

/// @param edges  (receiver, sender), any order, duplicates allowed.
GraphData make_graph(std::string name, std::int64_t n_nodes, std::int64_t n_receivers,
                     std::vector<std::pair<std::int32_t, std::int32_t>> edges, std::int64_t n_species, Random& random);
/// Nodes with and without edges, ghosts, edges twice.
GraphData ordinary_graph(std::int64_t n_species, Random& random);
std::vector<GraphData> odd_graphs(std::int64_t n_species, Random& random);

/// What an array holds before it is written: no arithmetic makes either.
inline constexpr unsigned char kPoisonNaN = 0xFF, kPoisonFinite = 0x6B;

/// An op with values for its arguments.
class Problem {
 public:
  /// @param graph  Of ops that need one; others have n_rows rows.
  Problem(const OpCase& op, sdk::DType dtype, GraphData graph, std::int64_t n_rows, Random& random);

  const OpCase op;
  const sdk::DType dtype;
  const GraphData graph;
  std::vector<Array> inputs, parameters, cotangents;
  std::vector<Array> inputs_t, parameters_t, cotangents_t;  ///< Along one direction; absent where there is no slope.

  Evaluation forward(unsigned char poison = kPoisonNaN) const;
  /// All gradients that there are.
  Evaluation backward(unsigned char poison = kPoisonNaN) const;
  /// Any pass, with all that it can be asked for and with tangents of all that have one.
  Evaluation of(std::uint32_t pass, unsigned char poison = kPoisonNaN) const;
  std::int64_t rows(sdk::Axis axis) const;

 private:
  Array make(const sdk::Argument& argument, Random& random) const;
  std::int64_t n_rows_;
};

/// The arrays that a pass writes: those of the pass itself, then their tangents.
std::vector<const Array*> results_of(const Evaluation& evaluation);
std::vector<Array*> results_of(Evaluation& evaluation);
/// max |a - b| / max |b|; infinite where one is not finite and the other is.
double difference(const Array& a, const Array& b);
bool same_bits(const Evaluation& a, const Evaluation& b);
double largest(const Array& array);
/// The precision contract, or what the kernel promised.
double tolerance_of(sdk::DType dtype, double promised);

/// One kind of kernel that the plugin offers: what most checks go through, one after the other.
struct Subject {
  OpCase op;
  sdk::DType dtype;
  std::uint32_t passes;  ///< That it lists, if it takes `op` with all of them; else forward and backward alone.
  fp_device_info device;
  Answer answer;
  std::string name() const { return op.op + ", " + dtype.name(); }
};
/// Every op and dtype that the plugin lists and that fastpath defines, with the small configuration, on every kind of
/// device. @throws Stop (skipped) if there is none.
std::vector<Subject> subjects(Session& session);

/// Those of the subject, one after the other.
std::vector<std::uint32_t> passes_of(const Subject& subject);

/// A device that is open while this lives.
class OpenDevice {
 public:
  OpenDevice(Session& session, const fp_device_info& info) : session_(session), device_(session.open(info)) {}
  ~OpenDevice() { session_.close(device_); }
  OpenDevice(const OpenDevice&) = delete;
  OpenDevice& operator=(const OpenDevice&) = delete;
  fp_device* get() const { return device_; }

 private:
  Session& session_;
  fp_device* device_;
};

/// A bound kernel for a subject. A failure is noted under P-48, for it was promised; false then.
bool prepare(Session& session, Kernel& kernel, const Problem& problem, std::uint64_t version = 1);
/// Runs and notes a failure under `obligation`.
bool run_well(Session& session, Kernel& kernel, Evaluation& evaluation, const RunOptions& options = {},
              const char* obligation = "P-48");
std::string pass_name(std::uint32_t pass);

}  // namespace fastpath::conformance
