#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fastpath/train.hpp"
#include "train/optimizer.hpp"
#include "train/random.hpp"

namespace fastpath::training {

/// Everything that the rest of a run depends on, and its history.
struct State {
  State(std::size_t n_weights, const TrainingConfig& config)
      : weights(n_weights), average(n_weights), best(n_weights), optimizer(n_weights, config), random(config.seed, 1) {}

  std::vector<double> weights, average, best;  ///< All parameters in definition order; `best` is an average.
  Optimizer optimizer;
  Schedule schedule;
  Random random;
  std::vector<std::int64_t> order;  ///< Of the frames in the current epoch; empty between epochs.
  std::int64_t batch = 0;           ///< Done in the current epoch.
  double loss_sum = 0;              ///< Of these batches, times their frames.
  double gradient_norm = 0;         ///< The longest of these batches.
  double seconds = 0;               ///< Spent on them.
  double typical_loss = 0;  ///< What an exploding one is compared with: the first batch's, then the first epoch's.
  std::int64_t waited = 0;  ///< Epochs since the best one.
  bool stopped_early = false;
  std::int64_t stopped_of = 0;         ///< Epochs that were asked for when it did: where there are more, it goes on.
  std::optional<TrainingEpoch> start;  ///< Of a starting model, before any step.
  std::vector<TrainingEpoch> history;

  /// The start, if any, and every epoch.
  std::vector<TrainingEpoch> everything() const;
};

/// What a checkpoint belongs to.
struct RunIdentity {
  std::string config;                          ///< TrainingConfig::text().
  std::string training_hash, validation_hash;  ///< Of the data.
  std::string start_hash = {};  ///< Of what the run started from; empty: nothing, or it is not there any more.
  std::string copy_hash = {};   ///< Of the copy of it in the folder of the run.
};

/// Writes a file that appears whole or not at all. @throws Error(io)
void write_checkpoint(const std::filesystem::path& file, const State& state, const RunIdentity& identity);

/// Reads the state of a run into one made for the same configuration.
/// @return The `start_hash` that it has.
/// @throws Error(invalid_argument) listing what is different in the other configuration, its data or starting model;
///   Error(bad_file) if the file is no whole checkpoint, or the copy of the starting model is not the one it goes with.
std::string read_checkpoint(const std::filesystem::path& file, const RunIdentity& identity, State& state);

/// An epoch as a line of log.jsonl, without line end.
std::string log_line(const TrainingEpoch& epoch);

/// A line for each setting that is different: "optimizer.learning_rate is 0.01, here 0.02". Not compared is what
/// changes no result (output, checkpoint_seconds), what a run may be continued with (epochs), and paths of data and
/// models, which have hashes.
std::vector<std::string> differences(const std::string& there, const std::string& here);

}  // namespace fastpath::training
