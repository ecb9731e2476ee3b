// Waiting: the names that some ranks have asked for, the groups they form, and who has joined; it tells when what is
// ready.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "agree/negotiation/message.h"
#include "agree/negotiation/rules.h"

namespace fdl {

// One name, from the first request on until it is decided.
struct Pending {
  std::string name;
  std::vector<Request> variants;    // ranks mostly ask for the same: kept once
  std::vector<int32_t> variant_of;  // of each rank; -1: has not asked
  int asked = 0;
  int64_t since_ns = 0;
  int64_t reported_ns = 0;  // when it was last reported as stalled; since_ns at first
  // Where it stands: its number among the requests of the lowest rank that asked.
  int first_rank = 0;
  uint64_t place = 0;

  bool asked_by(int rank) const { return variant_of[static_cast<std::size_t>(rank)] >= 0; }
  const Request& request_of(int rank) const {
    return variants[static_cast<std::size_t>(variant_of[static_cast<std::size_t>(rank)])];
  }
  const Request& first() const { return request_of(first_rank); }
  std::vector<Vote> votes() const;
};

// Names that are decided together: one alone, or those of a group.
struct Unit {
  std::vector<Pending> members;
  uint64_t moment = 0;       // when the last request it needed came
  std::vector<bool> joined;  // ranks that had joined at that moment; empty: none
  // A join is a unit without members.
  bool is_join = false;
  std::string join_name;
  int last_joined = -1;
};

class Waiting {
 public:
  explicit Waiting(int size);

  // One event: every request of it is noted before anything is looked at, so that a group comes whole.
  void add(int from, std::span<const Request* const> requests, int64_t now_ns);

  // Units whose time has come, in the order in which they became ready; of one moment, by first rank and place.
  std::vector<Unit> take_ready();
  // The unit of one pending name, ready or not: with the names of its groups. Everything, unit by unit.
  Unit take(const std::string& name);
  std::vector<Unit> take_all();
  // Forgets what is not ready.
  void forget_pending() {
    pending_.clear();
    groups_.clear();
  }
  bool has_joined() const { return joined_count_ > 0; }

  const std::unordered_map<std::string, Pending>& pending() const { return pending_; }
  std::unordered_map<std::string, Pending>& pending() { return pending_; }
  std::size_t count() const;  // also what is ready and not taken
  bool has_asked(int rank, const Request& request) const;
  // Whether nothing of `pending` is needed from `rank` any more.
  bool is_done(const Pending& pending, int rank) const;

 private:
  struct Group {
    std::vector<std::string> names;  // in order of arrival
    std::vector<int32_t> counts;     // members that each rank has submitted
    std::vector<int32_t> sizes;      // and how many it says there are
    int whole_ranks = 0;             // that have submitted as many as they said
    bool whole_at(int rank) const {
      return counts[static_cast<std::size_t>(rank)] > 0 &&
             counts[static_cast<std::size_t>(rank)] >= sizes[static_cast<std::size_t>(rank)];
    }
  };

  void note(int from, const Request& request, int64_t now_ns);
  void note_member(int from, const Request& request, bool is_new_variant);
  void note_join(int rank, const Request& request);
  void settle(const std::string& name);
  void settle_everything();
  void finish_join();
  bool is_complete(const Pending& pending) const;
  bool is_whole(const Group& group) const;
  bool is_ready(const Pending& pending) const;
  Unit join_unit();

  int size_;
  std::unordered_map<std::string, Pending> pending_;
  std::map<std::string, Group> groups_;
  std::vector<Unit> ready_;
  std::vector<uint64_t> places_;  // of each rank: how many requests it has made
  std::vector<bool> joined_;
  int joined_count_ = 0;
  int last_joined_ = -1;
  std::string join_name_;
  uint64_t moment_ = 0;
};

}  // namespace fdl
