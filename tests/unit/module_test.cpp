#include "fastpath/module.hpp"

#include <gmock/gmock.h>

#include "fastpath/error.hpp"

namespace fastpath {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class Probe : public Module {
 public:
  int changes = 0;

 protected:
  void on_change() override { ++changes; }
};

std::vector<std::string> names(const std::vector<StateDict::Entry>& entries) {
  std::vector<std::string> result;
  for (const auto& [name, tensor] : entries) result.push_back(name);
  return result;
}

std::vector<std::string> names(const StateDict& state) { return names({state.begin(), state.end()}); }

std::string error_text(const std::function<void()>& action, ErrorCode code) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

/// root {p, buffer b, child left {w.weight}, child right = left}
struct Tree {
  Probe root;
  std::shared_ptr<Probe> left = std::make_shared<Probe>();
  Tree() {
    root.register_parameter("p", Tensor::from<double>({2}, {1, 2}));
    root.register_buffer("b", Tensor::from<std::int64_t>({1}, {7}));
    left->register_parameter("w.weight", Tensor::from<float>({2, 1}, {3, 4}));
    root.register_child("left", left);
  }
};

TEST(StateDict, KeepsInsertionOrderAndFindsByName) {
  StateDict state;
  for (const char* name : {"c", "a", "b"}) state.add(name, Tensor::scalar(1.0));
  EXPECT_THAT(names(state), ElementsAre("c", "a", "b"));
  EXPECT_TRUE(state.contains("b"));
  EXPECT_FALSE(state.contains("bb"));
  EXPECT_FALSE(state.contains(""));
  EXPECT_THAT(error_text([&] { state.at("zeta"); }, ErrorCode::not_found), HasSubstr("'zeta'"));
}

TEST(StateDict, RefusesATakenNameAndStaysAsItWas) {
  StateDict state;
  state.add("a", Tensor::scalar(1.0));
  EXPECT_THAT(error_text([&] { state.add("a", Tensor::scalar(2.0)); }, ErrorCode::invalid_argument), HasSubstr("'a'"));
  EXPECT_EQ(state.size(), 1u);
  EXPECT_EQ(state.at("a").item(), 1.0);
}

TEST(Module, NamesMembersByDottedPathInDefinitionOrder) {
  Tree tree;
  EXPECT_THAT(names(tree.root.named_parameters()), ElementsAre("p", "left.w.weight"));
  EXPECT_THAT(names(tree.root.named_buffers()), ElementsAre("b"));
  EXPECT_THAT(names(tree.root.state_dict()), ElementsAre("p", "b", "left.w.weight"));
  EXPECT_EQ(tree.root.parameter_count(), 4);
}

TEST(Module, ListsASharedModuleOnceUnderItsFirstName) {
  Tree tree;
  tree.root.register_child("right", tree.left);
  const auto modules = tree.root.named_modules();
  ASSERT_EQ(modules.size(), 2u);
  EXPECT_EQ(modules[0].first, "");
  EXPECT_EQ(modules[1].first, "left");
  EXPECT_EQ(modules[1].second, tree.left.get());
  EXPECT_EQ(tree.root.parameter_count(), 4);
  EXPECT_THAT(names(tree.root.state_dict()), ElementsAre("p", "b", "left.w.weight"));
}

TEST(Module, StateDictSharesStorage) {
  Tree tree;
  EXPECT_TRUE(tree.root.state_dict().at("p").shares_storage(tree.root.parameter("p")));
}

TEST(Module, RefusesNamesThatWouldBeAmbiguous) {
  Tree tree;
  const auto code = ErrorCode::invalid_argument;
  EXPECT_THAT(error_text([&] { tree.root.register_parameter("", Tensor::scalar(1.0)); }, code), HasSubstr("name"));
  EXPECT_THAT(error_text([&] { tree.root.register_parameter("b", Tensor::scalar(1.0)); }, code), HasSubstr("'b'"));
  EXPECT_THAT(error_text([&] { tree.root.register_buffer("left", Tensor::scalar(1.0)); }, code), HasSubstr("'left'"));
  EXPECT_THAT(error_text([&] { tree.root.register_child("p", std::make_shared<Module>()); }, code), HasSubstr("'p'"));
  EXPECT_THAT(error_text([&] { tree.root.register_child("x.y", std::make_shared<Module>()); }, code), HasSubstr("'.'"));
  EXPECT_THAT(error_text([&] { tree.root.register_child("n", nullptr); }, code), HasSubstr("null"));
  EXPECT_THAT(error_text([&] { tree.root.register_parameter("u", Tensor()); }, code), HasSubstr("undefined"));
}

TEST(Module, RefusesToBecomeItsOwnDescendant) {
  const auto outer = std::make_shared<Module>();
  const auto inner = std::make_shared<Module>();
  outer->register_child("inner", inner);
  EXPECT_THROW(inner->register_child("outer", outer), Error);
  EXPECT_THROW(inner->register_child("self", inner), Error);
}

TEST(Module, NamesAMissingMember) {
  Tree tree;
  EXPECT_THAT(error_text([&] { tree.root.parameter("q"); }, ErrorCode::not_found), HasSubstr("'q'"));
  EXPECT_THAT(error_text([&] { tree.root.buffer("p"); }, ErrorCode::not_found), HasSubstr("'p'"));
}

TEST(Module, LoadsAndConvertsFloatingDtypes) {
  Tree tree;
  StateDict state;
  state.add("left.w.weight", Tensor::from<double>({2, 1}, {0.5, 0.25}));
  state.add("b", Tensor::from<std::int32_t>({1}, {9}));
  state.add("p", Tensor::from<float>({2}, {8, 16}));
  tree.root.load_state_dict(state);
  EXPECT_EQ(tree.root.parameter("p").dtype(), DType::float64);
  EXPECT_EQ(tree.root.parameter("p").span<double>()[1], 16.0);
  EXPECT_EQ(tree.root.buffer("b").span<std::int64_t>()[0], 9);
  EXPECT_EQ(tree.left->parameter("w.weight").span<float>()[1], 0.25f);
}

TEST(Module, StrictLoadListsEveryProblemAndChangesNothing) {
  Tree tree;
  StateDict state;
  state.add("p", Tensor::from<double>({2}, {-1, -1}));
  state.add("b", Tensor::from<double>({1}, {1}));
  state.add("left.w.weight", Tensor::from<float>({3}, {0, 0, 0}));
  state.add("extra.one", Tensor::scalar(1.0));
  state.add("extra.two", Tensor::scalar(1.0));
  const std::string text = error_text([&] { tree.root.load_state_dict(state); }, ErrorCode::invalid_argument);
  EXPECT_THAT(text, AllOf(HasSubstr("unexpected: extra.one, extra.two"), HasSubstr("b is float64, expected int64"),
                          HasSubstr("left.w.weight has shape [3], expected [2, 1]")));
  EXPECT_THAT(text, Not(HasSubstr("missing")));
  EXPECT_THAT(error_text([&] { tree.root.load_state_dict({}); }, ErrorCode::invalid_argument),
              HasSubstr("missing: p, b, left.w.weight"));
  EXPECT_EQ(tree.root.parameter("p").span<double>()[0], 1.0);
  EXPECT_EQ(tree.root.changes, 0);
}

TEST(Module, LenientLoadTakesWhatIsThereButStillChecksIt) {
  Tree tree;
  StateDict state;
  state.add("p", Tensor::from<double>({2}, {5, 6}));
  state.add("unknown", Tensor::scalar(1.0));
  tree.root.load_state_dict(state, Strictness::lenient);
  EXPECT_EQ(tree.root.parameter("p").span<double>()[0], 5.0);
  EXPECT_EQ(tree.root.changes, 1);
  EXPECT_EQ(tree.left->changes, 0);
  StateDict wrong;
  wrong.add("p", Tensor::from<double>({3}, {1, 2, 3}));
  EXPECT_THROW(tree.root.load_state_dict(wrong, Strictness::lenient), Error);
  StateDict undefined;
  undefined.add("p", Tensor());
  EXPECT_THROW(tree.root.load_state_dict(undefined, Strictness::lenient), Error);
}

TEST(Module, RefusesIntegersThatDoNotFit) {
  Module module;
  module.register_buffer("n", Tensor::from<std::int32_t>({1}, {1}));
  StateDict state;
  state.add("n", Tensor::from<std::int64_t>({1}, {std::int64_t{1} << 40}));
  EXPECT_THAT(error_text([&] { module.load_state_dict(state); }, ErrorCode::invalid_argument), HasSubstr("range"));
  EXPECT_EQ(module.buffer("n").item(), 1.0);
}

TEST(Module, ExchangesParametersThroughTheirOwnStorage) {
  Module module;
  module.register_parameter("a", Tensor::from<double>({2}, {1, 2}));
  module.register_parameter("b", Tensor::from<double>({2}, {3, 4}));
  StateDict state;
  state.add("a", module.parameter("b"));
  state.add("b", module.parameter("a"));
  module.load_state_dict(state);
  EXPECT_EQ(module.parameter("a").span<double>()[0], 3.0);
  EXPECT_EQ(module.parameter("b").span<double>()[0], 1.0);
}

TEST(Module, LoadAndTouchAdvanceTheVersionAndNotify) {
  Tree tree;
  const std::uint64_t root = tree.root.version();
  const std::uint64_t left = tree.left->version();
  tree.root.load_state_dict(tree.root.state_dict());
  EXPECT_GT(tree.root.version(), root);
  EXPECT_GT(tree.left->version(), left);
  EXPECT_EQ(tree.left->changes, 1);
  tree.left->touch();
  EXPECT_EQ(tree.left->changes, 2);
  EXPECT_EQ(tree.root.changes, 1);
}

}  // namespace
}  // namespace fastpath
