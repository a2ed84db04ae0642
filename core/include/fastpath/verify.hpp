#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "fastpath/export.hpp"
#include "fastpath/fast_path.hpp"
#include "fastpath/model.hpp"
#include "fastpath/structure.hpp"

/// Kernels of a plugin against the definition of their op, the numerical half of `fastpath verify PLUGIN.so`; and a
/// whole model by its fast path, against its reference and against what physics demands, `fastpath verify --model`.
namespace fastpath {

/// One comparison: all configurations of one op in one dtype.
struct NumericalCheck {
  std::string name;        ///< "numerics.conv_tensor_product.float32".
  std::string obligation;  ///< Of docs/plugin-contract.md.
  std::string statement;
};
FASTPATH_EXPORT std::vector<NumericalCheck> numerical_checks();

struct NumericalOptions {
  std::filesystem::path plugin;  ///< The file; it is loaded into this process and stays there.
  std::uint64_t seed = 1;        ///< Of configurations and values.
  bool quick = false;            ///< Fewer configurations.
};

/// Where a check reports. Every member is set.
struct NumericalReport {
  std::function<void(const std::string& text)> step;  ///< What is being done now.
  /// What was found, what was expected, and the obligation that is broken.
  std::function<void(const std::string& obligation, const std::string& found, const std::string& expected)> fail;
  std::function<void(const std::string& text)> note;  ///< What was compared.
  std::function<void(const std::string& text)> skip;  ///< There is nothing to compare, for this reason.
};

/// Runs one check in this process. What a kernel does may end the process: see the conformance kit, which starts one
/// for each check. @throws Error(not_found) for an unknown name.
FASTPATH_EXPORT void run_numerical_check(const std::string& name, const NumericalOptions& options,
                                         const NumericalReport& report);

/// One property of a model.
struct ModelCheck {
  enum class Verdict { passed, failed, skipped };
  std::string name;       ///< "forces", "net_force", "energy_drift", ...
  std::string statement;  ///< What is compared with what.
  Verdict verdict = Verdict::skipped;
  double error = 0;  ///< What was found; for a comparison max|a-b| / max|b|. 0 where it was skipped.
  double limit = 0;  ///< The most that it may be.
  std::string text;  ///< Why it was skipped or failed; otherwise what was done.
};

struct FASTPATH_EXPORT ModelVerification {
  std::vector<ModelCheck> checks;
  Selection selection;  ///< Which path each module took, after all evaluations.
  bool ran_fast = false;
  bool passed() const noexcept;  ///< No check failed.
};

struct ModelVerificationOptions {
  EvaluateOptions evaluate;  ///< Device, dtype, threads, head, context. `use_fast` unset: wherever there is a kernel.
  std::uint64_t seed = 1;    ///< Of directions, rotation, permutation and velocities.
  int steps = 20;            ///< Of the trajectory, and twice as many of half the length.
  /// Told before each check; may be empty.
  std::function<void(const std::string& name)> on_check = {};
};

/// Evaluates `structure` by the fast path and compares with the reference in float64 on the CPU: energy, node energies,
/// forces, stress, parameter gradients. Then differences of the energy against forces and stress, net force, rotation,
/// permutation, translation, and the energy of a short trajectory (velocity Verlet, constant energy): its drift has to
/// shrink with the time step, as it does if and only if forces are the slope of the energy. What a path does not have
/// is skipped with the reason. @throws as Model::evaluate, and Error(invalid_argument) for a structure without atoms.
FASTPATH_EXPORT ModelVerification verify_model(Model& model, const Structure& structure,
                                               const ModelVerificationOptions& options = {});

/// A small periodic structure of the elements of a model, for verify_model where there is no better one.
FASTPATH_EXPORT Structure sample_structure(const Model& model, std::uint64_t seed);

}  // namespace fastpath
