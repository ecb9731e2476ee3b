// Messages to the coordinator, as seeds of the fuzz targets of module bootstrap.
#pragma once

#include <vector>

#include "bootstrap/coordinator/coordinator_wire.h"

namespace fdl::fuzz {

inline CoordinatorMessage hello_of(int rank) {
  CoordinatorMessage hello{.kind = CoordinatorMessage::Kind::hello};
  hello.number = rank == 2 ? 0 : CoordinatorMessage::kMessages;  // rank 2 is of a former version
  hello.members = {{rank, 3, "host-a", "boot", 100 + rank, {{"fusion_bytes", "67108864", "set it on all ranks"}}, 0}};
  return hello;
}

inline std::vector<CoordinatorMessage> some_messages() {
  using Kind = CoordinatorMessage::Kind;
  std::vector<CoordinatorMessage> all{hello_of(0), hello_of(1), hello_of(2)};
  const auto add = [&](Kind kind) -> CoordinatorMessage& { return all.emplace_back(CoordinatorMessage{.kind = kind}); };
  add(Kind::wait).number = 5'000'000'000;
  CoordinatorMessage& publish = add(Kind::publish);
  publish.id = 7;
  publish.key = "tcp all/0";
  publish.value = "10.0.0.7:4242";
  add(Kind::fetch).key = "tcp all/0";
  add(Kind::forget).id = 7;
  CoordinatorMessage& many = add(Kind::fetch_many);
  many.id = 8;
  many.number = 1'000'000'000;
  many.key = "tcp all/";
  many.ranks = {0, 1, 2};
  add(Kind::probe).ranks = {0, 1, 2};
  CoordinatorMessage& report = add(Kind::report);
  report.key = "all/0";
  report.why = Status(Error{.code = Code::peer_lost, .text = "rank 1 was lost", .culprit_rank = 1});
  CoordinatorMessage& late = add(Kind::report);
  late.key = "all/1";
  late.why = Status(Error{.code = Code::timeout, .text = "rank 0 did not connect", .culprit_rank = 0});
  late.ranks = {0, 1, 2};
  add(Kind::set_up_reply).key = "all/1";
  add(Kind::leave);
  add(Kind::pong).id = 1;
  CoordinatorMessage& query = add(Kind::progress_query);
  query.key = "all/0";
  query.ranks = {1, 2};
  query.number = 1'000'000'000;
  CoordinatorMessage& reply = add(Kind::progress_reply);
  reply.key = "all/0";
  reply.rank = 0;
  reply.number = 3;
  reply.value = kWaiting;
  add(Kind::job_query);
  CoordinatorMessage& state = add(Kind::state_reply);
  state.id = 1;
  state.state.emplace();
  state.state->operations = {{"all comm 0", "allreduce", "allreduce by shared memory", {1, 2}, 7}};
  state.state->names = {{"all", "allreduce 'grad'", "", {2}, 1'000'000'000}};
  state.state->begun_ordered = 3;
  return all;
}

}  // namespace fdl::fuzz
