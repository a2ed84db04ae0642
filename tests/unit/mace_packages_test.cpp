// Models with everything at once (densities, distance transforms with changed constants, pair repulsion, heads, three
// layers, unequal correlations) against results of the package; tests/data/models_b/README.md says how they were made.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>

#include "fastpath/warning.hpp"
#include "support/mace_models.hpp"

namespace fastpath::test {
namespace {

const std::string kData = FASTPATH_TEST_DATA "/models_b/";

struct Numbers {
  double energy = 0;
  std::vector<double> node_energies, forces, stress;
};
std::vector<double> flat(const Json& rows) {
  std::vector<double> values;
  for (const auto& row : rows) {
    for (const auto& value : row) values.push_back(value.get<double>());
  }
  return values;
}
Numbers numbers(const EvaluationResult& result) {
  return {result.energy, reals(result.node_energies), reals(result.forces),
          result.stress ? reals(*result.stress) : std::vector<double>{}};
}
/// Every tensor by max|a-b| / max|b|; the same set of them on both sides.
void expect_close(const Numbers& found, const Numbers& want, double energy, double forces) {
  EXPECT_NEAR(found.energy, want.energy, energy * std::abs(want.energy));
  EXPECT_LE(relative_error(found.node_energies, want.node_energies), energy);
  EXPECT_LE(relative_error(found.forces, want.forces), forces);
  ASSERT_EQ(found.stress.size(), want.stress.size());
  if (!want.stress.empty()) {
    EXPECT_LE(relative_error(found.stress, want.stress), forces);
  }
}

using Parameters = std::tuple<const char*, const char*, int>;  // model, structure, head

class MacePackages : public testing::TestWithParam<Parameters> {
 protected:
  MacePackages() {
    set_warning_handler([](const FastPathPrecisionWarning&) {});
    std::ifstream file(kData + "expected.json");
    const Json heads = Json::parse(file)[std::get<0>(GetParam())][std::get<1>(GetParam())];
    head_ = model().heads().at(static_cast<std::size_t>(std::get<2>(GetParam())));
    const Json found = heads.at(head_);
    n_edges_ = found["n_edges"].get<std::int64_t>();
    want_ = {found["energy"].get<double>(), found["node_energies"].get<std::vector<double>>(), flat(found["forces"]),
             found.contains("stress") ? flat(found["stress"]) : std::vector<double>{}};
  }
  ~MacePackages() override { set_warning_handler({}); }

  static Model& model() {
    static std::map<std::string, std::shared_ptr<Model>> loaded;
    auto& model = loaded[std::get<0>(GetParam())];
    if (!model) model = Model::load(kData + std::get<0>(GetParam()));
    return *model;
  }
  static Structure structure() { return read_extxyz(kData + std::get<1>(GetParam()) + ".xyz").front(); }
  EvaluationResult evaluate(UseFast use_fast, DType dtype) const {
    static Context context({.registry = {.search_paths = {FASTPATH_PLUGIN_DIRECTORY}, .default_paths = false}});
    EvaluateOptions options;
    options.use_fast = use_fast;
    options.dtype = dtype;
    options.head = head_;
    options.context = &context;
    options.require_fast = use_fast == UseFast::always;
    return model().evaluate(structure(), options);
  }
  std::string head_;
  std::int64_t n_edges_ = 0;
  Numbers want_;
};

TEST_P(MacePackages, TheReferenceAgreesInFloat64) {
  const EvaluationResult result = evaluate(UseFast::never, DType::float64);
  EXPECT_EQ(result.n_edges, n_edges_);
  expect_close(numbers(result), want_, 1e-12, 1e-12);  // two programs that sum in different orders
}

TEST_P(MacePackages, TheReferenceKeepsTheFloat32Contract) {
  expect_close(numbers(evaluate(UseFast::never, DType::float32)), want_, 1e-6, 1e-5);
}

TEST_P(MacePackages, CpuRefAgreesWithTheReferenceInFloat64) {
  // Kernels are held to 1e-14; three layers of up to four factors let that grow a little.
  expect_close(numbers(evaluate(UseFast::always, DType::float64)), numbers(evaluate(UseFast::never, DType::float64)),
               1e-13, 1e-13);
}

TEST_P(MacePackages, CpuRefKeepsTheFloat32Contract) {
  expect_close(numbers(evaluate(UseFast::always, DType::float32)), want_, 1e-6, 1e-5);
}

std::string name_of(const testing::TestParamInfo<Parameters>& info) {
  return std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param) + "_head" +
         std::to_string(std::get<2>(info.param));
}
INSTANTIATE_TEST_SUITE_P(Models, MacePackages,
                         testing::Combine(testing::Values("density", "soft", "correlation4"),
                                          testing::Values("molecule", "crystal"), testing::Values(0, 1)),
                         name_of);

}  // namespace
}  // namespace fastpath::test
