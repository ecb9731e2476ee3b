// The nonblocking collectives, and those of persistent requests. farandole takes long ones alone: its progress thread
// runs them while the program computes, which MPI's do not; waking that thread costs more than a short collective.
//
// A collective whose bytes are not known to all ranks alike stays with MPI: Igatherv, Iscatterv and Ialltoallv.
#include <utility>

#include "collectives.h"
#include "communicators.h"
#include "datatypes.h"
#include "requests/pending.h"
#include "requests/persistent.h"

namespace fdl::mpi_preload {
namespace {

constexpr std::size_t kLeastBytes = 64 << 10;

// What all functions here have in common.
struct Submission {
  MPI_Comm comm;
  MPI_Request* request;
  bool is_persistent;
};

// The communicator's entry if farandole runs a collective of that many bytes; the root must be one of its ranks.
Communicator* taken(const Submission& submission, std::size_t bytes, int root = 0) {
  if (bytes < kLeastBytes) return nullptr;
  Communicator* entry =
      submission.is_persistent ? ours_persistent(submission.comm) : ours_nonblocking(submission.comm, bytes);
  return entry != nullptr && root >= 0 && root < entry->size ? entry : nullptr;
}

int run(const Communicator& entry, Plan plan, const Submission& submission) {
  return submission.is_persistent ? keep(entry.submitted, std::move(plan), submission.comm, submission.request)
                                  : submit(entry.submitted, std::move(plan), submission.comm, submission.request);
}

// `elements` of each rank, or counts by rank: what an allreduce, reduce or reduce_scatter has.
struct Reduction {
  const void* input;
  void* output;
  MPI_Datatype datatype;
  MPI_Op op;
};
Outcome run_reduction(fdl_collective collective, const Reduction& given, MPI_Count count, int root,
                      const Submission& submission) {
  const auto fold = fold_of(given.datatype, given.op);
  if (count <= 0 || !fold) return std::nullopt;
  const auto elements = static_cast<std::size_t>(count);
  const Communicator* entry = taken(submission, elements * fdl_dtype_size(fold->dtype), root);
  if (entry == nullptr) return std::nullopt;
  Plan plan(collective, elements, fold->dtype, root);
  plan.call.op = fold->op;
  plan.call.input = given.input == MPI_IN_PLACE ? given.output : given.input;
  plan.call.output = given.output;
  return run(*entry, std::move(plan), submission);
}

// The counts of all ranks as bytes, or nothing if one is negative.
std::optional<std::vector<std::size_t>> bytes_of(Counts counts, int size, std::size_t each, std::size_t& all) {
  std::vector<std::size_t> bytes(static_cast<std::size_t>(size));
  all = 0;
  for (int rank = 0; rank < size; ++rank) {
    if (counts[rank] < 0) return std::nullopt;
    all += bytes[static_cast<std::size_t>(rank)] = static_cast<std::size_t>(counts[rank]) * each;
  }
  return bytes;
}

// The number of ranks, 0 if MPI runs the communicator's collectives.
int size_of(MPI_Comm comm) {
  const Communicator* entry = known(comm);
  return entry == nullptr ? 0 : entry->size;
}

}  // namespace

Outcome start_allreduce(const void* input, void* output, MPI_Count count, MPI_Datatype datatype, MPI_Op op,
                        MPI_Comm comm, MPI_Request* request, bool is_persistent) {
  return run_reduction(FDL_ALLREDUCE, {input, output, datatype, op}, count, 0, {comm, request, is_persistent});
}

Outcome start_reduce(const void* input, void* output, MPI_Count count, MPI_Datatype datatype, MPI_Op op, int root,
                     MPI_Comm comm, MPI_Request* request, bool is_persistent) {
  return run_reduction(FDL_REDUCE, {input, output, datatype, op}, count, root, {comm, request, is_persistent});
}

Outcome start_reduce_scatter_block(const void* input, void* output, MPI_Count count, MPI_Datatype datatype, MPI_Op op,
                                   MPI_Comm comm, MPI_Request* request, bool is_persistent) {
  return run_reduction(FDL_REDUCE_SCATTER, {input, output, datatype, op}, count, 0, {comm, request, is_persistent});
}

Outcome start_reduce_scatter(const void* input, void* output, Counts counts, MPI_Datatype datatype, MPI_Op op,
                             MPI_Comm comm, MPI_Request* request, bool is_persistent) {
  const auto fold = fold_of(datatype, op);
  const int size = size_of(comm);
  std::size_t elements = 0;
  if (!fold || size == 0) return std::nullopt;
  auto each = bytes_of(counts, size, 1, elements);
  if (!each) return std::nullopt;
  const Submission submission{comm, request, is_persistent};
  const Communicator* entry = taken(submission, elements * fdl_dtype_size(fold->dtype));
  if (entry == nullptr) return std::nullopt;
  Plan plan(FDL_REDUCE_SCATTER, 0, fold->dtype, 0);
  plan.call.op = fold->op;
  plan.call.input = input == MPI_IN_PLACE ? output : input;
  plan.call.output = output;
  plan.set_counts(std::move(*each));
  return run(*entry, std::move(plan), submission);
}

Outcome start_broadcast(void* buffer, MPI_Count count, MPI_Datatype datatype, int root, MPI_Comm comm,
                        MPI_Request* request, bool is_persistent) {
  const Elements elements(buffer, count, datatype);
  const Submission submission{comm, request, is_persistent};
  const Communicator* entry = taken(submission, elements.bytes, root);
  if (entry == nullptr) return std::nullopt;
  Plan plan(FDL_BROADCAST, elements.bytes, FDL_UINT8, root);
  plan.set_both(elements, entry->rank == root);
  return run(*entry, std::move(plan), submission);
}

Outcome start_gather(const void* given, MPI_Count send_count, MPI_Datatype send_type, void* taken_to,
                     MPI_Count recv_count, MPI_Datatype recv_type, int root, MPI_Comm comm, MPI_Request* request,
                     bool is_persistent) {
  const bool in_place = given == MPI_IN_PLACE;  // on the root alone
  Elements own = in_place ? Elements(taken_to, recv_count, recv_type) : Elements(given, send_count, send_type);
  const Submission submission{comm, request, is_persistent};
  const Communicator* entry = taken(submission, own.bytes, root);
  if (entry == nullptr) return std::nullopt;
  if (in_place) own.data = own.at(root * static_cast<std::ptrdiff_t>(recv_count));
  Plan plan(FDL_GATHER, own.bytes, FDL_UINT8, root);
  plan.set_input(own);
  if (entry->rank == root) plan.set_output(Elements(taken_to, recv_count * entry->size, recv_type));
  return run(*entry, std::move(plan), submission);
}

Outcome start_scatter(const void* given, MPI_Count send_count, MPI_Datatype send_type, void* taken_to,
                      MPI_Count recv_count, MPI_Datatype recv_type, int root, MPI_Comm comm, MPI_Request* request,
                      bool is_persistent) {
  const bool in_place = taken_to == MPI_IN_PLACE;  // on the root alone: its block stays where it is
  const Elements own = in_place ? Elements(given, send_count, send_type) : Elements(taken_to, recv_count, recv_type);
  const Submission submission{comm, request, is_persistent};
  const Communicator* entry = taken(submission, own.bytes, root);
  if (entry == nullptr) return std::nullopt;
  Plan plan(FDL_SCATTER, own.bytes, FDL_UINT8, root);
  if (entry->rank == root) plan.set_input(Elements(given, send_count * entry->size, send_type));
  if (in_place) {
    plan.call.output =
        static_cast<std::byte*>(const_cast<void*>(plan.call.input)) + static_cast<std::size_t>(root) * own.bytes;
  } else {
    plan.set_output(own);
  }
  return run(*entry, std::move(plan), submission);
}

Outcome start_allgather(const void* given, MPI_Count send_count, MPI_Datatype send_type, void* taken_to,
                        MPI_Count recv_count, MPI_Datatype recv_type, MPI_Comm comm, MPI_Request* request,
                        bool is_persistent) {
  const bool in_place = given == MPI_IN_PLACE;
  Elements own = in_place ? Elements(taken_to, recv_count, recv_type) : Elements(given, send_count, send_type);
  const Submission submission{comm, request, is_persistent};
  const Communicator* entry = taken(submission, own.bytes);
  if (entry == nullptr) return std::nullopt;
  if (in_place) own.data = own.at(entry->rank * static_cast<std::ptrdiff_t>(recv_count));
  Plan plan(FDL_ALLGATHER, own.bytes, FDL_UINT8, 0);
  plan.set_input(own);
  plan.set_output(Elements(taken_to, recv_count * entry->size, recv_type));
  return run(*entry, std::move(plan), submission);
}

Outcome start_allgatherv(const void* given, MPI_Count send_count, MPI_Datatype send_type, void* taken_to,
                         Counts recv_counts, Places places, MPI_Datatype recv_type, MPI_Comm comm, MPI_Request* request,
                         bool is_persistent) {
  const Elements one(taken_to, 1, recv_type);
  const int size = size_of(comm);
  if (size == 0) return std::nullopt;
  std::size_t all = 0;
  auto bytes = bytes_of(recv_counts, size, one.bytes, all);
  if (!bytes) return std::nullopt;
  const Submission submission{comm, request, is_persistent};
  const Communicator* entry = taken(submission, all);
  if (entry == nullptr) return std::nullopt;
  std::vector<Elements> blocks;
  for (int rank = 0; rank < size; ++rank) blocks.emplace_back(one.at(places[rank]), recv_counts[rank], recv_type);
  Plan plan(FDL_ALLGATHER, 0, FDL_UINT8, 0);
  plan.set_counts(std::move(*bytes));
  plan.set_input(given == MPI_IN_PLACE ? blocks[static_cast<std::size_t>(entry->rank)]
                                       : Elements(given, send_count, send_type));
  plan.set_output(blocks);
  return run(*entry, std::move(plan), submission);
}

Outcome start_alltoall(const void* given, MPI_Count send_count, MPI_Datatype send_type, void* taken_to,
                       MPI_Count recv_count, MPI_Datatype recv_type, MPI_Comm comm, MPI_Request* request,
                       bool is_persistent) {
  const bool in_place = given == MPI_IN_PLACE;
  const Elements own(taken_to, recv_count, recv_type);
  const Submission submission{comm, request, is_persistent};
  const Communicator* entry = taken(submission, own.bytes);
  if (entry == nullptr) return std::nullopt;
  const Elements received(taken_to, recv_count * entry->size, recv_type);
  Plan plan(FDL_ALLTOALL, own.bytes, FDL_UINT8, 0);
  plan.set_input(in_place ? received : Elements(given, send_count * entry->size, send_type));
  plan.set_output(received);
  return run(*entry, std::move(plan), submission);
}

}  // namespace fdl::mpi_preload
