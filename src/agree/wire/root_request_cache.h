// RootRequestCache: the root's cache, and what it keeps until all ranks have acknowledged the plans that changed it.
//
// A message from a rank speaks of the cache as the last plan that the rank handled left it, which may be many plans
// ago. So a position has up to two meanings: what stands there, since the plan that put it there, and what stood there
// before, for ranks that have not handled that plan. It takes no third meaning until every rank has.
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

  // What `position` means to a rank that has handled plans up to `acknowledged`; null if nothing.
  const Request* meaning(uint32_t position, uint64_t acknowledged) const;
  // A rank used the position: it stays a while longer.
  void touch(uint32_t position, uint64_t acknowledged);
  // A request that came whole: from the next plan on it has a position, where there is one to have.
  void learn(const Request& request);
  // Moves what has been learned since the last plan into this one, which is the next.
  void announce(PlanMessage& message);

  // Names that the plan announced last decided without the request of some rank; and whether a join was among them.
  void note_decided_without_all(const std::vector<std::string>& names, bool join);
  // Whether a request, made by a rank that had handled plans up to `acknowledged`, was answered since by a plan that
  // could not know of it.
  bool is_answered(const Request& request, uint64_t acknowledged) const;

  void acknowledge(int rank, uint64_t number);
  uint64_t acknowledged(int rank) const { return acknowledged_[static_cast<std::size_t>(rank)]; }
  void leave(int rank) { acknowledge(rank, std::numeric_limits<uint64_t>::max()); }

  uint64_t plans() const { return plans_; }
  const RequestCache& cache() const { return cache_; }

 private:
  struct Former {
    Request request;
    uint64_t since = 0;  // plan that put it there
    uint64_t until = 0;  // plan that replaced it
  };

  RequestCache cache_;
  std::vector<uint64_t> since_;  // of each position: the plan that put there what stands there
  std::vector<bool> pinned_;     // positions with a former meaning, or not announced yet
  std::map<uint32_t, Former> former_;
  std::vector<uint32_t> learned_;
  std::unordered_map<std::string, uint64_t> answered_;
  uint64_t join_answered_ = 0;
  std::vector<uint64_t> acknowledged_;
  uint64_t plans_ = 0;
};

}  // namespace fdl
