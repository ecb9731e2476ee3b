// LivesWatch opens a pidfd again where it can, because what another process has passed is one open file for all ranks.
#include "transports/shm/memory_group/lives_watch.h"

#include <poll.h>

#include <array>

#include "transports/shm/shm_lives.h"

namespace fdl {
namespace {

// Opens all again; empty if one cannot be.
std::vector<UniqueFd> reopened(const std::vector<UniqueFd>& lives) {
  std::vector<UniqueFd> own(lives.size());
  for (std::size_t i = 0; i < lives.size(); ++i) {
    if (!lives[i]) continue;
    own[i] = reopen_pidfd(lives[i].get());
    if (!own[i]) return {};
  }
  return own;
}

}  // namespace

Result<std::shared_ptr<const LivesWatch>> LivesWatch::of(std::vector<UniqueFd> lives, bool is_private) {
  FDL_CHECK(lives.size() <= static_cast<std::size_t>(kMostRanksOfMask));
  FDL_ASSIGN_OR_RETURN(Poller poller, Poller::make());
  for (std::size_t i = 0; i < lives.size(); ++i) {
    if (lives[i]) FDL_RETURN_IF_ERROR(poller.add(lives[i].get(), i));
  }
  return std::shared_ptr<const LivesWatch>(new LivesWatch(std::move(poller), std::move(lives), is_private));
}

Result<std::shared_ptr<const LivesWatch>> LivesWatch::make(std::vector<UniqueFd> lives) {
  std::vector<UniqueFd> own = reopened(lives);
  return own.empty() ? of(std::move(lives), false) : of(std::move(own), true);
}

Result<std::shared_ptr<const LivesWatch>> LivesWatch::another() const {
  std::vector<UniqueFd> again = reopened(lives_);
  if (again.empty()) return Status(Code::unsupported, "shm: a liveness descriptor cannot be opened again");
  return of(std::move(again), true);
}

// Any number of threads may look: nothing is taken from the set.
RankMask LivesWatch::ended() const {
  std::array<pollfd, kMostRanksOfMask> entries{};
  for (std::size_t i = 0; i < lives_.size(); ++i) entries[i] = {lives_[i].get(), POLLIN, 0};
  if (::poll(entries.data(), lives_.size(), 0) <= 0) return 0;
  RankMask ended = 0;
  for (std::size_t i = 0; i < lives_.size(); ++i) {
    if (lives_[i] && entries[i].revents != 0) ended |= bit_of(static_cast<int>(i));
  }
  return ended;
}

}  // namespace fdl
