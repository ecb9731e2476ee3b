// Catalog: the rows. The tests prove each row for every size in range, with every root, in place and not.
//
// To add an algorithm: write algorithms/<name>.cpp (a drawing for 4 ranks, where it comes from, and a pure function
// from ScheduleRequest to Schedule), declare the function in algorithms.h, and add one row here. If it should be chosen
// by itself, give choose.cpp its cost. Nothing else: proof, simulation, execution and `farandole explain` read the row.
#include "algorithms/catalog.h"

#include <bit>

#include "algorithms/algorithms.h"

namespace fdl {
namespace {

constexpr Algorithm kCatalog[] = {
    {.name = "ring",
     .collective = Collective::allreduce,
     .sentence = "Reduce-scatter, then allgather, around a ring: 2(p-1) messages, 2(p-1)/p of the bytes; Patarasuk and "
                 "Yuan 2009",
     .write = ring_allreduce},
    {.name = "recursive_doubling",
     .collective = Collective::allreduce,
     .sentence = "Whole vectors exchanged across one bit of the rank a round: log2(p) messages; Thakur et al. 2005",
     .write = recursive_doubling_allreduce},
    {.name = "direct",
     .collective = Collective::allreduce,
     .sentence = "The owner of a chunk folds everyone's version in rank order and sends it to all: 2 rounds of p-1 "
                 "messages; Chan et al. 2007",
     .needs_commutative = false,
     .write = direct_allreduce},
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

bool fits(const Algorithm& algorithm, int size) {
  if (size < algorithm.min_size || size > algorithm.max_size) return false;
  return !algorithm.power_of_two_only || std::has_single_bit(static_cast<unsigned>(size));
}

}  // namespace fdl
