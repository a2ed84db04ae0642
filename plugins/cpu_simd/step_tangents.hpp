#pragma once

#include <cstdint>
#include <memory>

#include "ops.hpp"

namespace cpu_simd {

struct PartCall;

/// The passes of a message step that carry tangents: blocks of edges, bounded in number, go through the kernels of the
/// four ops that a step is made of, so that memory for edges does not grow with their number. Blocks are cut by the
/// edges alone: results have the same bits for any number of threads.
template <class T>
class StepTangents {
 public:
  explicit StepTangents(const sdk::MessageStepConfig& config);
  ~StepTangents();

  /// @param parameters  Of the step; those of its parts are among them.
  void bind(const sdk::TensorList& parameters);
  /// What forward leaves for backward: what the edges have, if that is not too much. Otherwise backward makes it again.
  std::uint64_t saved_bytes(const sdk::Extents& extents) const;
  void plan(sdk::Scratch& scratch, const sdk::Extents& extents, sdk::Pass pass) const;
  void forward(const sdk::Run& run, sdk::Scratch& scratch, Workers& workers);
  void backward(const sdk::Run& run, sdk::Scratch& scratch, Workers& workers);

 private:
  struct Arrays;
  struct Block;
  struct Edges;
  struct Wanted;
  struct Work;
  const std::int32_t* species(const sdk::Run& run) const;
  void check_species(const sdk::Run& run, const sdk::HostGraph& graph) const;
  void add_lengths(const sdk::Run& run, const Arrays& a, const Block& block, PartCall& basis) const;
  void add_embedding(const sdk::Run& run, const Arrays& a, const Block& block, PartCall& net) const;
  void add_product(const sdk::Run& run, const Arrays& a, const Block& block, PartCall& product) const;
  void make_edges(const sdk::Run& run, Arrays& a, const Block& block);
  void take_features(const sdk::Run& run, Arrays& a, const Block& block) const;
  void backward_block(const sdk::Run& run, const Wanted& wanted, Arrays& a, const Block& block);
  void backward_envelope(Arrays& a, std::int64_t n) const;

  const sdk::MessageStepConfig config_;
  const std::int64_t block_edges_;
  std::unique_ptr<sdk::Kernel> harmonics_, basis_, net_, product_;
  std::uint64_t version_ = 0;
};

}  // namespace cpu_simd
