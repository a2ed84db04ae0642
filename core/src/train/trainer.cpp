#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "fastpath/error.hpp"
#include "fastpath/model.hpp"
#include "fastpath/train.hpp"
#include "io/file.hpp"
#include "models/config.hpp"
#include "train/checkpoint.hpp"
#include "train/curves.hpp"
#include "train/data.hpp"
#include "train/folder.hpp"
#include "train/loss.hpp"
#include "train/model_config.hpp"
#include "train/statistics.hpp"

namespace fastpath {
namespace {

using namespace training;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// All parameters of a model as one vector.
class Weights {
 public:
  explicit Weights(Model& model) : parameters_(model.named_parameters()) {
    for (const auto& [name, tensor] : parameters_) size_ += static_cast<std::size_t>(tensor.numel());
    for (const auto& [name, module] : model.named_modules()) {
      if (!module->parameters().empty()) modules_.push_back(module);
    }
  }
  std::size_t size() const { return size_; }
  void get(std::vector<double>& values) const {
    auto at = values.begin();
    for (const auto& [name, tensor] : parameters_) {
      const auto span = tensor.span<double>();
      at = std::copy(span.begin(), span.end(), at);
    }
  }
  void set(const std::vector<double>& values) const {
    auto at = values.begin();
    for (const auto& [name, tensor] : parameters_) {
      std::copy_n(at, tensor.numel(), tensor.span<double>().begin());
      at += tensor.numel();
    }
    for (Module* module : modules_) module->touch();
  }
  /// A gradient in the same order.
  std::vector<double> gradient(const StateDict& gradients) const {
    std::vector<double> result;
    result.reserve(size_);
    for (const auto& [name, tensor] : parameters_) {
      const auto span = gradients.at(name).span<double>();
      result.insert(result.end(), span.begin(), span.end());
    }
    return result;
  }

 private:
  std::vector<StateDict::Entry> parameters_;
  std::vector<Module*> modules_;
  std::size_t size_ = 0;
};

std::shared_ptr<Model> new_model(const TrainingConfig& config, const std::vector<std::int32_t>& elements,
                                 const Statistics& statistics) {
  const auto model = Model::create(model_config(config.model, elements, statistics.avg_num_neighbors), config.seed);
  StateDict values;
  values.add("atomic_energies_fn.atomic_energies",
             Tensor::from<double>({static_cast<std::int64_t>(elements.size())}, statistics.reference_energies));
  values.add("scale_shift.scale", Tensor::scalar(statistics.scale));
  values.add("scale_shift.shift", Tensor::scalar(statistics.shift));
  model->load_state_dict(values, Strictness::lenient);
  return model;
}

class Trainer {
 public:
  Trainer(const TrainingConfig& config, const TrainingOptions& options, DataSet data, Model& model, RunFolder& folder)
      : config_(config),
        options_(options),
        data_(std::move(data)),
        model_(model),
        folder_(folder),
        weights_(model),
        state_(weights_.size(), config),
        identity_{config.text(), data_.training_hash, data_.validation_hash} {
    evaluation_.use_fast = config.use_fast;
    evaluation_.threads = options.threads;
    evaluation_.context = options.context;
    evaluation_.forces = config.forces_weight > 0;
    evaluation_.stress = config.stress_weight > 0;
  }

  /// @param notes  What is told of the run once it has begun.
  TrainingResult run(const std::vector<std::string>& notes) {
    TrainingResult result;
    result.parameters = static_cast<std::int64_t>(weights_.size());
    result.resumed = begin();
    for (const std::string& note : notes) {
      if (options_.note) options_.note(note);
    }
    if (options_.note && result.resumed) {
      options_.note(fmt::format("continuing after {} epochs and {} batches", state_.history.size(), state_.batch));
    }
    started_ = Clock::now();
    const bool stopped = !train_epochs();
    result.epochs = std::ssize(state_.history);
    for (const TrainingEpoch& epoch : state_.history) {
      if (epoch.best) result.best = epoch;
    }
    result.stopped_early = state_.stopped_early;
    if (stopped) return result;
    weights_.set(state_.best);
    folder_.write_model(model_);
    result.model = folder_.model();
    result.finished = true;
    return result;
  }

 private:
  std::int64_t n_batches() const { return (std::ssize(data_.training) + config_.batch_size - 1) / config_.batch_size; }

  /// True if there was a checkpoint to go on from.
  bool begin() {
    const bool found = io::type_of(folder_.checkpoint()) != std::filesystem::file_type::not_found;
    if (found && !options_.restart) {
      try {
        read_checkpoint(folder_.checkpoint(), identity_, state_);
        check_state();
      } catch (const Error& error) {
        throw Error(error.code(), fmt::format("{}; choose another output, or begin anew (--restart)", error.what()));
      }
      write_log();
      return true;
    }
    if (!options_.restart && io::type_of(folder_.model()) != std::filesystem::file_type::not_found) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}: has a model and no checkpoint to go on from; choose another output, or replace the "
                              "model (--restart)",
                              folder_.path().string()));
    }
    weights_.get(state_.weights);
    state_.average = state_.best = state_.weights;
    // That nothing can be written is found out now, not after the first epoch.
    save();
    write_log();
    if (options_.restart) folder_.remove_model();
    return false;
  }

  void check_state() const {
    const auto n = std::ssize(data_.training);
    std::vector<std::int64_t> order = state_.order;
    std::sort(order.begin(), order.end());
    bool good = order.empty() ? state_.batch == 0 : std::ssize(order) == n;
    for (std::size_t i = 0; i < order.size(); ++i) good = good && order[i] == static_cast<std::int64_t>(i);
    if (!good || state_.batch < 0 || state_.batch > n_batches()) {
      throw Error(ErrorCode::bad_file,
                  fmt::format("{}: its position within the epoch is impossible", folder_.checkpoint().string()));
    }
    if (std::ssize(state_.history) > config_.epochs) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}: is after {} epochs, the configuration has {}", folder_.checkpoint().string(),
                              state_.history.size(), config_.epochs));
    }
  }

  void save() {
    write_checkpoint(folder_.checkpoint(), state_, identity_);
    saved_ = Clock::now();
  }

  /// Log and curves of the epochs so far.
  void write_log() const {
    std::string text;
    for (const TrainingEpoch& epoch : state_.history) text += log_line(epoch) + "\n";
    folder_.write("log.jsonl", text);
    folder_.write("curves.svg", curves(state_.history));
  }

  /// False if it was stopped.
  bool train_epochs() {
    while (std::ssize(state_.history) < config_.epochs && !state_.stopped_early) {
      const Clock::time_point start = Clock::now();
      const double seconds_before = state_.seconds;
      if (state_.order.empty()) state_.order = state_.random.permutation(std::ssize(data_.training));
      weights_.set(state_.weights);
      while (state_.batch < n_batches()) {
        if (options_.stop && options_.stop()) {
          state_.seconds = seconds_before + seconds_since(start);
          save();
          return false;
        }
        train_batch();
        state_.seconds = seconds_before + seconds_since(start);
        const bool inside = state_.batch < n_batches();
        if (inside && seconds_since(saved_) >= config_.checkpoint_seconds) save();
      }
      end_epoch(seconds_before, start);
    }
    return true;
  }

  /// The frames of a batch of the training set, in the order of this epoch.
  std::vector<const Frame*> batch_of_training(std::int64_t batch) const {
    const std::int64_t begin = batch * config_.batch_size;
    const std::int64_t end = std::min(begin + config_.batch_size, std::ssize(data_.training));
    std::vector<const Frame*> frames;
    for (std::int64_t i = begin; i < end; ++i) {
      frames.push_back(&data_.training[static_cast<std::size_t>(state_.order[static_cast<std::size_t>(i)])]);
    }
    return frames;
  }

  [[noreturn]] void fail(ErrorCode code, const std::string& where, const std::vector<const Frame*>& frames,
                         const std::string& what) const {
    std::vector<std::string> names;
    for (const Frame* frame : frames) names.push_back(frame->name);
    throw Error(code,
                fmt::format("epoch {}, {} ({}): {}", state_.history.size() + 1, where, fmt::join(names, "; "), what));
  }

  static Graph joined(const std::vector<const Frame*>& frames) {
    std::vector<Graph> graphs;
    for (const Frame* frame : frames) graphs.push_back(frame->graph);
    return Graph::join(graphs);
  }

  /// What `work` gives; an error of it names the frames.
  template <class Work>
  auto naming(const std::string& where, const std::vector<const Frame*>& frames, Work work) const {
    try {
      return work();
    } catch (const Error& error) {
      fail(error.code(), where, frames, error.what());
    }
  }

  void train_batch() {
    const std::vector<const Frame*> frames = batch_of_training(state_.batch);
    const std::string where = fmt::format("batch {}", state_.batch + 1);
    const Graph graph = joined(frames);
    const EvaluationResult result = naming(where, frames, [&] { return model_.evaluate(graph, evaluation_); });
    const BatchLoss batch = compare(frames, result, config_, true);
    const double loss = batch.penalties.loss(config_);
    check_loss(loss, where, frames);
    // A batch of frames without labels has no gradient.
    if (batch.weights.defined()) {
      std::vector<double> gradient = weights_.gradient(
          naming(where, frames, [&] { return model_.weighted_gradients(graph, batch.weights, evaluation_); }));
      state_.gradient_norm = std::max(state_.gradient_norm, clip(gradient, config_.clip_norm));
      state_.optimizer.step(state_.weights, gradient);
      add_to_average(state_.average, state_.weights, state_.optimizer.steps, config_.average_decay);
      weights_.set(state_.weights);
    }
    state_.loss_sum += loss * static_cast<double>(frames.size());
    if (state_.typical_loss == 0) state_.typical_loss = loss;
    ++state_.batch;
    ++batches_done_;
    report(loss);
  }

  void check_loss(double loss, const std::string& where, const std::vector<const Frame*>& frames) const {
    const char* const advice =
        "look at the labels of these structures, or try a smaller learning_rate or clip_norm; the last checkpoint is "
        "from before";
    if (!std::isfinite(loss)) fail(ErrorCode::numerics, where, frames, fmt::format("the loss is {}; {}", loss, advice));
    if (config_.explosion > 0 && state_.typical_loss > 0 && loss > config_.explosion * state_.typical_loss) {
      fail(ErrorCode::numerics, where, frames,
           fmt::format("the loss is {:.4g}, more than {} times the {:.4g} that it began with; {}", loss,
                       config_.explosion, state_.typical_loss, advice));
    }
  }

  void report(double loss) const {
    if (!options_.progress) return;
    const double elapsed = seconds_since(started_);
    const std::int64_t epoch = std::ssize(state_.history);
    const std::int64_t left = (config_.epochs - epoch) * n_batches() - state_.batch;
    constexpr std::int64_t kFewest = 3;
    const double seconds_left =
        batches_done_ < kFewest ? -1 : elapsed / static_cast<double>(batches_done_) * static_cast<double>(left);
    options_.progress({epoch + 1, config_.epochs, state_.batch, n_batches(), loss, seconds_left});
  }

  void end_epoch(double seconds_before, Clock::time_point start) {
    TrainingEpoch epoch;
    epoch.epoch = std::ssize(state_.history) + 1;
    epoch.learning_rate = state_.optimizer.learning_rate;
    epoch.training_loss = state_.loss_sum / static_cast<double>(data_.training.size());
    epoch.gradient_norm = state_.gradient_norm;
    weights_.set(state_.average);
    validate(epoch);
    epoch.best = state_.history.empty() || epoch.validation_loss < best_loss();
    if (state_.history.empty()) state_.typical_loss = epoch.training_loss;
    if (epoch.best) state_.best = state_.average;
    state_.waited = epoch.best ? 0 : state_.waited + 1;
    state_.optimizer.learning_rate =
        state_.schedule.after(state_.optimizer.learning_rate, epoch.validation_loss, config_);
    state_.stopped_early = config_.early_stopping > 0 && state_.waited >= config_.early_stopping;
    epoch.seconds = seconds_before + seconds_since(start);
    state_.history.push_back(epoch);
    state_.order.clear();
    state_.batch = 0;
    state_.loss_sum = state_.gradient_norm = state_.seconds = 0;
    // What is written after the checkpoint can be written again from it.
    save();
    folder_.append("log.jsonl", log_line(epoch));
    folder_.write("curves.svg", curves(state_.history));
    if (options_.epoch) options_.epoch(epoch);
  }

  double best_loss() const {
    double best = state_.history.front().validation_loss;
    for (const TrainingEpoch& epoch : state_.history) best = std::min(best, epoch.validation_loss);
    return best;
  }

  void validate(TrainingEpoch& epoch) {
    PenaltySums penalties;
    ErrorSums errors;
    const std::int64_t n = std::ssize(data_.validation);
    for (std::int64_t begin = 0; begin < n; begin += config_.batch_size) {
      std::vector<const Frame*> frames;
      for (std::int64_t i = begin; i < std::min(begin + config_.batch_size, n); ++i) {
        frames.push_back(&data_.validation[static_cast<std::size_t>(i)]);
      }
      const BatchLoss batch =
          compare(frames, naming("validation", frames, [&] { return model_.evaluate(joined(frames), evaluation_); }),
                  config_, false);
      const double loss = batch.penalties.loss(config_);
      if (!std::isfinite(loss)) {
        fail(ErrorCode::numerics, "validation", frames, fmt::format("the loss is {}", loss));
      }
      penalties.add(batch.penalties);
      errors.add(batch.errors);
    }
    epoch.validation_loss = penalties.loss(config_);
    epoch.errors = errors.errors();
  }

  const TrainingConfig& config_;
  const TrainingOptions& options_;
  const DataSet data_;
  Model& model_;
  RunFolder& folder_;
  Weights weights_;
  State state_;
  RunIdentity identity_;
  EvaluateOptions evaluation_;
  Clock::time_point started_ = Clock::now(), saved_ = Clock::now();
  std::int64_t batches_done_ = 0;
};

}  // namespace

TrainingResult train(const TrainingConfig& config, const TrainingOptions& options) {
  const auto warn = [&](const std::string& text) {
    if (options.warn) options.warn(text);
  };
  // With something in place of what follows from the data.
  const models::MaceConfig described = models::MaceConfig::parse(model_config(config.model, {1}, 1.0), "model");
  const bool elements_given = model_config(config.model, {1}, 1.0) == model_config(config.model, {2}, 1.0);
  DataSet data =
      read_data(config, described.r_max, elements_given ? described.atomic_numbers : std::vector<std::int32_t>(), warn);
  const std::vector<std::int32_t> elements = elements_given ? described.atomic_numbers : elements_of(data.training);
  const Statistics statistics = statistics_of(data.training, elements, config);
  const std::shared_ptr<Model> model = new_model(config, elements, statistics);
  std::int64_t atoms = 0, edges = 0;
  for (const Frame& frame : data.training) atoms += frame.size(), edges += frame.graph.n_edges();
  std::vector<std::string> energies;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    energies.push_back(fmt::format("{} {:.6g}", chemical_symbol(elements[i]), statistics.reference_energies[i]));
  }
  const std::vector<std::string> notes{
      fmt::format("{} structures to train on ({} atoms, {} edges), {} to validate with", data.training.size(), atoms,
                  edges, data.validation.size()),
      fmt::format(
          "reference energies {} eV, scale {:.6g}, shift {:.6g} eV, {:.6g} neighbours on average, {} parameters",
          fmt::join(energies, ", "), statistics.scale, statistics.shift, statistics.avg_num_neighbors,
          model->parameter_count())};
  RunFolder folder(config.output);
  return Trainer(config, options, std::move(data), *model, folder).run(notes);
}

}  // namespace fastpath
