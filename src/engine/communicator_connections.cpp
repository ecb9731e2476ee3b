// This file has what a communicator does while it waits for peers: in its set-up, and where its transport may not reach
// them.
#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/communicator.h"
#include "engine/communicator_state.h"

namespace fdl {

bool Communicator::can_confirm() const { return static_cast<bool>(state_->parts.confirm); }

// What the set-up alone needs ends with it.
Status Communicator::confirm(Deadline deadline) { return std::exchange(state_->parts.confirm, nullptr)(deadline); }

void Communicator::check_connections(const std::function<void(const Status&)>& report) {
  State& s = *state_;
  Status broken;
  {
    const DriverLock lock(s);
    if (s.failed || !s.parts.transport) return;
    broken = s.parts.transport->check_connections();
    if (broken.ok()) return;
    broken = broken.during(s.operation_name(), s.phase(), s.parts.id);
  }
  report(broken);  // without the lock: it takes locks of the caller
  const DriverLock lock(s);
  s.fail(broken);
}

std::vector<int> Communicator::awaited_ranks() {
  State& s = *state_;
  const DriverLock lock(s);
  if (s.failed || !s.parts.transport) return {};
  std::vector<int> ranks = s.parts.transport->awaited_peers();
  for (int& rank : ranks) rank = s.parts.members[static_cast<std::size_t>(rank)].world_rank;
  return ranks;
}

// The driving thread ends the transport under the same mutex.
SliceCounts Communicator::sent_to(int world_rank) {
  const State& s = *state_;
  MutexLock lock(state_->mutex);
  const auto peer = std::ranges::find(s.parts.members, world_rank, &Member::world_rank) - s.parts.members.begin();
  const bool is_peer = peer < std::ssize(s.parts.members) && peer != s.parts.rank && s.parts.transport;
  return is_peer ? s.parts.transport->sent_to(static_cast<int>(peer)) : SliceCounts{};
}

void Communicator::note_sent_by(int world_rank, const SliceCounts& sent) {
  const State& s = *state_;
  MutexLock lock(state_->mutex);
  const auto peer = std::ranges::find(s.parts.members, world_rank, &Member::world_rank) - s.parts.members.begin();
  if (peer == std::ssize(s.parts.members) || peer == s.parts.rank || !s.parts.transport) return;
  s.parts.transport->note_sent_by(static_cast<int>(peer), sent);
}

}  // namespace fdl
