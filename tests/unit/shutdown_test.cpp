// Who may call a plugin, and until when.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "fastpath/compile.hpp"
#include "fastpath/error.hpp"
#include "fastpath/extxyz.hpp"
#include "fastpath/model.hpp"
#include "plugin/life.hpp"
#include "plugin/offline.hpp"
#include "plugin/plugin.hpp"

namespace fastpath::plugin {
namespace {

TEST(Life, EndsOnlyAfterTheLastLeaseWasLetGo) {
  Life life;
  bool alive = true;  // no atomic: who reads it holds a lease
  std::atomic<int> granted{0}, wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (;;) {
        const Lease lease(life);
        if (!lease) return;
        if (!alive) ++wrong;
        ++granted;
      }
    });
  }
  while (granted < 1000) std::this_thread::yield();
  EXPECT_FALSE(life.ending());
  life.begin_end();
  life.await_end();
  alive = false;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(life.ending());
}

TEST(Life, GrantsNothingOnceItsEndHasBegunButToThoseWhoHoldALease) {
  Life life;
  const std::uint64_t generation = shutdown_generation();
  {
    Lease first(life);
    EXPECT_TRUE(first);
    life.begin_end();
    EXPECT_TRUE(Lease(life));  // within the first
    EXPECT_TRUE(first.add(life));
    std::thread([&] { EXPECT_FALSE(Lease(life)); }).join();
  }
  life.await_end();  // at once: nobody holds one
  EXPECT_FALSE(Lease(life));
  life.begin_end();
  EXPECT_EQ(shutdown_generation(), generation + 1);
}

TEST(Life, IsHeldTogetherWithAsManyOthersAsThereAre) {
  std::vector<Life> lives(20);
  {
    Lease lease;
    for (Life& life : lives) EXPECT_TRUE(lease.add(life));
    for (Life& life : lives) life.begin_end();
    for (Life& life : lives) EXPECT_TRUE(lease.add(life));
    EXPECT_TRUE(Lease::held());
    lease.clear();
    EXPECT_FALSE(Lease::held());
    EXPECT_FALSE(lease.add(lives.back()));
    EXPECT_FALSE(lease);
  }
  for (Life& life : lives) life.await_end();
}

RegistryOptions fake_device() {
  RegistryOptions options;
  options.search_paths = {FASTPATH_TEST_PLUGINS};
  options.default_paths = false;
  options.enable = {"fake_device"};
  options.use_cache = false;
  options.probe = ProbeMode::in_process;
  return options;
}

TEST(Shutdown, FromWithinAnEvaluationOrACallIsRefused) {
  PluginRegistry registry(fake_device());
  const auto plugins = registry.impl().usable(DeviceKind::extension);
  ASSERT_EQ(plugins.size(), 1u);
  {
    const Lease lease(plugins[0]->ending()->life());
    try {
      registry.shutdown();
      ADD_FAILURE() << "it was not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.what(), ::testing::HasSubstr("from within an evaluation"));
    }
    EXPECT_FALSE(plugins[0]->ended());
  }
  EXPECT_EQ(registry.shutdown().size(), 1u);
  EXPECT_TRUE(plugins[0]->ended());
}

TEST(Shutdown, WaitsForEvaluationsOfOtherThreadsWhichThenGetTheReference) {
  const std::string data = FASTPATH_TEST_DATA "/refdata/mace_a/";
  Context context({.registry = fake_device()});
  const auto model = Model::load(data + "model");
  const Structure structure = read_extxyz(data + "sparse.xyz").front();
  EvaluateOptions options;
  options.use_fast = UseFast::never;
  const double reference = model->evaluate(structure, options).energy;
  options = {};
  options.context = &context;
  options.device = parse_device("ext:0");
  options.use_fast = UseFast::always;
  options.threads = 1;
  ASSERT_TRUE(model->evaluate(structure, options).selection);

  constexpr int kThreads = 2;
  std::atomic<int> fast{0}, ended{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, mine = model->replica()] {
      for (;;) {
        const EvaluationResult result = mine->evaluate(structure, options);
        EXPECT_LE(std::abs(result.energy - reference), 1e-12 * std::abs(reference));
        // All of it by one path: what was begun on the device ends there.
        if (!result.selection) {
          EXPECT_EQ(result.selection.decisions[0].reason.code, ReasonCode::shut_down);
          break;
        }
        ++fast;
      }
      ++ended;
    });
  }
  while (fast < 2 * kThreads) std::this_thread::yield();
  EXPECT_EQ(context.registry().shutdown().size(), 1u);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ended, kThreads);
}

/// A plugin in the test itself that "compiles", and the registry that has it.
class Compiling : public LoadedPlugin, public Ending {
 public:
  const PluginInfo& info() const noexcept override { return info_; }
  const DeviceInfo* find_device(const Device&) const noexcept override { return nullptr; }
  Support query(const OpSpec&, const DeviceInfo&, DType, Passes, KernelTraits*) override { return {}; }
  std::shared_ptr<OpenDevice> open(const DeviceInfo&) override { return nullptr; }
  Ending* ending() noexcept override { return this; }
  Life& life() noexcept override { return life_; }
  bool owns_memory() const noexcept override { return true; }
  std::uint64_t order() const noexcept override { return 0; }
  bool forked() const noexcept override { return false; }
  void destroy_kernels() noexcept override {}
  void close_devices() noexcept override {}
  bool call_shutdown(std::string&) noexcept override { return true; }

  std::shared_ptr<OfflineCompiler> compiler() {
    static fp_compile_api api = [] {
      static constexpr std::string_view kId = FP_COMPILE_ID;
      fp_compile_api result{};
      result.extension = {FP_SIZE_COMPILE_API, 0, kId.data(), kId.size(), nullptr};
      result.device_type = FP_DEVICE_CUDA;
      result.serves = [](void*, const char*, std::uint64_t) -> std::int32_t { return 1; };
      result.compile = [](void*, const fp_compile_args*) -> std::int32_t {
        ++(Lease::held() ? held : free);
        return FP_OK;
      };
      return result;
    }();
    PluginTables tables;
    tables.id = "compiling";
    tables.plugin.extensions = &api.extension;
    tables.kernels.query = [](const fp_plugin*, const fp_kernel_query*, fp_kernel_answer* answer,
                              const fp_error_sink*) -> std::int32_t {
      answer->verdict = FP_ANSWER_YES;
      answer->math_mode = FP_MATH_FULL;
      return FP_OK;
    };
    auto result = OfflineCompiler::of(tables);
    if (result) result->belongs_to(*this);
    return result;
  }
  static inline int held = 0, free = 0;  // calls while the plugin could not be shut down, and while it could

 private:
  PluginInfo info_;
  Life life_;
};
class CompilingRegistry : public PluginRegistry::Impl {
 public:
  explicit CompilingRegistry(std::shared_ptr<OfflineCompiler> compiler) : compiler_(std::move(compiler)) {}
  std::vector<SearchDirectory> search_path() const override { return {}; }
  std::vector<PluginInfo> plugins() override { return {}; }
  std::vector<PluginInfo> known() override { return {}; }
  std::vector<std::shared_ptr<LoadedPlugin>> usable(DeviceKind) override { return {}; }
  std::vector<std::shared_ptr<OfflineCompiler>> compilers() override { return {compiler_}; }

 private:
  std::shared_ptr<OfflineCompiler> compiler_;
};

TEST(Shutdown, WaitsForAPluginThatCompiles) {
  Compiling plugin;
  const auto compiler = plugin.compiler();
  ASSERT_NE(compiler, nullptr);
  Context context({.shared_registry = std::make_shared<PluginRegistry>(std::make_unique<CompilingRegistry>(compiler))});
  const auto model = Model::load(FASTPATH_TEST_DATA "/refdata/mace_a/model");
  CompileOptions options;
  options.archs = {"sm_90"};
  options.context = &context;
  options.on_step = [](std::size_t, std::size_t) { EXPECT_THROW(refuse_shutdown_from_within(), Error); };
  const auto compiled = compile(*model, options);
  EXPECT_EQ(compiled.size(), fast_modules(*model).size() + model->small_ops().size());
  EXPECT_EQ(Compiling::held, static_cast<int>(compiled.size()));
  EXPECT_EQ(Compiling::free, 0);
  plugin.life().begin_end();
  plugin.life().await_end();
  try {
    compile(*model, options);
    ADD_FAILURE() << "a plugin that was shut down compiled";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("shut down"));
  }
  EXPECT_EQ(Compiling::held, static_cast<int>(compiled.size()));
}

}  // namespace
}  // namespace fastpath::plugin
