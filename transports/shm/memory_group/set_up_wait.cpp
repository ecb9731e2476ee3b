// SetUpWait has the doorbell and the liveness set in an edge-triggered set: what has rung stays readable for others.
#include "transports/shm/memory_group/set_up_wait.h"

#include <array>

namespace fdl {
namespace {

constexpr uint64_t kRingToken = 0;
constexpr uint64_t kEndToken = 1;
// Sets that are kept for the next set-ups: to make one takes longer than most set-ups wait.
constexpr std::size_t kIdleSets = 1;

}  // namespace

Result<Poller> SetUpWaits::take() {
  {
    const MutexLock lock(mutex_);
    if (!idle_.empty()) {
      Poller poller = std::move(idle_.back());
      idle_.pop_back();
      return poller;
    }
  }
  FDL_ASSIGN_OR_RETURN(Poller poller, Poller::make());
  FDL_RETURN_IF_ERROR(poller.add_edges(doorbell_->event.fd(), kRingToken));
  FDL_RETURN_IF_ERROR(poller.add_edges(lives_->fd(), kEndToken));
  return poller;
}

void SetUpWaits::keep(Poller poller) {
  const MutexLock lock(mutex_);
  if (idle_.size() < kIdleSets) idle_.push_back(std::move(poller));
}

Result<std::unique_ptr<SetUpWait>> SetUpWaits::begin() {
  FDL_ASSIGN_OR_RETURN(Poller poller, take());
  return std::unique_ptr<SetUpWait>(new SetUpWait(*this, std::move(poller)));
}

SetUpWait::SetUpWait(SetUpWaits& all, Poller poller) : all_(all), poller_(std::move(poller)) {
  all_.arena_.begin_wait(all_.rank_);
}

SetUpWait::~SetUpWait() {
  all_.arena_.end_wait(all_.rank_);
  all_.keep(std::move(poller_));
}

void SetUpWait::sleep(Deadline deadline) {
  std::array<Poller::Ready, 2> ready;
  const std::size_t count = poller_.wait(ready, deadline);
  for (std::size_t i = 0; i < count; ++i) {
    if (ready[i].token == kEndToken) all_.ended_.fetch_or(all_.lives_->ended());
  }
}

}  // namespace fdl
