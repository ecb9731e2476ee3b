// The two-level algorithms let the ranks of a host work together, so that each rank sends messages to the ranks of its
// own host and to one rank of each other host.
//
// Allreduce: a reduce-scatter inside each host, one ring across hosts for each local rank, and an allgather inside each
// host.
//
//   4 ranks, 2 per host: hosts (0 1) (2 3), blocks of 2 chunks: 0-1 belong to local rank 0, 2-3 to local rank 1
//     inside   0 and 1 exchange blocks, 2 and 3 too       now local rank 0 of each host holds its host's sum of 0-1
//     across   0 and 2 run a ring over 0-1, 1 and 3 over 2-3
//     inside   0 and 1 exchange the finished blocks       between hosts: 2(h-1) messages instead of 2(p-1)
//
// Inside the host, too, chunks are sent one by one, so that they stream into the ring across hosts.
//
// Alltoall: the ranks of a host first exchange their chunks so that local rank l holds those for local rank l of each
// host; these ranks then exchange them between hosts.
//
//   4 ranks, 2 per host: what rank 0 holds, by source and destination
//     at first                         0>0 0>1  0>2 0>3
//     inside, 0 sends 0>1 and 0>3      0>0 1>0  0>2 1>2
//     across, 0 sends 0>2 and 1>2      0>0 1>0  2>0 3>0     between hosts: h-1 messages a rank instead of p-l
//
// Source: the hierarchical form of Thakur et al. 2005; J. Cho et al., "BlueConnect", SysML 2019; for alltoall
// J. L. Traff, A. Rougier, "MPI collectives and datatypes for hierarchical all-to-all communication", EuroMPI 2014.
#include "algorithms/algorithms.h"
#include "schedule/builder.h"

namespace fdl {
namespace {

int wrap(int value, int size) { return ((value % size) + size) % size; }

// The position of one rank: `local` of `locals` in its host, `host` of `hosts`. A block has one chunk for each host.
struct Grid {
  int local;
  int locals;
  int host;
  int hosts;
  int inside(int offset) const { return host * locals + wrap(local + offset, locals); }
  int across(int offset) const { return wrap(host + offset, hosts) * locals + local; }
  int chunk(int block_offset, int i) const { return wrap(local + block_offset, locals) * hosts + i; }
  int own_chunk(int offset) const { return local * hosts + wrap(host + offset, hosts); }
};

void reduce_inside(Builder& step, const Grid& grid) {
  if (grid.locals == 1) {
    for (int i = 0; i < grid.hosts; ++i) step.copy(output(i), input(i));
    return;
  }
  for (int round = 0; round < grid.locals - 1; ++round) {
    for (int i = 0; i < grid.hosts; ++i) {
      const int sent = grid.chunk(-1 - round, i);
      const int received = grid.chunk(-2 - round, i);
      step.send(grid.inside(1), round == 0 ? input(sent) : output(sent));
      step.copy(output(received), input(received)).recv_reduce(grid.inside(-1), output(received));
    }
  }
}

void ring_across(Builder& step, const Grid& grid) {
  for (int i = 0; i < grid.hosts - 1; ++i) {
    step.send(grid.across(1), output(grid.own_chunk(-i)));
    step.recv_reduce(grid.across(-1), output(grid.own_chunk(-i - 1)));
  }
  for (int i = 0; i < grid.hosts - 1; ++i) {
    step.send(grid.across(1), output(grid.own_chunk(1 - i))).recv(grid.across(-1), output(grid.own_chunk(-i)));
  }
}

void gather_inside(Builder& step, const Grid& grid) {
  for (int round = 0; round < grid.locals - 1; ++round) {
    for (int i = 0; i < grid.hosts; ++i) {
      step.send(grid.inside(1), output(grid.chunk(-round, i)));
      step.recv(grid.inside(-1), output(grid.chunk(-1 - round, i)));
    }
  }
}

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

Schedule two_level_allreduce(const ScheduleRequest& request) {
  const Grid grid = grid_of(request);
  Builder step("two_level", Collective::allreduce, request.rank, request.size, request.size);
  reduce_inside(step, grid);
  ring_across(step, grid);
  gather_inside(step, grid);
  return step.take();
}

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
