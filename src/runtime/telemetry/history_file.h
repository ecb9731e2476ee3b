// HistoryFile reads the history of operations that a rank has left behind (system/history.h has its layout).
//
// The bytes may be damaged, cut or of another program: each field is checked before it is used.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "system/history.h"

namespace fdl {

struct RecordedOperation {
  uint64_t serial = 0;    // among all operations of the rank
  uint64_t group = 0;     // the fingerprint of its communicator or group; 0: its name was replaced
  uint64_t sequence = 0;  // in its communicator, from 1 on
  bool is_named = false;
  std::string kind;  // "allreduce"
  std::string name;
  std::string op;     // "sum"; empty if the operation reduces nothing
  std::string dtype;  // empty if it has none
  uint64_t count = 0;
  int root = 0;           // or the peer of a message
  int64_t called_ns = 0;  // since 1970, by the clock of the rank's host
  int64_t begun_ns = -1;  // -1: it has not begun
  int64_t ended_ns = -1;  // -1: it has not ended
  Code outcome = Code::ok;

  // Messages are between two ranks, so their numbers say nothing about the others.
  bool is_message() const { return kind == "send" || kind == "recv"; }
  bool is_finished() const { return ended_ns >= 0 && outcome == Code::ok; }
  // "allreduce of 1000 float32 (sum)": what the calls of all ranks must have alike.
  std::string signature() const;
};

struct RecordedGroup {
  uint64_t fingerprint = 0;
  std::string name;
};

struct RankHistory {
  int rank = 0;
  int size = 1;
  int process_id = 0;
  std::string host;
  std::string job;
  uint64_t count = 0;   // of operations; only the last ones are here
  int64_t last_ns = 0;  // the last moment that is known, since 1970
  std::vector<RecordedGroup> groups;
  std::vector<RecordedOperation> operations;  // in the order of their calls

  const RecordedOperation* find(uint64_t group, uint64_t sequence) const;
};

Result<RankHistory> read_history(ConstBytes bytes);
Result<RankHistory> read_history_file(const std::string& path);

}  // namespace fdl
