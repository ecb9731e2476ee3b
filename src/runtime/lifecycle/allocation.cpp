// allocate() takes memory that the host's ranks share if there is any, else ordinary memory.
#include "runtime/lifecycle/allocation.h"

#include <atomic>
#include <cstring>
#include <limits>

#include "base/log.h"
#include "runtime/named/handle.h"

namespace fdl {

Result<Allocation> allocate(const std::shared_ptr<HostMemory>& host, std::size_t bytes) {
  if (host) {
    auto shared = host->allocate(bytes);
    if (shared.ok()) return Allocation(*shared, {host});
    if (shared.status().code() != Code::unsupported) return shared.status();
    static std::atomic<bool> warned{false};  // once per process: every later allocation may come here too
    if (!warned.exchange(true)) log_warning("{}; ordinary memory is used instead", shared.status().text());
  }
  constexpr std::size_t kMost = std::numeric_limits<std::ptrdiff_t>::max();
  OwnedMemory ordinary = bytes <= kMost ? allocate_aligned(bytes) : nullptr;
  if (!ordinary) return Status(Code::resource, "no memory for " + std::to_string(bytes) + " bytes");
  std::memset(ordinary.get(), 0, bytes);
  return Allocation(ordinary.release(), {});
}

}  // namespace fdl
