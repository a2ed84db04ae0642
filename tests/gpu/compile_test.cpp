#include <gmock/gmock.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "code_object.hpp"
#include "cuda_backend.hpp"
#include "fastpath/fast_path.hpp"
#include "fastpath/model.hpp"
#include "fastpath/sdk/error.hpp"
#include "generator/op.hpp"
#include "hip_backend.hpp"

namespace fastpath_gpu::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;

std::unique_ptr<Backend> backend_of(Language language) {
  if (language == Language::cuda) return std::make_unique<fastpath_cuda::CudaBackend>();
  return std::make_unique<fastpath_hip::HipBackend>();
}

/// Layers of MACE models (operators.md 5.1).
struct Shapes {
  const char* name;
  int channels;
  int hidden_l;
};
constexpr Shapes kMedium{"medium", 128, 1}, kOdd{"odd", 7, 1};

std::shared_ptr<fastpath::Model> model_of(const Shapes& shapes) {
  std::string hidden;
  for (int l = 0; l <= shapes.hidden_l; ++l) {
    hidden +=
        (l == 0 ? "" : "+") + std::to_string(shapes.channels) + "x" + std::to_string(l) + (l % 2 == 0 ? "e" : "o");
  }
  const nlohmann::json config{{"format", "fastpath-model"},
                              {"format_version", 1},
                              {"architecture", "mace"},
                              {"dtype", "float32"},
                              {"atomic_numbers", {1, 8, 14}},
                              {"r_max", 6.0},
                              {"num_bessel", 8},
                              {"polynomial_cutoff_p", 5},
                              {"radial_mlp", {64, 64, 64}},
                              {"l_max", 3},
                              {"hidden_irreps", hidden},
                              {"num_interactions", 2},
                              {"correlation", 3},
                              {"interaction_first", "RealAgnosticInteractionBlock"},
                              {"interaction", "RealAgnosticResidualInteractionBlock"},
                              {"mlp_irreps", "16x0e"},
                              {"avg_num_neighbors", 30.0}};
  return fastpath::Model::create(config.dump(), 1);
}

/// The programs of a model's modules, each source once.
std::vector<Program> programs_of(const Shapes& shapes, const Target& target, fastpath::DType dtype) {
  const auto model = model_of(shapes);
  const sdk::DType real = dtype == fastpath::DType::float32 ? sdk::kFloat32 : sdk::kFloat64;
  std::vector<Program> programs;
  std::set<std::string> known;
  std::vector<fastpath::NamedFastModule> modules = fastpath::fast_modules(*model);
  modules.insert(modules.end(), model->small_ops().begin(), model->small_ops().end());
  for (const fastpath::NamedFastModule& entry : modules) {
    const fastpath::OpSpec& spec = entry.module->op();
    for (const OpFactory& factory : all_ops()) {
      if (factory.id != spec.id) continue;
      const std::unique_ptr<Op> op = factory.create(sdk::Attributes(spec.config));
      std::vector<std::vector<double>> constants;
      for (const std::size_t index : op->constants()) {
        const fastpath::Tensor& tensor = entry.module->op_parameters(dtype).at(index);
        std::vector<double>& values = constants.emplace_back();
        for (std::int64_t i = 0; i < tensor.numel(); ++i) {
          values.push_back(dtype == fastpath::DType::float32 ? double{tensor.data<float>()[i]}
                                                             : tensor.data<double>()[i]);
        }
      }
      if (!constants.empty()) op->set_constants(constants);
      Program program = op->generate(target, real, FP_PASS_FORWARD | FP_PASS_BACKWARD);
      if (known.insert(program.source).second) programs.push_back(std::move(program));
    }
  }
  return programs;
}

struct Case {
  Language language;
  const char* arch;
};
/// Skips where the compiler's library is not installed.
void skip_without_compiler(Backend& backend, const Target& target) {
  if (!backend.compiler(target).empty()) return;
  try {
    backend.compile({}, target);
  } catch (const sdk::Unavailable& reason) {
    GTEST_SKIP() << reason.what();
  }
}

class GpuCompiler : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    backend_ = backend_of(GetParam().language);
    target_ = Target::of(GetParam().language, GetParam().arch);
    skip_without_compiler(*backend_, target_);
  }

  std::unique_ptr<Backend> backend_;
  Target target_;
};

/// A model's shapes for one dtype and architecture. Compiling takes long, so not every combination is there.
struct ModelCase {
  Case where;
  Shapes shapes;
  fastpath::DType dtype;
};
class GpuCompilerOnModels : public ::testing::TestWithParam<ModelCase> {
 protected:
  void SetUp() override {
    backend_ = backend_of(GetParam().where.language);
    target_ = Target::of(GetParam().where.language, GetParam().where.arch);
    skip_without_compiler(*backend_, target_);
  }
  /// Compiles everything of a model and returns what does not fit in registers, by kernel.
  std::map<std::string, std::int64_t> compile(const Shapes& shapes, fastpath::DType dtype) {
    std::map<std::string, std::int64_t> spills;
    const std::vector<Program> programs = programs_of(shapes, target_, dtype);
    EXPECT_THAT(programs, Not(IsEmpty()));
    for (const Program& program : programs) {
      Binary binary;
      try {
        binary = backend_->compile(program, target_);
      } catch (const sdk::Refused& refused) {
        ADD_FAILURE() << shapes.name << ", " << program.kernels.at(0).name << ": " << refused.what();
        continue;
      }
      EXPECT_EQ(binary.resources.size(), program.kernels.size());
      for (const KernelInfo& kernel : program.kernels) compiled_.insert(kernel.name);
      for (const KernelResources& kernel : binary.resources) {
        EXPECT_GT(kernel.registers, 0) << kernel.kernel;
        EXPECT_GE(kernel.shared_bytes, 0) << kernel.kernel;
        EXPECT_GE(kernel.spill_bytes, 0) << kernel.kernel;
        EXPECT_GT(kernel.code_bytes, 0) << kernel.kernel;
        if (kernel.spill_bytes > 0) spills[kernel.kernel] = kernel.spill_bytes;
      }
    }
    return spills;
  }

  std::unique_ptr<Backend> backend_;
  Target target_;
  std::set<std::string> compiled_;  ///< Names of kernels.
};

TEST_P(GpuCompilerOnModels, CompilesEverySourceOfTheModel) {
  const auto spills = compile(GetParam().shapes, GetParam().dtype);
  EXPECT_THAT(compiled_, IsSupersetOf({"message_step_forward_0", "message_step_grad_x_0", "message_step_edges",
                                       "message_step_grad_last", "conv_tensor_product_forward_0"}));
  // What a kernel keeps must fit in registers: memory in its place costs what was gained by keeping it.
  const bool promised = GetParam().shapes.channels == kMedium.channels &&
                        GetParam().shapes.hidden_l == kMedium.hidden_l && GetParam().dtype == fastpath::DType::float32;
  if (promised) {
    EXPECT_THAT(spills, IsEmpty());
  }
}

constexpr Case kSm80{Language::cuda, "sm_80"}, kSm90{Language::cuda, "sm_90"}, kGfx90a{Language::hip, "gfx90a"},
    kGfx1030{Language::hip, "gfx1030"};
INSTANTIATE_TEST_SUITE_P(Models, GpuCompilerOnModels,
                         ::testing::Values(ModelCase{kSm80, kMedium, fastpath::DType::float32},
                                           ModelCase{kSm90, kMedium, fastpath::DType::float32},
                                           ModelCase{kSm80, kOdd, fastpath::DType::float64},
                                           ModelCase{kGfx90a, kMedium, fastpath::DType::float32},
                                           ModelCase{kGfx1030, kMedium, fastpath::DType::float32},
                                           ModelCase{kGfx1030, kOdd, fastpath::DType::float64}),
                         [](const auto& instance) {
                           const ModelCase& model = instance.param;
                           return std::string(model.shapes.name) +
                                  (model.dtype == fastpath::DType::float32 ? "_float32_" : "_float64_") +
                                  model.where.arch;
                         });

/// What `action` throws as T; empty and a failure if it does not.
template <class T, class Action>
std::string thrown(Action action) {
  try {
    action();
  } catch (const T& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

TEST_P(GpuCompiler, SaysInTheCompilersWordsWhatIsWrong) {
  Program program;
  program.source = "extern \"C\" __global__ void broken() { no_such_thing(); }";
  EXPECT_THAT(thrown<sdk::Refused>([&] { backend_->compile(program, target_); }),
              AllOf(HasSubstr("does not compile"), HasSubstr("no_such_thing")));
}
TEST_P(GpuCompiler, RefusesAnArchitectureThatItDoesNotKnow) {
  Target target = target_;
  target.arch = GetParam().language == Language::cuda ? "sm_999" : "gfx999";
  Program program;
  program.source = "extern \"C\" __global__ void nothing() {}";
  thrown<sdk::Refused>([&] { backend_->compile(program, target); });
}
TEST_P(GpuCompiler, ReadsNothingPastAnImageThatIsCutShort) {
  Program program;
  program.source = "extern \"C\" __global__ void __launch_bounds__(64) one(float* x) { x[threadIdx.x] *= 2.0f; }";
  program.kernels = {{"one", 64, 0, {true}}};
  const Binary binary = backend_->compile(program, target_);
  ASSERT_EQ(binary.resources.size(), 1u);
  EXPECT_GT(binary.resources[0].code_bytes, 0);
  for (std::size_t size = 0; size < binary.code.size(); size += 7) {
    std::vector<std::uint8_t> part(binary.code.begin(), binary.code.begin() + static_cast<std::ptrdiff_t>(size));
    const auto resources = GetParam().language == Language::cuda ? fastpath_cuda::resources_of(program, part, "")
                                                                 : fastpath_hip::resources_of(program, part);
    ASSERT_EQ(resources.size(), 1u);
  }
}
TEST_P(GpuCompiler, NamesItselfWithItsOptions) {
  EXPECT_THAT(backend_->compiler(target_), AllOf(HasSubstr("RTC "), HasSubstr(GetParam().arch)));
}

INSTANTIATE_TEST_SUITE_P(Archs, GpuCompiler, ::testing::Values(kSm80, kSm90, kGfx90a, kGfx1030),
                         [](const auto& instance) { return std::string(instance.param.arch); });

TEST(GpuCompilerLibrary, IsNamedWhereItIsMissing) {
  fastpath_cuda::CudaBackend cuda({{"libcuda.so.1"}, {"libno_such_nvrtc.so"}});
  fastpath_hip::HipBackend hip({{"libamdhip64.so"}, {"libno_such_hiprtc.so"}, {}});
  const Target sm = Target::of(Language::cuda, "sm_80"), gfx = Target::of(Language::hip, "gfx90a");
  EXPECT_EQ(cuda.compiler(sm), "");
  EXPECT_EQ(hip.compiler(gfx), "");
  EXPECT_THAT(thrown<sdk::Unavailable>([&] { cuda.compile({}, sm); }),
              AllOf(HasSubstr("NVRTC"), HasSubstr("libno_such_nvrtc.so")));
  EXPECT_THAT(thrown<sdk::Unavailable>([&] { hip.compile({}, gfx); }),
              AllOf(HasSubstr("hipRTC"), HasSubstr("libno_such_hiprtc.so")));
}

TEST(GpuCompilerReport, IsReadForEachKernel) {
  Program program;
  program.kernels = {{"one", 64, 0, {}}, {"two", 64, 0, {}}, {"three", 64, 0, {}}};
  const std::string log =
      "ptxas info    : Compiling entry function 'two' for 'sm_80'\n"
      "ptxas info    : Function properties for two\n"
      "    512 bytes stack frame, 8 bytes spill stores, 24 bytes spill loads\n"
      "ptxas info    : Used 32 registers, 512 bytes cumulative stack size, 360 bytes cmem[0]\n"
      "ptxas info    : Compiling entry function 'one' for 'sm_80'\n"
      "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
      "ptxas info    : Used 24 registers, used 1 barriers, 256 bytes smem, 384 bytes cmem[0]\n";
  const auto resources = fastpath_cuda::resources_of(program, {}, log);
  ASSERT_EQ(resources.size(), 3u);
  EXPECT_EQ(resources[0].registers, 24);
  EXPECT_EQ(resources[0].shared_bytes, 256);
  EXPECT_EQ(resources[0].spill_bytes, 0);
  EXPECT_EQ(resources[1].registers, 32);
  EXPECT_EQ(resources[1].shared_bytes, 0);
  EXPECT_EQ(resources[1].spill_bytes, 24);
  EXPECT_EQ(resources[2].registers, -1);
}

}  // namespace
}  // namespace fastpath_gpu::test
