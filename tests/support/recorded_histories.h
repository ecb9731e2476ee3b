// Recorded makes the history of a rank, for the tests of its readers.
#pragma once

#include <string>
#include <string_view>

#include "base/check.h"
#include "data/dtype.h"
#include "schedule/schedule.h"
#include "system/history.h"

namespace fdl::test {

// A rank of a job, with one communicator and one group of named operations.
class Recorded {
 public:
  explicit Recorded(int rank, int size = 3, const std::string& job = "job")
      : history_(History::make({.rank = rank, .size = size, .job = job, .host = "host-a"}).take()),
        comm_(history_->add_group("all comm 0")),
        named_(history_->add_group("all")) {}

  // Returns the number for end().
  uint64_t call(Collective collective, uint64_t count, Dtype dtype = Dtype::float32) {
    return history_->called({.group = comm_,
                             .sequence = ++sequence_,
                             .count = count,
                             .kind = static_cast<uint8_t>(collective),
                             .dtype = static_cast<uint8_t>(dtype)},
                            true);
  }
  uint64_t submit(std::string_view name, uint64_t count = 10) {
    return history_->called({.group = named_,
                             .sequence = ++submitted_,
                             .count = count,
                             .dtype = static_cast<uint8_t>(Dtype::float32),
                             .flags = kHistoryNamed},
                            name);
  }
  uint64_t send(int peer) {
    return history_->called({.group = comm_, .sequence = 1, .count = 8, .root = peer, .kind = kHistorySend}, true);
  }
  void end(uint64_t call, int outcome = 0) { history_->ended(call, outcome); }
  // Calls that end at once.
  void run(int calls) {
    for (int i = 0; i < calls; ++i) end(call(Collective::allreduce, 1000));
  }
  std::string bytes() {
    history_->sample();
    return std::string(text_of(history_->bytes()));
  }

 private:
  std::unique_ptr<History> history_;
  uint32_t comm_;
  uint32_t named_;
  uint64_t sequence_ = 0;
  uint64_t submitted_ = 0;
};

}  // namespace fdl::test
