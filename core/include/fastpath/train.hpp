#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fastpath/context.hpp"
#include "fastpath/export.hpp"
#include "fastpath/fast_path.hpp"

/// Fits a model to energies, forces and stresses (docs/training.md). A run is repeated bit for bit by the same
/// configuration, data, plugins and machine; one that was interrupted, at any moment and in any way, continues from its
/// last checkpoint and ends with the same bytes.
namespace fastpath {

/// What a run does: the content of a configuration file, whose keys docs/training.md lists.
struct FASTPATH_EXPORT TrainingConfig {
  enum class Penalty { squared, huber };
  enum class Schedule { constant, exponential, plateau };

  std::string model;  ///< Text of a config.json in which what follows from the data may be missing; or `start_from`.
  /// A model folder, or a name in a hub, whose weights and constants training starts from; empty: a new `model`.
  std::filesystem::path start_from;
  std::string start_head;                      ///< The head to go on with; empty: the only one.
  std::optional<DType> start_dtype;            ///< Of the files that are written; nothing: that of the starting model.
  std::filesystem::path training, validation;  ///< Extended-XYZ files; no validation file: a fraction of the training.
  double validation_fraction = 0;
  std::string energy_key = "energy", forces_key = "forces", stress_key = "stress";
  bool skip_missing_labels = false;
  bool check_units = true;
  /// eV, by atomic number, of all elements; nothing: those that fit the energies best. With a starting model: of the
  /// elements whose energy is to change; nothing: as `refit_reference_energies` says.
  std::optional<std::map<std::int32_t, double>> reference_energies;
  std::optional<double> scale, shift;  ///< eV; nothing: from the data, or those of the starting model.
  /// Of a starting model: its constants are changed such that its energies fit the data best, rather than kept.
  bool refit_reference_energies = false, refit_shift = false;

  double energy_weight = 1, forces_weight = 10, stress_weight = 1;
  Penalty penalty = Penalty::squared;
  double huber_delta = 0.01;  ///< In the unit of each residual: eV per atom, eV/angstrom, eV/angstrom^3.

  bool amsgrad = false;
  double learning_rate = 0.01, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double weight_decay = 0;  ///< Decoupled: what a step takes of each weight, per unit of the learning rate.
  double clip_norm = 10;    ///< The longest gradient of a step, all parameters together; 0: any.
  double average_decay =
      0.99;  ///< Of the moving average of weights, which is what validation and the result use; 0: none.
  Schedule schedule = Schedule::plateau;
  double schedule_factor = 0.5;  ///< Of the learning rate: per epoch, or each time that validation does not improve.
  std::int64_t schedule_patience = 20;  ///< Epochs without improvement, of `plateau`.
  double smallest_learning_rate = 1e-6;

  std::int64_t batch_size = 4;  ///< Structures per step.
  std::int64_t epochs = 100;
  std::int64_t early_stopping = 0;  ///< Epochs without improvement after which a run ends; 0: never.
  std::uint64_t seed = 1;
  double explosion = 1e4;  ///< A batch whose loss is so many times that of the first epoch ends the run; 0: never.
  UseFast use_fast = UseFast::always;
  double checkpoint_seconds = 60;  ///< The longest work that may be lost, beside checkpoints after each epoch.
  std::filesystem::path output;

  /// @param name       Stands for the file in messages.
  /// @param directory  What relative paths start from.
  /// @throws Error(bad_file) listing every unknown or missing key and every value that is not accepted.
  static TrainingConfig parse(const std::string& text, const std::string& name, const std::filesystem::path& directory);
  /// From a file; relative paths start from its folder. @throws as parse(), Error(not_found), Error(io).
  static TrainingConfig read(const std::filesystem::path& file);
  /// Every setting as JSON, that parse() reads back to the same.
  std::string text() const;
};

/// How far results are from labels. A number is absent where no structure has the label.
struct TrainingErrors {
  std::optional<double> energy;  ///< Root mean square, eV per atom.
  std::optional<double> forces;  ///< Of the components, eV/angstrom.
  std::optional<double> stress;  ///< Of the components, eV/angstrom^3.
};

struct TrainingEpoch {
  std::int64_t epoch = 0;  ///< From 1; 0 is a starting model before the first step.
  double learning_rate = 0;
  double training_loss = 0;  ///< Mean over the steps, each before it was made; not a number for epoch 0.
  double validation_loss = 0;
  double gradient_norm = 0;  ///< The longest of a step, before clipping.
  TrainingErrors errors;     ///< On the validation set.
  bool best = false;         ///< The smallest validation loss so far.
  double seconds = 0;        ///< Of this epoch, in this process.
};

struct TrainingProgress {
  std::int64_t epoch = 0, epochs = 0;   ///< The current one, from 1, and how many there are at most.
  std::int64_t batch = 0, batches = 0;  ///< Done in this epoch, and how many it has.
  double loss = 0;                      ///< Of the last batch.
  double seconds_left = 0;  ///< Until the last epoch, as this process has run so far; negative: not known yet.
};

struct TrainingOptions {
  Context* context = nullptr;  ///< Null: Context::process().
  int threads = 0;             ///< 0: as the context says. Results do not depend on it.
  bool restart = false;        ///< Begin anew where the output folder holds a checkpoint.
  // All called from the thread of train().
  std::function<void(const std::string&)> warn, note;  ///< Something to know of the data; what the run starts from.
  std::function<void(const TrainingProgress&)> progress;
  std::function<void(const TrainingEpoch&)> epoch;
  /// Asked between batches; true ends the run there, with a checkpoint from which the next one continues.
  std::function<bool()> stop;
};

struct TrainingResult {
  bool finished = false;        ///< Otherwise it was stopped.
  bool resumed = false;         ///< It began from a checkpoint.
  bool stopped_early = false;   ///< Validation had not improved for as long as `early_stopping` says.
  std::filesystem::path model;  ///< Folder of the model, if finished.
  std::int64_t parameters = 0;
  std::int64_t epochs = 0;  ///< Done, in this process and before.
  TrainingEpoch best;       ///< The epoch whose weights the model has; its `best` is false if there is none yet.
};

/// Trains a model, or goes on with it. In the folder `config.output`, which is made if need be, it writes
/// `checkpoint.safetensors`, `log.jsonl` (a line per epoch), `curves.svg` and at the end `model`, a model folder; with
/// a starting model also `start`, a copy from which an interrupted run continues. Each file appears whole or not at
/// all.
/// @throws Error(bad_file) naming structures whose labels are missing or impossible, and species that the model lacks;
///   Error(invalid_argument) for a head that the starting model does not have, or none where it has several, or if the
///   folder belongs to a run of another configuration, listing the differences, or to one that is running; Error(io) if
///   a file cannot be written: the last checkpoint is then whole; Error(numerics) naming the structures of a batch
///   whose loss is not finite, or has exploded; as Model::evaluate() otherwise.
FASTPATH_EXPORT TrainingResult train(const TrainingConfig& config, const TrainingOptions& options = {});

}  // namespace fastpath
