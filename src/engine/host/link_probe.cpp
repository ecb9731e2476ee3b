// probe_links() takes the latency from the transport's round trips. It measures the bandwidth by the time between the
// arrivals of the head and the tail of a short burst. A burst fits into a connection's first congestion window (about
// 14 KiB), so that no round trip is hidden in it.
#include "engine/host/link_probe.h"

#include <algorithm>
#include <array>

#include "engine/host/scheduled_collectives.h"

namespace fdl {
namespace {

constexpr std::size_t kHeadBytes = 1_KiB;
constexpr std::size_t kTailBytes = 11_KiB;
constexpr int kBursts = 3;
constexpr uint32_t kTag = 0x70726f62;  // "prob"

// Makes progress or sleeps; returns an error if the channel has failed or the deadline has passed.
Status drive(Transport& transport, int peer, Deadline deadline) {
  if (transport.progress()) return {};
  FDL_RETURN_IF_ERROR(transport.channel_status({peer, 0}));
  if (deadline.passed()) {
    return Status(Code::timeout, "the links could not be measured in time: rank " + std::to_string(peer) +
                                     " of the communicator has not answered; see its log");
  }
  transport.sleep_until_ready(deadline);
  return {};
}

Status wait_for(Transport& transport, int peer, const std::optional<Ticket>& ticket, Deadline deadline) {
  if (!ticket) return transport.channel_status({peer, 0});
  while (!transport.done(*ticket)) FDL_RETURN_IF_ERROR(drive(transport, peer, deadline));
  return {};
}

// Seconds per byte, measured by one burst around the ring.
Result<double> burst(Transport& transport, int rank, int size, Deadline deadline) {
  std::array<std::byte, kHeadBytes + kTailBytes> out{};
  std::array<std::byte, kHeadBytes + kTailBytes> in{};
  const std::span all_out(out);
  const std::span all_in(in);
  const Channel next{(rank + 1) % size, 0};
  const Channel prev{(rank + size - 1) % size, 0};
  const auto head = transport.recv(prev, kTag, all_in.first(kHeadBytes));
  const auto tail = transport.recv(prev, kTag, all_in.last(kTailBytes));
  transport.send(next, kTag, all_out.first(kHeadBytes));
  const auto sent = transport.send(next, kTag, all_out.last(kTailBytes));
  FDL_RETURN_IF_ERROR(wait_for(transport, prev.peer, head, deadline));
  // The clock starts when the head has arrived, so that only the tail's transfer is measured.
  const int64_t begin = now_ns();
  FDL_RETURN_IF_ERROR(wait_for(transport, prev.peer, tail, deadline));
  const auto apart_ns = static_cast<double>(now_ns() - begin);
  FDL_RETURN_IF_ERROR(wait_for(transport, next.peer, sent, deadline));
  return apart_ns * 1e-9 / static_cast<double>(kTailBytes);
}

// Computes the maximum over all ranks, along a tree: the configured algorithm may need messages and connections between
// many ranks for these few bytes, and a choice would depend on what is being measured.
Status agree(Transport& transport, int rank, const GroupShape& shape, const Config& config, std::span<double> worst,
             Deadline deadline) {
  const GroupShape known{.ranks = shape.ranks, .hosts = shape.hosts, .ranks_per_host = shape.ranks_per_host};
  Config in_any_order = config;  // a maximum has the same bits in any order
  in_any_order.deterministic = false;
  ScheduledCollectives collectives(&transport, rank, known, in_any_order);
  const CollectiveSpec spec{
      .dtype = Dtype::float64, .reduction = {.op = Op::max}, .count = worst.size(), .algorithm = "binomial_tree"};
  Completion completion;
  collectives.start(spec, {worst.data(), worst.data()}, completion);
  while (!completion.done) {
    if (collectives.progress()) continue;
    if (deadline.passed()) return Status(Code::timeout, "the links could not be agreed on in time");
    collectives.sleep_until_ready(deadline);
  }
  return completion.status;
}

}  // namespace

Result<GroupShape> probe_links(Transport& transport, int rank, GroupShape shape, const Config& config,
                               Deadline deadline) {
  std::array<double, 2> worst{};
  auto& [latency_s, beta_s] = worst;
  // A rank that was not scheduled in time measures too long, so the best of a few bursts counts.
  for (int i = 0; i < kBursts && shape.hosts > 1; ++i) {
    FDL_ASSIGN_OR_RETURN(const double seen_s, burst(transport, rank, shape.ranks, deadline));
    beta_s = i == 0 ? seen_s : std::min(beta_s, seen_s);
  }
  // After the bursts: connections that are made at their first use have a round trip only now.
  for (int peer = 0; peer < shape.ranks; ++peer) {
    if (peer != rank) latency_s = std::max(latency_s, transport.round_trip_s(peer) / 2 - shape.alpha_s);
  }
  latency_s = std::max(latency_s, shape.latency_s);
  FDL_RETURN_IF_ERROR(agree(transport, rank, shape, config, worst, deadline));
  shape.latency_s = latency_s;
  // If head and tail arrive together, the measurement only shows that the link is fast: keep the shape's value.
  shape.beta_s = std::max(shape.beta_s, beta_s);
  return shape;
}

}  // namespace fdl
