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
Result<double> LinkProbe::burst(Transport& transport, const Membership& membership, Deadline deadline) {
  const int rank = membership.rank;
  const int size = membership.size();
  const std::span<const std::byte> out(out_);
  const std::span<std::byte> in(in_);
  const Channel next{(rank + 1) % size, 0};
  const Channel prev{(rank + size - 1) % size, 0};
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
  const GroupShape known{.ranks = shape.ranks, .hosts = shape.hosts, .ranks_per_host = shape.ranks_per_host};
  in_any_order_ = *membership.config;  // a maximum has the same bits in any order
  in_any_order_.deterministic = false;
  collectives_.emplace(&transport, membership.rank, known, in_any_order_);
  const CollectiveSpec spec{
      .dtype = Dtype::float64, .reduction = {.op = Op::max}, .count = worst_.size(), .algorithm = "binomial_tree"};
  collectives_->start(spec, {worst_.data(), worst_.data()}, completion_);
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

Result<GroupShape> LinkProbe::run(Transport& transport, const Membership& membership, GroupShape shape) {
  auto& [latency_s, beta_s] = worst_;
  // A rank that was not scheduled in time measures too long, so the best of a few bursts counts.
  for (int i = 0; i < kBursts && shape.hosts > 1; ++i) {
    const Deadline deadline = membership.deadline.shifted_by_ns(i * kLaterReport_ns);
    FDL_ASSIGN_OR_RETURN(const double seen_s, burst(transport, membership, deadline));
    beta_s = i == 0 ? seen_s : std::min(beta_s, seen_s);
  }
  // After the bursts: connections that are made at their first use have a round trip only now.
  for (int peer = 0; peer < shape.ranks; ++peer) {
    if (peer != membership.rank) latency_s = std::max(latency_s, transport.round_trip_s(peer) / 2 - shape.alpha_s);
  }
  latency_s = std::max(latency_s, shape.latency_s);
  const Deadline last = membership.deadline.shifted_by_ns(kBursts * kLaterReport_ns);
  FDL_RETURN_IF_ERROR(agree(transport, membership, shape, last));
  shape.latency_s = latency_s;
  // If head and tail arrive together, the measurement only shows that the link is fast: keep the shape's value.
  shape.beta_s = std::max(shape.beta_s, beta_s);
  return shape;
}

}  // namespace fdl
