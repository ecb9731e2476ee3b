// The history report merges the histories of the ranks of a job and finds the rank that was first behind.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/json_line.h"
#include "runtime/telemetry/history_file.h"

namespace fdl {

// What ranks of one communicator called last, and where their calls differ.
struct GroupReport {
  struct Rank {
    int rank = 0;
    bool is_known = false;    // false: none of its last operations is of this communicator
    uint64_t called = 0;      // the number of its last call
    uint64_t unfinished = 0;  // operations that have not ended, or ended with an error
  };
  struct Mismatch {
    uint64_t sequence = 0;
    std::vector<std::pair<std::vector<int>, std::string>> ranks_by_signature;
  };
  // Ranks that have not made a call that another rank has made, or submitted a name on which another rank waits.
  struct Behind {
    std::vector<int> ranks;
    uint64_t sequence = 0;  // of the call; 0: it is a named operation
    std::string operation;  // "allreduce of 1000 float32 (sum)"
    int first_caller = 0;
    int64_t called_ns = 0;  // when it made the call
  };
  std::string name;
  uint64_t fingerprint = 0;
  std::vector<Rank> ranks;
  std::optional<Behind> behind;
  std::optional<Mismatch> mismatch;  // the first one
};

struct HistoryReport {
  std::vector<int> missing_ranks;  // of the job, without a history
  std::vector<GroupReport> groups;

  // The group whose ranks were first behind; null if no rank is behind.
  const GroupReport* first_behind() const;
};

// The histories are of one job, one for each rank; else an error that names the files' ranks or jobs.
Status check_one_job(const std::vector<RankHistory>& histories);
// They are in the order of the ranks.
HistoryReport report_of(const std::vector<RankHistory>& histories);

// The report as lines without line ends, with a table of the last `last` operations of each communicator.
std::vector<std::string> history_lines(const std::vector<RankHistory>& histories, const HistoryReport& report,
                                       std::size_t last);
// The keys are public: scripts read them.
JsonLine history_json(const std::vector<RankHistory>& histories, const HistoryReport& report);

}  // namespace fdl
