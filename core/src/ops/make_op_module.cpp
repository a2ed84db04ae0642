#include "ops/make_op_module.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>

#include "fastpath/error.hpp"
#include "fastpath/sdk/attributes.hpp"
#include "ops/conv_tensor_product/module.hpp"
#include "ops/irreps_linear/module.hpp"
#include "ops/message_step/module.hpp"
#include "ops/pointwise/module.hpp"
#include "ops/radial_basis/covalent_radii.hpp"
#include "ops/radial_basis/module.hpp"
#include "ops/radial_mlp/module.hpp"
#include "ops/species_linear/module.hpp"
#include "ops/spherical_harmonics/module.hpp"
#include "ops/symmetric_contraction/basis.hpp"
#include "ops/symmetric_contraction/module.hpp"

namespace fastpath::ops {
namespace {

std::unique_ptr<RadialBasisModule> make_radial_basis(const sdk::RadialBasisConfig& config) {
  const auto n_species = static_cast<std::int64_t>(config.species_radii.size());
  if (n_species >= kCovalentRadiiSize) {
    throw Error(ErrorCode::unsupported, fmt::format("radial_basis: {} species, at most {} have a place in its table",
                                                    n_species, kCovalentRadiiSize - 1));
  }
  std::vector<std::int32_t> atomic_numbers(static_cast<std::size_t>(n_species));
  std::iota(atomic_numbers.begin(), atomic_numbers.end(), 1);
  auto module = std::make_unique<RadialBasisModule>(config, atomic_numbers);
  module->buffer("bessel_fn.prefactor").data<double>()[0] = config.prefactor;
  if (!config.frequencies.empty()) {
    std::copy(config.frequencies.begin(), config.frequencies.end(),
              module->buffer("bessel_fn.bessel_weights").data<double>());
  }
  if (config.transform != sdk::DistanceTransform::none) {
    double* table = module->buffer("distance_transform.covalent_radii").data<double>();
    std::copy(config.species_radii.begin(), config.species_radii.end(), table + 1);
  }
  module->touch();
  return module;
}

std::unique_ptr<OpModule> radial_basis(const sdk::RadialBasisConfig& config) { return make_radial_basis(config); }

std::unique_ptr<OpModule> message_step(const sdk::MessageStepConfig& config) {
  MessageStepModule::Parts parts{std::make_shared<SphericalHarmonicsModule>(config.harmonics),
                                 make_radial_basis(config.radial), std::make_shared<RadialMlpModule>(config.mlp),
                                 std::make_shared<ConvTensorProductModule>(config.conv)};
  auto module = std::make_unique<MessageStepModule>(parts);
  module->register_child("spherical_harmonics", parts.harmonics);
  module->register_child("radial_embedding", parts.radial);
  module->register_child("conv_tp_weights", parts.net);
  module->register_child("conv_tp", parts.conv);
  return module;
}

/// K couplings of `nu` copies of x to degree `target`, [2 target + 1, dim^nu, K].
Tensor couplings(const sdk::SymmetricContractionConfig& config, int target, int nu, std::int64_t k) {
  const auto l_max = static_cast<std::int64_t>(std::llround(std::sqrt(static_cast<double>(config.dim)))) - 1;
  std::int64_t volume = 2 * target + 1;
  for (int i = 0; i < nu; ++i) volume *= config.dim;
  std::vector<double> full;
  std::int64_t known = 0;
  // A basis of more than this would take long to make, and is made for its sparsity only.
  constexpr double kMostPaths = 2000;
  const bool complete = (l_max + 1) * (l_max + 1) == config.dim && l_max <= 6;
  if (complete && count_paths(static_cast<int>(l_max), target, nu) <= kMostPaths) {
    full = u_matrix(static_cast<int>(l_max), target, nu, &known);
  }
  std::vector<double> values(static_cast<std::size_t>(volume * k), 0.0);
  const std::int64_t taken = std::min(known, k);
  for (std::int64_t i = 0; i < volume; ++i) {
    for (std::int64_t j = 0; j < taken; ++j) {
      values[static_cast<std::size_t>(i * k + j)] = full[static_cast<std::size_t>(i * known + j)];
    }
  }
  std::mt19937_64 engine(static_cast<std::uint64_t>(volume * 131 + nu));
  for (std::int64_t j = taken; j < k; ++j) {
    for (int entry = 0; entry < 6; ++entry) {
      const auto row = static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(volume));
      values[static_cast<std::size_t>(row * k + j)] = static_cast<double>(engine() % 2001) / 1000.0 - 1.0;
    }
  }
  Shape shape;
  if (target != 0) shape.push_back(2 * target + 1);
  shape.insert(shape.end(), static_cast<std::size_t>(nu), config.dim);
  shape.push_back(k);
  return Tensor::from<double>(shape, values);
}

std::unique_ptr<OpModule> symmetric_contraction(const sdk::SymmetricContractionConfig& config) {
  if (config.correlation > sdk::SymmetricPolynomial::kMaxDegree) {
    throw Error(ErrorCode::unsupported,
                fmt::format("symmetric_contraction: correlation {}, the reference has at most {}", config.correlation,
                            sdk::SymmetricPolynomial::kMaxDegree));
  }
  double elements = 0;
  for (std::size_t t = 0; t < config.targets.size(); ++t) {
    for (int nu = 1; nu <= config.correlation; ++nu) {
      elements += (2.0 * config.targets[t] + 1) * std::pow(static_cast<double>(config.dim), nu) *
                  static_cast<double>(config.n_paths[t][static_cast<std::size_t>(nu - 1)]);
    }
  }
  constexpr double kMostElements = 1 << 27;
  if (elements > kMostElements) {
    throw Error(ErrorCode::unsupported,
                fmt::format("symmetric_contraction: its bases have {:.3g} elements, at most {:.3g} are made", elements,
                            kMostElements));
  }
  std::vector<std::vector<Tensor>> u;
  for (std::size_t t = 0; t < config.targets.size(); ++t) {
    u.emplace_back();
    for (int nu = 1; nu <= config.correlation; ++nu) {
      u.back().push_back(couplings(config, config.targets[t], nu, config.n_paths[t][static_cast<std::size_t>(nu - 1)]));
    }
  }
  return std::make_unique<SymmetricContractionModule>(config, u);
}

template <class Config, class Make>
std::unique_ptr<OpModule> made(const sdk::Attributes& attributes, Make make) {
  return make(Config::from(attributes));
}

std::unique_ptr<OpModule> make(const OpSpec& spec, const sdk::Attributes& attributes) {
  const auto plain = []<class Module>(std::type_identity<Module>) {
    return [](const auto& config) -> std::unique_ptr<OpModule> { return std::make_unique<Module>(config); };
  };
  if (spec.id == sdk::SphericalHarmonicsConfig::kOp) {
    return made<sdk::SphericalHarmonicsConfig>(attributes, plain(std::type_identity<SphericalHarmonicsModule>{}));
  }
  if (spec.id == sdk::RadialBasisConfig::kOp) return made<sdk::RadialBasisConfig>(attributes, radial_basis);
  if (spec.id == sdk::RadialMlpConfig::kOp) {
    return made<sdk::RadialMlpConfig>(attributes, plain(std::type_identity<RadialMlpModule>{}));
  }
  if (spec.id == sdk::IrrepsLinearConfig::kOp) {
    return made<sdk::IrrepsLinearConfig>(attributes, plain(std::type_identity<IrrepsLinearModule>{}));
  }
  if (spec.id == sdk::SpeciesLinearConfig::kOp) {
    return made<sdk::SpeciesLinearConfig>(attributes, plain(std::type_identity<SpeciesLinearModule>{}));
  }
  if (spec.id == sdk::ConvTensorProductConfig::kOp) {
    return made<sdk::ConvTensorProductConfig>(attributes, plain(std::type_identity<ConvTensorProductModule>{}));
  }
  if (spec.id == sdk::SymmetricContractionConfig::kOp) {
    return made<sdk::SymmetricContractionConfig>(attributes, symmetric_contraction);
  }
  if (spec.id == sdk::MessageStepConfig::kOp) return made<sdk::MessageStepConfig>(attributes, message_step);
  if (spec.id == sdk::RegroupChannelsConfig::kOp) {
    return made<sdk::RegroupChannelsConfig>(attributes, plain(std::type_identity<RegroupChannelsModule>{}));
  }
  if (spec.id == sdk::SumConfig::kOp) return made<sdk::SumConfig>(attributes, plain(std::type_identity<SumModule>{}));
  if (spec.id == sdk::ScaledSiluConfig::kOp) {
    return made<sdk::ScaledSiluConfig>(attributes, plain(std::type_identity<ScaledSiluModule>{}));
  }
  return nullptr;
}

}  // namespace

std::unique_ptr<OpModule> make_op_module(const OpSpec& spec) {
  const sdk::Attributes attributes(spec.config);
  std::unique_ptr<OpModule> module;
  try {
    if (spec.version == 1) module = make(spec, attributes);
  } catch (const sdk::ConfigError& error) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: {}", spec.id, error.what()));
  }
  if (!module) {
    throw Error(ErrorCode::unsupported, fmt::format("op '{}' version {} has no reference here", spec.id, spec.version));
  }
  OpConfig made = module->op().config;
  // A module always states its frequencies; a configuration may leave them to the parameters.
  for (const char* name : {"frequencies", "radial.frequencies"}) {
    if (!attributes.has(name)) made.erase(name);
  }
  if (!(sdk::Attributes(std::move(made)) == attributes)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: the configuration has attributes or values beyond its schema", spec.id));
  }
  return module;
}

}  // namespace fastpath::ops
