// The ranks of a host find each other through MPI; farandole then connects them through shared memory alone.
#include "host_world.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>

#include "communicators.h"
#include "real_mpi.h"
#include "report.h"

namespace fdl::mpi_preload {
namespace {

constexpr std::size_t kLongest = 128;  // of a text that travels to the other ranks, with its final 0
using Text = std::array<char, kLongest>;

std::atomic<HostWorld*> current{nullptr};
MPI_Comm probed;  // a communicator of this rank alone, on which no message ever comes

Text text_of(const std::string& from) {
  Text text{};
  std::memcpy(text.data(), from.data(), std::min(from.size(), kLongest - 1));
  return text;
}

// Equal on the processes that can meet in one abstract socket: one kernel, one network namespace.
Text host_identity() {
  Text boot{};
  if (std::FILE* file = std::fopen("/proc/sys/kernel/random/boot_id", "r")) {
    if (std::fgets(boot.data(), 64, file) == nullptr) boot[0] = 0;
    std::fclose(file);
  }
  struct stat network {};
  ::stat("/proc/self/ns/net", &network);
  return text_of(std::string(boot.data()) + " " + std::to_string(network.st_ino) + " " + std::to_string(::geteuid()));
}

std::string random_word(int digits) {
  std::random_device source;
  std::string word;
  while (static_cast<int>(word.size()) < digits) word += "0123456789abcdef"[source() % 16];
  return word;
}

// The least number of all ranks; 0 if MPI fails.
int least_of(MPI_Comm ranks, int mine) {
  int least = 0;
  return real().Allreduce(&mine, &least, 1, real().integer, real().minimum, ranks) == MPI_SUCCESS ? least : 0;
}
// True if it is true on all ranks.
bool all_agree(MPI_Comm ranks, bool mine) { return least_of(ranks, mine ? 1 : 0) == 1; }

// Rank 0's text.
bool share(MPI_Comm ranks, Text& text) {
  return real().Bcast(text.data(), kLongest, real().byte, 0, ranks) == MPI_SUCCESS;
}

// The ranks of this host. Two hosts whose identities have one hash make one communicator, which is then refused.
bool find_ranks(HostWorld& host) {
  const Text identity = host_identity();
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
  return share(host.ranks, first) && all_agree(host.ranks, first == identity);
}

// A rank that waits in a collective of ours lets MPI move messages on: another rank may need them to get there.
void move_messages(void*) {
  int found = 0;
  real().Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, probed, &found, MPI_STATUS_IGNORE);
}

constexpr const char* kWithout = "MPI runs all collectives of this host: %s";

// Checked before the start, in which the other ranks would wait for one that fails at once.
bool has_valid_settings() {
  char text[512];
  fdl_config_describe(text, sizeof text);
  const bool is_valid = std::strncmp(text, "error: ", 7) != 0;
  if (!is_valid) say(Level::warning, kWithout, text + 7);
  return is_valid;
}

bool create_world(HostWorld& host, int rank) {
  Text address = text_of("unix:@farandole-" + random_word(32));
  Text key = text_of(random_word(64));
  if (!share(host.ranks, address) || !share(host.ranks, key)) return false;
  const char* const options[] = {"transport", "shm"};
  fdl_world_options wanted;
  fdl_world_options_init(&wanted);
  wanted.rank = wanted.local_rank = rank;
  wanted.size = wanted.local_size = host.size;
  wanted.rendezvous = address.data();
  wanted.job_key = key.data();
  wanted.options = options;
  wanted.option_count = 1;
  wanted.waiting = move_messages;
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

const HostWorld* host_world() { return current.load(std::memory_order_acquire); }

void start_host_world() {
  auto host = std::make_unique<HostWorld>();
  if (!find_ranks(*host)) return;
  int rank = 0;
  real().Comm_rank(host->ranks, &rank);
  const bool wanted = all_agree(host->ranks, is_wanted() && host->size > 1 && has_valid_settings());
  if (!wanted || !create_world(*host, rank)) return release(*host);
  real().Comm_dup(real().self, &probed);
  open_registry(static_cast<std::size_t>(least_of(host->ranks, enough_worth())));
  if (rank == 0)
    say(Level::info, "farandole %s runs collectives of the %d ranks of this host", fdl_version(), host->size);
  current.store(host.release(), std::memory_order_release);
}

void stop_host_world() {
  const std::unique_ptr<HostWorld> host(current.exchange(nullptr, std::memory_order_acq_rel));
  if (!host) return;
  all_agree(host->ranks, true);  // no rank leaves while another one still needs it
  const Totals totals = close_registry();
  int rank = 0;
  real().Comm_rank(host->ranks, &rank);
  if (rank == 0) {
    say(Level::info, "farandole ran %llu collectives on %llu communicators",
        static_cast<unsigned long long>(totals.collectives), static_cast<unsigned long long>(totals.communicators));
  }
  release(*host);
  real().Comm_free(&probed);
}

}  // namespace fdl::mpi_preload
