// Runs random collectives, each by MPI_* and by PMPI_*, and compares the results bit by bit. Arguments: seed, turns.
//
// All ranks draw from one sequence what must be equal: collective, communicator, counts, root. Each draws from a second
// one what may differ: a datatype with gaps, and MPI_IN_PLACE where MPI allows it to the root alone.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kMost = 40000, kRanks = 16, kComms = 6 };

static unsigned long shared_state, own_state;
static unsigned draw(unsigned long* state, unsigned limit) {
  *state = *state * 6364136223846793005ul + 1442695040888963407ul;
  return (unsigned)(*state >> 33) % limit;
}
static int same(unsigned limit) { return (int)draw(&shared_state, limit); }
static int mine(unsigned limit) { return (int)draw(&own_state, limit); }

static int rank, size;  // of the communicator of this turn
static MPI_Comm comm;
static MPI_Datatype gappy;  // an int in 12 bytes

static void check(int right, const char* what) {
  if (right) return;
  int world_rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  printf("wrong: %s on rank %d of %d (rank %d of the job)\n", what, rank, size, world_rank);
  fflush(stdout);
  MPI_Abort(MPI_COMM_WORLD, 3);
}

// Two equal buffers of ints: one for MPI_*, one for PMPI_*.
typedef struct {
  MPI_Datatype type;
  int step;
  size_t ints;
  int *ours, *theirs;
} Pair;
static Pair make(int elements, int has_gaps) {
  Pair pair = {has_gaps ? gappy : MPI_INT, has_gaps ? 3 : 1, 0, NULL, NULL};
  pair.ints = (size_t)(elements + 8) * (size_t)pair.step;
  pair.ours = malloc(pair.ints * sizeof(int));
  pair.theirs = malloc(pair.ints * sizeof(int));
  for (size_t i = 0; i < pair.ints; ++i) pair.ours[i] = pair.theirs[i] = -7;
  return pair;
}
static void fill(Pair* pair, int first, int elements) {
  for (int i = first; i < first + elements; ++i) {
    pair->ours[i * pair->step] = pair->theirs[i * pair->step] = mine(1000);
  }
}
static void compare(Pair* pair, const char* what) {
  check(memcmp(pair->ours, pair->theirs, pair->ints * sizeof(int)) == 0, what);
}
static void drop(Pair* pair) {
  free(pair->ours);
  free(pair->theirs);
}

#define BOTH(call, ours, theirs)                \
  check(MPI_##call ours == MPI_SUCCESS, #call); \
  check(PMPI_##call theirs == MPI_SUCCESS, #call)

// ---- Reductions ----

typedef struct {
  MPI_Datatype type;
  size_t bytes;
  char kind;  // of the numbers: i, f, d, b
} Number;
static Number draw_number(void) {
  const Number all[] = {
      {MPI_INT, sizeof(int), 'i'},   {MPI_FLOAT, sizeof(float), 'f'}, {MPI_DOUBLE, sizeof(double), 'd'},
      {MPI_LONG, sizeof(long), 'l'}, {MPI_UNSIGNED_CHAR, 1, 'c'},     {MPI_INT16_T, 2, 's'},
      {MPI_C_BOOL, 1, 'b'},          {MPI_UINT64_T, 8, 'l'}};
  return all[same(8)];
}
static MPI_Op draw_op(char kind) {
  const MPI_Op arithmetic[] = {MPI_SUM, MPI_MIN, MPI_MAX, MPI_PROD};
  const MPI_Op bits[] = {MPI_BAND, MPI_BOR, MPI_BXOR};
  const MPI_Op logic[] = {MPI_LAND, MPI_LOR, MPI_LXOR};
  if (kind == 'b') return logic[same(3)];
  if (kind != 'f' && kind != 'd' && same(3) == 0) return bits[same(3)];
  return arithmetic[same(4)];
}
// Small numbers, whose sums and products are exact in any order.
static void* draw_numbers(Number number, int count) {
  char* all = malloc((size_t)count * number.bytes + 8);
  for (int i = 0; i < count; ++i) {
    const int value = mine(3);
    char* at = all + (size_t)i * number.bytes;
    if (number.kind == 'f')
      *(float*)at = (float)value;
    else if (number.kind == 'd')
      *(double*)at = value;
    else if (number.kind == 'b')
      *at = value > 0;
    else
      memset(at, 0, number.bytes), *at = (char)value;
  }
  return all;
}

static void run_reduction(int which, int count) {
  const Number number = draw_number();
  const MPI_Op op = draw_op(number.kind);
  const int in_place = same(3) == 0;
  const int root = same((unsigned)size);
  int counts[kRanks], all = 0;
  for (int i = 0; i < size; ++i) all += counts[i] = which == 2 ? count : same(3) == 0 ? 0 : same((unsigned)count + 1);
  const int given = which < 2 ? count : all;  // elements of the input
  void* input = draw_numbers(number, given);
  const size_t bytes = (size_t)given * number.bytes;
  void *ours = calloc(bytes + 8, 1), *theirs = calloc(bytes + 8, 1);
  if (in_place) memcpy(ours, input, bytes), memcpy(theirs, input, bytes);
  const void* from = in_place ? MPI_IN_PLACE : input;
  size_t written = bytes;
  if (which == 0) {
    BOTH(Allreduce, (from, ours, count, number.type, op, comm), (from, theirs, count, number.type, op, comm));
  } else if (which == 1) {
    // MPICH 4.0.2 by itself crashes in place from 512 elements on.
    from = in_place && rank == root && count <= 100 ? MPI_IN_PLACE : input;
    BOTH(Reduce, (from, ours, count, number.type, op, root, comm), (from, theirs, count, number.type, op, root, comm));
    if (rank != root) written = 0;
  } else if (which == 2) {
    BOTH(Reduce_scatter_block, (from, ours, count, number.type, op, comm),
         (from, theirs, count, number.type, op, comm));
    written = (size_t)count * number.bytes;
  } else {
    BOTH(Reduce_scatter, (from, ours, counts, number.type, op, comm), (from, theirs, counts, number.type, op, comm));
    written = (size_t)counts[rank] * number.bytes;
  }
  const char* names[] = {"allreduce", "reduce", "reduce_scatter_block", "reduce_scatter"};
  check(memcmp(ours, theirs, written) == 0, names[which]);
  free(input), free(ours), free(theirs);
}

static void run_scan(int is_exclusive, int count) {
  const Number number = draw_number();
  const MPI_Op op = draw_op(number.kind);
  void* input = draw_numbers(number, count);
  const size_t bytes = (size_t)count * number.bytes;
  void *ours = calloc(bytes + 8, 1), *theirs = calloc(bytes + 8, 1);
  memcpy(ours, input, bytes), memcpy(theirs, input, bytes);
  const void* from = same(3) == 0 ? MPI_IN_PLACE : input;
  if (is_exclusive) {
    BOTH(Exscan, (from, ours, count, number.type, op, comm), (from, theirs, count, number.type, op, comm));
  } else {
    BOTH(Scan, (from, ours, count, number.type, op, comm), (from, theirs, count, number.type, op, comm));
  }
  // Of the first rank's output of an exscan MPI says nothing.
  if (!is_exclusive || rank > 0) check(memcmp(ours, theirs, bytes) == 0, is_exclusive ? "exscan" : "scan");
  free(input), free(ours), free(theirs);
}

// ---- Movements of equal blocks ----

static void run_movement(int which, int count) {
  const int root = same((unsigned)size);
  const int is_root = rank == root;
  const int in_place = same(3) == 0;
  Pair in = make(count * size, mine(3) == 0), out = make(count * size, mine(3) == 0);
  fill(&in, 0, count * size);
  if (which == 0) {
    if (is_root) fill(&out, 0, count);
    BOTH(Bcast, (out.ours, count, out.type, root, comm), (out.theirs, count, out.type, root, comm));
  } else if (which == 1) {
    const int here = in_place && is_root;
    if (here) fill(&out, rank * count, count);
    BOTH(Gather, (here ? MPI_IN_PLACE : in.ours, count, in.type, out.ours, count, out.type, root, comm),
         (here ? MPI_IN_PLACE : in.ours, count, in.type, out.theirs, count, out.type, root, comm));
  } else if (which == 2) {
    const int here = in_place && is_root;
    BOTH(Scatter, (in.ours, count, in.type, here ? MPI_IN_PLACE : out.ours, count, out.type, root, comm),
         (in.theirs, count, in.type, here ? MPI_IN_PLACE : out.theirs, count, out.type, root, comm));
  } else if (which == 3) {
    if (in_place) fill(&out, rank * count, count);
    BOTH(Allgather, (in_place ? MPI_IN_PLACE : in.ours, count, in.type, out.ours, count, out.type, comm),
         (in_place ? MPI_IN_PLACE : in.ours, count, in.type, out.theirs, count, out.type, comm));
  } else {
    if (in_place) fill(&out, 0, count * size);
    BOTH(Alltoall, (in_place ? MPI_IN_PLACE : in.ours, count, in.type, out.ours, count, out.type, comm),
         (in_place ? MPI_IN_PLACE : in.ours, count, in.type, out.theirs, count, out.type, comm));
  }
  const char* names[] = {"bcast", "gather", "scatter", "allgather", "alltoall"};
  compare(&in, names[which]);
  compare(&out, names[which]);
  drop(&in), drop(&out);
}

// ---- Movements of blocks of several sizes ----

static void run_movement_v(int which, int count) {
  int table[kRanks][kRanks], counts[kRanks], places[kRanks], sent[kRanks], sent_places[kRanks];
  for (int i = 0; i < size; ++i) {
    for (int k = 0; k < size; ++k) table[i][k] = same(4) == 0 ? 0 : same((unsigned)count + 1);
  }
  const int root = same((unsigned)size), gap = same(2) * 3, here = same(3) == 0;
  int all = 0, all_sent = 0;
  for (int i = 0; i < size; ++i) {
    counts[i] = which == 3 ? table[i][rank] : table[0][i];
    places[i] = all, all += counts[i] + gap;
    sent[i] = which == 3 ? table[rank][i] : table[0][i];
    sent_places[i] = all_sent, all_sent += sent[i] + gap;
  }
  Pair in = make(all_sent, mine(3) == 0), out = make(all, mine(3) == 0);
  fill(&in, 0, all_sent);
  const int own = counts[rank];
  if (which == 0) {
    const int in_place = here && rank == root;
    if (in_place) fill(&out, places[rank], own);
    BOTH(Gatherv, (in_place ? MPI_IN_PLACE : in.ours, own, in.type, out.ours, counts, places, out.type, root, comm),
         (in_place ? MPI_IN_PLACE : in.ours, own, in.type, out.theirs, counts, places, out.type, root, comm));
  } else if (which == 1) {
    const int in_place = here && rank == root;
    BOTH(Scatterv, (in.ours, sent, sent_places, in.type, in_place ? MPI_IN_PLACE : out.ours, own, out.type, root, comm),
         (in.theirs, sent, sent_places, in.type, in_place ? MPI_IN_PLACE : out.theirs, own, out.type, root, comm));
  } else if (which == 2) {
    if (here) fill(&out, places[rank], own);
    BOTH(Allgatherv, (here ? MPI_IN_PLACE : in.ours, own, in.type, out.ours, counts, places, out.type, comm),
         (here ? MPI_IN_PLACE : in.ours, own, in.type, out.theirs, counts, places, out.type, comm));
  } else {
    BOTH(Alltoallv, (in.ours, sent, sent_places, in.type, out.ours, counts, places, out.type, comm),
         (in.ours, sent, sent_places, in.type, out.theirs, counts, places, out.type, comm));
  }
  const char* names[] = {"gatherv", "scatterv", "allgatherv", "alltoallv"};
  compare(&in, names[which]);
  compare(&out, names[which]);
  drop(&in), drop(&out);
}

// ---- Communicators ----

static MPI_Comm make_comm(int kind) {
  int world_rank, world_size;
  MPI_Comm made;
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  if (kind == 0) MPI_Comm_dup(MPI_COMM_WORLD, &made);
  if (kind == 1) MPI_Comm_split(MPI_COMM_WORLD, 0, world_size - world_rank, &made);  // reversed
  if (kind == 2) MPI_Comm_split(MPI_COMM_WORLD, world_rank % 2, 0, &made);
  if (kind == 3) MPI_Comm_split(MPI_COMM_WORLD, world_rank == 0, 0, &made);
  if (kind == 4) MPI_Comm_split(MPI_COMM_WORLD, world_rank / 2, 0, &made);
  return made;
}

int main(int argc, char** argv) {
  int provided, world_rank;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  shared_state = strtoul(argv[1], NULL, 10);
  own_state = shared_state * 1000 + (unsigned long)world_rank;
  const int turns = atoi(argv[2]);
  MPI_Type_create_resized(MPI_INT, 0, 12, &gappy);
  MPI_Type_commit(&gappy);
  MPI_Comm comms[kComms] = {MPI_COMM_WORLD, make_comm(0), make_comm(1), make_comm(2), make_comm(3), make_comm(4)};
  for (int turn = 0; turn < turns; ++turn) {
    const int kind = same(kComms);
    if (kind > 0 && same(8) == 0) {
      MPI_Comm_free(&comms[kind]);
      comms[kind] = make_comm(kind - 1);
    }
    comm = comms[kind];
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    // Parts of unequal size would draw different numbers.
    const unsigned long kept = shared_state;
    const int length = same(20) == 0 ? kMost : same(3) == 0 ? 1 + same(3) : 1 + same(700);
    const int which = same(16);
    if (which < 4)
      run_reduction(which, length);
    else if (which < 9)
      run_movement(which - 4, length);
    // MPICH 4.0.2 by itself fails in an allgatherv of 16982 elements and a type with gaps.
    else if (which < 13)
      run_movement_v(which - 9, length < 3000 ? length : 3000);
    else if (which < 15)
      run_scan(which - 13, length);
    else
      check(MPI_Barrier(comm) == MPI_SUCCESS, "barrier");
    shared_state = kept * 31 + 12345;
  }
  for (int kind = 1; kind < kComms; ++kind) MPI_Comm_free(&comms[kind]);
  MPI_Type_free(&gappy);
  printf("rank %d: %d turns are right\n", world_rank, turns);
  return MPI_Finalize();
}
