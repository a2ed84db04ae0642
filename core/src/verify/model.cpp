#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "fastpath/error.hpp"
#include "fastpath/verify.hpp"

namespace fastpath {
namespace {

using Matrix = std::array<Vec3, 3>;
using Verdict = ModelCheck::Verdict;

/// eV / (angstrom amu) in angstrom / fs^2.
constexpr double kAcceleration = 9.6485332e-3;

/// The most an error may be (docs/conformance.md says why).
struct Limits {
  double energy, forces, parameters, moved, differences, net_force, drift_floor;
};
constexpr Limits kLimits64{1e-12, 1e-12, 1e-12, 1e-10, 1e-6, 1e-12, 1e-11};
constexpr Limits kLimits32{1e-6, 1e-5, 1e-5, 1e-4, 1e-3, 1e-5, 4e-6};

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  double uniform() { return (static_cast<double>(engine_() >> 11) + 0.5) * 0x1p-53; }
  double normal() { return std::sqrt(-2 * std::log(uniform())) * std::cos(2 * M_PI * uniform()); }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(engine_() % n); }
  /// A rotation: a unit quaternion drawn evenly.
  Matrix rotation() {
    std::array<double, 4> q{normal(), normal(), normal(), normal()};
    const double norm = std::sqrt(q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3]);
    for (double& x : q) x /= norm;
    const auto [w, x, y, z] = q;
    return {Vec3{1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)},
            Vec3{2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)},
            Vec3{2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)}};
  }

 private:
  std::mt19937_64 engine_;
};

Vec3 product(const Matrix& m, const Vec3& v) {
  Vec3 result{};
  for (std::size_t i = 0; i < 3; ++i) result[i] = m[i][0] * v[0] + m[i][1] * v[1] + m[i][2] * v[2];
  return result;
}

Structure transformed(const Structure& structure, const Matrix& m) {
  Structure result = structure;
  for (Vec3& position : result.positions) position = product(m, position);
  for (Vec3& vector : result.cell) vector = product(m, vector);
  return result;
}

double difference(std::span<const double> a, std::span<const double> b) {
  double error = 0, scale = 0;
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i])) return std::numeric_limits<double>::infinity();
    error = std::max(error, std::abs(a[i] - b[i]));
    scale = std::max(scale, std::abs(b[i]));
  }
  return error == 0 ? 0 : error / scale;
}

std::vector<double> flat(const Matrix& m) {
  std::vector<double> result;
  for (const auto& row : m) result.insert(result.end(), row.begin(), row.end());
  return result;
}
std::vector<double> values_of(const Tensor& tensor) {
  const Tensor converted = tensor.contiguous().to(DType::float64);
  const auto values = converted.span<double>();
  return {values.begin(), values.end()};
}

class Verification {
 public:
  Verification(Model& model, const Structure& structure, const ModelVerificationOptions& options)
      : model_(model),
        structure_(structure),
        options_(options),
        random_(options.seed),
        limits_(options.evaluate.dtype == DType::float32 ? kLimits32 : kLimits64) {
    fast_ = options.evaluate;
    if (!fast_.use_fast) fast_.use_fast = UseFast::always;
    fast_.forces = fast_.stress = true;
    fast_.parameter_gradients = false;
    fast_.direction = Tensor();
    reference_ = fast_;
    reference_.device = Device::cpu();
    reference_.dtype = DType::float64;
    reference_.use_fast = UseFast::never;
    reference_.require_fast = false;
  }

  ModelVerification run();

 private:
  EvaluationResult evaluate(const Structure& structure) {
    EvaluationResult result = model_.evaluate(structure, fast_);
    selection_ = result.selection;
    return result;
  }
  /// Energies for differences: those of the path itself where it computes in float64, else of the reference, for those
  /// of float32 are too coarse.
  double energy_of(const Structure& structure) {
    EvaluateOptions options = fast_.dtype == DType::float64 ? fast_ : reference_;
    options.forces = options.stress = false;
    return model_.evaluate(structure, options).energy;
  }
  template <class Body>
  void check(const char* name, const char* statement, double limit, Body&& body) {
    if (options_.on_check) options_.on_check(name);
    ModelCheck result{name, statement, Verdict::passed, 0, limit, ""};
    result.error = body(result);
    if (result.verdict != Verdict::skipped && !(result.error <= limit)) {
      result.verdict = Verdict::failed;
      if (!std::isfinite(result.error)) {
        result.text = "a result is not finite, or has another size";
        result.error = std::numeric_limits<double>::max();
      }
    }
    checks_.push_back(std::move(result));
  }
  static double skip(ModelCheck& check, std::string why) {
    check.verdict = Verdict::skipped;
    check.text = std::move(why);
    return 0;
  }
  void compare();
  void differences();
  void symmetries();
  void trajectory();
  /// Drift of the total energy over `steps` of `dt` fs, in eV; the final number of the energies' scale in `scale`.
  double drift(int steps, double dt, const std::vector<Vec3>& velocities, double& scale);

  Model& model_;
  const Structure& structure_;
  const ModelVerificationOptions& options_;
  Random random_;
  const Limits limits_;
  EvaluateOptions fast_, reference_;
  EvaluationResult found_, expected_;
  Selection selection_;
  bool ran_fast_ = false;
  double energy_scale_ = 0;  ///< Sum of |node energies|, for the energy may cancel.
  std::vector<ModelCheck> checks_;
};

ModelVerification Verification::run() {
  if (structure_.size() == 0) throw Error(ErrorCode::invalid_argument, "the structure has no atoms");
  if (options_.on_check) options_.on_check("reference");
  expected_ = model_.evaluate(structure_, reference_);
  found_ = evaluate(structure_);
  for (const double value : values_of(expected_.node_energies)) energy_scale_ += std::abs(value);
  energy_scale_ = std::max(energy_scale_, std::numeric_limits<double>::min());
  ran_fast_ = found_.selection.any_fast();
  compare();
  differences();
  symmetries();
  trajectory();
  return {std::move(checks_), std::move(selection_), ran_fast_};
}

void Verification::compare() {
  const auto nothing = [&](ModelCheck& result) {
    return skip(result, "no module ran fast: there is nothing to compare with the reference");
  };
  check("energy", "the energy is that of the reference", limits_.energy, [&](ModelCheck& result) {
    if (!ran_fast_) return nothing(result);
    return std::abs(found_.energy - expected_.energy) / energy_scale_;
  });
  check("node_energies", "the energy of each atom is that of the reference", limits_.forces, [&](ModelCheck& result) {
    if (!ran_fast_) return nothing(result);
    return difference(values_of(found_.node_energies), values_of(expected_.node_energies));
  });
  check("forces", "forces are those of the reference", limits_.forces, [&](ModelCheck& result) {
    if (!ran_fast_) return nothing(result);
    return difference(values_of(found_.forces), values_of(expected_.forces));
  });
  check("stress", "the stress is that of the reference", limits_.forces, [&](ModelCheck& result) {
    if (!ran_fast_) return nothing(result);
    if (!expected_.stress) return skip(result, "the structure is not periodic in all three directions");
    return found_.stress ? difference(flat(*found_.stress), flat(*expected_.stress))
                         : std::numeric_limits<double>::infinity();
  });
  check("parameter_gradients", "gradients of the parameters are those of the reference", limits_.parameters,
        [&](ModelCheck& result) {
          if (!ran_fast_) return nothing(result);
          EvaluateOptions fast = fast_, reference = reference_;
          fast.parameter_gradients = reference.parameter_gradients = true;
          fast.stress = reference.stress = false;
          try {
            const EvaluationResult found = model_.evaluate(structure_, fast);
            if (!found.selection.any_fast()) return skip(result, "no module runs fast when gradients are wanted");
            const EvaluationResult expected = model_.evaluate(structure_, reference);
            double error = 0;
            for (const auto& [name, gradient] : expected.parameter_gradients) {
              const Tensor* other = found.parameter_gradients.find(name);
              const double one = other == nullptr ? std::numeric_limits<double>::infinity()
                                                  : difference(values_of(*other), values_of(gradient));
              if (!(one <= error)) {
                error = one;
                result.text = fmt::format("largest for {}", name);
              }
            }
            return error;
          } catch (const Error& failure) {
            if (failure.code() == ErrorCode::numerics || failure.code() == ErrorCode::kernel_failed) throw;
            return skip(result, failure.what());
          }
        });
}

void Verification::differences() {
  const auto n = static_cast<std::size_t>(structure_.size());
  check("forces_by_differences", "forces are minus the slope of the energy", limits_.differences,
        [&](ModelCheck& result) {
          constexpr double kStep = 1e-3;
          std::vector<Vec3> direction(n);
          for (Vec3& d : direction) d = {random_.normal(), random_.normal(), random_.normal()};
          const auto forces = found_.forces.span<double>();
          double slope = 0, size = 0;
          for (std::size_t i = 0; i < n; ++i) {
            for (std::size_t k = 0; k < 3; ++k) {
              slope -= forces[3 * i + k] * direction[i][k];
              size += std::abs(forces[3 * i + k] * direction[i][k]);
            }
          }
          const auto moved = [&](double h) {
            Structure structure = structure_;
            for (std::size_t i = 0; i < n; ++i) {
              for (std::size_t k = 0; k < 3; ++k) structure.positions[i][k] += h * direction[i][k];
            }
            return energy_of(structure);
          };
          const auto by_step = [&](double h) { return (moved(h) - moved(-h)) / (2 * h); };
          const double expected = (4 * by_step(kStep) - by_step(2 * kStep)) / 3;
          result.text = fmt::format("{:.9g} against {:.9g} eV/A along a random direction", slope, expected);
          return std::abs(slope - expected) / std::max(size, std::numeric_limits<double>::min());
        });
  check("stress_by_differences", "the stress is the slope of the energy under strain", limits_.differences,
        [&](ModelCheck& result) {
          if (!found_.stress) return skip(result, "the structure is not periodic in all three directions");
          constexpr double kStep = 1e-4;
          Matrix strain{};
          for (std::size_t i = 0; i < 3; ++i) {
            for (std::size_t j = 0; j <= i; ++j) strain[i][j] = strain[j][i] = random_.normal();
          }
          const auto& a = structure_.cell;
          const double volume = std::abs(a[0][0] * (a[1][1] * a[2][2] - a[1][2] * a[2][1]) -
                                         a[0][1] * (a[1][0] * a[2][2] - a[1][2] * a[2][0]) +
                                         a[0][2] * (a[1][0] * a[2][1] - a[1][1] * a[2][0]));
          double slope = 0, size = 0;
          for (std::size_t i = 0; i < 3; ++i) {
            for (std::size_t j = 0; j < 3; ++j) {
              slope += volume * (*found_.stress)[i][j] * strain[i][j];
              size += std::abs(volume * (*found_.stress)[i][j] * strain[i][j]);
            }
          }
          const auto strained = [&](double h) {
            Matrix m{};
            for (std::size_t i = 0; i < 3; ++i) {
              for (std::size_t j = 0; j < 3; ++j) m[i][j] = (i == j ? 1.0 : 0.0) + h * strain[i][j];
            }
            return energy_of(transformed(structure_, m));
          };
          const auto by_step = [&](double h) { return (strained(h) - strained(-h)) / (2 * h); };
          const double expected = (4 * by_step(kStep) - by_step(2 * kStep)) / 3;
          result.text = fmt::format("{:.9g} against {:.9g} eV under a random strain", slope, expected);
          return std::abs(slope - expected) / std::max(size, std::numeric_limits<double>::min());
        });
  check("net_force", "forces add up to zero", limits_.net_force, [&](ModelCheck&) {
    const auto forces = found_.forces.span<double>();
    Vec3 sum{};
    double size = 0;
    for (std::size_t i = 0; i < forces.size(); ++i) {
      sum[i % 3] += forces[i];
      size += std::abs(forces[i]);
    }
    const double largest = std::max({std::abs(sum[0]), std::abs(sum[1]), std::abs(sum[2])});
    return size == 0 ? 0.0 : largest / size;
  });
}

void Verification::symmetries() {
  const auto n = static_cast<std::size_t>(structure_.size());
  /// @param atom    Which atom of the original stands at place i.
  /// @param rotate  What becomes of a force.
  const auto worst = [&](const EvaluationResult& moved, const std::vector<std::size_t>& atom, const Matrix& rotate) {
    const auto forces = found_.forces.span<double>();
    std::vector<double> expected;
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t a = atom[i];
      const Vec3 force = product(rotate, {forces[3 * a], forces[3 * a + 1], forces[3 * a + 2]});
      expected.insert(expected.end(), force.begin(), force.end());
    }
    double error =
        std::max(std::abs(moved.energy - found_.energy) / energy_scale_, difference(values_of(moved.forces), expected));
    if (found_.stress && moved.stress) {
      Matrix rotated{};  // R s R^T
      for (std::size_t i = 0; i < 3; ++i) {
        for (std::size_t j = 0; j < 3; ++j) {
          for (std::size_t k = 0; k < 3; ++k) {
            for (std::size_t l = 0; l < 3; ++l) rotated[i][j] += rotate[i][k] * (*found_.stress)[k][l] * rotate[j][l];
          }
        }
      }
      error = std::max(error, difference(flat(*moved.stress), flat(rotated)));
    }
    return error;
  };
  const Matrix identity{Vec3{1, 0, 0}, Vec3{0, 1, 0}, Vec3{0, 0, 1}};
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  check("rotation", "a rotated structure has the same energy, and rotated forces and stress", limits_.moved,
        [&](ModelCheck&) {
          const Matrix rotation = random_.rotation();
          return worst(evaluate(transformed(structure_, rotation)), order, rotation);
        });
  check("permutation", "atoms in another order have the same energy and forces", limits_.moved, [&](ModelCheck&) {
    std::vector<std::size_t> shuffled = order;
    for (std::size_t i = n; i > 1; --i) std::swap(shuffled[i - 1], shuffled[random_.below(i)]);
    Structure structure = structure_;
    structure.columns.clear();
    for (std::size_t i = 0; i < n; ++i) {
      structure.positions[i] = structure_.positions[shuffled[i]];
      structure.atomic_numbers[i] = structure_.atomic_numbers[shuffled[i]];
    }
    return worst(evaluate(structure), shuffled, identity);
  });
  check("translation", "a shifted structure has the same energy, forces and stress", limits_.moved, [&](ModelCheck&) {
    Structure structure = structure_;
    const Vec3 shift{3.7 * random_.normal(), 3.7 * random_.normal(), 3.7 * random_.normal()};
    for (Vec3& position : structure.positions) {
      for (std::size_t k = 0; k < 3; ++k) position[k] += shift[k];
    }
    return worst(evaluate(structure), order, identity);
  });
}

double Verification::drift(int steps, double dt, const std::vector<Vec3>& velocities, double& scale) {
  constexpr double kMass = 20;  // amu, of every atom: any masses conserve the energy
  Structure structure = structure_;
  std::vector<Vec3> v = velocities;
  EvaluateOptions options = fast_;
  options.stress = false;
  EvaluationResult now = model_.evaluate(structure, options);
  const auto total = [&] {
    double kinetic = 0;
    for (const Vec3& velocity : v) {
      for (const double x : velocity) kinetic += 0.5 * kMass * x * x / kAcceleration;
    }
    scale = std::max(scale, kinetic + energy_scale_);
    return kinetic + now.energy;
  };
  const auto kick = [&] {
    const auto forces = now.forces.span<double>();
    for (std::size_t i = 0; i < v.size(); ++i) {
      for (std::size_t k = 0; k < 3; ++k) v[i][k] += 0.5 * dt * kAcceleration / kMass * forces[3 * i + k];
    }
  };
  const double start = total();
  double worst = 0;
  for (int step = 0; step < steps; ++step) {
    kick();
    for (std::size_t i = 0; i < v.size(); ++i) {
      for (std::size_t k = 0; k < 3; ++k) structure.positions[i][k] += dt * v[i][k];
    }
    now = model_.evaluate(structure, options);
    kick();
    worst = std::max(worst, std::abs(total() - start));
  }
  selection_ = now.selection;
  return worst;
}

void Verification::trajectory() {
  check("energy_drift", "the energy of a short trajectory is kept the better, the shorter its steps", 1.0,
        [&](ModelCheck& result) {
          constexpr double kTemperature = 0.0258520 * 2;  // eV: twice room temperature
          constexpr double kMass = 20, kLongest = 0.01, kMostStep = 1.0;
          std::vector<Vec3> velocities(static_cast<std::size_t>(structure_.size()));
          double fastest = 0, strongest = 0;
          for (Vec3& velocity : velocities) {
            for (double& x : velocity) {
              x = std::sqrt(kTemperature / kMass * kAcceleration) * random_.normal();
              fastest = std::max(fastest, std::abs(x));
            }
          }
          for (const double force : found_.forces.span<double>()) strongest = std::max(strongest, std::abs(force));
          // Nobody moves further than kLongest angstrom in a step, whatever the model's forces are like.
          double dt = std::min(kMostStep, kLongest / std::max(fastest, 1e-12));
          if (strongest > 0) dt = std::min(dt, std::sqrt(kLongest * kMass / (kAcceleration * strongest)));
          double scale = 0;
          const int steps = std::max(options_.steps, 2);
          const double coarse = drift(steps, dt, velocities, scale);
          const double fine = drift(2 * steps, dt / 2, velocities, scale);
          // Velocity Verlet errs with the square of the step: a quarter is left. Forces that are no slope of the energy
          // leave as much at any step.
          constexpr double kLeft = 0.4;
          const double allowed = kLeft * coarse + limits_.drift_floor * scale;
          result.text = fmt::format(
              "{:.3g} eV over {} steps of {:.3g} fs, {:.3g} eV over {} of half the length; at most "
              "{:.3g} eV expected",
              coarse, steps, dt, fine, 2 * steps, allowed);
          return fine / allowed;
        });
}

}  // namespace

bool ModelVerification::passed() const noexcept {
  return std::none_of(checks.begin(), checks.end(),
                      [](const ModelCheck& check) { return check.verdict == Verdict::failed; });
}

ModelVerification verify_model(Model& model, const Structure& structure, const ModelVerificationOptions& options) {
  return Verification(model, structure, options).run();
}

Structure sample_structure(const Model& model, std::uint64_t seed) {
  constexpr double kSpacing = 2.3, kJitter = 0.15;
  constexpr std::size_t kSide = 2;
  Random random(seed);
  Structure structure;
  const std::vector<std::int32_t>& numbers = model.atomic_numbers();
  for (std::size_t i = 0; i < kSide * kSide * kSide; ++i) {
    structure.atomic_numbers.push_back(numbers[i % numbers.size()]);
    Vec3 position{static_cast<double>(i % kSide), static_cast<double>(i / kSide % kSide),
                  static_cast<double>(i / (kSide * kSide))};
    for (double& x : position) x = kSpacing * x + kJitter * random.normal();
    structure.positions.push_back(position);
  }
  // Not a cube, so that no component of a force or stress vanishes by symmetry.
  const double side = kSpacing * kSide;
  structure.cell = {Vec3{side, 0, 0}, Vec3{0.3, side + 0.2, 0}, Vec3{-0.2, 0.4, side + 0.5}};
  structure.pbc = {true, true, true};
  return structure;
}

}  // namespace fastpath
