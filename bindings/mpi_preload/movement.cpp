// The collectives that move blocks of one size. farandole moves bytes: MPI requires the signatures of sender and
// receiver to be equal, so all ranks know the same number of bytes, whatever types they name.
#include "collectives.h"
#include "communicators.h"
#include "report.h"
#include "views.h"

namespace fdl::mpi_preload {
namespace {

// The root is the same on all ranks. MPI reports one that does not exist.
bool is_rank(int root, const Communicator& entry) { return root >= 0 && root < entry.size; }

}  // namespace

Outcome barrier(MPI_Comm comm) {
  const Communicator* entry = ours(comm, Family::barrier, 0);
  if (entry == nullptr) return std::nullopt;
  return code_of(fdl_barrier(entry->ordered), comm);
}

Outcome broadcast(void* buffer, MPI_Count count, MPI_Datatype datatype, int root, MPI_Comm comm) {
  const Elements elements(buffer, count, datatype);
  if (elements.bytes == 0) return std::nullopt;
  const Communicator* entry = ours(comm, Family::broadcast, elements.bytes);
  if (entry == nullptr || !is_rank(root, *entry)) return std::nullopt;
  const bool is_root = entry->rank == root;
  const Input input(elements, is_root, comm);
  if (input.code() != MPI_SUCCESS) return input.code();
  Output output(elements, !is_root);
  std::byte* const bytes = is_root ? const_cast<std::byte*>(input.data()) : output.data();
  const int code = code_of(fdl_broadcast(entry->ordered, bytes, elements.bytes, FDL_UINT8, root), comm);
  return code == MPI_SUCCESS ? output.finish(comm) : code;
}

Outcome gather(const void* given, MPI_Count send_count, MPI_Datatype send_type, void* taken, MPI_Count recv_count,
               MPI_Datatype recv_type, int root, MPI_Comm comm) {
  const bool in_place = given == MPI_IN_PLACE;  // on the root alone
  Elements own = in_place ? Elements(taken, recv_count, recv_type) : Elements(given, send_count, send_type);
  if (own.bytes == 0) return std::nullopt;
  const Communicator* entry = ours(comm, Family::gather, own.bytes);
  if (entry == nullptr || !is_rank(root, *entry)) return std::nullopt;
  const bool is_root = entry->rank == root;
  if (in_place) own.data = own.at(root * static_cast<std::ptrdiff_t>(recv_count));
  const Input input(own, true, comm);
  if (input.code() != MPI_SUCCESS) return input.code();
  const Elements all(taken, is_root ? recv_count * entry->size : 0, is_root ? recv_type : own.datatype);
  Output output(all, is_root);
  const int code = code_of(fdl_gather(entry->ordered, input.data(), output.data(), own.bytes, FDL_UINT8, root), comm);
  return code == MPI_SUCCESS ? output.finish(comm) : code;
}

Outcome scatter(const void* given, MPI_Count send_count, MPI_Datatype send_type, void* taken, MPI_Count recv_count,
                MPI_Datatype recv_type, int root, MPI_Comm comm) {
  const bool in_place = taken == MPI_IN_PLACE;  // on the root alone: its block stays where it is
  const Elements own = in_place ? Elements(given, send_count, send_type) : Elements(taken, recv_count, recv_type);
  if (own.bytes == 0) return std::nullopt;
  const Communicator* entry = ours(comm, Family::scatter, own.bytes);
  if (entry == nullptr || !is_rank(root, *entry)) return std::nullopt;
  const bool is_root = entry->rank == root;
  const Elements all(given, is_root ? send_count * entry->size : 0, is_root ? send_type : own.datatype);
  const Input input(all, is_root, comm);
  if (input.code() != MPI_SUCCESS) return input.code();
  Output output(own, !in_place);
  std::byte* const target =
      in_place ? const_cast<std::byte*>(input.data()) + static_cast<std::size_t>(root) * own.bytes : output.data();
  const int code = code_of(fdl_scatter(entry->ordered, input.data(), target, own.bytes, FDL_UINT8, root), comm);
  return code == MPI_SUCCESS ? output.finish(comm) : code;
}

Outcome allgather(const void* given, MPI_Count send_count, MPI_Datatype send_type, void* taken, MPI_Count recv_count,
                  MPI_Datatype recv_type, MPI_Comm comm) {
  const bool in_place = given == MPI_IN_PLACE;
  Elements own = in_place ? Elements(taken, recv_count, recv_type) : Elements(given, send_count, send_type);
  if (own.bytes == 0) return std::nullopt;
  const Communicator* entry = ours(comm, Family::allgather, own.bytes);
  if (entry == nullptr) return std::nullopt;
  if (in_place) own.data = own.at(entry->rank * static_cast<std::ptrdiff_t>(recv_count));
  const Input input(own, true, comm);
  if (input.code() != MPI_SUCCESS) return input.code();
  Output output(Elements(taken, recv_count * entry->size, recv_type), true);
  const int code = code_of(fdl_allgather(entry->ordered, input.data(), output.data(), own.bytes, FDL_UINT8), comm);
  return code == MPI_SUCCESS ? output.finish(comm) : code;
}

Outcome alltoall(const void* given, MPI_Count send_count, MPI_Datatype send_type, void* taken, MPI_Count recv_count,
                 MPI_Datatype recv_type, MPI_Comm comm) {
  const bool in_place = given == MPI_IN_PLACE;
  const Elements own(taken, recv_count, recv_type);
  if (own.bytes == 0) return std::nullopt;
  const Communicator* entry = ours(comm, Family::alltoall, own.bytes);
  if (entry == nullptr) return std::nullopt;
  const Elements received(taken, recv_count * entry->size, recv_type);
  const Elements sent = in_place ? received : Elements(given, send_count * entry->size, send_type);
  const Input input(sent, true, comm);
  if (input.code() != MPI_SUCCESS) return input.code();
  Output output(received, true);
  const int code = code_of(fdl_alltoall(entry->ordered, input.data(), output.data(), own.bytes, FDL_UINT8), comm);
  return code == MPI_SUCCESS ? output.finish(comm) : code;
}

}  // namespace fdl::mpi_preload
