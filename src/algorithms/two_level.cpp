// The two-level alltoall lets the ranks of a host work together, so that each rank sends messages to the ranks of its
// own host and to one rank of each other host. The allreduce of that name is in multi_level.cpp.
//
// The ranks of a host first exchange their chunks so that local rank l holds those for local rank l of each
// host; these ranks then exchange them between hosts.
//
//   4 ranks, 2 per host: what rank 0 holds, by source and destination
//     at first                         0>0 0>1  0>2 0>3
//     inside, 0 sends 0>1 and 0>3      0>0 1>0  0>2 1>2
//     across, 0 sends 0>2 and 1>2      0>0 1>0  2>0 3>0     between hosts: h-1 messages a rank instead of p-l
//
// Source: J. L. Traff, A. Rougier, "MPI collectives and datatypes for hierarchical all-to-all communication", EuroMPI
// 2014.
#include "algorithms/algorithms.h"
#include "algorithms/wrap.h"
#include "schedule/builder.h"

namespace fdl {
namespace {

// The position of one rank: `local` of `locals` in its host, `host` of `hosts`.
struct Grid {
  int local;
  int locals;
  int host;
  int hosts;
  int inside(int offset) const { return host * locals + wrap(local + offset, locals); }
  int across(int offset) const { return wrap(host + offset, hosts) * locals + local; }
};

// Scratch chunk H * locals + l holds what local rank l of this host sends to the rank of host H with this local rank.
void exchange_inside(Builder& step, const Grid& grid, int host) {
  const int first = host * grid.locals;
  step.copy(scratch(first + grid.local), input(first + grid.local));
  for (int i = 1; i < grid.locals; ++i) {
    const int to = wrap(grid.local + i, grid.locals);
    const int from = wrap(grid.local - i, grid.locals);
    step.send(grid.inside(i), input(first + to)).recv(grid.inside(-i), scratch(first + from));
  }
}

// A group whose size is not a multiple of ranks_per_host is treated as hosts of one rank: one level.
Grid grid_of(const ScheduleRequest& request) {
  const int requested = request.ranks_per_host;
  const int locals = requested >= 1 && request.size % requested == 0 ? requested : 1;
  return {request.rank % locals, locals, request.rank / locals, request.size / locals};
}

}  // namespace

// All chunks of the input are sent or copied before the first chunk of output is received, so that it runs in place. A
// message between hosts leaves as soon as its own chunks are there.
Schedule two_level_alltoall(const ScheduleRequest& request) {
  const Grid grid = grid_of(request);
  const int locals = grid.locals;
  Builder step("two_level", Collective::alltoall, request.rank, request.size, request.size);
  for (int i = 0; i < request.size; ++i) step.new_scratch(0);
  for (int i = 1; i <= grid.hosts; ++i) exchange_inside(step, grid, wrap(grid.host + i, grid.hosts));
  for (int i = 1; i < grid.hosts; ++i) {
    const int to = wrap(grid.host + i, grid.hosts);
    const int from = wrap(grid.host - i, grid.hosts);
    step.send(grid.across(i), scratch(to * locals, locals)).recv(grid.across(-i), output(from * locals, locals));
  }
  return step.copy(output(grid.host * locals, locals), scratch(grid.host * locals, locals)).take();
}

}  // namespace fdl
