// Mappings are known by the inode of their segment, and kept weakly.
#include "transports/shm/shm_mappings.h"

#include <sys/stat.h>

#include <map>

#include "base/mutex.h"

namespace fdl {
namespace {

class Mappings {
 public:
  std::shared_ptr<SharedSegment> keep(SharedSegment segment) {
    // Kept weakly: the mapping ends with its last user.
    auto shared = std::make_shared<SharedSegment>(std::move(segment));
    struct stat file {};
    ::fstat(shared->fd(), &file);
    const MutexLock lock(mutex_);
    std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
    known_[file.st_ino] = shared;
    return shared;
  }
  Result<std::shared_ptr<SharedSegment>> map(UniqueFd fd) {
    struct stat file {};
    if (::fstat(fd.get(), &file) != 0) return Status::from_errno("fstat");
    {
      const MutexLock lock(mutex_);
      const auto found = known_.find(file.st_ino);
      if (found != known_.end()) {
        if (auto shared = found->second.lock()) return shared;
      }
    }
    FDL_ASSIGN_OR_RETURN(SharedSegment segment, SharedSegment::map(std::move(fd)));
    return std::make_shared<SharedSegment>(std::move(segment));
  }

 private:
  Mutex mutex_;
  std::map<ino_t, std::weak_ptr<SharedSegment>> known_ FDL_GUARDED_BY(mutex_);
};

Mappings& mappings() {
  static auto& instance = *new Mappings;  // intentionally leaked: threads may run while the process exits
  return instance;
}

}  // namespace

std::shared_ptr<SharedSegment> keep_mapping(SharedSegment segment) { return mappings().keep(std::move(segment)); }

Result<std::shared_ptr<SharedSegment>> map_once(UniqueFd fd) { return mappings().map(std::move(fd)); }

}  // namespace fdl
