#pragma once

#include <atomic>
#include <barrier>
#include <exception>
#include <functional>
#include <map>
#include <set>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "mace_models.hpp"

/// A structure split over simulated ranks, as a host with domain decomposition would do it.
namespace fastpath::test {

/// What one rank knows: its own atoms, then ghosts at the positions of the images it sees.
struct Domain {
  std::vector<std::int32_t> atomic_numbers;
  std::vector<Vec3> positions;
  std::vector<std::int64_t> owner;  ///< Of every node: the atom of the whole structure.
  std::int64_t n_local = 0;
  std::vector<std::int64_t> sender, receiver;

  Graph graph() const {
    HostEdges host;
    host.atomic_numbers = atomic_numbers;
    host.positions = {positions.empty() ? nullptr : positions[0].data(), positions.size() * 3};
    host.n_local = n_local;
    const auto n_edges = static_cast<std::int64_t>(sender.size());
    host.sender = Tensor::from<std::int64_t>({n_edges}, sender);
    host.receiver = Tensor::from<std::int64_t>({n_edges}, receiver);
    return Graph::from_edges(host);
  }
};

/// Domains in which ghosts only send: exactly the edges that local atoms receive.
inline std::vector<Domain> domains(const Structure& structure, const Graph& whole, const std::vector<int>& rank_of,
                                   int n_ranks) {
  std::vector<Domain> result(static_cast<std::size_t>(n_ranks));
  std::vector<std::int64_t> local_index(rank_of.size());
  for (std::size_t n = 0; n < rank_of.size(); ++n) {
    Domain& d = result[static_cast<std::size_t>(rank_of[n])];
    local_index[n] = d.n_local++;
    d.atomic_numbers.push_back(structure.atomic_numbers[n]);
    d.positions.push_back(structure.positions[n]);
    d.owner.push_back(static_cast<std::int64_t>(n));
  }
  std::vector<std::map<std::tuple<std::size_t, double, double, double>, std::int64_t>> ghosts(result.size());
  for (std::int64_t e = 0; e < whole.n_edges(); ++e) {
    const auto s = static_cast<std::size_t>(whole.sender().data<std::int32_t>()[e]),
               r = static_cast<std::size_t>(whole.receiver().data<std::int32_t>()[e]);
    const double* shift = whole.shift().data<double>() + 3 * e;
    const auto rank = static_cast<std::size_t>(rank_of[r]);
    Domain& d = result[rank];
    std::int64_t from = local_index[s];
    if (rank_of[s] != rank_of[r] || shift[0] != 0 || shift[1] != 0 || shift[2] != 0) {
      const auto [at, fresh] = ghosts[rank].try_emplace({s, shift[0], shift[1], shift[2]}, std::ssize(d.positions));
      from = at->second;
      if (fresh) {
        const Vec3& x = structure.positions[s];
        d.atomic_numbers.push_back(structure.atomic_numbers[s]);
        d.positions.push_back({x[0] - shift[0], x[1] - shift[1], x[2] - shift[2]});
        d.owner.push_back(static_cast<std::int64_t>(s));
      }
    }
    d.sender.push_back(from);
    d.receiver.push_back(local_index[r]);
  }
  return result;
}

/// Domains for a host that cannot exchange: every image within `halo` of a local atom, and all edges among them.
inline std::vector<Domain> domains_with_halo(const Structure& structure, double r_max, double halo,
                                             const std::vector<int>& rank_of, int n_ranks) {
  std::vector<Domain> result(static_cast<std::size_t>(n_ranks));
  const Graph far = Graph::from_structure(structure, halo);
  std::vector<std::set<std::tuple<std::int64_t, double, double, double>>> images(result.size());
  for (std::size_t n = 0; n < rank_of.size(); ++n) {
    Domain& d = result[static_cast<std::size_t>(rank_of[n])];
    ++d.n_local;
    d.atomic_numbers.push_back(structure.atomic_numbers[n]);
    d.positions.push_back(structure.positions[n]);
    d.owner.push_back(static_cast<std::int64_t>(n));
  }
  for (std::int64_t e = 0; e < far.n_edges(); ++e) {
    const auto s = static_cast<std::size_t>(far.sender().data<std::int32_t>()[e]),
               r = static_cast<std::size_t>(far.receiver().data<std::int32_t>()[e]);
    const double* shift = far.shift().data<double>() + 3 * e;
    if (rank_of[s] == rank_of[r] && shift[0] == 0 && shift[1] == 0 && shift[2] == 0) continue;
    images[static_cast<std::size_t>(rank_of[r])].insert({static_cast<std::int64_t>(s), shift[0], shift[1], shift[2]});
  }
  for (std::size_t rank = 0; rank < result.size(); ++rank) {
    Domain& d = result[rank];
    for (const auto& [s, x, y, z] : images[rank]) {
      const Vec3& at = structure.positions[static_cast<std::size_t>(s)];
      d.atomic_numbers.push_back(structure.atomic_numbers[static_cast<std::size_t>(s)]);
      d.positions.push_back({at[0] - x, at[1] - y, at[2] - z});
      d.owner.push_back(s);
    }
    for (std::size_t i = 0; i < d.positions.size(); ++i) {
      for (std::size_t j = 0; j < d.positions.size(); ++j) {
        const Vec3 &a = d.positions[i], &b = d.positions[j];
        if (i != j && std::hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]) < r_max) {
          d.sender.push_back(static_cast<std::int64_t>(j));
          d.receiver.push_back(static_cast<std::int64_t>(i));
        }
      }
    }
  }
  return result;
}

/// What a host gets by summing over its ranks.
struct Reduced {
  double energy = 0;
  std::vector<double> node_energies, forces, virial = std::vector<double>(9, 0.0);
};
inline void reduce(const Domain& domain, const EvaluationResult& result, Reduced& total) {
  total.energy += result.energy;
  const std::vector<double> energies = reals(result.node_energies), forces = reals(result.forces),
                            virial = reals(result.virial);
  for (std::size_t n = 0; n < domain.owner.size(); ++n) {
    const auto owner = static_cast<std::size_t>(domain.owner[n]);
    if (static_cast<std::int64_t>(n) < domain.n_local) total.node_energies[owner] = energies[n];
    for (std::size_t k = 0; k < 3; ++k) total.forces[3 * owner + k] += forces[3 * n + k];
  }
  for (std::size_t i = 0; i < 9; ++i) total.virial[i] += virial[i];
}

/// Runs one evaluation per domain at the same time, each on a replica in a thread of its own, with an exchange of ghost
/// rows through shared memory.
class Ranks {
 public:
  explicit Ranks(const std::vector<Domain>& domains, std::size_t n_atoms)
      : domains_(domains),
        features_(domains.size()),
        calls_(domains.size()),
        barrier_(std::ssize(domains)),
        n_atoms_(n_atoms),
        home_(n_atoms) {
    for (std::size_t rank = 0; rank < domains.size(); ++rank) {
      for (std::int64_t n = 0; n < domains[rank].n_local; ++n) {
        home_[static_cast<std::size_t>(domains[rank].owner[static_cast<std::size_t>(n)])] = {rank, n};
      }
    }
  }

  /// @param adapt  Changes the options of a rank.
  Reduced evaluate(const Model& model, const EvaluateOptions& options,
                   const std::function<void(std::size_t, EvaluateOptions&)>& adapt = {}) {
    for (auto& calls : calls_) calls.clear();
    std::vector<EvaluationResult>& results = results_;
    results.assign(domains_.size(), {});
    std::vector<std::exception_ptr> errors(domains_.size());
    {
      std::vector<std::jthread> threads;
      for (std::size_t rank = 0; rank < domains_.size(); ++rank) {
        threads.emplace_back([&, rank] {
          try {
            EvaluateOptions used = options;
            if (adapt) adapt(rank, used);
            used.exchange = [&, rank](ExchangeDirection direction, std::int64_t layer, const Tensor& features) {
              exchange(rank, direction, layer, features);
            };
            results[rank] = model.replica()->evaluate(domains_[rank].graph(), used);
          } catch (...) {
            errors[rank] = std::current_exception();
            barrier_.arrive_and_drop();
          }
        });
      }
    }
    for (const std::exception_ptr& error : errors) {
      if (error) std::rethrow_exception(error);
    }
    Reduced total;
    total.node_energies.resize(n_atoms_);
    total.forces.resize(3 * n_atoms_);
    for (std::size_t rank = 0; rank < domains_.size(); ++rank) reduce(domains_[rank], results[rank], total);
    return total;
  }

  /// Of the last evaluation.
  const EvaluationResult& result(std::size_t rank) const { return results_[rank]; }
  /// Every exchange of it that a rank took part in, in order.
  const std::vector<std::pair<ExchangeDirection, std::int64_t>>& calls(std::size_t rank) const { return calls_[rank]; }

 private:
  void exchange(std::size_t rank, ExchangeDirection direction, std::int64_t layer, const Tensor& features) {
    calls_[rank].emplace_back(direction, layer);
    features_[rank] = features;
    barrier_.arrive_and_wait();
    if (features.dtype() == DType::float32) {
      move<float>(rank, direction);
    } else {
      move<double>(rank, direction);
    }
    barrier_.arrive_and_wait();
  }
  template <class T>
  void move(std::size_t rank, ExchangeDirection direction) {
    const std::int64_t width = features_[rank].size(1);
    const auto row = [&](std::size_t of, std::int64_t n) { return features_[of].data<T>() + n * width; };
    if (direction == ExchangeDirection::forward) {
      for (std::int64_t n = domains_[rank].n_local; n < features_[rank].size(0); ++n) {
        const auto [owner, at] = home_[static_cast<std::size_t>(domains_[rank].owner[static_cast<std::size_t>(n)])];
        std::copy_n(row(owner, at), width, row(rank, n));
      }
      return;
    }
    for (std::size_t other = 0; other < domains_.size(); ++other) {
      for (std::int64_t n = domains_[other].n_local; n < features_[other].size(0); ++n) {
        const auto [owner, at] = home_[static_cast<std::size_t>(domains_[other].owner[static_cast<std::size_t>(n)])];
        if (owner != rank) continue;
        for (std::int64_t i = 0; i < width; ++i) row(rank, at)[i] += row(other, n)[i];
      }
    }
  }

  const std::vector<Domain>& domains_;
  std::vector<Tensor> features_;
  std::vector<EvaluationResult> results_;
  std::vector<std::vector<std::pair<ExchangeDirection, std::int64_t>>> calls_;
  std::barrier<> barrier_;
  std::size_t n_atoms_;
  std::vector<std::pair<std::size_t, std::int64_t>> home_;  // of every atom: its rank, and its index there
};

}  // namespace fastpath::test
