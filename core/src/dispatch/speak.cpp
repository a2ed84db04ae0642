#include "dispatch/speak.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>

#include "dispatch/activate.hpp"
#include "dispatch/context_impl.hpp"

namespace fastpath::rules {
namespace {

using State = FastPathModule::State;

/// Whether the caller's tables say something about this device, rather than what is known of such devices in general.
std::optional<std::int64_t> callers_entry(const Setting& s, const DeviceInfo& device) {
  return s.policy->thresholds_are_priors ? std::nullopt : s.policy->entry(device, s.dtype);
}

Speech by_threshold(Setting& s, std::int64_t threshold, const DeviceInfo& device, ReasonCode fast, ReasonCode slow,
                    const char* whose) {
  const bool enough = s.sizes.at_least(s.size.n_edges, threshold);
  return {{enough ? fast : slow, fmt::format("{} {} edges, {} for {} in {}", enough ? "at least" : "fewer than",
                                             threshold, whose, device.name, to_string(s.dtype))},
          enough};
}

/// The highest of what vendors measured for the kernels that the modules would get: from there on all of them are worth
/// it. Nothing if no vendor knows.
std::optional<std::int64_t> highest_prior(const std::vector<NamedFastModule>& modules, const Setting& s) {
  std::optional<std::int64_t> highest;
  for (const NamedFastModule& named : modules) {
    const State::Answer* first = nullptr;
    std::size_t first_preference = 0;
    for (const State::Answer& answer : ask(*named.module, s.device, s.dtype, s.passes, s.context)) {
      if (!answer.support) continue;
      const std::size_t preferred = preference(s.policy, answer.plugin->info().id);
      if (first == nullptr || preferred < first_preference ||
          (preferred == first_preference && answer.traits.rank > first->traits.rank)) {
        first = &answer;
        first_preference = preferred;
      }
    }
    if (first != nullptr && first->traits.prior_edges >= 0) {
      highest = std::max(highest.value_or(0), first->traits.prior_edges);
    }
  }
  return highest;
}

}  // namespace

std::size_t preference(const AutoPolicy* policy, const std::string& id) {
  if (policy == nullptr) return 0;
  std::size_t i = 0;
  while (i < policy->preference.size() && fnmatch(policy->preference[i].c_str(), id.c_str(), 0) != 0) ++i;
  return i;
}

bool in_window(const plugin::KernelTraits& traits, Setting& s, Support& support) {
  const bool enough = s.sizes.at_least(s.size.n_edges, traits.min_edges);
  const bool many = traits.max_edges > 0 && s.sizes.at_least(s.size.n_edges, traits.max_edges + 1);
  if (enough && !many) return true;
  support.blocked(ReasonCode::size,
                  fmt::format("{} edges; the kernel takes {} to {}", many ? "too many" : "too few", traits.min_edges,
                              traits.max_edges > 0 ? std::to_string(traits.max_edges) : "any number"));
  return false;
}

std::optional<Speech> rule_of_all(const std::vector<NamedFastModule>& modules, Setting& s, const DeviceInfo& device) {
  if (s.use_fast == UseFast::always) return Speech{{ReasonCode::forced_fast, "use_fast is true"}, true};
  if (s.policy == nullptr) return Speech{{ReasonCode::forced_fast, "use_fast is auto without a policy"}, true};
  if (const std::optional<std::int64_t> threshold = callers_entry(s, device)) {
    return by_threshold(s, *threshold, device, ReasonCode::policy_fast, ReasonCode::policy_reference,
                        "the policy's threshold");
  }
  if (s.measured) {
    const MeasurementKey key = measurement_key(modules, device, s.dtype, s.passes, s.threads);
    const std::string build = plugin_build(s.context, s.device.kind, kEveryPlugin);
    if (const auto found = s.context.measurements().find(key, build, device.driver)) {
      Speech speech = rules::judge(*found, "use_fast true", s.size.n_edges, s.sizes);
      if (speech.says_something()) return speech;
    }
  }
  if (s.device.is_cpu()) return std::nullopt;
  if (s.policy->use_priors) {
    if (const std::optional<std::int64_t> prior = highest_prior(modules, s)) {
      return by_threshold(s, *prior, device, ReasonCode::prior, ReasonCode::prior,
                          "measured by the vendors of the kernels");
    }
    if (const std::optional<std::int64_t> prior = s.policy->entry(device, s.dtype);
        prior && s.policy->thresholds_are_priors) {
      return by_threshold(s, *prior, device, ReasonCode::prior, ReasonCode::prior, "the published threshold");
    }
  }
  const std::int64_t threshold =
      s.dtype == DType::float64 ? s.policy->default_min_edges_float64 : s.policy->default_min_edges;
  return by_threshold(s, threshold, device, ReasonCode::policy_default, ReasonCode::policy_default,
                      "the policy's threshold for devices that it does not name,");
}

Speech rule_of_one(const State::Answer& answer, const std::optional<MeasurementStore::Found>& found, Setting& s) {
  const std::string& id = answer.plugin->info().id;
  std::optional<Speech> measured;
  if (found) {
    measured = rules::judge(*found, id, s.size.n_edges, s.sizes);
    if (measured->says_something()) return *measured;
  }
  if (s.policy->use_priors && answer.traits.prior_edges >= 0) {
    const bool enough = s.sizes.at_least(s.size.n_edges, answer.traits.prior_edges);
    return {{ReasonCode::prior, fmt::format("{} than {} edges: from there on {} was faster where its vendor measured",
                                            enough ? "no fewer" : "fewer", answer.traits.prior_edges, id)},
            enough};
  }
  if (measured) return *measured;
  return {{ReasonCode::unmeasured, "use_fast is auto and nothing was measured on this CPU"}, false};
}

}  // namespace fastpath::rules
