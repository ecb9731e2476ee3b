// Control messages of module agree that use every field: for the tests of the wire format, and as seeds for fuzzing.
#pragma once

#include <string>
#include <vector>

#include "agree/wire/wire.h"
#include "tests/support/agree_requests.h"

namespace fdl {

// A message as the string that a fuzz target takes.
inline std::string text_from(const std::vector<std::byte>& bytes) { return std::string(text_of(bytes)); }

inline Request some_request() {
  Request request = alltoall("layer.0/weight", {6, 1, 3}, {1, 2, 3});
  request.dtype = Dtype::bfloat16;
  request.op = 4;
  request.root = 2;
  request.prescale = 0.125;
  request.postscale = -3;
  request.group = "g";
  request.group_size = 7;
  request.priority = -5;
  request.device = 1;
  request.place = int64_t{3} << 40 | 64;
  return request;
}

inline RequestMessage some_requests() {
  return {.acknowledged = 77,
          .cached = {3, 4, 5, 9},
          .requests = {some_request(), allreduce("plain"), allreduce("scalar", Dtype::int8, {}), join()},
          .frozen = 0,
          .shares_device = true};
}

inline RelayMessage some_relayed() {
  return {.entries = {{{{1, 1}, {3, 200}}, encode(some_requests())}, {{{7, 2}}, encode(RequestMessage{})}}};
}

inline PlanMessage some_plan() {
  PlanMessage message;
  message.number = 9;
  Bucket sum;
  sum.names = {"a", "b"};
  sum.element_counts = {4, 0};
  sum.dtype = Dtype::float64;
  sum.prescale = 0.5;
  sum.apart = true;
  sum.device = 2;
  sum.launch_with_next = true;
  Bucket gather;
  gather.kind = RequestKind::allgather;
  gather.names = {"g"};
  gather.rows = {1, 0, 3};
  gather.device = 2;
  Bucket failed;
  failed.names = {"f"};
  failed.code = Code::mismatch;
  failed.error = "f: rank 0 has float32, rank 1 has int32";
  failed.culprit = 1;
  Bucket joined;
  joined.kind = RequestKind::join;
  joined.names = {"join"};
  joined.last_joined = 2;
  Bucket cached;
  cached.dtype = Dtype::int32;
  message.plan.buckets = {sum, gather, failed, joined, cached};
  message.cached = {{}, {}, {}, {}, {8, 2, 5}};
  message.cache_positions = {7, 1};
  message.cache_requests = {some_request(), allreduce("new")};
  message.plan.freeze = true;
  message.plan.frozen = {11, 12};
  message.plan.rounds = 13;
  message.plan.cut = {1 << 20, 1 << 16};
  message.plan.order_ended = true;
  message.plan.takes_turns = true;
  return message;
}

}  // namespace fdl
