// The nonblocking collectives. farandole takes long ones alone: its progress thread runs them while the program
// computes, which MPI's do not; waking that thread costs more than a short collective.
#include <utility>

#include "collectives.h"
#include "communicators.h"
#include "datatypes.h"
#include "report.h"
#include "requests/pending.h"

namespace fdl::mpi_preload {
namespace {

constexpr std::size_t kLeastBytes = 64 << 10;

fdl_call call_of(fdl_collective collective, std::size_t count, fdl_dtype dtype, int root) {
  fdl_call call;
  fdl_call_init(&call);
  call.collective = collective;
  call.count = count;
  call.dtype = dtype;
  call.root = root;
  return call;
}

// Sets the call's buffers: the program's memory, or copies of types with gaps. Returns a code of MPI.
int place(fdl_call& call, const Elements* input, const Elements* output, Copies& copies, MPI_Comm comm) {
  if (input != nullptr) call.input = input->data;
  if (input != nullptr && input->plain == 0) {
    copies.input.reset(new std::byte[input->bytes]);
    call.input = copies.input.get();
    if (const int code = pack(*input, copies.input.get(), comm); code != MPI_SUCCESS) return code;
  }
  if (output != nullptr) call.output = const_cast<void*>(output->data);
  if (output != nullptr && output->plain == 0) {
    copies.output.reset(new std::byte[output->bytes]);
    call.output = copies.output.get();
  }
  return MPI_SUCCESS;
}

Outcome submit_fold(fdl_collective collective, const void* input, void* output, MPI_Count count, MPI_Datatype datatype,
                    MPI_Op op, int root, MPI_Comm comm, MPI_Request* request) {
  if (count <= 0) return std::nullopt;
  const auto fold = fold_of(datatype, op);
  if (!fold) return std::nullopt;
  const std::size_t bytes = static_cast<std::size_t>(count) * fdl_dtype_size(fold->dtype);
  if (bytes < kLeastBytes) return std::nullopt;
  const Communicator* entry = ours_nonblocking(comm, bytes);
  if (entry == nullptr || root < 0 || root >= entry->size) return std::nullopt;
  fdl_call call = call_of(collective, static_cast<std::size_t>(count), fold->dtype, root);
  call.op = fold->op;
  call.input = input == MPI_IN_PLACE ? output : input;
  call.output = output;
  return submit(entry->submitted, call, {nullptr, nullptr, {nullptr, 0, datatype}}, comm, request);
}

}  // namespace

Outcome start_allreduce(const void* input, void* output, MPI_Count count, MPI_Datatype datatype, MPI_Op op,
                        MPI_Comm comm, MPI_Request* request) {
  return submit_fold(FDL_ALLREDUCE, input, output, count, datatype, op, 0, comm, request);
}

Outcome start_reduce(const void* input, void* output, MPI_Count count, MPI_Datatype datatype, MPI_Op op, int root,
                     MPI_Comm comm, MPI_Request* request) {
  return submit_fold(FDL_REDUCE, input, output, count, datatype, op, root, comm, request);
}

Outcome start_broadcast(void* buffer, MPI_Count count, MPI_Datatype datatype, int root, MPI_Comm comm,
                        MPI_Request* request) {
  const Elements elements(buffer, count, datatype);
  if (elements.bytes < kLeastBytes) return std::nullopt;
  const Communicator* entry = ours_nonblocking(comm, elements.bytes);
  if (entry == nullptr || root < 0 || root >= entry->size) return std::nullopt;
  fdl_call call = call_of(FDL_BROADCAST, elements.bytes, FDL_UINT8, root);
  Copies copies{nullptr, nullptr, elements};
  const bool is_root = entry->rank == root;
  const int code = place(call, is_root ? &elements : nullptr, is_root ? nullptr : &elements, copies, comm);
  if (code != MPI_SUCCESS) return code;
  // farandole has one buffer for both directions.
  if (is_root) call.output = const_cast<void*>(call.input);
  call.input = call.output;
  return submit(entry->submitted, call, std::move(copies), comm, request);
}

Outcome start_allgather(const void* given, MPI_Count send_count, MPI_Datatype send_type, void* taken,
                        MPI_Count recv_count, MPI_Datatype recv_type, MPI_Comm comm, MPI_Request* request) {
  const bool in_place = given == MPI_IN_PLACE;
  Elements own = in_place ? Elements(taken, recv_count, recv_type) : Elements(given, send_count, send_type);
  if (own.bytes < kLeastBytes) return std::nullopt;
  const Communicator* entry = ours_nonblocking(comm, own.bytes);
  if (entry == nullptr) return std::nullopt;
  if (in_place) own.data = own.at(entry->rank * static_cast<std::ptrdiff_t>(recv_count));
  const Elements all(taken, recv_count * entry->size, recv_type);
  fdl_call call = call_of(FDL_ALLGATHER, own.bytes, FDL_UINT8, 0);
  Copies copies{nullptr, nullptr, all};
  if (const int code = place(call, &own, &all, copies, comm); code != MPI_SUCCESS) return code;
  return submit(entry->submitted, call, std::move(copies), comm, request);
}

Outcome start_alltoall(const void* given, MPI_Count send_count, MPI_Datatype send_type, void* taken,
                       MPI_Count recv_count, MPI_Datatype recv_type, MPI_Comm comm, MPI_Request* request) {
  const bool in_place = given == MPI_IN_PLACE;
  const Elements own(taken, recv_count, recv_type);
  if (own.bytes < kLeastBytes) return std::nullopt;
  const Communicator* entry = ours_nonblocking(comm, own.bytes);
  if (entry == nullptr) return std::nullopt;
  const Elements received(taken, recv_count * entry->size, recv_type);
  const Elements sent = in_place ? received : Elements(given, send_count * entry->size, send_type);
  fdl_call call = call_of(FDL_ALLTOALL, own.bytes, FDL_UINT8, 0);
  Copies copies{nullptr, nullptr, received};
  if (const int code = place(call, &sent, &received, copies, comm); code != MPI_SUCCESS) return code;
  return submit(entry->submitted, call, std::move(copies), comm, request);
}

}  // namespace fdl::mpi_preload
