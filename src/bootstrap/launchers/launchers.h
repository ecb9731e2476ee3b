// Launchers: which rank am I, and from which variables; one row a launcher.
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
  int local_rank = -1;  // -1: the launcher does not say; topology finds it
  int local_size = -1;
  int node_rank = -1;
  int node_count = -1;
  std::string source;  // a row's name, or "single process"
  std::string
      rendezvous;  // where the coordinator is, or where rank 0 must serve it; see bootstrap/rendezvous/rendezvous.h
  bool rank_zero_serves = true;  // false: the rendezvous says "?coordinator=1", a coordinator is there already
  std::string job_key;  // from FARANDOLE_JOB_KEY, or derived from what the launcher gives all ranks of the job alike
  bool job_key_is_derived = false;
  std::vector<std::string> also_saw;  // "JOB_COMPLETION_INDEX=1": other launchers' traces, for the log line

  // "rank 3/8 local 1/2 node 1/4 source=torchrun rendezvous=tcp://a-0.a:29501 (also saw: ...)"
  std::string line() const;
};

// Precedence and conflicts as the tables in process_launchers.cpp and node_launchers.cpp say: explicit before implicit,
// processes before nodes, inner launchers before outer ones. Half a pair of variables, a number that does not parse, or
// a rank that is not below the size is an error that names the variables and quotes the values. A process that looks
// like one of several and has no rank is an error too, never a world of its own.
Result<Identity> who_am_i(const Environment& environment, const Config& config,
                          const Platform& platform = Platform::of_this_host());

// The same with its reasons: what each row of the tables found.
struct Explanation {
  struct Row {
    std::string name;
    std::string level;   // "process", "node"
    std::string result;  // "chosen", "agrees", "contradicts", "numbers nodes", "ignored", "broken", "absent"
    std::string why;     // the variables, quoted
  };
  Result<Identity> identity;
  std::string node;                // what a node-level row says, which `farandole run` would go by; empty: nothing
  std::vector<Row> rows;           // in order of precedence
  std::vector<std::string> notes;  // what else is odd: service links, a hostfile of others
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
