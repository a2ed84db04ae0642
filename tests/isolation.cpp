// What is known of the machine of whoever runs the tests must not change what they see, also where a test is started by
// hand: measurements of the user, of the system and of the current directory, and what trying plugins and kernels
// found.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

namespace {

class Isolation : public testing::Environment {
 public:
  void SetUp() override {
    const std::filesystem::path folder = FASTPATH_TEST_FOLDER;
    // These are not there.
    ::setenv("FASTPATH_MEASUREMENTS", (folder / "no_measurements").c_str(), 1);
    ::setenv("FASTPATH_SYSTEM_MEASUREMENTS", (folder / "no_measurements/of_the_system").c_str(), 1);
    ::setenv("FASTPATH_CACHE_DIR", (folder / "cache").c_str(), 1);
    std::filesystem::current_path(folder);
  }
};

const testing::Environment* const kIsolation = testing::AddGlobalTestEnvironment(new Isolation);

}  // namespace
