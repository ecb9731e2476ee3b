// Waiting keeps the requests that are not decided: the names that some ranks have submitted, the groups that they form,
// and the ranks that have joined. It determines when a name, a group or a join is ready.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "agree/negotiation/message.h"
#include "agree/negotiation/rules.h"

namespace fdl {

// One name, from its first request until it is decided.
struct Pending {
  std::string name;
  std::vector<Request> variants;    // the distinct requests; mostly one, because ranks mostly agree
  std::vector<int32_t> variant_of;  // by rank: index of its variant; -1: it has not submitted the name
  int submitted = 0;                // ranks that have submitted the name
  int64_t since_ns = 0;
  int64_t reported_ns = 0;  // when it was last reported as stalled; since_ns at first
  // The lowest rank that submitted the name, and the name's number among that rank's requests.
  int first_rank = 0;
  uint64_t place = 0;

  bool submitted_by(int rank) const { return variant_of[static_cast<std::size_t>(rank)] >= 0; }
  const Request& request_of(int rank) const {
    return variants[static_cast<std::size_t>(variant_of[static_cast<std::size_t>(rank)])];
  }
  const Request& first() const { return request_of(first_rank); }
  std::vector<Vote> votes() const;
};

// Names that are decided together: a single name, or all names of a group.
struct Unit {
  std::vector<Pending> members;
  uint64_t moment = 0;       // number of the add() call that made it ready
  std::vector<bool> joined;  // ranks that had joined at that moment; empty: none
  // A join is a unit without members.
  bool is_join = false;
  std::string join_name;
  int last_joined = -1;
};

class Waiting {
 public:
  explicit Waiting(int size);

  // Takes in one message. All its requests are recorded before readiness is checked, so a part of a group never counts
  // as the group.
  void add(int from, std::span<const Request* const> requests, int64_t now_ns);

  // The units that are ready, in the order in which they became so; those of one moment by first rank and place.
  std::vector<Unit> take_ready();
  // Units that take_ready() returned and that stay ready.
  void put_back(std::vector<Unit> units);
  bool has_ready() const { return !ready_.empty(); }
  // Takes the unit of one pending name, ready or not, with the other names of its groups.
  Unit take(const std::string& name);
  // Takes everything, ready or not, unit by unit.
  std::vector<Unit> take_all();
  // Drops everything, ready or not.
  void drop_pending() {
    ready_names_.clear();
    ready_.clear();
    pending_.clear();
    groups_.clear();
  }
  bool has_joined() const { return joined_count_ > 0; }

  const std::unordered_map<std::string, Pending>& pending() const { return pending_; }
  std::unordered_map<std::string, Pending>& pending() { return pending_; }
  std::size_t count() const;  // pending names and ready units that were not taken
  bool has_submitted(int rank, const Request& request) const;
  // Whether `rank` has nothing left to submit for `pending`.
  bool is_done(const Pending& pending, int rank) const;

 private:
  struct Group {
    std::vector<std::string> names;  // in the order of arrival
    std::vector<int32_t> counts;     // by rank: members that it has submitted
    std::vector<int32_t> sizes;      // by rank: members that it has announced
    int whole_ranks = 0;             // ranks with counts >= sizes
    bool whole_at(int rank) const {
      return counts[static_cast<std::size_t>(rank)] > 0 &&
             counts[static_cast<std::size_t>(rank)] >= sizes[static_cast<std::size_t>(rank)];
    }
  };

  void note(int from, const Request& request, int64_t now_ns);
  void note_member(int from, const Request& request, bool is_new_variant);
  void note_join(int rank, const Request& request);
  void collect_if_ready(const std::string& name);
  void collect_all_ready();
  void finish_join();
  bool is_complete(const Pending& pending) const;
  bool is_whole(const Group& group) const;
  bool is_ready(const Pending& pending) const;
  Unit join_unit();
  void add_ready(Unit unit) {
    ready_names_.clear();
    ready_.push_back(std::move(unit));
  }
  bool is_ready_with(int rank, const std::string& name) const;

  int size_;
  std::unordered_map<std::string, Pending> pending_;
  std::map<std::string, Group> groups_;
  std::vector<Unit> ready_;
  // The names in ready_: empty until has_submitted() looks for one, and after each change of ready_.
  mutable std::unordered_multimap<std::string_view, const Pending*> ready_names_;
  std::vector<uint64_t> places_;  // by rank: how many requests it has made
  std::vector<bool> joined_;
  int joined_count_ = 0;
  int last_joined_ = -1;
  std::string join_name_;
  uint64_t moment_ = 0;
};

}  // namespace fdl
