// Membership lists the ranks of a communicator. Exchange passes small facts between them while it is being set up.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "base/status.h"
#include "contract/host_memory.h"

namespace fdl {

class MemoryGroup;
class TcpConnector;

// A memory group has a bit of a 64-bit mask for each rank.
inline constexpr int kRanksPerMemoryGroup = 64;

struct Member {
  int world_rank = 0;
  // Ranks with equal host_id can map the same memory. This is tested at start, not guessed from host names.
  std::string host_id;
  std::string host_name;  // for messages only
  int process_id = 0;
  int numa_node = -1;    // the node of its host to which it was bound at start; -1 if not bound to one node
  int memory_group = 0;  // of its host: a host with more than kRanksPerMemoryGroup ranks has several, of equal size
  int location = -1;     // of its host in the network, an index in Membership::locations; -1: not known
};

// The members of a communicator, by rank. Copies share one list, so that a process of a large world has it once.
class Members {
 public:
  Members() : Members(std::vector<Member>()) {}
  Members(std::vector<Member> all) : all_(std::make_shared<std::vector<Member>>(std::move(all))) {}
  Members(std::initializer_list<Member> all) : Members(std::vector<Member>(all)) {}
  // No moves: an object without a list would be one more case.
  Members(const Members&) = default;
  Members& operator=(const Members&) = default;

  operator const std::vector<Member>&() const { return *all_; }
  std::size_t size() const { return all_->size(); }
  bool empty() const { return all_->empty(); }
  auto begin() const { return std::as_const(*all_).begin(); }
  auto end() const { return std::as_const(*all_).end(); }
  const Member& operator[](std::size_t member) const { return (*all_)[member]; }
  const Member& front() const { return all_->front(); }
  const Member& back() const { return all_->back(); }
  // The list of this object alone, to be changed before the object is used.
  std::vector<Member>& edit() {
    if (all_.use_count() != 1) all_ = std::make_shared<std::vector<Member>>(*all_);
    return *all_;
  }

 private:
  std::shared_ptr<std::vector<Member>> all_;
};

// Returns whether shared memory joins both: they are in the same memory group of a host.
inline bool in_one_memory_group(const Member& a, const Member& b) {
  return a.memory_group == b.memory_group && a.host_id == b.host_id;
}

// Returns the name of a member for errors, by its world rank: "rank 3 (host-b)".
std::string name_of(const Member& member);

// The values of several facts, in the order of the ranks that were given. Those of `missing` ranks, which have
// published nothing by the deadline, are empty.
struct ManyFacts {
  std::vector<std::string> values;
  std::vector<int> missing;
};

// Fetches the facts one by one: `fetch` gets their keys, prefix + rank.
Result<ManyFacts> fetch_each(std::string_view prefix, const std::vector<int>& ranks,
                             const std::function<Result<std::string>(const std::string& key)>& fetch);

// Exchange publishes small facts, each once, under a key that is unique within the communicator's set-up. Its calls
// block; they are made only while a communicator is set up, never in a collective.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual Status publish(std::string_view key, std::string_view value) = 0;
  // The same, of a fact that `readers` members fetch once each. It may be dropped after that.
  virtual Status publish_for(int /*readers*/, std::string_view key, std::string_view value) {
    return publish(key, value);
  }
  // Waits until some member has published `key`.
  virtual Result<std::string> fetch(std::string_view key, Deadline deadline) = 0;
  // Waits for the facts with the keys prefix + rank. An exchange over a network needs one request for all of them.
  virtual Result<ManyFacts> fetch_many(std::string_view prefix, const std::vector<int>& ranks, Deadline deadline) {
    return fetch_each(prefix, ranks, [&](const std::string& key) { return fetch(key, deadline); });
  }
};

// Everything that a transport needs in order to connect one communicator. `exchange` outlives the set-up call, `config`
// the transport and the connector: they connect later too.
struct Membership {
  std::string id;  // of the communicator: the same on all members and never used twice in a job
  int rank = 0;    // of this process, in `members`
  Members members;
  std::string job_key;
  // Derived from the job's key and fresh for each world. Empty only where no world was made (tests).
  std::string session_key = {};
  bool key_is_secret = false;  // false: the job's key is derived from facts that others can know
  const Config* config = nullptr;
  // The distinct locations of the world's hosts: names of groups of hosts, widest first, such as "zone-a/rack-3". Null
  // if none is known.
  std::shared_ptr<const std::vector<std::string>> locations = {};
  std::shared_ptr<HostMemory> memory;  // shared by the ranks of this host in this job; null if they have none
  std::shared_ptr<MemoryGroup> memory_group = {};    // communicators of one host are made in it; null: over sockets
  std::shared_ptr<TcpConnector> tcp_connector = {};  // makes connections at first use; null: all when it is made
  Exchange* exchange = nullptr;
  Deadline deadline = Deadline::never();

  int size() const { return static_cast<int>(members.size()); }
  const Member& me() const { return members[static_cast<std::size_t>(rank)]; }
  std::string name_of(int member) const;
  // Waits for a fact of this member, which it publishes when it joins. A timeout names the member.
  Result<std::string> fetch_from(std::string_view transport, int member, std::string_view key) const;
};

}  // namespace fdl
