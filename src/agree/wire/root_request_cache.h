// RootRequestCache is the root's request cache. It keeps former requests until all ranks have acknowledged the plans
// that replaced them.
//
// A rank's message refers to the cache as it was after the last plan that the rank handled, which may be many plans
// ago. So a position has up to two meanings: the current request, valid since the plan that announced it, and the
// former one, for ranks that have not handled that plan. The position is pinned until every rank has.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "agree/wire/request_cache.h"
#include "agree/wire/wire.h"

namespace fdl {

class RootRequestCache {
 public:
  RootRequestCache(int size, std::size_t capacity);

  // The request at `position` for a rank that has handled plans up to `acknowledged`, or null.
  const Request* meaning(uint32_t position, uint64_t acknowledged) const;
  // A rank used the position; it becomes the most recently used one.
  void touch(uint32_t position, uint64_t acknowledged);
  // Adds a request that arrived in full. The next plan announces its position, if one is free.
  void add(const Request& request);
  // Announces the requests that were added since the last plan in `message`, which becomes the next plan.
  void announce(PlanMessage& message);

  // Records names that the last announced plan decided without the request of some rank, and whether a join was among
  // them.
  void note_decided_without_all(const std::vector<std::string>& names, bool join);
  // Whether a plan after `acknowledged` has answered the request of a rank that had not received that plan. Such a
  // request was on its way when the plan was decided, and must be dropped.
  bool is_answered(const Request& request, uint64_t acknowledged) const;

  void acknowledge(int rank, uint64_t number);
  uint64_t acknowledged(int rank) const { return acknowledged_[static_cast<std::size_t>(rank)]; }
  void leave(int rank) { acknowledge(rank, std::numeric_limits<uint64_t>::max()); }

  uint64_t plans() const { return plans_; }
  const RequestCache& cache() const { return cache_; }

 private:
  struct Former {
    Request request;
    uint64_t since = 0;  // number of the plan that announced it
    uint64_t until = 0;  // number of the plan that replaced it
  };

  RequestCache cache_;
  std::vector<uint64_t> since_;  // by position: number of the plan that announced the current request
  std::vector<bool> pinned_;     // positions with a former request, or not announced yet
  std::map<uint32_t, Former> former_;
  std::vector<uint32_t> added_;
  std::unordered_map<std::string, uint64_t> answered_;
  uint64_t join_answered_ = 0;
  std::vector<uint64_t> acknowledged_;
  uint64_t plans_ = 0;
};

}  // namespace fdl
