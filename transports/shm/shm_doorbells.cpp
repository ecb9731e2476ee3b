// Doorbells are kept weakly: they close with the last communicator that uses them.
#include "transports/shm/shm_doorbells.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "base/mutex.h"
#include "system/handshake.h"

namespace fdl {
namespace {

uint64_t random_id() {
  const std::string bytes = random_bytes(sizeof(uint64_t));
  uint64_t id = 0;
  std::memcpy(&id, bytes.data(), sizeof id);
  return id;
}

class Doorbells {
 public:
  Result<std::shared_ptr<const Doorbell>> take() {
    const MutexLock lock(mutex_);
    // A forked child must not be woken by the rings for its parent.
    if (std::exchange(process_, ::getpid()) != ::getpid()) own_.clear();
    std::erase_if(own_, [](const auto& one) { return one.expired(); });
    if (own_.size() >= kDoorbellsOfOneCommunicator) {
      const auto least = std::min_element(own_.begin(), own_.end(),
                                          [](const auto& a, const auto& b) { return a.use_count() < b.use_count(); });
      auto shared = least->lock();
      if (shared && shared.use_count() <= kCommunicatorsOfADoorbell) return shared;
    }
    FDL_ASSIGN_OR_RETURN(Event event, Event::make());
    std::shared_ptr<const Doorbell> made = std::make_shared<Doorbell>(Doorbell{random_id(), std::move(event)});
    own_.push_back(made);
    known_[made->id] = made;
    return made;
  }

  std::shared_ptr<const Doorbell> keep(uint64_t id, UniqueFd received) {
    const MutexLock lock(mutex_);
    std::erase_if(known_, [](const auto& one) { return one.second.expired(); });
    std::weak_ptr<const Doorbell>& known = known_[id];
    if (auto shared = known.lock()) return shared;
    std::shared_ptr<const Doorbell> made = std::make_shared<Doorbell>(Doorbell{id, Event(std::move(received))});
    known = made;
    return made;
  }

 private:
  Mutex mutex_;
  pid_t process_ FDL_GUARDED_BY(mutex_) = 0;
  std::vector<std::weak_ptr<const Doorbell>> own_ FDL_GUARDED_BY(mutex_);
  std::map<uint64_t, std::weak_ptr<const Doorbell>> known_ FDL_GUARDED_BY(mutex_);
};

Doorbells& doorbells() {
  static auto* all = new Doorbells;  // intentionally leaked: a communicator may end after static objects
  return *all;
}

}  // namespace

Result<std::shared_ptr<const Doorbell>> take_doorbell() { return doorbells().take(); }

std::shared_ptr<const Doorbell> keep_doorbell(uint64_t id, UniqueFd received) {
  return doorbells().keep(id, std::move(received));
}

}  // namespace fdl
