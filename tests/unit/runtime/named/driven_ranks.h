// DrivenRanks are ranks of one group with named operations, over loopback and in one thread, which a test drives by
// hand.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/named/named_operations.h"
#include "tests/support/thread_ranks.h"
#include "tests/unit/runtime/named/planned.h"

namespace fdl::test {

class DrivenRanks {
 public:
  struct Rank {
    Rank(std::unique_ptr<Communicator> made, const Config& config) : comm(std::move(made)), named(*comm, config) {}

    void submit(Tensor& tensor, const std::string& name) {
      std::vector<Entry> entries;
      entries.push_back(tensor.entry(name));
      named.submit(std::move(entries));
    }

    // As Group does it.
    bool progress() {
      const bool moved = comm->progress();
      return named.progress() || moved;
    }

    std::unique_ptr<Communicator> comm;
    NamedOperations named;
  };

  explicit DrivenRanks(int size, const Config& config = make_config())
      : config_(config), ranks_(static_cast<std::size_t>(size)) {
    const std::string id = unique_id();
    // All ends of the loopback are made at once.
    run_ranks(size, [&](int rank) {
      ranks_[static_cast<std::size_t>(rank)] =
          std::make_unique<Rank>(make_communicator(id, rank, size, config_), config_);
    });
  }

  Rank& operator[](int rank) const { return *ranks_[static_cast<std::size_t>(rank)]; }

  // Drives these ranks until none of them moves.
  void progress(const std::vector<int>& ranks) const {
    for (bool moved = true; moved;) {
      moved = false;
      for (const int rank : ranks) moved |= (*this)[rank].progress();
    }
  }

 private:
  const Config config_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace fdl::test
