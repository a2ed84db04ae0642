#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "fastpath/graph.hpp"
#include "fastpath/structure.hpp"
#include "fastpath/train.hpp"

namespace fastpath::training {

/// How much a frame's labels count in the loss; where that is 0 the label is not read.
struct LabelWeights {
  double energy = 1, forces = 1, stress = 1;
};

/// A structure with what is known of it. A label that is absent does not enter the loss.
struct Frame {
  std::string name;                             ///< "train.xyz, frame 3", counting from 1.
  Graph graph;                                  ///< Its own, of one structure.
  std::optional<double> energy;                 ///< eV
  std::vector<double> forces;                   ///< [n_atoms * 3] eV/angstrom, or empty.
  std::optional<std::array<double, 9>> stress;  ///< eV/angstrom^3, row by row; only where there is a volume.
  std::array<std::array<double, 3>, 3> cell{};  ///< To tell duplicates.
  std::array<bool, 3> pbc{};
  LabelWeights weights;
  std::string head = {};       ///< That it is labelled for, `head=`; empty where it says none.
  bool stress_unused = false;  ///< It has a label of it, but is not periodic in all directions.

  std::int64_t size() const { return graph.n_nodes(); }
};

struct DataSet {
  std::vector<Frame> training, validation;
  std::string training_hash, validation_hash;  ///< SHA-256 of the files; the latter empty without a file of its own.
};

using Warn = std::function<void(const std::string&)>;

/// Labels of several heads are of several methods, and no model of one head is right for them.
/// @param head  The model's; empty for a new one, which any one head will do for.
/// @throws Error(bad_file) naming frames and heads.
void check_heads(const DataSet& data, const std::string& head, const Warn& warn);

/// Reads the labels that the weights of the configuration, and of each frame, ask for.
/// @param file  Stands for the text in messages.
/// @throws Error(bad_file) naming the frames and the label that is missing or has the wrong size, or the weight that is
///   none; or where no label is left to count.
std::vector<Frame> read_frames(const std::string& text, const std::filesystem::path& file, const TrainingConfig& config,
                               double r_max);

/// Reads and checks both sets: labels, units by their size where that is sure, structures that are there twice (a
/// warning; an error if their labels differ), and, where the model's elements are given, species that it lacks.
/// @throws Error(bad_file) naming frames; as read_extxyz() and Graph::from_structure().
DataSet read_data(const TrainingConfig& config, double r_max, const std::vector<std::int32_t>& atomic_numbers,
                  const Warn& warn);

/// The elements of a set, ascending.
std::vector<std::int32_t> elements_of(const std::vector<Frame>& frames);

}  // namespace fastpath::training
