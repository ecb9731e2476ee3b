// NamedPhase is a part of a simulated program in which the ranks submit the same named operations in rounds, each in an
// order and at times of its own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agree/negotiation/message.h"

namespace fdl::simulation {

// An operation of each round.
struct NamedTensor {
  std::string name;
  std::string group;  // the id of its group
  RequestKind kind = RequestKind::allreduce;
  int64_t elements = 1;
  bool is_greatest = false;  // an allreduce of max, not of sum
  int root = 0;
  int number = 0;
  int priority = 0;
};

// Something that all ranks do differently in one round.
struct Surprise {
  enum class Kind {
    extra,     // one more operation
    reshaped,  // an operation has another size from this round on
    differs,   // one rank submits another type than the others: all ranks must get the same error
    late,      // one rank submits an operation much later than the others
    overdue,   // one rank does not submit an operation, where there is a time limit for that
    once,      // ranks wait for one of the operations before they submit the others
  };
  Kind kind = Kind::extra;
  int round = 0;
  int rank = 0;  // of the world
  int64_t delay = 0;
};

struct NamedPhase {
  uint64_t seed = 0;
  std::string name;
  std::vector<NamedTensor> tensors;
  std::vector<std::vector<std::size_t>> submissions;  // those of several tensors run whole
  std::vector<Surprise> surprises;
  int rounds = 1;
  std::vector<int> rounds_of;  // by world rank: after so many it joins; empty: no rank joins
  bool joins_at_once = false;  // ranks join before the operations of their last round are done
  bool waits_for_first = false;
  bool is_of_all = false;            // its first tensor is of the group of all ranks
  bool ends_after_shutdown = false;  // the settings have a limit for operations that ranks do not submit

  int rounds_on(int rank) const { return rounds_of.empty() ? rounds : rounds_of[static_cast<std::size_t>(rank)]; }
  bool has(Surprise::Kind kind, int round) const;
  const Surprise* find(Surprise::Kind kind, int round) const;
  // In this round, after surprises.
  NamedTensor tensor(std::size_t index, int round) const;
};

// The phase of this seed in a world of so many ranks with these groups. The same on all ranks.
NamedPhase make_phase(uint64_t seed, int ranks, const std::vector<std::pair<std::string, std::vector<int>>>& groups);

// What a rank submits, and what an operation must give. Small numbers, so that sums are exact.
int64_t value_of(const NamedTensor& tensor, int world_rank, int round, int64_t element);
Request request_of(const NamedTensor& tensor, int rank, int size);
// `members`: the world ranks that take part; a rank that has joined does not.
std::vector<int64_t> expected(const NamedTensor& tensor, const std::vector<int>& members,
                              const std::vector<int>& submitting, int rank, int round);

}  // namespace fdl::simulation
