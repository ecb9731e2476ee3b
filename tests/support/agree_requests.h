// Requests in one line each, for the tests of the agreement.
#pragma once

#include <string>
#include <vector>

#include "agree/negotiation/negotiator.h"

namespace fdl {

inline Request allreduce(std::string name, Dtype dtype = Dtype::float32, std::vector<int64_t> shape = {4}) {
  return {.kind = RequestKind::allreduce, .name = std::move(name), .dtype = dtype, .shape = std::move(shape)};
}
inline Request of_kind(RequestKind kind, std::string name, std::vector<int64_t> shape = {4}) {
  return {.kind = kind, .name = std::move(name), .shape = std::move(shape)};
}
inline Request allgather(std::string name, std::vector<int64_t> shape) {
  return of_kind(RequestKind::allgather, std::move(name), std::move(shape));
}
inline Request reduce_scatter(std::string name, std::vector<int64_t> shape) {
  return of_kind(RequestKind::reduce_scatter, std::move(name), std::move(shape));
}
inline Request broadcast(std::string name, int root, std::vector<int64_t> shape = {4}) {
  Request request = of_kind(RequestKind::broadcast, std::move(name), std::move(shape));
  request.root = root;
  return request;
}
inline Request alltoall(std::string name, std::vector<int64_t> shape, std::vector<int64_t> splits = {}) {
  Request request = of_kind(RequestKind::alltoall, std::move(name), std::move(shape));
  request.splits = std::move(splits);
  return request;
}
inline Request join() { return of_kind(RequestKind::join, "join", {}); }
inline Request barrier(std::string name) { return of_kind(RequestKind::barrier, std::move(name), {}); }
inline Request member(std::string group, int size, Request request) {
  request.group = std::move(group);
  request.group_size = size;
  return request;
}
inline Request urgent(int priority, Request request) {
  request.priority = priority;
  return request;
}

// Ranks are called "rank 0 (host-a)", "rank 1 (host-b)" ...
inline NegotiatorOptions options_for(int size) {
  NegotiatorOptions options;
  options.size = size;
  for (int rank = 0; rank < size; ++rank) {
    options.world_ranks.push_back({rank, std::string("host-") + static_cast<char>('a' + rank)});
  }
  return options;
}

}  // namespace fdl
