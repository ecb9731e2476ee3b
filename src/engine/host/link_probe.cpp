// LinkProbe takes the latency from the transport's round trips. It measures the bandwidth by the time between the
// arrivals of the head and the tail of a short burst. A burst fits into a connection's first congestion window (about
// 14 KiB), so that no round trip is hidden in it.
#include "engine/host/link_probe.h"

#include <fmt/core.h>

#include <algorithm>
#include <span>

namespace fdl {
namespace {

constexpr int kBursts = 3;
constexpr uint32_t kTag = 0x70726f62;  // "prob"

// Of several ranks that miss each other, those on both sides of the fault are to report first: a rank that has come
// further waits this much longer for each step.
constexpr int64_t kLaterReport_ns = 500'000'000;

Status late(const Membership& membership, int peer) {
  const Member& member = membership.members[static_cast<std::size_t>(peer)];
  return Status::blame(
      member.world_rank, member.host_name, Code::timeout,
      fmt::format("the links could not be measured in time: {} has not answered {} (is the network between their hosts "
                  "cut?); see its log",
                  membership.name_of(peer), membership.name_of(membership.rank)));
}

Status wait_for(Transport& transport, const Membership& membership, int peer, const std::optional<Ticket>& ticket,
                Deadline deadline) {
  if (!ticket) return transport.channel_status({peer, 0});
  while (!transport.done(*ticket)) {
    if (transport.progress()) continue;
    FDL_RETURN_IF_ERROR(transport.channel_status({peer, 0}));
    if (deadline.passed()) return late(membership, peer);
    transport.sleep_until_ready(deadline);
  }
  return {};
}

}  // namespace

// Seconds per byte, measured by one burst around the ring.
Result<double> LinkProbe::burst(Transport& transport, const Membership& membership, const GroupShape& shape,
                                Deadline deadline) {
  const int position = shape.order.position(membership.rank);
  const int size = membership.size();
  const std::span<const std::byte> out(out_);
  const std::span<std::byte> in(in_);
  const Channel next{shape.order.rank((position + 1) % size), 0};
  const Channel prev{shape.order.rank((position + size - 1) % size), 0};
  const auto head = transport.recv(prev, kTag, in.first(kHeadBytes));
  const auto tail = transport.recv(prev, kTag, in.last(kTailBytes));
  transport.send(next, kTag, out.first(kHeadBytes));
  const auto sent = transport.send(next, kTag, out.last(kTailBytes));
  FDL_RETURN_IF_ERROR(wait_for(transport, membership, prev.peer, head, deadline));
  // The clock starts when the head has arrived, so that only the tail's transfer is measured.
  const int64_t begin = now_ns();
  FDL_RETURN_IF_ERROR(wait_for(transport, membership, prev.peer, tail, deadline));
  const auto apart_ns = static_cast<double>(now_ns() - begin);
  FDL_RETURN_IF_ERROR(wait_for(transport, membership, next.peer, sent, deadline));
  return apart_ns * 1e-9 / static_cast<double>(kTailBytes);
}

// Computes the maximum over all ranks, along a tree: the configured algorithm may need messages and connections between
// many ranks for these few bytes, and a choice would depend on what is being measured.
Status LinkProbe::agree(Transport& transport, const Membership& membership, const GroupShape& shape,
                        Deadline deadline) {
  const GroupShape known{
      .ranks = shape.ranks, .hosts = shape.hosts, .ranks_per_host = shape.ranks_per_host, .order = shape.order};
  in_any_order_ = *membership.config;  // a maximum has the same bits in any order
  in_any_order_.deterministic = false;
  collectives_.emplace(&transport, membership.rank, known, in_any_order_);
  const CollectiveSpec spec{
      .dtype = Dtype::float64, .reduction = {.op = Op::max}, .count = 2 + kMostLevels, .algorithm = "binomial_tree"};
  collectives_->start(spec, {&worst_, &worst_}, completion_);
  while (!completion_.done) {
    if (collectives_->progress()) continue;
    if (deadline.passed()) {
      const std::vector<int> awaited = collectives_->late_ranks();
      if (awaited.empty()) return Status(Code::timeout, "the links could not be agreed on in time");
      return late(membership, awaited.front());
    }
    collectives_->sleep_until_ready(deadline);
  }
  return completion_.status;
}

// After the bursts: connections that are made at their first use have a round trip only now. A pair without one (in
// shared memory, or not connected) tells nothing of its level.
void LinkProbe::take_round_trips(Transport& transport, const Membership& membership, const GroupShape& shape) {
  worst_.latency_s = shape.latency_s;
  worst_.level_latency_s.fill(-1);
  const int position = shape.order.position(membership.rank);
  for (int peer = 0; peer < shape.ranks; ++peer) {
    if (peer == membership.rank) continue;
    const double round_trip_s = transport.round_trip_s(peer);
    const double latency_s = round_trip_s / 2 - shape.alpha_s;
    worst_.latency_s = std::max(worst_.latency_s, latency_s);
    if (shape.levels.empty() || round_trip_s <= 0) continue;
    const int level = level_between(shape.levels, position, shape.order.position(peer));
    double& worst_s = worst_.level_latency_s[std::min(static_cast<std::size_t>(level), kMostLevels - 1)];
    worst_s = std::max({worst_s, latency_s, 0.0});
  }
}

Result<GroupShape> LinkProbe::run(Transport& transport, const Membership& membership, GroupShape shape) {
  // A rank that was not scheduled in time measures too long, so the best of a few bursts counts.
  for (int i = 0; i < kBursts && shape.hosts > 1; ++i) {
    const Deadline deadline = membership.deadline.shifted_by_ns(i * kLaterReport_ns);
    FDL_ASSIGN_OR_RETURN(const double seen_s, burst(transport, membership, shape, deadline));
    worst_.beta_s = i == 0 ? seen_s : std::min(worst_.beta_s, seen_s);
  }
  take_round_trips(transport, membership, shape);
  const Deadline last = membership.deadline.shifted_by_ns(kBursts * kLaterReport_ns);
  FDL_RETURN_IF_ERROR(agree(transport, membership, shape, last));
  shape.latency_s = worst_.latency_s;
  // Of two levels the outer one is at least as far as the inner one. A level without a measured pair is as near as the
  // level inside, which errs towards more messages there; the outermost one always has one.
  if (shape.levels.size() > 1 && shape.levels.size() <= kMostLevels) {
    double so_far_s = 0;
    for (std::size_t i = 0; i < shape.levels.size(); ++i) {
      so_far_s = std::max(so_far_s, worst_.level_latency_s[i]);
      shape.level_latency_s.push_back(so_far_s);
    }
  }
  // If head and tail arrive together, the measurement only shows that the link is fast: keep the shape's value.
  shape.beta_s = std::max(shape.beta_s, worst_.beta_s);
  return shape;
}

}  // namespace fdl
