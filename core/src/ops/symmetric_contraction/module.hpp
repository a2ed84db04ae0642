#pragma once

#include <memory>
#include <mutex>

#include "fastpath/sdk/symmetric.hpp"
#include "ops/op_module.hpp"

namespace fastpath::ops {

/// `symmetric_contractions` of a checkpoint: contractions.T.{U_matrix_nu, weights_max, weights.i}. inputs: x, species.
/// outputs: out.
class SymmetricContractionModule : public OpModule {
 public:
  /// The basis U starts as the one of new models (full) and may be replaced by load_state_dict.
  /// @param u  Per target, per nu: the tensors U as a checkpoint stores them (no leading axis for a target of degree
  /// 0).
  SymmetricContractionModule(const sdk::SymmetricContractionConfig& config, const std::vector<std::vector<Tensor>>& u);
  std::vector<SchemaTensor> schema() const override;
  const sdk::SymmetricContractionConfig& config() const { return config_; }
  /// Shares the sparse form with a module of equal basis (a replica). `other` may be in use in other threads.
  void share_polynomial(const SymmetricContractionModule& other);

 protected:
  void on_change() override;
  void reference(const OpCall& call, const std::vector<Tensor>& parameters) override;

 private:
  std::shared_ptr<const sdk::SymmetricPolynomial> polynomial() const;
  std::string u_name(std::size_t target, int nu) const;
  std::string w_name(std::size_t target, int nu) const;

  sdk::SymmetricContractionConfig config_;
  // Made from U on first use, which may be in several threads: each asks for a replica.
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const sdk::SymmetricPolynomial> polynomial_;
  mutable std::uint64_t polynomial_version_ = 0;  // State::version() that it belongs to
};

}  // namespace fastpath::ops
