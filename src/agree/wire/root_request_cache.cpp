// RootRequestCache keeps former requests until all ranks have acknowledged the plans that replaced them.
#include "agree/wire/root_request_cache.h"

#include <algorithm>

namespace fdl {

RootRequestCache::RootRequestCache(int size, std::size_t capacity)
    : cache_(std::min<std::size_t>(capacity, kMaxCachePositions)),
      since_(cache_.capacity(), 0),
      pinned_(cache_.capacity(), false),
      acknowledged_(static_cast<std::size_t>(size), 0) {}

const Request* RootRequestCache::meaning(uint32_t position, uint64_t acknowledged) const {
  const auto former = former_.find(position);
  if (former != former_.end() && acknowledged < former->second.until) {
    return acknowledged < former->second.since ? nullptr : &former->second.request;
  }
  const Request* request = cache_.at(position);
  return request == nullptr || acknowledged < since_[position] ? nullptr : request;
}

// A rank that used the former request does not make the current one more recent.
void RootRequestCache::touch(uint32_t position, uint64_t acknowledged) {
  if (acknowledged >= since_[position]) cache_.touch(position);
}

// The request enters the root's cache now, but is announced with the next plan; until then its position is pinned.
void RootRequestCache::add(const Request& request) {
  if (!RequestCache::is_cacheable(request) || cache_.capacity() == 0) return;
  if (const auto cached = cache_.find(request)) return cache_.touch(*cached);
  const auto position = cache_.choose_position(pinned_);
  if (!position) return;
  const uint64_t next = plans_ + 1;
  if (const Request* former = cache_.at(*position)) former_[*position] = {*former, since_[*position], next};
  cache_.put(*position, request);
  since_[*position] = next;
  pinned_[*position] = true;
  added_.push_back(*position);
}

void RootRequestCache::announce(PlanMessage& message) {
  message.number = ++plans_;
  for (const uint32_t position : added_) {
    message.cache_positions.push_back(position);
    message.cache_requests.push_back(*cache_.at(position));
    pinned_[position] = former_.contains(position);
  }
  added_.clear();
}

void RootRequestCache::note_decided_without_all(const std::vector<std::string>& names, bool join) {
  for (const std::string& name : names) answered_[name] = plans_;
  if (join) join_answered_ = plans_;
}

bool RootRequestCache::is_answered(const Request& request, uint64_t acknowledged) const {
  if (request.kind == RequestKind::join) return acknowledged < join_answered_;
  if (answered_.empty()) return false;
  const auto found = answered_.find(request.name);
  return found != answered_.end() && acknowledged < found->second;
}

// Former requests and answers are dropped once all ranks have handled the plans that made them obsolete.
void RootRequestCache::acknowledge(int rank, uint64_t number) {
  uint64_t& own = acknowledged_[static_cast<std::size_t>(rank)];
  if (own == number) return;
  own = number;
  if (former_.empty() && answered_.empty()) return;
  const uint64_t by_all = *std::ranges::min_element(acknowledged_);
  std::erase_if(answered_, [&](const auto& entry) { return entry.second <= by_all; });
  for (auto entry = former_.begin(); entry != former_.end();) {
    if (entry->second.until > by_all) {
      ++entry;
      continue;
    }
    pinned_[entry->first] = false;
    entry = former_.erase(entry);
  }
}

}  // namespace fdl
