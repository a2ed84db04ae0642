#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
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
#include "train/start.hpp"
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

/// How a run evaluates its model.
EvaluateOptions evaluation_of(const TrainingConfig& config, const TrainingOptions& options) {
  EvaluateOptions evaluation;
  evaluation.use_fast = config.use_fast;
  evaluation.threads = options.threads;
  evaluation.context = options.context;
  return evaluation;
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
        identity_{config.text(), data_.training_hash, data_.validation_hash, hash_of_start(config), {}},
        evaluation_(evaluation_of(config, options)) {
    evaluation_.forces = config.forces_weight > 0;
    evaluation_.stress = config.stress_weight > 0;
  }

  TrainingResult run() {
    TrainingResult result;
    result.parameters = static_cast<std::int64_t>(weights_.size());
    result.resumed = begin();
    if (options_.note) tell_of_run();
    if (options_.note && result.resumed) {
      options_.note(fmt::format("continuing after {} epochs and {} batches", state_.history.size(), state_.batch));
    }
    if (!result.resumed && state_.start && options_.epoch) options_.epoch(*state_.start);
    started_ = Clock::now();
    const bool stopped = !train_epochs();
    result.epochs = std::ssize(state_.history);
    for (const TrainingEpoch& epoch : state_.everything()) {
      if (epoch.best) result.best = epoch;
    }
    result.stopped_early = state_.stopped_early;
    if (stopped) return result;
    weights_.set(state_.best);
    folder_.write_model(folder_.model(), model_);
    result.model = folder_.model();
    result.finished = true;
    return result;
  }

 private:
  void tell_of_run() const {
    std::int64_t atoms = 0, edges = 0;
    for (const Frame& frame : data_.training) atoms += frame.size(), edges += frame.graph.n_edges();
    options_.note(fmt::format("{} structures to train on ({} atoms, {} edges), {} to validate with",
                              data_.training.size(), atoms, edges, data_.validation.size()));
    if (starts()) {
      options_.note(fmt::format("starting from the model {}, head {}", config_.start_from.string(), model_.heads()[0]));
    }
    const StateDict state = model_.state_dict();
    const Tensor references = state.at("atomic_energies_fn.atomic_energies").contiguous();
    std::vector<std::string> energies;
    for (std::size_t i = 0; i < model_.atomic_numbers().size(); ++i) {
      energies.push_back(
          fmt::format("{} {:.6g}", chemical_symbol(model_.atomic_numbers()[i]), references.data<double>()[i]));
    }
    std::vector<double> neighbours = models::MaceConfig::parse(model_.config_text(), "model").avg_num_neighbors;
    neighbours.erase(std::unique(neighbours.begin(), neighbours.end()), neighbours.end());
    options_.note(
        fmt::format("reference energies {} eV, scale {:.6g}, shift {:.6g} eV, {:.6g} neighbours on average, {} "
                    "parameters",
                    fmt::join(energies, ", "), state.at("scale_shift.scale").item(),
                    state.at("scale_shift.shift").item(), fmt::join(neighbours, ", "), weights_.size()));
  }

  std::int64_t n_batches() const { return (std::ssize(data_.training) + config_.batch_size - 1) / config_.batch_size; }

  /// True if there was a checkpoint to go on from.
  bool begin() {
    const bool found = io::type_of(folder_.checkpoint()) != std::filesystem::file_type::not_found;
    if (found && !options_.restart) {
      try {
        if (io::type_of(folder_.start()) != std::filesystem::file_type::not_found) {
          identity_.copy_hash = hash_of_model(folder_.start());
        }
        const std::string start_hash = read_checkpoint(folder_.checkpoint(), identity_, state_);
        if (identity_.start_hash.empty()) identity_.start_hash = start_hash;
        check_state();
        if (state_.stopped_early && config_.epochs > state_.stopped_of) {
          state_.stopped_early = false;
          state_.waited = 0;
        }
        if (starts()) load_start();
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
    // Rounded as in its files, so that whoever continues has the same constants.
    if (starts()) {
      folder_.write_model(folder_.start(), model_);
      identity_.copy_hash = hash_of_model(folder_.start());
      load_start();
    }
    weights_.get(state_.weights);
    state_.average = state_.best = state_.weights;
    if (starts()) validate_start();
    // That nothing can be written is found out now, not after the first epoch.
    save();
    write_log();
    if (options_.restart) folder_.remove_model(folder_.model());
    if (options_.restart && !starts()) folder_.remove_model(folder_.start());
    return false;
  }

  bool starts() const { return !config_.start_from.empty(); }

  /// Constants, and weights, of the copy of the starting model.
  void load_start() { model_.load_state_dict(Model::load(folder_.start())->state_dict()); }

  void validate_start() {
    const Clock::time_point start = Clock::now();
    TrainingEpoch epoch;
    epoch.learning_rate = state_.optimizer.learning_rate;
    epoch.training_loss = std::numeric_limits<double>::quiet_NaN();
    validate(epoch);
    epoch.best = true;
    epoch.seconds = seconds_since(start);
    state_.start = epoch;
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
    for (const TrainingEpoch& epoch : state_.everything()) text += log_line(epoch) + "\n";
    folder_.write("log.jsonl", text);
    folder_.write("curves.svg", curves(state_.everything()));
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
    if (config_.explosion <= 0 || state_.typical_loss <= 0) return;
    // A batch that is as good as fitted by chance, or a model that is, makes no other one an explosion.
    const double typical = std::max(state_.typical_loss, 1e-4 * loss_of_nothing());
    if (loss > config_.explosion * typical) {
      fail(ErrorCode::numerics, where, frames,
           fmt::format("the loss is {:.4g}, more than {} times the {:.4g} that it began with; {}", loss,
                       config_.explosion, typical, advice));
    }
  }

  /// About that of a model that predicts no forces, and energies as wrong as these.
  double loss_of_nothing() const {
    const double scale = model_.state_dict().at("scale_shift.scale").item();
    return (config_.energy_weight + config_.forces_weight) * penalty_of(config_, scale);
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
    epoch.best = epoch.validation_loss < best_loss();
    if (state_.history.empty()) state_.typical_loss = epoch.training_loss;
    if (epoch.best) state_.best = state_.average;
    state_.waited = epoch.best ? 0 : state_.waited + 1;
    state_.optimizer.learning_rate =
        state_.schedule.after(state_.optimizer.learning_rate, epoch.validation_loss, config_);
    state_.stopped_early = config_.early_stopping > 0 && state_.waited >= config_.early_stopping;
    if (state_.stopped_early) state_.stopped_of = config_.epochs;
    epoch.seconds = seconds_before + seconds_since(start);
    state_.history.push_back(epoch);
    state_.order.clear();
    state_.batch = 0;
    state_.loss_sum = state_.gradient_norm = state_.seconds = 0;
    // What is written after the checkpoint can be written again from it.
    save();
    folder_.append("log.jsonl", log_line(epoch));
    folder_.write("curves.svg", curves(state_.everything()));
    if (options_.epoch) options_.epoch(epoch);
  }

  double best_loss() const {
    double best = std::numeric_limits<double>::infinity();
    for (const TrainingEpoch& epoch : state_.everything()) best = std::min(best, epoch.validation_loss);
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
  std::shared_ptr<Model> model;
  std::vector<std::int32_t> elements;  // empty: those of the data
  double r_max = 0;
  bool copied = false;
  if (!config.start_from.empty()) {
    // A run that continues has a copy, so that the model it started from need not be there any more.
    const bool continues = !options.restart && io::type_of(config.output / "checkpoint.safetensors") !=
                                                   std::filesystem::file_type::not_found;
    const std::filesystem::path copy = config.output / "start";
    copied = continues && io::type_of(copy) == std::filesystem::file_type::directory;
    model = copied ? Model::load(copy) : starting_model(config);
    if (!copied) require_apart(config);
    elements = model->atomic_numbers();
    r_max = model->r_max();
  } else {
    // With something in place of what follows from the data.
    const models::MaceConfig described = models::MaceConfig::parse(model_config(config.model, {1}, 1.0), "model");
    const bool given = model_config(config.model, {1}, 1.0) == model_config(config.model, {2}, 1.0);
    if (given) elements = described.atomic_numbers;
    r_max = described.r_max;
  }
  DataSet data = read_data(config, r_max, elements, warn);
  check_heads(data, model != nullptr ? model->heads().front() : std::string(), warn);
  if (model != nullptr && !copied) {
    adjust_constants(*model, data.training, config, evaluation_of(config, options));
  } else if (model == nullptr) {
    if (elements.empty()) elements = elements_of(data.training);
    model = new_model(config, elements, statistics_of(data.training, elements, config));
  }
  RunFolder folder(config.output);
  return Trainer(config, options, std::move(data), *model, folder).run();
}

}  // namespace fastpath
