// Both candidates take turns, and the least of their times counts, because other processes only make it longer. The time
// of a turn is that of its slowest rank.
#include "choice.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <vector>

#include "communicators.h"
#include "real_mpi.h"
#include "report.h"

namespace fdl::mpi_preload {
namespace {

using Clock = std::chrono::steady_clock;

// What the functions below work on: zeros, of `bytes` for each rank.
struct Trial {
  const Communicator& entry;
  std::size_t bytes;
  int count, floats, size;
  std::vector<std::byte> input, output;
  std::vector<std::size_t> sizes;
  std::vector<int> counts, places;

  Trial(const Communicator& given, std::size_t each)
      : entry(given),
        bytes(each),
        count(static_cast<int>(each)),
        floats(count / static_cast<int>(sizeof(float))),
        size(given.size),
        input(each * static_cast<std::size_t>(given.size)),
        output(input.size()),
        sizes(static_cast<std::size_t>(given.size), each),
        counts(sizes.size(), count) {
    for (int rank = 0; rank < size; ++rank) places.push_back(rank * count);
  }
};

void by_farandole(Trial& t, Family family) {
  fdl_comm* const comm = t.entry.ordered;
  std::byte *const in = t.input.data(), *const out = t.output.data();
  const auto floats = static_cast<std::size_t>(t.floats);
  fdl_call call;
  fdl_result result = FDL_OK;
  switch (family) {
    case Family::allreduce:
      result = fdl_allreduce(comm, in, out, floats, FDL_FLOAT32, FDL_SUM);
      break;
    case Family::reduce:
      result = fdl_reduce(comm, in, out, floats, FDL_FLOAT32, FDL_SUM, 0);
      break;
    case Family::reduce_scatter:
      result = fdl_reduce_scatter(comm, in, out, floats, FDL_FLOAT32, FDL_SUM);
      break;
    case Family::broadcast:
      result = fdl_broadcast(comm, in, t.bytes, FDL_UINT8, 0);
      break;
    case Family::gather:
      result = fdl_gather(comm, in, out, t.bytes, FDL_UINT8, 0);
      break;
    case Family::scatter:
      result = fdl_scatter(comm, in, out, t.bytes, FDL_UINT8, 0);
      break;
    case Family::allgather:
      result = fdl_allgather(comm, in, out, t.bytes, FDL_UINT8);
      break;
    case Family::alltoall:
      result = fdl_alltoall(comm, in, out, t.bytes, FDL_UINT8);
      break;
    case Family::scan:  // as scans.cpp
      result = fdl_allgather(comm, in, out, t.bytes, FDL_UINT8);
      for (int rank = 0; rank < t.entry.rank; ++rank) {
        real().Reduce_local(out + static_cast<std::size_t>(rank) * t.bytes, in, t.floats, real().real_number, real().sum);
      }
      break;
    case Family::barrier:
      result = fdl_barrier(comm);
      break;
    case Family::gatherv:
    case Family::scatterv:  // the root passes the counts on
      result = fdl_broadcast(comm, t.sizes.data(), t.sizes.size(), FDL_UINT64, 0);
      fdl_call_init(&call);
      call.collective = family == Family::gatherv ? FDL_GATHER : FDL_SCATTER;
      call.input = in;
      call.output = out;
      call.counts = t.sizes.data();
      call.dtype = FDL_UINT8;
      if (result == FDL_OK) result = fdl_call_ex(comm, &call, nullptr, nullptr);
      break;
    case Family::allgatherv:
      result = fdl_allgatherv(comm, in, out, t.sizes.data(), FDL_UINT8);
      break;
    case Family::alltoallv:
      result = fdl_alltoallv(comm, in, t.sizes.data(), out, t.sizes.data(), FDL_UINT8);
      break;
  }
  // A failure has ended the communicator of farandole on all ranks. The program's own call reports it.
  static_cast<void>(result);
}

void by_mpi(Trial& t, Family family) {
  const RealMpi& mpi = real();
  const MPI_Comm comm = t.entry.mpi;
  std::byte *const in = t.input.data(), *const out = t.output.data();
  const int *const counts = t.counts.data(), *const places = t.places.data();
  switch (family) {
    case Family::allreduce:
      mpi.Allreduce(in, out, t.floats, mpi.real_number, mpi.sum, comm);
      break;
    case Family::reduce:
      mpi.Reduce(in, out, t.floats, mpi.real_number, mpi.sum, 0, comm);
      break;
    case Family::reduce_scatter:
      mpi.Reduce_scatter_block(in, out, t.floats, mpi.real_number, mpi.sum, comm);
      break;
    case Family::broadcast:
      mpi.Bcast(in, t.count, mpi.byte, 0, comm);
      break;
    case Family::gather:
      mpi.Gather(in, t.count, mpi.byte, out, t.count, mpi.byte, 0, comm);
      break;
    case Family::scatter:
      mpi.Scatter(in, t.count, mpi.byte, out, t.count, mpi.byte, 0, comm);
      break;
    case Family::allgather:
      mpi.Allgather(in, t.count, mpi.byte, out, t.count, mpi.byte, comm);
      break;
    case Family::alltoall:
      mpi.Alltoall(in, t.count, mpi.byte, out, t.count, mpi.byte, comm);
      break;
    case Family::scan:
      mpi.Scan(in, out, t.floats, mpi.real_number, mpi.sum, comm);
      break;
    case Family::barrier:
      mpi.Barrier(comm);
      break;
    case Family::gatherv:
      mpi.Gatherv(in, t.count, mpi.byte, out, counts, places, mpi.byte, 0, comm);
      break;
    case Family::scatterv:
      mpi.Scatterv(in, counts, places, mpi.byte, out, t.count, mpi.byte, 0, comm);
      break;
    case Family::allgatherv:
      mpi.Allgatherv(in, t.count, mpi.byte, out, counts, places, mpi.byte, comm);
      break;
    case Family::alltoallv:
      mpi.Alltoallv(in, counts, places, mpi.byte, out, counts, places, mpi.byte, comm);
      break;
  }
}

// Nanoseconds of a call, by each of both.
struct Times {
  int farandole = std::numeric_limits<int>::max();
  int mpi = std::numeric_limits<int>::max();
  int64_t both() const { return int64_t{farandole} + mpi; }
};

template <typename Call, typename Barrier>
int time_of(int calls, const Call& call, const Barrier& barrier) {
  barrier();
  const auto start = Clock::now();
  for (int i = 0; i < calls; ++i) call();
  const auto each = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count() / calls;
  return static_cast<int>(std::min<int64_t>(each, std::numeric_limits<int>::max() - 1));
}

// One turn of each, as the slowest rank has seen it. MPI's minimum of negative numbers is a maximum.
Times turn(Trial& trial, Family family, int calls) {
  const Times mine = {
      time_of(calls, [&] { by_farandole(trial, family); },
              [&] { static_cast<void>(fdl_barrier(trial.entry.ordered)); }),
      time_of(calls, [&] { by_mpi(trial, family); }, [&] { real().Barrier(trial.entry.mpi); })};
  const int given[] = {-mine.farandole, -mine.mpi};
  int least[2] = {};
  real().Allreduce(given, least, 2, real().integer, real().minimum, trial.entry.mpi);
  return {-least[0], -least[1]};
}

constexpr const char* kNames[kFamilies] = {"allreduce", "reduce", "reduce_scatter", "broadcast", "gather",
                                           "scatter",   "allgather", "alltoall",    "scan",      "barrier",
                                           "gatherv",   "scatterv",  "allgatherv",  "alltoallv"};

}  // namespace

Runner measure(const Communicator& entry, Family family, std::size_t bytes) {
  constexpr int kTurns = 4;
  constexpr int64_t kTurn_ns = 400'000;
  constexpr int64_t kMost_ns = 40'000'000;  // where ranks wait for time slices, fewer turns must do
  const std::size_t each = kSizeClasses[Choices::class_of(bytes)];
  Trial trial(entry, each);
  Times best;
  const Times first = turn(trial, family, 2);  // it touches memory for the first time
  const int calls = static_cast<int>(std::clamp<int64_t>(kTurn_ns / std::max<int64_t>(first.both(), 1), 1, 100));
  int64_t spent = 0;
  for (int i = 0; i < kTurns && spent < kMost_ns; ++i) {
    const Times now = turn(trial, family, calls);
    spent += calls * now.both();
    best = {std::min(best.farandole, now.farandole), std::min(best.mpi, now.mpi)};
  }
  const Runner runner = best.farandole <= best.mpi ? Runner::farandole : Runner::mpi;
  if (entry.rank == 0) {
    say(Level::debug, "%s of about %zu bytes on %d ranks: farandole %.2f us, MPI %.2f us; %s runs it",
        kNames[static_cast<std::size_t>(family)], each, entry.size, best.farandole / 1e3, best.mpi / 1e3,
        runner == Runner::mpi ? "MPI" : "farandole");
  }
  return runner;
}

}  // namespace fdl::mpi_preload
