// This file holds the rows of the catalog. The tests prove each row for many sizes and roots, in place and not.
//
// To add an algorithm, write algorithms/<name>.cpp: a drawing for 4 ranks, the source, and a pure function from
// ScheduleRequest to Schedule. Declare the function in algorithms.h and add one row here. For automatic choice, add its
// cost to choose.cpp. Proof, simulation, execution and `farandole explain` read the row and need no change.
#include "algorithms/catalog.h"

#include <bit>

#include "algorithms/algorithms.h"
#include "base/fingerprint.h"

namespace fdl {
namespace {

constexpr Algorithm kCatalog[] = {
    {.name = "ring",
     .collective = Collective::allreduce,
     .sentence = "Reduce-scatter, then allgather, around a ring: 2(p-1) messages of n/p bytes; Patarasuk and "
                 "Yuan 2009",
     .rotates = true,
     .follows_order = true,
     .write = ring_allreduce},
    {.name = "recursive_doubling",
     .collective = Collective::allreduce,
     .sentence = "Whole vectors exchanged across one bit of the rank per round: log2(p) messages; Thakur et al. "
                 "2005",
     .follows_order = true,
     .write = recursive_doubling_allreduce},
    {.name = "halving_doubling",
     .collective = Collective::allreduce,
     .sentence = "A butterfly that halves while it reduces and doubles while it gathers: 2 log2(p) messages, a "
                 "ring's bytes; Rabenseifner 2004",
     .follows_order = true,
     .write = halving_doubling_allreduce},
    {.name = "bruck",
     .collective = Collective::allreduce,
     .sentence = "Halving, then doubling, around a circle: 2 log2(p) messages and a ring's bytes for any number of "
                 "ranks, and two copies; Traff 2024",
     .follows_order = true,
     .write = bruck_allreduce},
    {.name = "binomial_tree",
     .collective = Collective::allreduce,
     .sentence = "Sums up and results down one tree, streamed: 2 log2(p) messages; Thakur et al. 2005",
     .follows_order = true,
     .write = binomial_tree_allreduce},
    {.name = "double_binary_tree",
     .collective = Collective::allreduce,
     .sentence = "Two trees, each for half of the vector, streamed: about 2 log2(p) messages, 2n bytes; Sanders, "
                 "Speck and Traff 2009",
     .follows_order = true,
     .write = double_binary_tree_allreduce},
    {.name = "two_level",
     .collective = Collective::allreduce,
     .sentence = "Reduce-scatter inside hosts, rings across, allgather inside: 2(h-1) messages between h hosts; "
                 "Cho et al. 2019",
     .follows_order = true,
     .write = two_level_allreduce},
    {.name = "multi_level",
     .collective = Collective::allreduce,
     .sentence = "Reduce-scatter at each level of the network outwards, allgather inwards: 2(g-1) messages between g "
                 "groups; Cho et al. 2019",
     .follows_order = true,
     .write = multi_level_allreduce},
    {.name = "direct",
     .collective = Collective::allreduce,
     .sentence = "The owner of a chunk folds all ranks' parts in rank order and sends it to all: 2 rounds of p-1 "
                 "messages, the same bits every time; Chan et al. 2007",
     .needs_commutative = false,
     .rotates = true,
     .write = direct_allreduce},
    {.name = "binomial_tree",
     .collective = Collective::reduce,
     .sentence = "Sums up one tree, streamed: log2(p) messages; Thakur et al. 2005",
     .follows_order = true,
     .write = binomial_tree_reduce},
    {.name = "direct",
     .collective = Collective::reduce,
     .sentence = "Owners fold a chunk each in rank order, the root collects: the same bits every time; Chan et "
                 "al. 2007",
     .needs_commutative = false,
     .write = direct_reduce},
    {.name = "binomial_tree",
     .collective = Collective::broadcast,
     .sentence = "Down one tree, streamed: log2(p) messages; Thakur et al. 2005",
     .follows_order = true,
     .write = binomial_tree_broadcast},
    {.name = "chain",
     .collective = Collective::broadcast,
     .sentence = "From rank to rank, streamed: p-1 hops, n bytes; Chan et al. 2007",
     .follows_order = true,
     .write = chain_broadcast},
    {.name = "scatter_allgather",
     .collective = Collective::broadcast,
     .sentence = "Dealt out down a tree, collected by a ring: log2(p) + p-1 messages, 2n bytes; van de Geijn "
                 "1994",
     .follows_order = true,
     .write = scatter_allgather_broadcast},
    {.name = "ring",
     .collective = Collective::allgather,
     .sentence = "Around a ring: p-1 messages of n/p bytes between neighbours; Chan et al. 2007",
     .rotates = true,
     .follows_order = true,
     .write = ring_allgather},
    {.name = "recursive_doubling",
     .collective = Collective::allgather,
     .sentence = "Doubling blocks across one bit of the rank per round: log2(p) messages; Thakur et al. 2005",
     .power_of_two_only = true,
     .write = recursive_doubling_allgather},
    {.name = "bruck",
     .collective = Collective::allgather,
     .sentence = "Doubling blocks, rotated so that any size works: log2(p) messages and one copy; Bruck et al. "
                 "1997",
     .write = bruck_allgather},
    {.name = "multi_level",
     .collective = Collective::allgather,
     .sentence = "Around a ring of each level of the network, inwards: g-1 messages between g groups; Cho et al. 2019",
     .follows_order = true,
     .write = multi_level_allgather},
    {.name = "direct",
     .collective = Collective::allgather,
     .sentence = "Every rank sends to every other rank: one round of p-1 messages; Chan et al. 2007",
     .rotates = true,
     .write = direct_allgather},
    {.name = "ring",
     .collective = Collective::reduce_scatter,
     .sentence = "Around a ring: p-1 messages of n/p bytes between neighbours; Patarasuk and Yuan 2009",
     .rotates = true,
     .follows_order = true,
     .write = ring_reduce_scatter},
    {.name = "halving",
     .collective = Collective::reduce_scatter,
     .sentence = "A butterfly whose messages halve: log2(p) messages; Rabenseifner 2004",
     .write = halving_reduce_scatter},
    {.name = "bruck",
     .collective = Collective::reduce_scatter,
     .sentence = "Halving around a circle: log2(p) messages for any number of ranks and one copy; Traff 2024",
     .write = bruck_reduce_scatter},
    {.name = "multi_level",
     .collective = Collective::reduce_scatter,
     .sentence = "Around a ring of each level of the network, outwards: g-1 messages between g groups; Cho et al. 2019",
     .follows_order = true,
     .write = multi_level_reduce_scatter},
    {.name = "direct",
     .collective = Collective::reduce_scatter,
     .sentence = "The owner of a chunk folds all ranks' parts in rank order: one round, the same bits every time; "
                 "Chan et al. 2007",
     .needs_commutative = false,
     .rotates = true,
     .write = direct_reduce_scatter},
    {.name = "pairwise",
     .collective = Collective::alltoall,
     .sentence =
         "One partner per round, every chunk sent directly to its destination: p-1 messages; Thakur et al. 2005",
     .in_place = false,
     .rotates = true,
     .write = pairwise_alltoall},
    {.name = "bruck",
     .collective = Collective::alltoall,
     .sentence = "Chunks travel by the bits of their distance: log2(p) messages of n/2 bytes, for short chunks "
                 "of one size; Bruck et al. 1997",
     .even_chunks_only = true,
     .write = bruck_alltoall},
    {.name = "two_level",
     .collective = Collective::alltoall,
     .sentence = "Exchanged inside hosts, then across: l-1 and h-1 peers a rank with l ranks on each of h hosts, for "
                 "chunks of one size; Traff and Rougier 2014",
     .even_chunks_only = true,
     .follows_order = true,
     .write = two_level_alltoall},
    {.name = "binomial_tree",
     .collective = Collective::gather,
     .sentence = "Subtrees collected up one tree: log2(p) messages; Thakur et al. 2005",
     .write = binomial_tree_gather},
    {.name = "direct",
     .collective = Collective::gather,
     .sentence = "Every rank sends to the root: p-1 messages there; Chan et al. 2007",
     .write = direct_gather},
    {.name = "binomial_tree",
     .collective = Collective::scatter,
     .sentence = "Subtrees dealt out down one tree: log2(p) messages; Thakur et al. 2005",
     .write = binomial_tree_scatter},
    {.name = "direct",
     .collective = Collective::scatter,
     .sentence = "The root sends to every rank: p-1 messages there; Chan et al. 2007",
     .write = direct_scatter},
    {.name = "dissemination",
     .collective = Collective::barrier,
     .sentence = "Round k signals the rank 2^k after: log2(p) messages; Hensgen, Finkel and Manber 1988",
     .rotates = true,
     .follows_order = true,
     .write = dissemination_barrier},
    {.name = "binomial_tree",
     .collective = Collective::barrier,
     .sentence = "Signals up one tree and down again: 2 log2(p) messages",
     .follows_order = true,
     .write = binomial_tree_barrier},
};

}  // namespace

std::span<const Algorithm> catalog() { return kCatalog; }

Result<const Algorithm*> find_algorithm(Collective collective, std::string_view name) {
  std::string names;
  for (const Algorithm& algorithm : kCatalog) {
    if (algorithm.collective != collective) continue;
    if (algorithm.name == name) return &algorithm;
    names += (names.empty() ? "" : ", ") + std::string(algorithm.name);
  }
  return Status(Code::invalid_argument,
                std::string(name_of(collective)) + " has no algorithm '" + std::string(name) + "'; it has: " + names);
}

std::string catalog_fingerprint() {
  std::string rows;
  for (const Algorithm& row : kCatalog) {
    rows += std::string(name_of(row.collective)) + " " + std::string(row.name) + " " + std::to_string(row.min_size) +
            " " + std::to_string(row.max_size);
    for (const bool flag :
         {row.power_of_two_only, row.in_place, row.needs_commutative, row.even_chunks_only, row.follows_order}) {
      rows += flag ? " yes" : " no";
    }
    rows += "\n";
  }
  return std::to_string(std::size(kCatalog)) + " algorithms, " + fingerprint_of(rows);
}

bool fits(const Algorithm& algorithm, int size) {
  if (size < algorithm.min_size || size > algorithm.max_size) return false;
  return !algorithm.power_of_two_only || std::has_single_bit(static_cast<unsigned>(size));
}

std::string_view obstacle(const Algorithm& algorithm, int ranks, Need need) {
  if (!fits(algorithm, ranks))
    return algorithm.power_of_two_only ? "needs a power of two" : "does not support this size";
  const bool folds = algorithm.collective == Collective::allreduce || algorithm.collective == Collective::reduce ||
                     algorithm.collective == Collective::reduce_scatter;
  if (need.rank_order && folds && algorithm.needs_commutative) return "does not fold in rank order";
  if (need.uneven && algorithm.even_chunks_only) return "needs chunks of one size";
  return {};
}

}  // namespace fdl
