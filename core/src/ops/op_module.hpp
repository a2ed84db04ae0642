#pragma once

#include <string>
#include <vector>

#include "fastpath/fast_path.hpp"
#include "fastpath/sdk/ops.hpp"

namespace fastpath::ops {

/// A tensor of a module in the order of its op's schema.
struct SchemaTensor {
  std::string name;  ///< Own (local) name; empty where the optional argument is absent.
  bool trainable = true;
};

/// Base of the fast-path modules that fastpath defines.
class OpModule : public FastPathModule {
 public:
  const OpSpec& op() const override { return spec_; }
  virtual std::vector<SchemaTensor> schema() const { return {}; }

 protected:
  std::vector<Tensor> schema_tensors() const override {
    std::vector<Tensor> tensors;
    for (const SchemaTensor& item : schema()) {
      tensors.push_back(item.name.empty() ? Tensor() : item.trainable ? parameter(item.name) : buffer(item.name));
    }
    return tensors;
  }
  template <class Config>
  void set_spec(const Config& config) {
    spec_ = {std::string(Config::kOp), Config::kVersion, config.attributes().values()};
  }

 private:
  OpSpec spec_;
};

}  // namespace fastpath::ops
