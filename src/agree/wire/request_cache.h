// RequestCache maps requests to small numbers that are the same on all ranks, so that repeating one costs a number.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "agree/negotiation/message.h"

namespace fdl {

// Only the root's copy chooses positions (it replaces the least recently used one) and tracks usage. The other ranks
// apply what plans announce, so all copies are equal after a plan was decoded. A request that differs in any field is
// another request.
class RequestCache {
 public:
  explicit RequestCache(std::size_t capacity);

  std::optional<uint32_t> find(const Request& request) const;
  // The position of the request that was put last under this name.
  std::optional<uint32_t> find(std::string_view name) const;
  const Request* at(uint32_t position) const;  // null if the position is empty
  // On the root: a position for a new request. A pinned position is never chosen, because some rank may still refer to
  // its former request. Returns nothing if all are pinned; the request is then not cached.
  std::optional<uint32_t> choose_position(const std::vector<bool>& pinned) const;
  void put(uint32_t position, Request request);
  void touch(uint32_t position);
  std::size_t size() const { return size_; }
  std::size_t capacity() const { return entries_.size(); }

  // Whether both have the same requests at the same positions.
  bool operator==(const RequestCache& other) const;

  // A join names no tensor and does not repeat; every other kind does.
  static bool is_cacheable(const Request& request) { return request.kind != RequestKind::join; }

 private:
  struct Entry {
    std::optional<Request> request;
    std::size_t hash = 0;
    std::list<uint32_t>::iterator turn;
  };
  void remove(uint32_t position);

  std::vector<Entry> entries_;
  std::list<uint32_t> turns_;  // the least recently used position first
  std::size_t size_ = 0;
  std::unordered_multimap<std::size_t, uint32_t> by_hash_;
  std::unordered_map<std::string, uint32_t> by_name_;
};

}  // namespace fdl
