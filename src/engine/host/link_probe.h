// The link probe measures the latency between the ranks of a communicator and the bandwidth of its links, and makes all
// ranks agree on the results.
#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "algorithms/choice/choose.h"
#include "base/bytes.h"
#include "base/config.h"
#include "base/status.h"
#include "contract/membership.h"
#include "contract/transport.h"
#include "engine/host/scheduled_collectives.h"

namespace fdl {

// It owns the memory that the transport sends from and receives into, also after an error: destroy it after the
// transport. Until then a peer that answers late may write there.
class LinkProbe {
 public:
  // Returns `shape` with the latency of the farthest pair (or the largest that any rank's shape already has), that of
  // the farthest measured pair of each level of the network and, between hosts, the bandwidth of the slowest link
  // around the ring, which follows the order of the ranks. Call it once. The call is collective, comes before any other
  // use of the transport, and blocks for about as long as three messages and a small allreduce take. TIMEOUT at the
  // membership's deadline or up to 1.5 s later; the culprit is a rank that has not answered this one.
  Result<GroupShape> run(Transport& transport, const Membership& membership, GroupShape shape);

 private:
  static constexpr std::size_t kHeadBytes = 1_KiB;
  static constexpr std::size_t kTailBytes = 11_KiB;
  static constexpr std::size_t kMostLevels = 12;

  Result<double> burst(Transport& transport, const Membership& membership, const GroupShape& shape, Deadline deadline);
  void take_round_trips(Transport& transport, const Membership& membership, const GroupShape& shape);
  Status agree(Transport& transport, const Membership& membership, const GroupShape& shape, Deadline deadline);

  std::array<std::byte, kHeadBytes + kTailBytes> out_{};
  std::array<std::byte, kHeadBytes + kTailBytes> in_{};
  // The maxima over all ranks that agree() computes. By level: below 0 if no pair of this rank was measured.
  struct Worst {
    double latency_s = 0;
    double beta_s = 0;
    std::array<double, kMostLevels> level_latency_s{};
  };
  static_assert(sizeof(Worst) == (2 + kMostLevels) * sizeof(double));
  Worst worst_;
  Config in_any_order_;
  std::optional<ScheduledCollectives> collectives_;
  Completion completion_;
};

}  // namespace fdl
