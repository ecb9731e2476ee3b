// The ranks of a host find each other through MPI; farandole then connects them through shared memory alone.
#include "host_world.h"

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>

#include "communicators.h"
#include "real_mpi.h"
#include "report.h"
#include "requests/pending.h"
#include "requests/persistent.h"
#include "windows/windows.h"

namespace fdl::mpi_preload {
namespace {

using Text = std::array<char, 256>;

std::atomic<HostWorld*> current{nullptr};

// A receive of this rank from itself that never ends: a test of it makes MPI's progress, which a probe does not in
// MPICH. One thread at a time tests it.
struct Idle {
  std::mutex mutex;
  MPI_Comm comm;
  MPI_Request request;
  char byte = 0;
};
Idle idle;

void open_idle() {
  real().Comm_dup(real().self, &idle.comm);
  real().Comm_set_errhandler(idle.comm, real().errors_return);
  real().Irecv(&idle.byte, 1, real().byte, 0, 0, idle.comm, &idle.request);
}
void close_idle() {
  real().Cancel(&idle.request);
  real().Wait(&idle.request, MPI_STATUS_IGNORE);
  real().Comm_free(&idle.comm);
}

// The least number of all ranks; 0 if MPI fails.
int least_of(MPI_Comm ranks, int mine) {
  int least = 0;
  return real().Allreduce(&mine, &least, 1, real().integer, real().minimum, ranks) == MPI_SUCCESS ? least : 0;
}
// True if it is true on all ranks.
bool all_agree(MPI_Comm ranks, bool mine) { return least_of(ranks, mine ? 1 : 0) == 1; }

// For fdl_world_options.share.
int share(char* text, std::size_t capacity, void* ranks) {
  return real().Bcast(text, static_cast<int>(capacity), real().byte, 0, *static_cast<MPI_Comm*>(ranks));
}

// The ranks of this host. Two hosts whose identities have one hash make one communicator, which is then refused.
bool find_ranks(HostWorld& host) {
  Text identity{};
  fdl_host_identity(identity.data(), identity.size());
  const auto hash = std::hash<std::string_view>()(identity.data());
  int world_rank = 0;
  real().Comm_rank(real().world, &world_rank);
  if (real().Comm_split(real().world, static_cast<int>(hash & 0x7fffffff), world_rank, &host.ranks) != MPI_SUCCESS) {
    return false;
  }
  real().Comm_set_errhandler(host.ranks, real().errors_return);
  real().Comm_size(host.ranks, &host.size);
  real().Comm_group(host.ranks, &host.group);
  Text first = identity;
  return share(first.data(), first.size(), &host.ranks) == MPI_SUCCESS && all_agree(host.ranks, first == identity);
}

constexpr const char* kWithout = "MPI runs all collectives of this host: %s";

// Checked before the start, so that the other ranks need not wait for one that fails at once.
bool has_valid_settings() {
  char text[512];
  fdl_config_describe(text, sizeof text);
  const bool is_valid = std::strncmp(text, "error: ", 7) != 0;
  if (!is_valid) say(Level::warning, kWithout, text + 7);
  return is_valid;
}

bool create_world(HostWorld& host, int rank) {
  // Ranks of MPI spin for ever; these for a while, unless they share cores. The variable wins.
  const char* const options[] = {"transport", "shm", "spin_us", "1000"};
  fdl_world_options wanted;
  fdl_world_options_init(&wanted);
  wanted.rank = wanted.local_rank = rank;
  wanted.size = wanted.local_size = host.size;
  wanted.share = share;
  wanted.share_context = &host.ranks;
  wanted.options = options;
  wanted.option_count = is_spin_set() ? 1 : 2;
  // A rank that waits in a collective of ours lets MPI move on: another rank may need its messages to get there.
  wanted.waiting = [](void*) { move_messages(); };
  wanted.stays_awake = [](void*) -> int { return has_windows() ? 1 : 0; };
  const bool made = fdl_world_create(&wanted, &host.world) == FDL_OK;
  if (!made) say(Level::warning, kWithout, fdl_last_error()->text);
  return all_agree(host.ranks, made);
}

void release(HostWorld& host) {
  if (host.world != nullptr) fdl_world_destroy(host.world);
  real().Group_free(&host.group);
  real().Comm_free(&host.ranks);
}

}  // namespace

MPI_Comm own_comm() { return idle.comm; }

const HostWorld* host_world() { return current.load(std::memory_order_acquire); }

void move_messages() {
  const std::unique_lock lock(idle.mutex, std::try_to_lock);
  int done = 0;
  if (lock.owns_lock()) real().Test(&idle.request, &done, MPI_STATUS_IGNORE);
}

void catch_up() {
  constexpr int kTurns = 16;  // MPI takes in a few messages in each
  for (int turn = 0; turn < kTurns && has_windows(); ++turn) move_messages();
}

void start_host_world() {
  auto host = std::make_unique<HostWorld>();
  if (!find_ranks(*host)) return;
  int rank = 0;
  real().Comm_rank(host->ranks, &rank);
  const bool wanted = all_agree(host->ranks, is_wanted() && host->size > 1 && has_valid_settings());
  if (!wanted) return release(*host);
  open_idle();
  if (!create_world(*host, rank)) {
    close_idle();
    return release(*host);
  }
  const auto worth = static_cast<std::size_t>(least_of(host->ranks, enough_worth()));
  open_registry(worth, all_agree(host->ranks, is_measuring()));
  if (rank == 0)
    say(Level::info, "farandole %s runs collectives of the %d ranks of this host", fdl_version(), host->size);
  current.store(host.release(), std::memory_order_release);
}

void stop_host_world() {
  const std::unique_ptr<HostWorld> host(current.exchange(nullptr, std::memory_order_acq_rel));
  if (!host) return;
  finish_pending();
  forget_all();
  all_agree(host->ranks, true);  // no rank leaves while another one still needs it
  const Totals totals = close_registry();
  int rank = 0;
  real().Comm_rank(host->ranks, &rank);
  if (rank == 0) {
    say(Level::info, "farandole ran %llu collectives on %llu communicators",
        static_cast<unsigned long long>(totals.collectives), static_cast<unsigned long long>(totals.communicators));
  }
  release(*host);
  close_idle();
}

}  // namespace fdl::mpi_preload
