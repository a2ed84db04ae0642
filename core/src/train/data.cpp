#include "train/data.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "fastpath/error.hpp"
#include "fastpath/extxyz.hpp"
#include "io/file.hpp"
#include "models/evaluate.hpp"
#include "plugin/sha256.hpp"
#include "train/random.hpp"
#include "train/statistics.hpp"

namespace fastpath::training {
namespace {

constexpr std::size_t kMostNames = 8;  // that one message lists

[[noreturn]] void refuse(const std::string& text) { throw Error(ErrorCode::bad_file, text); }

/// "a, b, c and 5 more".
std::string listed(const std::vector<std::string>& names) {
  const std::vector<std::string> first(names.begin(),
                                       names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), kMostNames)));
  std::string text = fmt::format("{}", fmt::join(first, ", "));
  if (names.size() > kMostNames) text += fmt::format(" and {} more", names.size() - kMostNames);
  return text;
}

/// The numbers of a value; nothing if it has words or truth values. A number is finite, as the reader sees to it.
std::optional<std::vector<double>> numbers_of(const Values& values) {
  if (const auto* reals = std::get_if<std::vector<double>>(&values)) return *reals;
  if (const auto* integers = std::get_if<std::vector<std::int64_t>>(&values)) {
    return std::vector<double>(integers->begin(), integers->end());
  }
  return std::nullopt;
}

/// A label of a frame as numbers; nothing if it is not there.
std::optional<std::vector<double>> label(const std::string& frame, const std::string& key, const Values* values,
                                         const std::vector<std::size_t>& sizes) {
  if (values == nullptr) return std::nullopt;
  std::optional<std::vector<double>> numbers = numbers_of(*values);
  if (!numbers) refuse(fmt::format("{}: label '{}' is not made of numbers", frame, key));
  if (std::find(sizes.begin(), sizes.end(), numbers->size()) == sizes.end()) {
    refuse(fmt::format("{}: label '{}' has {} numbers, expected {}", frame, key, numbers->size(),
                       fmt::join(sizes, " or ")));
  }
  for (const double value : *numbers) {
    if (!std::isfinite(value)) refuse(fmt::format("{}: label '{}' has a value that is not finite", frame, key));
  }
  return numbers;
}

/// 1 where the frame does not say.
double weight(const std::string& frame, const Structure& structure, const char* key) {
  const Values* values = structure.find_info(key);
  if (values == nullptr) return 1;
  const std::optional<std::vector<double>> numbers = numbers_of(*values);
  const char* const expected = "expected a number that is not negative";
  if (!numbers || numbers->size() != 1) {
    refuse(fmt::format("{}: weight '{}' is not one number, {}", frame, key, expected));
  }
  if (!std::isfinite(numbers->front()) || numbers->front() < 0) {
    refuse(fmt::format("{}: weight '{}' is {}, {}", frame, key, numbers->front(), expected));
  }
  return numbers->front();
}

LabelWeights weights_of(const std::string& frame, const Structure& structure) {
  const double all = weight(frame, structure, "config_weight");
  return {all * weight(frame, structure, "config_energy_weight"),
          all * weight(frame, structure, "config_forces_weight"),
          all * weight(frame, structure, "config_stress_weight")};
}

std::array<double, 9> stress_of(const std::string& frame, const std::string& key, const std::vector<double>& v) {
  if (v.size() == 6) return {v[0], v[5], v[4], v[5], v[1], v[3], v[4], v[3], v[2]};  // xx yy zz yz xz xy
  std::array<double, 9> stress{};
  std::copy(v.begin(), v.end(), stress.begin());
  double largest = 0;
  for (const double value : stress) largest = std::max(largest, std::abs(value));
  for (const auto& [a, b] : {std::pair{1, 3}, std::pair{2, 6}, std::pair{5, 7}}) {
    const double one = stress[static_cast<std::size_t>(a)], other = stress[static_cast<std::size_t>(b)];
    if (std::abs(one - other) > 1e-3 * largest) {
      refuse(fmt::format("{}: label '{}' is not symmetric: {} and {} at opposite places", frame, key, one, other));
    }
  }
  return stress;
}

/// Frames that lack a label that the loss needs.
void require_label(const std::vector<Frame>& frames, const std::filesystem::path& file, const TrainingConfig& config,
                   const char* what, const std::string& key, double weight,
                   const std::function<bool(const Frame&)>& lacks) {
  if (weight == 0) return;
  std::vector<std::string> missing;
  for (std::size_t i = 0; i < frames.size(); ++i) {
    if (lacks(frames[i])) missing.push_back(std::to_string(i + 1));
  }
  if (missing.empty() || (config.skip_missing_labels && missing.size() < frames.size())) return;
  const bool all = missing.size() == frames.size();
  refuse(
      fmt::format("{}: no {} label '{}' in {}; name another key (data.{}_key), give the loss no weight for it "
                  "(loss.{}: 0){}",
                  file.string(), what, key, all ? std::string("any frame") : "frame " + listed(missing), what, what,
                  all ? "" : ", or leave such frames out of it (data.missing_labels: \"skip\")"));
}

bool same_structure(const Frame& a, const Frame& b) {
  const auto equal = [](const Tensor& x, const Tensor& y, auto zero) {
    const auto p = x.span<decltype(zero)>(), q = y.span<decltype(zero)>();
    return std::equal(p.begin(), p.end(), q.begin(), q.end());
  };
  return a.cell == b.cell && a.pbc == b.pbc &&
         equal(a.graph.atomic_numbers(), b.graph.atomic_numbers(), std::int32_t{0}) &&
         equal(a.graph.positions(), b.graph.positions(), 0.0);
}

/// Of those that both have.
bool same_labels(const Frame& a, const Frame& b) {
  return (!a.energy || !b.energy || a.energy == b.energy) &&
         (a.forces.empty() || b.forces.empty() || a.forces == b.forces) &&
         (!a.stress || !b.stress || a.stress == b.stress);
}

/// Structures that are there twice: a waste within a set; across the sets, validation no longer says anything.
void check_duplicates(const DataSet& data, const Warn& warn) {
  std::vector<const Frame*> all;
  for (const auto* set : {&data.training, &data.validation}) {
    for (const Frame& frame : *set) all.push_back(&frame);
  }
  std::map<std::pair<std::size_t, double>, std::vector<std::size_t>> alike;  // by size and a sum of positions
  std::vector<std::string> within, across;
  for (std::size_t i = 0; i < all.size(); ++i) {
    double sum = 0;
    for (const double x : all[i]->graph.positions().span<double>()) sum += x;
    auto& others = alike[{static_cast<std::size_t>(all[i]->size()), sum}];
    for (const std::size_t k : others) {
      if (!same_structure(*all[k], *all[i])) continue;
      if (!same_labels(*all[k], *all[i])) {
        refuse(fmt::format("{} and {} are the same structure with different labels", all[k]->name, all[i]->name));
      }
      const bool one_set = (k < data.training.size()) == (i < data.training.size());
      (one_set ? within : across).push_back(fmt::format("{} and {}", all[k]->name, all[i]->name));
      break;
    }
    others.push_back(i);
  }
  if (!within.empty()) warn(fmt::format("the same structure twice, which counts double: {}", listed(within)));
  if (!across.empty()) {
    warn(fmt::format("the same structure in training and validation, which then shows too small errors: {}",
                     listed(across)));
  }
}

void check_species(const std::vector<Frame>& frames, const std::vector<std::int32_t>& known, const char* whose) {
  for (const Frame& frame : frames) {
    for (const std::int32_t number : frame.graph.atomic_numbers().span<std::int32_t>()) {
      if (std::find(known.begin(), known.end(), number) != known.end()) continue;
      std::vector<std::string> symbols;
      for (const std::int32_t one : known) symbols.push_back(chemical_symbol(one));
      refuse(fmt::format("{}: has {}, {} {}", frame.name, chemical_symbol(number), whose, fmt::join(symbols, ", ")));
    }
  }
}

double rms(double sum_of_squares, std::size_t count) {
  return count > 0 ? std::sqrt(sum_of_squares / static_cast<double>(count)) : 0;
}

/// Sizes that no structure has in the right unit. Between Hartree and eV there is no such size.
void check_units(const std::vector<Frame>& frames, const std::filesystem::path& file) {
  const std::string override_text = "if it is right, set data.check_units to false";
  std::vector<double> shortest;
  double forces = 0, stress = 0;
  std::size_t n_forces = 0, n_stress = 0;
  for (const Frame& frame : frames) {
    double least = 0;
    const Tensor vectors = frame.graph.edge_vectors();
    const auto v = vectors.span<double>();
    for (std::size_t e = 0; e + 2 < v.size(); e += 3) {
      const double length = std::hypot(v[e], v[e + 1], v[e + 2]);
      if (e == 0 || length < least) least = length;
    }
    if (!v.empty()) shortest.push_back(least);
    for (const double f : frame.forces) forces += f * f;
    n_forces += frame.forces.size();
    if (frame.stress) {
      for (const double s : *frame.stress) stress += s * s;
      n_stress += 9;
    }
  }
  if (!shortest.empty()) {
    std::nth_element(shortest.begin(), shortest.begin() + static_cast<std::ptrdiff_t>((shortest.size() - 1) / 2),
                     shortest.end());
    const double median = shortest[(shortest.size() - 1) / 2];
    constexpr double kShortest = 0.4;  // angstrom: the bond of H2 has 0.74
    if (median < kShortest) {
      refuse(
          fmt::format("{}: in half of the frames atoms are closer than {:.3g} A, which no matter is: positions are "
                      "not in angstrom; {}",
                      file.string(), median, override_text));
    }
  }
  constexpr double kForces = 300;  // eV/angstrom
  if (const double found = rms(forces, n_forces); found > kForces) {
    refuse(fmt::format("{}: forces have a root mean square of {:.4g}, which is beyond any in eV/A; {}", file.string(),
                       found, override_text));
  }
  constexpr double kStress = 10;  // eV/angstrom^3, that is 1600 GPa
  if (const double found = rms(stress, n_stress); found > kStress) {
    refuse(
        fmt::format("{}: stresses have a root mean square of {:.4g}, or {:.4g} GPa if it was in eV/A^3 as expected: "
                    "perhaps it is in GPa or kbar, or a virial; {}",
                    file.string(), found, found * 160.21766, override_text));
  }
  const EnergyFit fit = fit_energies(frames, elements_of(frames));
  constexpr double kSpread = 50;  // eV per atom
  if (fit.spread > kSpread) {
    refuse(
        fmt::format("{}: energies differ by {:.4g} eV per atom (root mean square) beside what elements explain, which "
                    "is beyond any bond: they are not in eV, or not of these structures; {}",
                    file.string(), fit.spread, override_text));
  }
}

}  // namespace

std::vector<Frame> read_frames(const std::string& text, const std::filesystem::path& file, const TrainingConfig& config,
                               double r_max) {
  std::vector<Frame> frames;
  const std::vector<Structure> structures = parse_extxyz(text, file.string());
  if (structures.empty()) refuse(fmt::format("{}: has no frame", file.string()));
  for (std::size_t i = 0; i < structures.size(); ++i) {
    const Structure& structure = structures[i];
    const std::string name = fmt::format("{}, frame {}", file.filename().string(), i + 1);
    if (structure.size() == 0) refuse(fmt::format("{}: has no atoms, expected at least one", name));
    const auto graph = [&] {
      try {
        return Graph::from_structure(structure, r_max);
      } catch (const Error& error) {
        throw Error(error.code(), fmt::format("{}: {}", name, error.what()));
      }
    };
    Frame frame{name, graph(), {}, {}, {}, structure.cell, structure.pbc, weights_of(name, structure)};
    if (config.energy_weight > 0 && frame.weights.energy > 0) {
      const auto energy = label(name, config.energy_key, structure.find_info(config.energy_key), {1});
      if (energy) frame.energy = energy->front();
    }
    if (config.forces_weight > 0 && frame.weights.forces > 0) {
      const AtomColumn* column = structure.find_column(config.forces_key);
      const auto forces = label(name, config.forces_key, column != nullptr ? &column->values : nullptr,
                                {3 * static_cast<std::size_t>(structure.size())});
      if (forces) frame.forces = *forces;
    }
    if (config.stress_weight > 0 && frame.weights.stress > 0 && frame.graph.volume()) {
      const auto stress = label(name, config.stress_key, structure.find_info(config.stress_key), {9, 6});
      if (stress) frame.stress = stress_of(name, config.stress_key, *stress);
    }
    try {
      frame.head = models::head_of(structure, {});
    } catch (const Error& error) {
      refuse(fmt::format("{}: {}", name, error.what()));
    }
    frame.stress_unused = config.stress_weight > 0 && frame.weights.stress > 0 && !frame.graph.volume() &&
                          structure.find_info(config.stress_key) != nullptr;
    frames.push_back(std::move(frame));
  }
  require_label(frames, file, config, "energy", config.energy_key, config.energy_weight,
                [](const Frame& frame) { return frame.weights.energy > 0 && !frame.energy; });
  require_label(frames, file, config, "forces", config.forces_key, config.forces_weight,
                [](const Frame& frame) { return frame.weights.forces > 0 && frame.forces.empty(); });
  // Where a direction is not periodic there is no stress.
  require_label(frames, file, config, "stress", config.stress_key, config.stress_weight,
                [](const Frame& frame) { return frame.weights.stress > 0 && frame.graph.volume() && !frame.stress; });
  const bool any = std::any_of(frames.begin(), frames.end(), [](const Frame& frame) {
    return frame.energy || !frame.forces.empty() || frame.stress;
  });
  if (!any) {
    refuse(
        fmt::format("{}: no frame has a label of a weight above 0 (loss, config_weight), so there is nothing to "
                    "compare with",
                    file.string()));
  }
  return frames;
}

void check_heads(const DataSet& data, const std::string& head, const Warn& warn) {
  const Frame* first = nullptr;
  for (const std::vector<Frame>* frames : {&data.training, &data.validation}) {
    for (const Frame& frame : *frames) {
      if (first == nullptr) first = &frame;
      const std::string& wanted = head.empty() ? first->head : head;
      if (frame.head == wanted || (!head.empty() && frame.head.empty())) continue;
      const auto named = [](const Frame& one) {
        return one.head.empty() ? one.name + " has no head=" : fmt::format("{} has head={}", one.name, one.head);
      };
      refuse(head.empty()
                 ? fmt::format("{}, {}: the data are of several heads, and the model has one; train one for each",
                               named(*first), named(frame))
                 : fmt::format("{}, the model is trained for head '{}'; leave out frames of other heads", named(frame),
                               head));
    }
  }
  if (head.empty() && first != nullptr && !first->head.empty() && warn) {
    warn(fmt::format("all frames have head={}; the new model has one head, whose name is 'default'", first->head));
  }
}

std::vector<std::int32_t> elements_of(const std::vector<Frame>& frames) {
  std::set<std::int32_t> elements;
  for (const Frame& frame : frames) {
    const auto numbers = frame.graph.atomic_numbers().span<std::int32_t>();
    elements.insert(numbers.begin(), numbers.end());
  }
  return {elements.begin(), elements.end()};
}

DataSet read_data(const TrainingConfig& config, double r_max, const std::vector<std::int32_t>& atomic_numbers,
                  const Warn& warn) {
  DataSet data;
  const auto read = [&](const std::filesystem::path& file, std::string& hash) {
    const std::string text = io::read_text(file);
    hash = plugin::sha256_of(std::as_bytes(std::span<const char>(text.data(), text.size())));
    std::vector<Frame> frames = read_frames(text, file, config, r_max);
    const auto unused = [](const Frame& frame) { return frame.stress_unused; };
    if (const auto first = std::find_if(frames.begin(), frames.end(), unused); first != frames.end() && warn) {
      warn(
          fmt::format("{}: {} of {} frames have '{}' but are not periodic in all three directions, where it means "
                      "nothing: it is not used there",
                      first->name, std::count_if(first, frames.end(), unused), frames.size(), config.stress_key));
    }
    return frames;
  };
  data.training = read(config.training, data.training_hash);
  if (config.check_units) check_units(data.training, config.training);
  if (!config.validation.empty()) {
    data.validation = read(config.validation, data.validation_hash);
    if (config.check_units) check_units(data.validation, config.validation);
  } else {
    const auto count =
        static_cast<std::size_t>(std::llround(config.validation_fraction * static_cast<double>(data.training.size())));
    if (count == 0 || count >= data.training.size()) {
      refuse(
          fmt::format("{}: data.validation is {}, which of {} frames takes {}; expected at least one for validation "
                      "and one for training",
                      config.training.string(), config.validation_fraction, data.training.size(), count));
    }
    Random random(config.seed, 2);
    const std::vector<std::int64_t> order = random.permutation(static_cast<std::int64_t>(data.training.size()));
    const std::set<std::int64_t> chosen(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count));
    std::vector<Frame> rest;
    for (std::size_t i = 0; i < data.training.size(); ++i) {
      (chosen.contains(static_cast<std::int64_t>(i)) ? data.validation : rest).push_back(std::move(data.training[i]));
    }
    data.training = std::move(rest);
  }
  if (!atomic_numbers.empty()) {
    check_species(data.training, atomic_numbers, "the model has");
    check_species(data.validation, atomic_numbers, "the model has");
  } else {
    check_species(data.validation, elements_of(data.training), "the training set has only");
  }
  check_duplicates(data, warn);
  return data;
}

}  // namespace fastpath::training
