// TimelineEvents turns the records of traces into the events of a Chrome trace, with Horovod's names of states.
//
// Each tensor is a "process" of its own, whose bars are nested like this:
//
//   NEGOTIATE_ALLREDUCE  from the first rank that is ready until all are; a tick "2" when rank 2 was found ready
//   ALLREDUCE            from then until it is done; inside, one after the other:
//     QUEUE                      other tensors run first
//     MEMCPY_IN_FUSION_BUFFER    if it is packed with others
//     SHM_ALLREDUCE              the collective, by transport and algorithm (TCP_RING_ALLREDUCE)
//     MEMCPY_OUT_FUSION_BUFFER
//
// "Process" 1 shows the agreement: bars LOCKED_ORDER, one line for each group, and instants CYCLE_START if enabled.
// Even if records are lost, every bar that begins also ends, and time does not run backwards on any track. The class
// performs no I/O.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "agree/negotiation/message.h"
#include "runtime/telemetry/trace_ring.h"

namespace fdl {

class TimelineEvents {
 public:
  // Times in the file are relative to start_ns. `process_label`: "rank 0 of 2 on host-a".
  TimelineEvents(int64_t start_ns, std::string_view process_label);

  // Appends the events of one record, each on its own line. All but the very first event begin with a comma.
  void add(const TraceRecord& record, std::string_view text, std::string& out);
  // Appends an event with the number of records that were lost.
  void add_dropped(uint64_t count, int64_t time_ns, std::string& out);
  // Ends every bar that is open.
  void end(int64_t time_ns, std::string& out);

 private:
  // deferred: submitted in a locked order. Its bar is opened later, at the time of the first rank that was ready.
  enum class Stage { idle, deferred, negotiating, operating };
  // One tensor name of a group. It stays when the operation ends, for the next one of that name.
  struct Track {
    int pid = 0;
    std::string operation;  // ALLREDUCE
    std::string args;       // dtype and shape
    uint64_t serial = 0;    // of this rank's request; 0: it has none
    int64_t submitted_ns = 0;
    int64_t last_ns = 0;
    Stage stage = Stage::idle;
    bool in_activity = false;
    std::vector<bool> ticked;
    std::vector<std::pair<int, int64_t>> early;  // ranks ready for the next operation while this one runs, and since
  };
  struct Group {
    int rank = 0;
    int size = 1;
    std::string id;
    bool locked = false;
    uint64_t position = 0;
    std::vector<std::deque<std::pair<uint64_t, int64_t>>> readiness_flags;  // of each rank: count, since when
    std::vector<Track*> running;
    std::unordered_map<uint64_t, Track*> in_flight;
    std::unordered_map<std::string, std::unique_ptr<Track>> tracks;
  };

  Group& group_of(const TraceRecord& record) { return groups_[record.group]; }
  Track& track_of(Group& group, std::string_view name, std::string& out);
  static Track* in_flight(Group& group, uint64_t serial);
  void submitted(Group& group, const TraceRecord& record, std::string_view text, std::string& out);
  void ready(Group& group, const TraceRecord& record, std::string_view name, std::string& out);
  void decided(Group& group, const TraceRecord& record, std::string& out);
  void absent(Group& group, const TraceRecord& record, std::string_view name, std::string& out);
  void activity(Group& group, const TraceRecord& record, std::string_view text, std::string& out);
  void completed(Group& group, const TraceRecord& record, std::string& out);
  void locked(Group& group, const TraceRecord& record, std::string& out);
  void left(Group& group, const TraceRecord& record, std::string_view why, std::string& out);

  void negotiate(Track& track, int64_t time_ns, std::string& out);
  void tick(Track& track, int rank, int64_t time_ns, std::string& out);
  void tick_from_readiness_flags(Group& group, Track& track, std::string& out);
  void operate(Track& track, int64_t time_ns, std::string& out);
  void next_activity(Track& track, std::string_view name, int64_t time_ns, std::string& out);
  void close(Track& track, int64_t time_ns, std::string_view error, std::string& out);
  void release(Group& group, Track& track);

  void begin(Track& track, std::string_view name, int64_t time_ns, std::string& out);
  void finish(Track& track, int64_t time_ns, std::string_view args, std::string& out);
  std::string stamp(int64_t time_ns) const;
  std::string ordered_stamp(Track& track, int64_t time_ns) const;

  int64_t start_ns_;
  std::string process_label_;
  bool begun_ = false;
  int next_pid_ = 2;
  std::map<uint16_t, Group> groups_;
};

}  // namespace fdl
