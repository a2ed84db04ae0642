// Second derivatives of the energy by positions, one direction at a time, on replicas side by side.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "fastpath/error.hpp"
#include "models/evaluate.hpp"

namespace fastpath {
namespace {

EvaluateOptions plain_options(const EvaluateOptions& options) {
  if (options.direction.defined() || options.weights.defined() || options.parameter_gradients) {
    throw Error(ErrorCode::invalid_argument,
                "a direction, weights or gradients by parameters beside a Hessian: expected none");
  }
  if (options.exchange) {
    throw Error(ErrorCode::unsupported, "a Hessian is not available under a ghost exchange");
  }
  EvaluateOptions result = options;
  result.forces = true;
  result.stress = false;
  return result;
}

/// Writes row `i` of a result from -H d_i.
void put_row(const Tensor& result, std::int64_t i, const Tensor& forces_tangent) {
  const std::int64_t n = forces_tangent.numel();
  double* const to = result.data<double>() + i * n;
  const double* from = forces_tangent.data<double>();
  for (std::int64_t k = 0; k < n; ++k) {
    if (!std::isfinite(from[k])) {
      throw Error(ErrorCode::numerics,
                  fmt::format("the derivative of the force of atom {} along direction {} is not finite ({})", k / 3, i,
                              from[k]));
    }
    to[k] = -from[k];
  }
}

/// Evaluates `model` along n directions and writes the products into the rows of `result`.
/// @param set  Writes direction i into a tensor [n_nodes, 3] of zeros, or of what it wrote there before.
void products(Model& model, const Graph& graph, std::int64_t n, const EvaluateOptions& given,
              const std::function<void(std::int64_t i, const Tensor& direction)>& set, const Tensor& result) {
  EvaluateOptions options = given;
  const Shape shape{graph.n_nodes(), 3};
  options.direction = Tensor::zeros(shape, DType::float64);
  if (n == 0) return;

  Context& context = options.context != nullptr ? *options.context : Context::process();
  const int threads = std::max(1, options.threads > 0 ? options.threads : context.threads());
  std::int64_t n_workers = options.device.is_cpu() ? std::min<std::int64_t>(threads, n) : 1;
  if (n_workers > 1) {
    const std::uint64_t limit = models::memory_limit(options);
    const std::uint64_t need =
        model.memory_estimate(ProblemSize{graph.n_edges(), graph.n_nodes()}, options).workspace_bytes;
    if (limit > 0 && need > 0) {
      n_workers = std::clamp<std::int64_t>(static_cast<std::int64_t>(limit / need), 1, n_workers);
    }
  }
  options.threads = std::max(1, threads / static_cast<int>(n_workers));

  std::atomic<std::int64_t> next{0};
  std::mutex mutex;
  std::int64_t done = 0;
  std::int64_t failed = n;     // the first direction that failed, and
  std::exception_ptr failure;  // why
  const auto work = [&](Model& own) {
    EvaluateOptions used = options;
    used.direction = Tensor::zeros(shape, DType::float64);
    for (std::int64_t i = next++; i < n; i = next++) {
      try {
        set(i, used.direction);
        put_row(result, i, own.evaluate(graph, used).forces_tangent);
        if (options.on_direction) {
          const std::lock_guard lock(mutex);
          options.on_direction(++done, n);
        }
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (i < failed) {
          failed = i;
          failure = std::current_exception();
        }
        next = n;  // nobody begins another one
      }
    }
  };
  {
    std::vector<std::shared_ptr<Model>> replicas;
    for (std::int64_t w = 1; w < n_workers; ++w) replicas.push_back(model.replica());
    std::vector<std::jthread> others;
    for (const auto& replica : replicas) others.emplace_back([&work, &replica] { work(*replica); });
    work(model);
    others.clear();  // waits for them, before the replicas go
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

Tensor Model::hessian_products(const Graph& graph, const Tensor& directions, const EvaluateOptions& options) {
  const EvaluateOptions used = plain_options(options);
  const std::int64_t n = directions.rank() == 3 ? directions.size(0) : 0;
  const Shape shape{n, graph.n_nodes(), 3};
  if (directions.rank() != 3 || directions.shape() != shape || directions.dtype() != DType::float64 ||
      !directions.device().is_cpu()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("directions are {} {} on {}, expected float64 [n_directions, {}, 3] on cpu",
                            to_string(directions.dtype()), to_string(directions.shape()),
                            to_string(directions.device()), graph.n_nodes()));
  }
  const Tensor packed = directions.contiguous();
  const Tensor result = Tensor::empty(shape, DType::float64);
  products(
      *this, graph, n, used,
      [&](std::int64_t i, const Tensor& direction) {
        std::memcpy(direction.raw(), packed.data<double>() + i * direction.numel(), direction.bytes());
      },
      result);
  return result;
}

Tensor Model::hessian(const Structure& structure, const EvaluateOptions& options) {
  EvaluateOptions used = plain_options(options);
  used.head = models::head_of(structure, options);
  const std::int64_t n = 3 * structure.size();
  const double need = 8.0 * static_cast<double>(n) * static_cast<double>(n);
  const auto limit = static_cast<double>(models::memory_limit(options));
  if (limit > 0 && need > limit) {
    throw Error(ErrorCode::out_of_memory,
                fmt::format("the Hessian of {} atoms needs {:.0f} MiB, at most {:.0f} are there", structure.size(),
                            need / 0x1p20, limit / 0x1p20));
  }
  const Graph graph = Graph::from_structure(structure, r_max());
  const Tensor result = Tensor::empty({n, n}, DType::float64);
  products(
      *this, graph, n, used,
      [](std::int64_t i, const Tensor& direction) {
        direction.fill_zero();
        direction.data<double>()[i] = 1.0;
      },
      result);
  return result;
}

}  // namespace fastpath
