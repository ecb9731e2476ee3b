// RequestCache: requests that all ranks know by a small number, so that repeating one costs a number and not a message.
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

// The root's copy decides which position a request gets (least recently used goes first); the others obey what plans
// say, so that all copies are equal whenever a plan has been handled. A request that differs in anything is another
// request. Only the root's copy knows what was used when.
class RequestCache {
 public:
  explicit RequestCache(std::size_t capacity);

  std::optional<uint32_t> find(const Request& request) const;
  // Where the request that was put last under this name stands.
  std::optional<uint32_t> find(std::string_view name) const;
  const Request* at(uint32_t position) const;  // null where nothing is
  // Root: a position for a request that is not known, never one that is pinned: one whose former request some rank may
  // still mean. Nothing where there is none, and the request stays unknown.
  std::optional<uint32_t> choose_position(const std::vector<bool>& pinned) const;
  void put(uint32_t position, Request request);
  void touch(uint32_t position);
  std::size_t size() const { return size_; }
  std::size_t capacity() const { return entries_.size(); }

  // The same requests at the same positions.
  bool operator==(const RequestCache& other) const;

  // join is between ranks and names no tensor; every other kind repeats.
  static bool is_cacheable(const Request& request) { return request.kind != RequestKind::join; }

 private:
  struct Entry {
    std::optional<Request> request;
    std::size_t hash = 0;
    std::list<uint32_t>::iterator turn;
  };
  void forget(uint32_t position);

  std::vector<Entry> entries_;
  std::list<uint32_t> turns_;  // the least recently used position first
  std::size_t size_ = 0;
  std::unordered_multimap<std::size_t, uint32_t> by_hash_;
  std::unordered_map<std::string, uint32_t> by_name_;
};

}  // namespace fdl
