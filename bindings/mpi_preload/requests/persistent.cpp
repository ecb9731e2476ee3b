// Each persistent request has a tag of its own on the communicator of this rank alone.
#include "requests/persistent.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "host_world.h"
#include "real_mpi.h"

namespace fdl::mpi_preload {
namespace {

constexpr int kFirstTag = 1;  // 0 is that of the idle receive
constexpr int kLastTag = 32767;

struct Kept {
  MPI_Request request;
  MPI_Comm mpi;
  std::shared_ptr<SubmittedComm> comm;
  std::shared_ptr<const Plan> plan;
  int tag = kFirstTag;
};

std::mutex persistent_mutex;
std::vector<Kept> all;  // ordered by tag
std::atomic<int> count{0};

// The least free tag; 0 if there is none.
int free_tag() {
  int tag = kFirstTag;
  for (const Kept& kept : all) {
    if (kept.tag != tag) break;
    ++tag;
  }
  return tag <= kLastTag ? tag : 0;
}

// A message with a byte is too long for the receive, which MPI reports as an error of the request.
void complete(int tag, int code) {
  const char byte = 0;
  real().Send(&byte, code == MPI_SUCCESS ? 0 : 1, real().byte, 0, tag, own_comm());
}

}  // namespace

int keep(const std::shared_ptr<SubmittedComm>& comm, Plan plan, MPI_Comm mpi, MPI_Request* request) {
  static char nothing;
  const std::lock_guard lock(persistent_mutex);
  Kept kept;
  kept.tag = free_tag();
  if (kept.tag == 0) return MPI_ERR_NO_MEM;
  kept.mpi = mpi;
  kept.comm = comm;
  kept.plan = std::make_shared<const Plan>(std::move(plan));
  if (const int code = real().Recv_init(&nothing, 0, real().byte, 0, kept.tag, own_comm(), &kept.request);
      code != MPI_SUCCESS) {
    return code;
  }
  *request = kept.request;
  const auto place = std::ranges::upper_bound(all, kept.tag, {}, &Kept::tag);
  all.insert(place, std::move(kept));
  count.fetch_add(1, std::memory_order_release);
  return MPI_SUCCESS;
}

bool has_persistent() { return count.load(std::memory_order_acquire) > 0; }

bool start_if_ours(MPI_Request* request, int& code) {
  Kept started;
  {
    const std::lock_guard lock(persistent_mutex);
    const auto found = std::ranges::find(all, *request, &Kept::request);
    if (found == all.end()) return false;
    started = *found;
  }
  code = real().Start(request);
  if (code != MPI_SUCCESS) return true;
  code = submit_to(started.request, started.comm, started.plan, started.mpi,
                   [tag = started.tag](int outcome) { complete(tag, outcome); });
  return true;
}

void forget(MPI_Request request) {
  const std::lock_guard lock(persistent_mutex);
  const auto found = std::ranges::find(all, request, &Kept::request);
  if (found == all.end()) return;
  all.erase(found);
  count.fetch_sub(1, std::memory_order_release);
}

void forget_all() {
  const std::lock_guard lock(persistent_mutex);
  all.clear();
  count.store(0, std::memory_order_release);
}

}  // namespace fdl::mpi_preload
