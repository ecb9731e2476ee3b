// SimulatedGroup is a simulated rank's part of a group: the shipped Group, which is its communicator, its agreement,
// its locked order and its buckets, on simulated connections.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/group/group.h"
#include "runtime/progress/driven_set.h"
#include "tests/simulation/named/simulated_transport.h"

namespace fdl::simulation {

// What became of one operation on one rank.
struct Ending {
  Status status;
  bool is_of_group = false;  // the whole group has failed with this status
};

// What the simulation knows about all ranks of a group. Ranks are those of the group.
struct GroupRecord {
  explicit GroupRecord(std::size_t size) : words(std::make_shared<SharedWords>(size)), epochs(size), ended(size) {}

  std::string world;
  std::vector<int> members;  // by world rank
  std::shared_ptr<SharedWords> words;
  std::vector<uint64_t> epochs;                              // how often the rank has locked an order
  std::vector<std::vector<std::string>> ended;               // operations that have succeeded, in this order
  std::map<std::string, std::map<int, Ending>> endings;      // by operation and rank
  std::map<std::pair<int, std::string>, int64_t> submitted;  // when a rank has last submitted a name
  std::set<std::pair<int, std::string>> pending;             // names that a rank has submitted, and that have not ended
  std::vector<std::pair<std::string, int64_t>> stalls;       // texts of the root, and when it has reported them
  int64_t longest_wait = 0;                                  // of an operation on a rank
  std::map<std::string, int> last_joined;                    // by phase
};

// The settings of a world, which differ between worlds.
struct GroupSettings {
  const Config* config = nullptr;
  OrderTuning tuning;
  bool shares_words = false;  // if all members are on one host
  std::string session_key;
};
// The same for the same number.
GroupSettings group_settings(uint64_t number);

class SimulatedGroup {
 public:
  struct Parts {
    std::string id;
    int rank = 0;  // in the group
    std::vector<Member> members;
    std::map<int, SimulatedTransport::Peer> peers;
    GroupSettings settings;
  };
  // `driven`, which outlives this object, drives the group until its end. It must not be prepared for a sleep.
  SimulatedGroup(Actor& actor, GroupRecord& record, DrivenSet& driven, Parts parts);
  ~SimulatedGroup();
  SimulatedGroup(const SimulatedGroup&) = delete;
  SimulatedGroup& operator=(const SimulatedGroup&) = delete;

  const std::string& id() const { return group_->id(); }
  int rank() const { return group_->rank(); }
  int size() const { return group_->size(); }
  NamedOperations& named() { return group_->named(); }
  Communicator& comm() { return group_->comm(); }
  GroupRecord& record() { return record_; }

  // One submission of this rank: one operation, or several that run together.
  struct Submission {
    std::vector<std::string> titles;  // of the operations in the whole history of the group
    std::vector<Request> requests;
    std::vector<std::vector<int64_t>> inputs;
    std::vector<std::vector<int64_t>> outputs;
    std::shared_ptr<Handle> handle;
    bool is_done() const { return handle->done(); }
    const Status& status() const { return handle->status(); }
    const int64_t* result(std::size_t index) const { return static_cast<const int64_t*>(handle->output(index).data); }
  };
  // `titles` are unique in the history of the group, names are not. The result lives as long as the group.
  Submission& submit(std::vector<std::string> titles, std::vector<Request> requests,
                     std::vector<std::vector<int64_t>> inputs);

  bool has_failed() { return !named().failure().ok(); }
  // Checks the orders that were locked since the last call.
  void note_epochs();

 private:
  void note_end(Submission& submission);

  Actor& actor_;
  GroupRecord& record_;
  DrivenSet& driven_;
  std::deque<Submission> submissions_;
  std::size_t operations_ = 0;
  std::unique_ptr<Group> group_;  // last: it reads and writes the memory of the submissions
};

}  // namespace fdl::simulation
