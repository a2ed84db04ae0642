#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "op.hpp"
#include "product.hpp"
#include "reduction.hpp"
#include "species_sort.hpp"

namespace fastpath_gpu {

/// y[n, out, w, m] = sum over paths of factor * sum over u of weight[u, species(n), w] x[n, in, u, m], and gradients:
/// what irreps_linear and species_linear have in common. With species, rows are worked on in the order of a
/// SpeciesSort, so that a tile has one matrix; rows whose species is out of range become NaN.
class BlockLinear {
 public:
  using Path = sdk::IrrepsLinearConfig::Path;

  /// @param prefix     Of the names of kernels.
  /// @param n_species  0: no species.
  BlockLinear(std::string prefix, sdk::Irreps in, sdk::Irreps out, std::vector<Path> paths, std::int64_t n_species);

  /// Writes the kernels of the passes. @param bias  Of 0e blocks of y, the second parameter, if `has_bias`.
  void write(Source& s, std::uint32_t passes, bool has_bias);
  /// Inputs x and species (if there are any), parameters weight and bias.
  void plan(const Call& call, Plan& plan) const;

 private:
  /// One block of y, from x; or one block of the gradient of x, from that of y.
  struct Rows {
    std::string kernel;
    std::size_t block;
    std::int64_t nodes, column_tiles;  // rows of x in a tile; tiles side by side
    // Of a kernel for one path, which serves every block of its shape: where blocks and matrix start.
    std::vector<std::int64_t> offsets = {};
    std::string shape = {};
  };
  struct Weights {
    std::string kernel;
    std::int64_t tiles;
    std::size_t path;
    std::string shape;
  };
  bool by_species() const { return n_species_ > 0; }
  std::int64_t matrices() const { return by_species() ? n_species_ : 1; }
  std::int64_t weight_numel() const;
  std::int64_t bias_begin(std::size_t block) const;
  std::int64_t bias_numel() const { return out_.count({0, 1}); }

  void write_rows(Source& s, bool forward, std::size_t block);
  void write_weights(Source& s, std::size_t path);
  void write_bias(Source& s) const;
  void plan_rows(const std::vector<Rows>& rows, const Buffer& from, const Buffer& to, const Call& call,
                 const std::optional<SpeciesSort::Sorted>& sorted, Plan& plan) const;

  std::string prefix_;
  sdk::Irreps in_, out_;
  std::vector<Path> paths_;
  std::int64_t n_species_;
  SpeciesSort sort_;
  bool has_bias_ = false;
  std::uint32_t real_bytes_ = 4;
  std::vector<Rows> forward_, grad_x_;
  std::vector<Weights> weights_;
};

}  // namespace fastpath_gpu
