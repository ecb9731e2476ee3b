// RequestCache: requests that all ranks know by a small number, so that repeating one costs a number and not a message.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "agree/message.h"

namespace fdl {

// The root's copy decides which position a request gets (least recently used goes first); the others obey what plans
// say, so that all copies are equal whenever a plan has been handled. A request that differs in anything is another
// request.
class RequestCache {
 public:
  explicit RequestCache(std::size_t capacity);
  ~RequestCache();

  std::optional<uint32_t> find(const Request& request) const;
  const Request* at(uint32_t position) const;  // null where nothing is
  // Root: chooses a position for a request that is not known, never one in `pinned` (in flight somewhere).
  std::optional<uint32_t> choose_position(const Request& request, const std::vector<uint32_t>& pinned);
  void put(uint32_t position, Request request);
  void touch(uint32_t position);
  std::size_t size() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fdl
