#pragma once

#include <memory>
#include <utility>

#include "models/program.hpp"
#include "ops/arguments.hpp"

/// The steps of a model between its ops: pointwise arithmetic, regrouping, selection of a head. Reference code only.
namespace fastpath::models {

/// Glue that is one function of ops::Arguments<S>, for every scalar S.
template <class Function>
class FunctionGlue : public Glue {
 public:
  FunctionGlue(Function function, Module* module, std::vector<ops::SchemaTensor> schema)
      : function_(std::move(function)), module_(module), schema_(std::move(schema)) {}
  void apply(const OpCall& call, const std::vector<Tensor>& parameters) override {
    ops::with_arguments(call, parameters, function_);
  }
  Module* module() override { return module_; }
  std::vector<ops::SchemaTensor> schema() const override { return schema_; }

 private:
  Function function_;
  Module* module_;
  std::vector<ops::SchemaTensor> schema_;
};

template <class Function>
std::shared_ptr<Glue> make_glue(Function function, Module* module = nullptr,
                                std::vector<ops::SchemaTensor> schema = {}) {
  return std::make_shared<FunctionGlue<Function>>(std::move(function), module, std::move(schema));
}

/// inputs: vectors [edges, 3]. outputs: lengths [edges].
std::shared_ptr<Glue> edge_lengths();
/// inputs: species [nodes]. outputs: features [nodes, channels]: rows of `linear.weight` / sqrt(n_species).
std::shared_ptr<Glue> node_embedding(Module& module, std::int64_t n_species, std::int64_t channels);
/// inputs: x [rows, width], factor [rows]. outputs: x * factor.
std::shared_ptr<Glue> multiply_rows(std::int64_t width);
/// inputs: embedding [edges, n_basis], envelope [edges] (optional). outputs: density [receivers], operators.md 3.2.
/// Parameter: layer0.weight [n_basis, 1].
std::shared_ptr<Glue> edge_density(Module& module, std::int64_t n_basis);
/// inputs: x [rows, width], density [rows]. outputs: x / (density + 1).
std::shared_ptr<Glue> divide_by_density(std::int64_t width);
/// inputs: any number of equal shape. outputs: their sum, added in the dtype of the output; dtypes may differ, so with
/// one input this is a conversion.
std::shared_ptr<Glue> sum();
/// inputs: x [nodes, width]. outputs: its first rows [receivers, width].
std::shared_ptr<Glue> keep_receivers();
/// inputs: x [rows, n_heads * width], head [rows]. outputs: x with the entries of other heads set to zero.
std::shared_ptr<Glue> mask_heads(std::int64_t n_heads, std::int64_t width);
/// inputs: x [rows, n_heads], head [rows]. outputs: [rows], the entry of the row's head.
std::shared_ptr<Glue> select_head(std::int64_t n_heads);

}  // namespace fastpath::models
