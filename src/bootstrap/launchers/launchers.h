// This header finds the rank of this process from the variables that launchers set.
#pragma once

#include <string>
#include <vector>

#include "base/config.h"
#include "base/status.h"
#include "bootstrap/launchers/platform.h"

namespace fdl {

struct Identity {
  int rank = 0;
  int size = 1;
  int local_rank = -1;  // -1: the launcher does not set it; topology finds it
  int local_size = -1;
  int node_rank = -1;
  int node_count = -1;
  std::string source;  // a row's name, or "single process"
  // The address of the coordinator, or the address where rank 0 must serve it (bootstrap/rendezvous/rendezvous.h).
  std::string rendezvous;
  bool rank_zero_serves = true;  // false: the rendezvous has "?coordinator=1", so a coordinator already serves there
  std::string job_key;           // FARANDOLE_JOB_KEY, or derived from facts that are equal on all ranks of the job
  bool job_key_is_derived = false;
  std::string service;                // of the launcher, if it gave address and key: "pmix", "pmi"
  std::vector<std::string> also_saw;  // "JOB_COMPLETION_INDEX=1": traces of other launchers, for the log line

  // "rank 3/8 local 1/2 node 1/4 source=torchrun rendezvous=tcp://a-0.a:29501 (also saw: ...)"
  std::string line() const;
};

// Finds the identity of this process. The tables in process_launchers.cpp and node_launchers.cpp give the precedence:
// explicit before implicit, processes before nodes, inner launchers before outer ones. Half a pair of variables, a
// number that does not parse, or a rank that is not below the size is an error that names the variables and quotes the
// values. A process that appears to be one of several but has no rank is an error too, never a job of its own.
Result<Identity> who_am_i(const Environment& environment, const Config& config,
                          const Platform& platform = Platform::of_this_host());

// The identity together with its reasons: the result of each row of the tables.
struct Explanation {
  struct Row {
    std::string name;
    std::string level;   // "process", "node"
    std::string result;  // "chosen", "agrees", "contradicts", "numbers nodes", "ignored", "broken", "absent"
    std::string why;     // the variables, quoted
  };
  Result<Identity> identity;
  std::string node;                // the result of a node-level row, which `farandole run` would use; empty: none
  std::vector<Row> rows;           // in order of precedence
  std::vector<std::string> notes;  // other oddities: service links, a hostfile of other hosts
};
Explanation explain_identity(const Environment& environment, const Config& config,
                             const Platform& platform = Platform::of_this_host());

struct LauncherRow {
  std::string name;
  std::string level;
  std::string rank_variable;
  std::string size_variable;
  std::string sentence;
};
std::vector<LauncherRow> supported_launchers();

}  // namespace fdl
