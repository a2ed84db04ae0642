// The least a host does: load a model, read a structure, evaluate, look at what ran. Then it checks its own answer.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>

#include "fastpath/error.hpp"
#include "fastpath/extxyz.hpp"
#include "fastpath/model.hpp"

#ifndef DEFAULT_MODEL  // the build names them; see CMakeLists.txt
#define DEFAULT_MODEL "examples/models/demo"
#define DEFAULT_STRUCTURE "examples/structures/silicon.xyz"
#endif

namespace {

/// Prints a check and its outcome. NaN fails.
bool check(const char* what, double found, double limit) {
  const bool good = found <= limit;
  std::printf("  %-58s %.1e, at most %.1e  %s\n", what, found, limit, good ? "ok" : "WRONG");
  return good;
}

/// dE/dx of one coordinate, from energies alone: fourth-order central differences.
double energy_slope(fastpath::Model& model, const fastpath::Structure& structure, std::size_t atom, std::size_t axis) {
  const double h = 1e-3;  // angstrom: the formula errs by h^4, rounding by about 1e-16 |E| / h
  fastpath::EvaluateOptions energy_only;
  energy_only.forces = false;
  energy_only.stress = false;
  const auto energy_at = [&](double step) {
    fastpath::Structure moved = structure;
    moved.positions[atom][axis] += step;
    return model.evaluate(moved, energy_only).energy;
  };
  return (8 * (energy_at(h) - energy_at(-h)) - (energy_at(2 * h) - energy_at(-2 * h))) / (12 * h);
}

int run(const std::string& model_folder, const std::string& structure_file) {
  const std::shared_ptr<fastpath::Model> model = fastpath::Model::load(model_folder);
  const fastpath::Structure structure = fastpath::read_extxyz(structure_file).front();

  const fastpath::EvaluationResult result = model->evaluate(structure);

  // Forces are a tensor [n_atoms, 3]; span() gives its elements.
  const auto forces = result.forces.span<double>();
  std::size_t strongest = 0;
  std::array<double, 3> net{};
  double largest = 0;
  for (std::size_t i = 0; i < forces.size(); ++i) {
    net[i % 3] += forces[i];
    if (std::abs(forces[i]) > std::abs(forces[strongest])) strongest = i;
    if (i % 3 == 0) largest = std::max(largest, std::hypot(forces[i], forces[i + 1], forces[i + 2]));
  }
  std::printf("%s\n%lld atoms, %lld edges\nenergy         %.9f eV\nlargest force  %.9f eV/A\n", structure_file.c_str(),
              static_cast<long long>(result.n_atoms), static_cast<long long>(result.n_edges), result.energy, largest);

  // Every fast-path module tells what ran and why.
  std::map<std::string, int> paths;
  for (const fastpath::Decision& decision : result.selection.decisions) {
    ++paths[decision.choice + " (" + std::string(to_string(decision.reason.code)) + ")"];
  }
  std::printf("%zu modules:\n", result.selection.decisions.size());
  for (const auto& [path, count] : paths) std::printf("  %3d by %s\n", count, path.c_str());

  std::printf("checks\n");
  bool good = result.n_atoms == structure.size() && !forces.empty();
  // Energies do not depend on where the system is: forces cancel up to the rounding of their sum.
  const double net_size = std::max({std::abs(net[0]), std::abs(net[1]), std::abs(net[2])});
  good &= check("net force, relative to the largest", net_size / largest, 1e-11);
  // Differences of energies of about 1e3 eV over 1e-3 A carry 1e-9 eV/A of rounding; forces here are about 1 eV/A.
  if (!forces.empty()) {
    const double slope = energy_slope(*model, structure, strongest / 3, strongest % 3);
    good &= check("largest component of a force against its finite difference",
                  std::abs(slope + forces[strongest]) / largest, 1e-6);
  }
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string model = argc > 1 ? argv[1] : DEFAULT_MODEL;
  const std::string structure = argc > 2 ? argv[2] : DEFAULT_STRUCTURE;
  try {
    return run(model, structure);
  } catch (const fastpath::Error& error) {
    std::fprintf(stderr, "%s: %s\n", std::string(to_string(error.code())).c_str(), error.what());
    return 1;
  }
}
