// The collectives that move blocks of several sizes. MPI tells the sizes to those ranks alone that need them: whether
// farandole runs such a call depends on the communicator only.
#include <array>
#include <vector>

#include "collectives.h"
#include "communicators.h"
#include "report.h"
#include "views.h"

namespace fdl::mpi_preload {
namespace {

// The blocks of all ranks in one buffer. farandole has them one behind the other, in the order of the ranks.
class Blocks {
 public:
  Blocks(const void* buffer, Counts counts, Places places, MPI_Datatype datatype, int size,
         std::vector<std::size_t>& bytes)
      : buffer_(buffer, 1, datatype), counts_(counts), places_(places), size_(size), bytes_(bytes) {
    bytes_.resize(static_cast<std::size_t>(size));
    for (int rank = 0; rank < size; ++rank) {
      const std::ptrdiff_t count = counts_[rank];
      in_order_ = in_order_ && (count == 0 || places_[rank] == elements_);
      elements_ += count;
      bytes_[static_cast<std::size_t>(rank)] = buffer_.bytes * static_cast<std::size_t>(count);
      all_bytes_ += bytes_[static_cast<std::size_t>(rank)];
    }
  }
  // Whether the program's memory can be used as it is.
  bool are_plain() const { return in_order_ && buffer_.plain != 0; }
  std::size_t bytes() const { return all_bytes_; }
  const std::size_t* counts() const { return bytes_.data(); }
  std::size_t bytes_before(int rank) const {
    std::size_t before = 0;
    for (int lower = 0; lower < rank; ++lower) before += bytes_[static_cast<std::size_t>(lower)];
    return before;
  }
  Elements block(int rank) const { return {buffer_.at(places_[rank]), counts_[rank], buffer_.datatype}; }
  std::byte* memory() const { return static_cast<std::byte*>(const_cast<void*>(buffer_.data)); }

  int pack_all(std::byte* to, MPI_Comm comm) const {
    for (int rank = 0; rank < size_; to += bytes_[static_cast<std::size_t>(rank++)]) {
      if (const int code = pack(block(rank), to, comm); code != MPI_SUCCESS) return code;
    }
    return MPI_SUCCESS;
  }
  int unpack_all(const std::byte* from, MPI_Comm comm) const {
    for (int rank = 0; rank < size_; from += bytes_[static_cast<std::size_t>(rank++)]) {
      if (const int code = unpack(from, block(rank), comm); code != MPI_SUCCESS) return code;
    }
    return MPI_SUCCESS;
  }

 private:
  Elements buffer_;
  Counts counts_;
  Places places_;
  int size_;
  std::vector<std::size_t>& bytes_;
  std::ptrdiff_t elements_ = 0;
  std::size_t all_bytes_ = 0;
  bool in_order_ = true;
};

// Reused by the calls of a thread, so that they allocate nothing.
struct Reused {
  std::vector<std::size_t> sent, received;
  Scratch send, receive;
};
Reused& reused() {
  static thread_local Reused all;
  return all;
}

fdl_call call_of(fdl_collective collective, const void* input, void* output, const std::size_t* counts, int root) {
  fdl_call call;
  fdl_call_init(&call);
  call.collective = collective;
  call.input = input;
  call.output = output;
  call.counts = counts;
  call.dtype = FDL_UINT8;
  call.root = root;
  return call;
}

// The root alone knows the bytes of all ranks. It tells them to the others.
int share_counts(const Communicator& entry, std::vector<std::size_t>& bytes, int root, MPI_Comm comm) {
  bytes.resize(static_cast<std::size_t>(entry.size));
  return code_of(fdl_broadcast(entry.ordered, bytes.data(), bytes.size(), FDL_UINT64, root), comm);
}

}  // namespace

Outcome allgatherv(const void* given, MPI_Count send_count, MPI_Datatype send_type, void* taken, Counts recv_counts,
                   Places places, MPI_Datatype recv_type, MPI_Comm comm) {
  const Communicator* entry = ours(comm, Family::allgatherv, 0);
  if (entry == nullptr) return std::nullopt;
  Reused& memory = reused();
  const Blocks blocks(taken, recv_counts, places, recv_type, entry->size, memory.received);
  const Elements own = given == MPI_IN_PLACE ? blocks.block(entry->rank) : Elements(given, send_count, send_type);
  const Input input(own, true, comm);
  if (input.code() != MPI_SUCCESS) return input.code();
  std::byte* const output = blocks.are_plain() ? blocks.memory() : memory.receive.reserve(blocks.bytes());
  int code = code_of(fdl_allgatherv(entry->ordered, input.data(), output, blocks.counts(), FDL_UINT8), comm);
  if (code == MPI_SUCCESS && !blocks.are_plain()) code = blocks.unpack_all(output, comm);
  memory.receive.finish();
  return code;
}

Outcome alltoallv(const void* given, Counts send_counts, Places send_places, MPI_Datatype send_type, void* taken,
                  Counts recv_counts, Places recv_places, MPI_Datatype recv_type, MPI_Comm comm) {
  const Communicator* entry = ours(comm, Family::alltoallv, 0);
  if (entry == nullptr) return std::nullopt;
  Reused& memory = reused();
  const bool in_place = given == MPI_IN_PLACE;
  const Blocks received(taken, recv_counts, recv_places, recv_type, entry->size, memory.received);
  const Blocks sent = in_place ? Blocks(taken, recv_counts, recv_places, recv_type, entry->size, memory.sent)
                               : Blocks(given, send_counts, send_places, send_type, entry->size, memory.sent);
  const std::byte* input = sent.memory();
  if (in_place || !sent.are_plain()) {
    std::byte* packed = memory.send.reserve(sent.bytes());
    if (const int code = sent.pack_all(packed, comm); code != MPI_SUCCESS) return code;
    input = packed;
  }
  std::byte* const output = received.are_plain() ? received.memory() : memory.receive.reserve(received.bytes());
  int code = code_of(fdl_alltoallv(entry->ordered, input, sent.counts(), output, received.counts(), FDL_UINT8), comm);
  if (code == MPI_SUCCESS && !received.are_plain()) code = received.unpack_all(output, comm);
  memory.send.finish();
  memory.receive.finish();
  return code;
}

Outcome gatherv(const void* given, MPI_Count send_count, MPI_Datatype send_type, void* taken, Counts recv_counts,
                Places places, MPI_Datatype recv_type, int root, MPI_Comm comm) {
  const Communicator* entry = ours(comm, Family::gatherv, 0);
  if (entry == nullptr || root < 0 || root >= entry->size) return std::nullopt;
  Reused& memory = reused();
  std::optional<Blocks> blocks;
  if (entry->rank == root) blocks.emplace(taken, recv_counts, places, recv_type, entry->size, memory.received);
  int code = share_counts(*entry, memory.received, root, comm);
  if (code != MPI_SUCCESS) return code;
  const Elements own = given == MPI_IN_PLACE ? blocks->block(root) : Elements(given, send_count, send_type);
  const Input input(own, true, comm);
  if (input.code() != MPI_SUCCESS) return input.code();
  std::byte* output = nullptr;
  if (blocks) output = blocks->are_plain() ? blocks->memory() : memory.receive.reserve(blocks->bytes());
  const fdl_call call = call_of(FDL_GATHER, input.data(), output, memory.received.data(), root);
  code = code_of(fdl_call_ex(entry->ordered, &call, nullptr, nullptr), comm);
  if (code == MPI_SUCCESS && blocks && !blocks->are_plain()) code = blocks->unpack_all(output, comm);
  memory.receive.finish();
  return code;
}

Outcome scatterv(const void* given, Counts send_counts, Places places, MPI_Datatype send_type, void* taken,
                 MPI_Count recv_count, MPI_Datatype recv_type, int root, MPI_Comm comm) {
  const Communicator* entry = ours(comm, Family::scatterv, 0);
  if (entry == nullptr || root < 0 || root >= entry->size) return std::nullopt;
  Reused& memory = reused();
  std::optional<Blocks> blocks;
  if (entry->rank == root) blocks.emplace(given, send_counts, places, send_type, entry->size, memory.sent);
  int code = share_counts(*entry, memory.sent, root, comm);
  if (code != MPI_SUCCESS) return code;
  std::byte* input = nullptr;
  if (blocks && blocks->are_plain()) input = blocks->memory();
  if (blocks && !blocks->are_plain()) {
    input = memory.send.reserve(blocks->bytes());
    if (code = blocks->pack_all(input, comm); code != MPI_SUCCESS) return code;
  }
  const bool in_place = taken == MPI_IN_PLACE;
  Output output(in_place ? blocks->block(root) : Elements(taken, recv_count, recv_type), !in_place);
  std::byte* const target = in_place ? input + blocks->bytes_before(root) : output.data();
  const fdl_call call = call_of(FDL_SCATTER, input, target, memory.sent.data(), root);
  code = code_of(fdl_call_ex(entry->ordered, &call, nullptr, nullptr), comm);
  if (code == MPI_SUCCESS) code = output.finish(comm);
  memory.send.finish();
  return code;
}

}  // namespace fdl::mpi_preload
