#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>

#include "fastpath/context.hpp"
#include "fastpath/model.hpp"
#include "fastpath/verify.hpp"

/// Whole models by kernels that are wrong.
namespace {

namespace fs = std::filesystem;
using namespace fastpath;
using Verdict = ModelCheck::Verdict;

/// A search path that holds one of the plugins of this folder.
class OnePlugin {
 public:
  explicit OnePlugin(const std::string& way) {
    std::string pattern = (fs::temp_directory_path() / "fastpath-lying-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    const std::string name = "fastpath_lying_" + way + ".so";
    fs::copy_file(fs::path(FASTPATH_LYING) / name, folder_ / name);
  }
  ~OnePlugin() { fs::remove_all(folder_); }
  OnePlugin(const OnePlugin&) = delete;
  OnePlugin& operator=(const OnePlugin&) = delete;

  /// Without the gate, which would not let a wrong kernel through.
  ContextOptions options() const {
    ContextOptions options;
    options.registry.search_paths = {folder_};
    options.registry.default_paths = false;
    options.registry.probe = ProbeMode::in_process;
    options.gate = false;
    return options;
  }

 private:
  fs::path folder_;
};

std::map<std::string, ModelCheck> verify(const std::string& way, ModelVerification* whole = nullptr) {
  const OnePlugin plugin(way);
  Context context(plugin.options());
  const auto model = Model::load(fs::path(FASTPATH_TEST_DATA) / "refdata/mace_a/model");
  ModelVerificationOptions options;
  options.evaluate.context = &context;
  options.steps = 10;
  const ModelVerification result = verify_model(*model, sample_structure(*model, 7), options);
  std::map<std::string, ModelCheck> checks;
  for (const ModelCheck& check : result.checks) checks[check.name] = check;
  if (whole != nullptr) *whole = result;
  return checks;
}

TEST(VerifyModel, FindsGradientsThatAreWrongWhileEnergiesAreRight) {
  ModelVerification whole;
  auto checks = verify("backward", &whole);
  EXPECT_TRUE(whole.ran_fast);
  EXPECT_FALSE(whole.passed());
  for (const char* name : {"energy", "node_energies", "rotation", "permutation", "translation"}) {
    EXPECT_EQ(checks[name].verdict, Verdict::passed) << name << " " << checks[name].error;
  }
  for (const char* name : {"forces", "stress", "forces_by_differences", "stress_by_differences", "energy_drift"}) {
    EXPECT_EQ(checks[name].verdict, Verdict::failed) << name << " " << checks[name].error << " " << checks[name].text;
  }
}

TEST(VerifyModel, FindsWrongValues) {
  const auto wrong = verify("a_little_off");
  EXPECT_EQ(wrong.at("energy").verdict, Verdict::failed);
  EXPECT_EQ(wrong.at("forces").verdict, Verdict::failed);
}

TEST(VerifyModel, PassesWithKernelsThatAreRight) {
  ModelVerification whole;
  const auto checks = verify("honest", &whole);
  EXPECT_TRUE(whole.ran_fast);
  EXPECT_EQ(checks.size(), 12u);
  for (const auto& [name, check] : checks) {
    EXPECT_EQ(check.verdict, Verdict::passed) << name << " " << check.error << " " << check.text;
  }
}

}  // namespace
