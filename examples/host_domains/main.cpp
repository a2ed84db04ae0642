// A host that splits space over two ranks: own edge lists, ghosts, and an exchange of features between the ranks.
// Ranks are threads here, each with a replica of the model; with MPI the body of Exchange is what changes.
// It checks that two ranks give the energy and the forces of one.
#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "fastpath/error.hpp"
#include "fastpath/extxyz.hpp"
#include "fastpath/graph.hpp"
#include "fastpath/model.hpp"

#ifndef DEFAULT_MODEL  // the build names them; see CMakeLists.txt
#define DEFAULT_MODEL "examples/models/demo"
#define DEFAULT_STRUCTURE "examples/structures/slab.xyz"
#endif

namespace {

constexpr int kRanks = 2;

/// What one rank knows: its own atoms first, then copies of other ranks' atoms that its own interact with.
struct Domain {
  std::vector<std::int64_t> atoms;  // of the whole system; the first n_local are this rank's own
  std::int64_t n_local = 0;
  std::vector<std::int32_t> atomic_numbers;
  std::vector<double> positions;
  std::vector<std::int64_t> sender, receiver;  // rows of `atoms`
  std::vector<double> shift;
};

/// The x coordinate that half of the atoms lie below.
double middle_of(const fastpath::Structure& structure) {
  std::vector<double> x;
  for (const fastpath::Vec3& position : structure.positions) x.push_back(position[0]);
  const auto middle = x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2);
  std::nth_element(x.begin(), middle, x.end());
  return *middle;
}

/// Rank 0 gets the atoms with x below `border`. A real host has its own lists; here they come from the whole graph.
std::vector<Domain> split(const fastpath::Structure& structure, const fastpath::Graph& whole, double border) {
  std::vector<Domain> domains(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    Domain& domain = domains[static_cast<std::size_t>(rank)];
    std::map<std::int64_t, std::int64_t> row_of;
    const auto add = [&](std::int64_t atom) {
      const auto [place, added] = row_of.try_emplace(atom, static_cast<std::int64_t>(domain.atoms.size()));
      if (!added) return place->second;
      domain.atoms.push_back(atom);
      domain.atomic_numbers.push_back(structure.atomic_numbers[static_cast<std::size_t>(atom)]);
      const fastpath::Vec3& position = structure.positions[static_cast<std::size_t>(atom)];
      domain.positions.insert(domain.positions.end(), position.begin(), position.end());
      return place->second;
    };
    for (std::int64_t atom = 0; atom < structure.size(); ++atom) {
      const bool left = structure.positions[static_cast<std::size_t>(atom)][0] < border;
      if (left == (rank == 0)) add(atom);
    }
    domain.n_local = static_cast<std::int64_t>(domain.atoms.size());

    // Own atoms receive; whoever sends to one and is not its own becomes a ghost. Ghosts do not receive.
    const auto senders = whole.sender().span<std::int32_t>(), receivers = whole.receiver().span<std::int32_t>();
    const auto shifts = whole.shift().span<double>();
    for (std::size_t e = 0; e < senders.size(); ++e) {
      const auto receiver = row_of.find(receivers[e]);
      if (receiver == row_of.end() || receiver->second >= domain.n_local) continue;
      domain.receiver.push_back(receiver->second);
      domain.sender.push_back(add(senders[e]));
      for (std::size_t k = 0; k < 3; ++k) domain.shift.push_back(shifts[3 * e + k]);
    }
  }
  return domains;
}

fastpath::Graph graph_of(const Domain& domain) {
  const auto n_edges = static_cast<std::int64_t>(domain.sender.size());
  fastpath::HostEdges edges;
  edges.atomic_numbers = domain.atomic_numbers;
  edges.positions = domain.positions;
  edges.n_local = domain.n_local;
  edges.sender = fastpath::Tensor::from({n_edges}, domain.sender);
  edges.receiver = fastpath::Tensor::from({n_edges}, domain.receiver);
  edges.shift = fastpath::Tensor::from({n_edges, 3}, domain.shift);
  return fastpath::Graph::from_edges(edges);
}

/// Where the ranks meet. Every rank calls it in the same order, once a layer above the first and direction.
class Exchange {
 public:
  explicit Exchange(const std::vector<Domain>& domains) : domains_(domains), published_(domains.size()) {
    for (std::size_t rank = 0; rank < domains.size(); ++rank) {
      for (std::int64_t row = 0; row < domains[rank].n_local; ++row) {
        owner_[domains[rank].atoms[static_cast<std::size_t>(row)]] = {rank, row};
      }
    }
  }

  void operator()(std::size_t rank, fastpath::ExchangeDirection direction, const fastpath::Tensor& features) {
    published_[rank] = features;
    meeting_.arrive_and_wait();
    if (features.dtype() == fastpath::DType::float64) {
      swap<double>(rank, direction);
    } else {
      swap<float>(rank, direction);
    }
    meeting_.arrive_and_wait();
  }

 private:
  struct Place {
    std::size_t rank;
    std::int64_t row;
  };

  template <class T>
  void swap(std::size_t rank, fastpath::ExchangeDirection direction) {
    const std::int64_t width = published_[rank].size(1);
    const auto row = [&](std::size_t of, std::int64_t n) { return published_[of].data<T>() + n * width; };
    if (direction == fastpath::ExchangeDirection::forward) {
      // Ghost rows get the features that their owners computed.
      const Domain& mine = domains_[rank];
      for (std::int64_t n = mine.n_local; n < static_cast<std::int64_t>(mine.atoms.size()); ++n) {
        const Place& place = owner_.at(mine.atoms[static_cast<std::size_t>(n)]);
        std::copy_n(row(place.rank, place.row), width, row(rank, n));
      }
      return;
    }
    // Own rows get the gradients that other ranks have for their ghost copies, added to their own.
    for (std::size_t other = 0; other < domains_.size(); ++other) {
      const Domain& theirs = domains_[other];
      for (std::int64_t n = theirs.n_local; n < static_cast<std::int64_t>(theirs.atoms.size()); ++n) {
        const Place& place = owner_.at(theirs.atoms[static_cast<std::size_t>(n)]);
        if (place.rank != rank) continue;
        for (std::int64_t k = 0; k < width; ++k) row(rank, place.row)[k] += row(other, n)[k];
      }
    }
  }

  const std::vector<Domain>& domains_;
  std::vector<fastpath::Tensor> published_;
  std::map<std::int64_t, Place> owner_;
  std::barrier<> meeting_{kRanks};
};

struct Total {
  double energy = 0;
  std::vector<double> forces;
  std::size_t modules_fast = 0;  // of all ranks
};

Total evaluate_in_parts(const fastpath::Model& model, const std::vector<Domain>& domains, std::int64_t n_atoms,
                        fastpath::UseFast use_fast) {
  Exchange exchange(domains);
  std::vector<fastpath::EvaluationResult> results(domains.size());
  std::vector<std::thread> ranks;
  for (std::size_t rank = 0; rank < domains.size(); ++rank) {
    // A replica per thread: it shares the parameters and has its own state.
    ranks.emplace_back([&, rank, mine = model.replica()] {
      fastpath::EvaluateOptions options;
      options.use_fast = use_fast;
      options.threads = 1;
      options.stress = false;
      options.exchange = [&exchange, rank](fastpath::ExchangeDirection direction, std::int64_t,
                                           const fastpath::Tensor& features) { exchange(rank, direction, features); };
      try {
        results[rank] = mine->evaluate(graph_of(domains[rank]), options);
      } catch (const fastpath::Error& error) {
        std::fprintf(stderr, "rank %zu: %s\n", rank, error.what());
        std::_Exit(1);  // the other rank waits at the barrier
      }
    });
  }
  for (std::thread& thread : ranks) thread.join();

  Total total;
  total.forces.resize(static_cast<std::size_t>(3 * n_atoms));
  for (std::size_t rank = 0; rank < domains.size(); ++rank) {
    total.energy += results[rank].energy;  // of its own atoms
    for (const fastpath::Decision& decision : results[rank].selection.decisions) total.modules_fast += decision.fast();
    // Forces on ghosts belong to their owners.
    const auto forces = results[rank].forces.span<double>();
    for (std::size_t n = 0; n < domains[rank].atoms.size(); ++n) {
      const auto atom = static_cast<std::size_t>(domains[rank].atoms[n]);
      for (std::size_t k = 0; k < 3; ++k) total.forces[3 * atom + k] += forces[3 * n + k];
    }
  }
  return total;
}

/// Evaluates on one rank and on two, by the reference and by kernels; true if they agree.
bool two_give_what_one_gives(fastpath::Model& model, const fastpath::Graph& whole, const std::vector<Domain>& domains) {
  for (const Domain& domain : domains) {
    std::printf("rank with %lld atoms of its own, %zu ghosts, %zu edges\n", static_cast<long long>(domain.n_local),
                domain.atoms.size() - static_cast<std::size_t>(domain.n_local), domain.sender.size());
  }
  bool good = true;
  for (const fastpath::UseFast use_fast : {fastpath::UseFast::never, fastpath::UseFast::always}) {
    fastpath::EvaluateOptions options;
    options.use_fast = use_fast;
    options.stress = false;
    const fastpath::EvaluationResult one = model.evaluate(whole, options);
    const Total two = evaluate_in_parts(model, domains, whole.n_nodes(), use_fast);
    const auto forces = one.forces.span<double>();
    double difference = 0, largest = 0;
    bool finite = true;
    for (std::size_t i = 0; i < forces.size(); ++i) {
      difference = std::max(difference, std::abs(two.forces[i] - forces[i]));
      largest = std::max(largest, std::abs(forces[i]));
      finite &= std::isfinite(two.forces[i]);
    }
    const double energy_error = std::abs(two.energy - one.energy) / std::abs(one.energy);
    std::printf("  use_fast %s: %zu modules by kernels, energy %.9f eV, differs by %.1e, forces by %.1e\n",
                std::string(to_string(use_fast)).c_str(), two.modules_fast, two.energy, energy_error,
                difference / largest);
    // The same numbers in another order of summation: rounding only.
    good &= finite && energy_error <= 1e-12 && difference <= 1e-12 * largest;
  }
  return good;
}

int run(const std::string& model_folder, const std::string& structure_file) {
  const auto model = fastpath::Model::load(model_folder);
  const fastpath::Structure structure = fastpath::read_extxyz(structure_file).front();
  const fastpath::Graph whole = fastpath::Graph::from_structure(structure, model->r_max());
  bool good = two_give_what_one_gives(*model, whole, split(structure, whole, middle_of(structure)));
  // All atoms may have gathered on one side: the other rank has none, and still takes part in the exchange.
  good &= two_give_what_one_gives(*model, whole, split(structure, whole, std::numeric_limits<double>::infinity()));
  std::printf("%s\n", good ? "ok" : "WRONG: two ranks must give what one gives");
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string model = argc > 1 ? argv[1] : DEFAULT_MODEL;
  const std::string structure = argc > 2 ? argv[2] : DEFAULT_STRUCTURE;
  try {
    return run(model, structure);
  } catch (const fastpath::Error& error) {
    std::fprintf(stderr, "%s: %s\n", std::string(to_string(error.code())).c_str(), error.what());
    return 1;
  }
}
