// Policies from files, as a host reads them.
#include "fastpath/policy.hpp"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <system_error>
#include <vector>

#include "fastpath/error.hpp"

namespace fastpath {
namespace {

namespace fs = std::filesystem;

class PolicyFile : public testing::Test {
 protected:
  PolicyFile() {
    std::string name = (fs::temp_directory_path() / "fastpath-policy-XXXXXX").string();
    folder = ::mkdtemp(name.data());
    file = folder / "policy.json";
  }
  ~PolicyFile() override {
    std::error_code error;
    fs::remove_all(folder, error);
  }
  std::shared_ptr<const AutoPolicy> load(const std::string& text) {
    std::ofstream(file, std::ios::binary) << text;
    return AutoPolicy::load(file);
  }
  /// The error of a file must have this code and text, which name the file too.
  void refuse(const std::string& text, const std::vector<std::string>& naming) {
    SCOPED_TRACE(text.substr(0, 100));
    std::ofstream(file, std::ios::binary) << text;
    refuse_file(file, ErrorCode::bad_file, naming);
  }
  static void refuse_file(const fs::path& path, ErrorCode code, const std::vector<std::string>& naming) {
    try {
      (void)AutoPolicy::load(path);
      ADD_FAILURE() << "expected an error";
    } catch (const Error& error) {
      const std::string what = error.what();
      EXPECT_EQ(error.code(), code) << what;
      EXPECT_EQ(what.rfind(path.string(), 0), 0u) << what;
      for (const std::string& name : naming) EXPECT_NE(what.find(name), std::string::npos) << name << " in: " << what;
      constexpr std::size_t kReadable = 600;
      EXPECT_LT(what.size(), path.string().size() + kReadable);
    }
  }

  fs::path folder, file;
};

TEST_F(PolicyFile, EveryMemberIsReadAndTablesKeepTheirOrder) {
  const auto policy = load(R"({
    "min_edges": {"Z first": 3, "A second": 1, "M third": 2},
    "min_edges_float64": {"H200": 0},
    "default_min_edges": 7,
    "default_min_edges_float64": 9,
    "preference": ["vendor*", "cpu_ref"],
    "thresholds_are_priors": true,
    "use_priors": false
  })");
  const AutoPolicy expected{.min_edges = {{"Z first", 3}, {"A second", 1}, {"M third", 2}},
                            .min_edges_float64 = {{"H200", 0}},
                            .default_min_edges = 7,
                            .default_min_edges_float64 = 9,
                            .preference = {"vendor*", "cpu_ref"},
                            .thresholds_are_priors = true,
                            .use_priors = false};
  EXPECT_EQ(*policy, expected);
}

TEST_F(PolicyFile, WhatItDoesNotNameIsAsInANewPolicy) { EXPECT_EQ(*load("{}"), AutoPolicy{}); }

TEST_F(PolicyFile, WhatIsNoJsonIsNamedWithItsPlace) {
  refuse("", {"not JSON"});
  refuse("{\"min_edges\": {\n\"A100\": }}", {"not JSON", "line 2"});
  refuse(std::string("{\"use_priors\": true}\0, ", 23), {"not JSON", "zero"});
  refuse("[1, 2]", {"is [1,2]", "expected an object"});
}

TEST_F(PolicyFile, AKeyThatIsUnknownIsNamedWithThoseThatAreNot) {
  refuse(R"({"min_edge": {"A100": 3}})", {"'min_edge'", "min_edges,", "use_priors"});
  // There is no version of a policy: what a later one may have is unknown to this library.
  refuse(R"({"format_version": 2, "min_edges": {}})", {"'format_version'"});
  refuse("{\"a\\u001b[31m\": 1}", {"'a\\x1b[31m'"});
}

TEST_F(PolicyFile, AKeyThatIsGivenTwiceIsNamed) {
  refuse(R"({"default_min_edges": 1, "default_min_edges": 2})", {"'default_min_edges'", "twice"});
  refuse(R"({"min_edges": {"A100": 1, "H100": 2, "A100": 3}})", {"'A100'", "twice"});
}

TEST_F(PolicyFile, AValueOfTheWrongKindIsNamedWithWhatWasExpected) {
  refuse(R"({"min_edges": [50000]})", {"min_edges is [50000]", "expected an object"});
  refuse(R"({"min_edges": {"A100": "many"}})", {"min_edges: 'A100' is 'many'", "expected a number of edges"});
  refuse(R"({"min_edges_float64": {"A100": -1}})", {"min_edges_float64: 'A100' is -1", "expected a number of edges"});
  refuse(R"({"min_edges": {"": 1}})", {"min_edges", "without a name"});
  refuse(R"({"default_min_edges": 1.5})", {"default_min_edges is 1.5", "expected a number of edges"});
  refuse(R"({"default_min_edges": 18446744073709551615})", {"default_min_edges is 18446744073709551615"});
  refuse(R"({"default_min_edges_float64": null})", {"default_min_edges_float64 is null"});
  refuse(R"({"preference": "cpu_ref"})", {"preference is 'cpu_ref'", "expected a list of globs"});
  refuse(R"({"preference": ["cpu_ref", 3]})", {"preference is", "expected a list of globs"});
  refuse(R"({"use_priors": 1})", {"use_priors is 1", "expected true or false"});
  refuse(R"({"thresholds_are_priors": "yes"})", {"thresholds_are_priors is 'yes'", "expected true or false"});
}

TEST_F(PolicyFile, NoFileIsTooDeepOrTooLongToBeRefused) {
  const std::string deep = std::string(500'000, '[') + std::string(500'000, ']');
  refuse("{\"min_edges\": " + deep + "}", {"nested more than"});
  refuse("{\"" + std::string(900'000, 'x') + "\": 1}", {"'xxxx", "..."});
  refuse("{\"preference\": \"" + std::string(2'000'000, 'x') + "\"}", {"bytes"});
}

TEST_F(PolicyFile, AFileThatIsNotThereIsNamed) {
  refuse_file(folder / "none.json", ErrorCode::not_found, {});
  refuse_file(folder, ErrorCode::io, {});
}

}  // namespace
}  // namespace fastpath
