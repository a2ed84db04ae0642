// What a run chose, kept to be chosen again.
#include "fastpath/lock.hpp"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <functional>

#include "fastpath/error.hpp"
#include "fastpath/measurement.hpp"

namespace fastpath {
namespace {

namespace fs = std::filesystem;

OpSpec scale(std::int64_t factor = 1) {
  return {"org.example.scale", 1, {{"factor", std::vector<std::int64_t>{factor}}}};
}

Selection chosen(const std::string& choice, std::int64_t min_edges, std::int64_t max_edges) {
  Decision decision{"layer.scale", scale().id, choice, {}, {}};
  decision.op_version = scale().version;
  decision.config = op_config(scale());
  decision.build = "of " + choice;
  Selection selection;
  selection.decisions = std::vector<Decision>{decision};
  selection.device = Device::cpu();
  selection.dtype = DType::float64;
  selection.passes = kPassesForces;
  selection.min_edges = min_edges;
  selection.max_edges = max_edges;
  return selection;
}

std::string error_of(ErrorCode code, const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

class Lock : public testing::Test {
 protected:
  Lock() {
    std::string name = (fs::temp_directory_path() / "fastpath-lock-XXXXXX").string();
    folder = ::mkdtemp(name.data());
  }
  ~Lock() override {
    std::error_code error;
    fs::remove_all(folder, error);
  }
  fs::path folder;
};

TEST_F(Lock, SaysAgainWhatWasChosenForTheSizesItHoldsFor) {
  SelectionLock made;
  made.add(chosen("reference", 0, 99));
  made.add(chosen("reference", 0, 99));
  made.add(chosen("fake", 100, 500));
  ASSERT_EQ(made.choices().size(), 2u);
  EXPECT_EQ(made.choices()[0].build, "") << "the reference comes with the library";
  made.save(folder / "run.lock");
  const SelectionLock lock = SelectionLock::load(folder / "run.lock");
  EXPECT_EQ(lock.choices(), made.choices());
  std::string why;
  const auto find = [&](std::int64_t edges) {
    return lock.find("layer.scale", scale(), Device::cpu(), DType::float64, kPassesForces, edges, why);
  };
  EXPECT_EQ(find(99)->choice, "reference");
  EXPECT_EQ(find(100)->choice, "fake");
  EXPECT_EQ(find(500)->build, "of fake");
  EXPECT_EQ(find(501), nullptr);
  EXPECT_NE(why.find("100 to 500"), std::string::npos) << why;
}

TEST_F(Lock, NamesWhatDiffersFromTheNearestChoice) {
  SelectionLock lock;
  lock.add(chosen("fake", 0, 500));
  const auto why = [&](const std::string& module, const OpSpec& op, DType dtype, Passes passes) {
    std::string text;
    EXPECT_EQ(lock.find(module, op, Device::cpu(), dtype, passes, 1, text), nullptr);
    return text;
  };
  EXPECT_NE(why("other", scale(), DType::float64, kPassesForces).find("other"), std::string::npos);
  EXPECT_NE(why("layer.scale", scale(2), DType::float64, kPassesForces).find(op_config(scale(2))), std::string::npos);
  EXPECT_NE(why("layer.scale", scale(), DType::float32, kPassesForces).find("float32"), std::string::npos);
  EXPECT_NE(why("layer.scale", scale(), DType::float64, kPassesEnergy).find("backward"), std::string::npos);
}

TEST_F(Lock, CannotSayTwoThingsForOneSize) {
  SelectionLock lock;
  lock.add(chosen("fake", 0, 500));
  const std::string text = error_of(ErrorCode::invalid_argument, [&] { lock.add(chosen("reference", 400, 600)); });
  EXPECT_NE(text.find("layer.scale"), std::string::npos) << text;
  EXPECT_NE(text.find("400 to 600"), std::string::npos) << text;
}

TEST_F(Lock, AFileThatIsNoneIsNamedWithWhatWasExpected) {
  const auto load = [&](const std::string& text) {
    std::ofstream(folder / "bad.lock") << text;
    return error_of(ErrorCode::bad_file, [&] { SelectionLock::load(folder / "bad.lock"); });
  };
  for (const char* text :
       {"", "[]", "{}", "{\"fastpath_lock\": 2, \"choices\": []}",
        "{\"fastpath_lock\": 1, \"choices\": [{\"module\": 3}]}", "{\"fastpath_lock\": 1, \"choices\": 5}"}) {
    EXPECT_NE(load(text).find("bad.lock"), std::string::npos) << text;
  }
  const std::string deep = std::string(500'000, '[') + std::string(500'000, ']');
  EXPECT_NE(load("{\"fastpath_lock\": " + deep + ", \"choices\": []}").find("nested"), std::string::npos);
  EXPECT_NE(load("{\"fastpath_lock\": 1, \"fastpath_lock\": 1, \"choices\": []}").find("twice"), std::string::npos);
  error_of(ErrorCode::not_found, [&] { SelectionLock::load(folder / "none.lock"); });
}

}  // namespace
}  // namespace fastpath
