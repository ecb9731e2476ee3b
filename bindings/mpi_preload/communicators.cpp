// A communicator of farandole is made at the third collective, so that short-lived communicators of MPI cost nothing.
// It ends with MPI's communicator, whose attribute it is.
#include "communicators.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "host_world.h"
#include "real_mpi.h"
#include "report.h"

namespace fdl::mpi_preload {
namespace {

constexpr std::size_t kWorthOfBytes = 32 << 10;
constexpr std::size_t kMostAtOnce = 256;  // each has memory that it shares with its ranks

// What a rank says before a communicator is made. All do what the least one says.
enum Wish : int { never = 0, later = 1, now = 2 };

int keyval;
std::size_t enough;  // of Communicator::worth
bool is_choosing;    // between farandole and MPI, by measuring
std::mutex registry_mutex;
std::vector<Communicator*> registry;  // those with one of farandole
std::mutex creation;                  // held on all members at once: ranks make communicators in the same order
std::atomic<uint64_t> generation{1};  // changes when an attribute is deleted

Totals totals;

void release(Communicator& entry) {
  totals.collectives += std::exchange(entry.ours, 0);
  if (entry.ordered != nullptr) fdl_comm_destroy(entry.ordered);
  if (entry.group != nullptr) fdl_group_destroy(entry.group);
  entry.ordered = nullptr;
  entry.group = nullptr;
  if (entry.submitted) entry.submitted->set_freed();
  entry.submitted.reset();
}

// MPI calls it in MPI_Comm_free and MPI_Comm_disconnect, and in MPI_Finalize for those that are left.
int on_delete(MPI_Comm, int, void* attribute, void*) {
  auto* entry = static_cast<Communicator*>(attribute);
  generation.fetch_add(1, std::memory_order_acq_rel);
  {
    const std::lock_guard lock(registry_mutex);
    std::erase(registry, entry);
    release(*entry);
  }
  delete entry;
  return MPI_SUCCESS;
}

// The ranks in the host's world; empty if some are elsewhere.
std::vector<int> ranks_on_host(MPI_Comm comm, int size, const HostWorld& host) {
  std::vector<int> own(static_cast<std::size_t>(size));
  std::iota(own.begin(), own.end(), 0);
  std::vector<int> there(own.size(), MPI_UNDEFINED);
  MPI_Group group;
  if (real().Comm_group(comm, &group) != MPI_SUCCESS) return {};
  real().Group_translate_ranks(group, size, own.data(), host.group, there.data());
  real().Group_free(&group);
  return std::ranges::find(there, MPI_UNDEFINED) == there.end() ? there : std::vector<int>();
}

// Whether it can have one at all: members of one host, two or more.
bool is_suitable(MPI_Comm comm, int size, const HostWorld& host) {
  int is_inter = 0;
  real().Comm_test_inter(comm, &is_inter);
  return is_inter == 0 && size > 1 && size <= host.size && !ranks_on_host(comm, size, host).empty();
}

bool make(Communicator& entry, const HostWorld& host) {
  const std::vector<int> ranks = ranks_on_host(entry.mpi, entry.size, host);
  fdl_group* group = fdl_group_all(host.world);
  std::vector<int> all(static_cast<std::size_t>(host.size));
  std::iota(all.begin(), all.end(), 0);
  if (ranks != all) {
    if (fdl_group_create(host.world, ranks.data(), ranks.size(), &entry.group) != FDL_OK) return false;
    group = entry.group;
  }
  return fdl_comm_create(group, &entry.ordered) == FDL_OK;
}

bool least_of(MPI_Comm comm, int mine, int& least) {
  return real().Allreduce(&mine, &least, 1, real().integer, real().minimum, comm) == MPI_SUCCESS;
}

// Runs `create` on all ranks at the same place of their order, if all ranks can. Returns never if it has not run on all
// of them or has failed on one, and later if another thread is in the way. The first agreement also is a barrier: no
// rank is still on its way here and needs another one to move its messages.
template <typename Create>
Wish agree_and(MPI_Comm comm, bool is_possible, const Create& create) {
  const std::unique_lock turn(creation, std::try_to_lock);
  int least = never;
  if (!least_of(comm, !is_possible ? never : turn.owns_lock() ? now : later, least)) return never;
  if (least != now) return static_cast<Wish>(least);
  const bool made = create();
  if (!made) say(Level::warning, "MPI runs the collectives of a communicator: %s", fdl_last_error()->text);
  return least_of(comm, made ? 1 : 0, least) && least == 1 ? now : never;
}

// Makes the communicator of farandole.
void settle(Communicator& entry, const HostWorld& host) {
  bool has_room = false;
  {
    const std::lock_guard lock(registry_mutex);
    has_room = registry.size() < kMostAtOnce;
  }
  const Wish outcome = agree_and(entry.mpi, has_room, [&] { return make(entry, host); });
  entry.is_settled = outcome != later;
  if (outcome == later) entry.worth = 0;
  const std::lock_guard lock(registry_mutex);
  if (outcome != now) return release(entry);
  registry.push_back(&entry);
  ++totals.communicators;
}

// Makes the one for nonblocking collectives: blocking calls on a communicator that calls are submitted to take longer.
void settle_nonblocking(Communicator& entry, const HostWorld& host) {
  const Wish outcome = agree_and(entry.mpi, true, [&] {
    fdl_group* group = entry.group != nullptr ? entry.group : fdl_group_all(host.world);
    fdl_comm* made = nullptr;
    if (fdl_comm_create(group, &made) != FDL_OK) return false;
    entry.submitted = std::make_shared<SubmittedComm>(made);
    return true;
  });
  entry.is_submitted_settled = outcome != later;
  if (outcome == later) entry.nonblocking_worth = 0;
  if (outcome == never) entry.submitted.reset();
}

Communicator* attribute_of(MPI_Comm comm, const HostWorld& host) {
  void* value = nullptr;
  int is_set = 0;
  if (real().Comm_get_attr(comm, keyval, &value, &is_set) != MPI_SUCCESS) return nullptr;
  if (is_set != 0) return static_cast<Communicator*>(value);
  auto* entry = new Communicator;
  entry->mpi = comm;
  real().Comm_rank(comm, &entry->rank);
  real().Comm_size(comm, &entry->size);
  entry->is_settled = !is_suitable(comm, entry->size, host);
  if (real().Comm_set_attr(comm, keyval, entry) == MPI_SUCCESS) return entry;
  delete entry;
  return nullptr;
}

}  // namespace

void open_registry(std::size_t worth, bool is_measuring) {
  enough = worth;
  is_choosing = is_measuring;
  const auto copy = [](MPI_Comm, int, void*, void*, void*, int* copied) -> int {
    *copied = 0;  // a duplicate gets one of its own
    return MPI_SUCCESS;
  };
  real().Comm_create_keyval(copy, on_delete, &keyval, nullptr);
}

Totals close_registry() {
  generation.fetch_add(1, std::memory_order_acq_rel);
  const std::lock_guard lock(registry_mutex);
  for (Communicator* entry : registry) release(*entry);
  registry.clear();
  real().Comm_free_keyval(&keyval);
  return totals;
}

namespace {

// The communicator's entry; null if MPI runs all its collectives.
Communicator* entry_of(MPI_Comm comm, const HostWorld* host) {
  // The last communicator of this thread, which saves the search for the attribute.
  struct Last {
    MPI_Comm comm;
    uint64_t generation = 0;
    Communicator* entry = nullptr;
  };
  static thread_local Last last;
  if (host == nullptr) return nullptr;
  const uint64_t present = generation.load(std::memory_order_acquire);
  if (last.generation == present && last.comm == comm) return last.entry;
  if (comm == real().no_comm) return nullptr;
  Communicator* entry = attribute_of(comm, *host);
  if (entry != nullptr) last = {comm, present, entry};
  return entry;
}

}  // namespace

Communicator* ours(MPI_Comm comm, Family family, std::size_t bytes) {
  const HostWorld* host = host_world();
  Communicator* entry = entry_of(comm, host);
  if (entry == nullptr) return nullptr;
  if (!entry->is_settled) [[unlikely]] {
    if (entry->worth >= enough) settle(*entry, *host);
    entry->worth += 1 + bytes / kWorthOfBytes;
  }
  if (entry->ordered == nullptr) return nullptr;
  if (!entry->is_submitted_settled && entry->nonblocking_worth > 0 && entry->nonblocking_worth >= enough) [[unlikely]] {
    settle_nonblocking(*entry, *host);
  }
  if (is_choosing) {
    Runner& runner = entry->choices.of(family, bytes);
    if (runner == Runner::unknown) [[unlikely]] runner = measure(*entry, family, bytes);
    if (runner == Runner::mpi) return nullptr;
  }
  ++entry->ours;
  return entry;
}

Communicator* ours_nonblocking(MPI_Comm comm, std::size_t bytes) {
  Communicator* entry = entry_of(comm, host_world());
  if (entry == nullptr) return nullptr;
  const std::size_t worth = 1 + bytes / kWorthOfBytes;
  if (!entry->is_settled) entry->worth += worth;
  if (!entry->is_submitted_settled) entry->nonblocking_worth += worth;
  if (!entry->submitted) return nullptr;
  ++entry->ours;
  return entry;
}

Communicator* ours_persistent(MPI_Comm comm) {
  const HostWorld* host = host_world();
  Communicator* entry = entry_of(comm, host);
  if (entry == nullptr) return nullptr;
  if (!entry->is_settled) settle(*entry, *host);
  if (entry->ordered == nullptr) return nullptr;
  if (!entry->is_submitted_settled) settle_nonblocking(*entry, *host);
  if (!entry->submitted) return nullptr;
  ++entry->ours;
  return entry;
}

const Communicator* known(MPI_Comm comm) {
  const HostWorld* host = host_world();
  const Communicator* entry = entry_of(comm, host);
  return entry == nullptr || (entry->is_settled && entry->ordered == nullptr) ? nullptr : entry;
}

}  // namespace fdl::mpi_preload
