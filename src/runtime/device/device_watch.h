// DeviceWatch detects that an ordered communicator's work on devices is stuck, and names the rank that it waits for.
//
// While the work makes no progress, the other ranks are queried a few times within the shortest stall limit. A rank is
// late if it has called fewer collectives than this rank, has nothing unfinished on its device, and gave the same
// answer to two queries. The class performs no I/O and reads no clock: the caller brings facts and time, and carries
// out the returned actions. It has no lock; Runtime calls it under its mutex.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "contract/membership.h"
#include "engine/communicator.h"

namespace fdl {

class DeviceWatch {
 public:
  // How long work may be stuck before a warning, and before the communicator fails; 0: no limit.
  struct Limits {
    int64_t warning_ns = 0;
    int64_t shutdown_ns = 0;
  };
  struct Answer {
    int64_t begun = -1;    // collectives that the rank has called on devices; -1: it has no such communicator
    bool waiting = false;  // some of them have not run yet
    bool operator==(const Answer&) const = default;
  };
  // What the caller must do after an update.
  struct Actions {
    uint64_t query = 0;   // not 0: send a query with this number to the other ranks
    std::string warning;  // not empty: log it
    Status failure;       // not OK: end the communicator with it on all ranks. A warning that is due comes first.
  };
  // Names the collective with this number, counted from 1: "allreduce number 42 on cuda:0".
  using NameOf = std::function<std::string(uint64_t number)>;

  DeviceWatch(std::string id, const Members& members, int rank, const Limits& limits);

  Actions update(const Communicator::DeviceWork& work, const NameOf& name_of, int64_t now_ns);
  // Ignores answers to earlier queries and answers of ranks that are no members.
  void on_answer(int world_rank, uint64_t query, Answer answer);

  const std::string& id() const { return id_; }
  // How long the other ranks need not send queries after one of this rank.
  int64_t claim_ns() const { return 2 * query_interval_ns_; }

 private:
  void begin_again(const Communicator::DeviceWork& work, int64_t now_ns);
  void compare_answers();
  std::vector<std::size_t> late() const;
  Status failure(const NameOf& name_of, int64_t now_ns) const;
  std::string describe(const NameOf& name_of, int64_t now_ns) const;

  const std::string id_;
  const Members members_;
  const std::size_t me_;
  const Limits limits_;
  const int64_t query_interval_ns_;  // 0: never query

  // The work that is stuck, and since when.
  bool is_stuck_ = false;
  Communicator::DeviceWork work_;
  int64_t since_ns_ = 0;
  int64_t next_query_ns_ = 0;
  int64_t next_warning_ns_ = 0;

  // Answers by member: to the present query while some are missing, and to the last query that all answered.
  uint64_t query_ = 0;
  std::vector<std::optional<Answer>> answers_;
  std::vector<std::optional<Answer>> before_;
  bool confirmed_ = false;  // the last two complete sets of answers were equal
};

}  // namespace fdl
