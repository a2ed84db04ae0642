#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fastpath/plugin.h"
#include "fastpath/sdk/tensor.hpp"

/// One evaluation of an op in plain host memory: what the kit hands to a kernel.
namespace fastpath::conformance {

/// A row-major array, or the absence of one.
struct Array {
  std::vector<std::int64_t> shape = {};
  sdk::DType dtype = sdk::kFloat64;
  std::vector<double> storage = {};  ///< Elements of any dtype; double for its alignment.
  bool present = false;

  static Array zeros(std::vector<std::int64_t> shape, sdk::DType dtype);
  static Array absent() { return {}; }
  std::int64_t numel() const noexcept;
  std::size_t item_bytes() const noexcept { return dtype.bits / 8; }
  std::size_t bytes() const noexcept { return static_cast<std::size_t>(numel()) * item_bytes(); }
  char* raw() noexcept { return reinterpret_cast<char*>(storage.data()); }
  const char* raw() const noexcept { return reinterpret_cast<const char*>(storage.data()); }
  template <class T>
  T* data() noexcept {
    return reinterpret_cast<T*>(storage.data());
  }
  template <class T>
  const T* data() const noexcept {
    return reinterpret_cast<const T*>(storage.data());
  }
  /// Element i, converted.
  double at(std::int64_t i) const noexcept;
  void set(std::int64_t i, double value) noexcept;
  /// Every byte of every element.
  void fill_bytes(unsigned char value) noexcept;
  /// Converted elements; integers stay what they are.
  Array to(sdk::DType wanted) const;
};

/// Directed edges in canonical order with everything that fp_graph holds.
struct GraphData {
  std::string name;
  std::int64_t n_nodes = 0, n_receivers = 0, n_species = 0;
  std::vector<std::int32_t> sender, receiver, species, species_node;
  std::vector<std::int64_t> receiver_ptr, sender_ptr, sender_edge, species_ptr;

  std::int64_t n_edges() const noexcept { return static_cast<std::int64_t>(sender.size()); }
};

/// One call; the lists are those of fp_run_args, in the order of the op's schema. An array that is not present is not
/// given, or not wanted.
struct Evaluation {
  std::uint32_t pass = FP_PASS_FORWARD;
  const GraphData* graph = nullptr;
  std::int64_t n_rows = 0;
  std::vector<Array> inputs = {}, outputs = {}, grad_outputs = {}, grad_inputs = {}, grad_parameters = {};
  std::vector<Array> inputs_t = {}, outputs_t = {}, parameters_t = {}, grad_outputs_t = {}, grad_inputs_t = {},
                     grad_parameters_t = {};
};

}  // namespace fastpath::conformance
