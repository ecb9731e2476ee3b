// This file implements the C API's ordered communicators: the general call and its short forms, blocking and as
// requests.
#include "capi/ordered_call.h"

using namespace fdl;
using namespace fdl::capi;

namespace {

// Describes a collective on CPU memory with equal counts. The sizes of its buffers are not stated, hence not checked.
// The structures are built on the stack by designated initializers; each short form costs no allocation.
fdl_call make_call(fdl_collective kind, const void* input, void* output, std::size_t count, fdl_dtype dtype,
                   fdl_reduce_op op = FDL_SUM, int root = 0) {
  return {.struct_size = sizeof(fdl_call),
          .collective = kind,
          .input = input,
          .output = output,
          .count = count,
          .counts = nullptr,
          .recv_counts = nullptr,
          .dtype = dtype,
          .op = op,
          .root = root,
          .device_kind = FDL_DEVICE_CPU,
          .device_index = 0,
          .stream = nullptr,
          .input_elements = FDL_UNSTATED,
          .output_elements = FDL_UNSTATED,
          .counts_length = FDL_UNSTATED,
          .recv_counts_length = FDL_UNSTATED};
}

// Describes a collective with one count for each rank. Only an alltoall has `recv_counts`.
fdl_call make_call(fdl_collective kind, const void* input, void* output, const std::size_t* counts,
                   const std::size_t* recv_counts, fdl_dtype dtype, fdl_reduce_op op = FDL_SUM) {
  fdl_call call = make_call(kind, input, output, std::size_t{0}, dtype, op);
  call.counts = counts;
  call.recv_counts = recv_counts;
  return call;
}

fdl_call make_send(const void* buffer, std::size_t count, fdl_dtype dtype, int peer) {
  // Messages use the field `root` for the peer.
  return make_call(FDL_SEND, buffer, nullptr, count, dtype, FDL_SUM, peer);
}

fdl_call make_recv(void* buffer, std::size_t count, fdl_dtype dtype, int peer) {
  return make_call(FDL_RECV, nullptr, buffer, count, dtype, FDL_SUM, peer);
}

// Runs a form that takes an array of counts. It rejects NULL, which means equal counts only in the general call.
fdl_result run_v(fdl_comm* comm, const fdl_call& call, fdl_request** request) try {
  if (call.counts == nullptr)
    return refuse(std::string(name_of(static_cast<Collective>(call.collective))) + ": counts is NULL");
  return run_collective(comm, call, nullptr, request);
}
FDL_REPORT_EXCEPTIONS

}  // namespace

// ---- Communicators ----

fdl_result fdl_comm_create(fdl_group* group, fdl_comm** comm) try {
  if (group == nullptr) {
    return report(Status(Code::not_initialized, "fdl_comm_create: the group is NULL: create a world first"));
  }
  if (comm == nullptr) return refuse("fdl_comm_create: comm must not be NULL");
  // Collective over the group. The ranks create communicators of one group in the same order.
  fdl_world* const world = group->world;
  const HeldWorld held(world);
  auto made = world->runtime->make_comm(*group->group);
  if (!made.ok()) return report(made.status());
  world->hold();  // until fdl_comm_destroy()
  *comm = new fdl_comm{world, made.take(), {}, {}};
  return FDL_OK;
}
FDL_REPORT_EXCEPTIONS

void fdl_comm_destroy(fdl_comm* comm) try {
  if (comm == nullptr) return;
  if (comm->world->runtime->is_forked_child()) {
    // Intentionally leaked in a forked child, where destroying it would act on the parent's sockets.
    static_cast<void>(comm->ordered.release());
  } else {
    // Ends the requests that are not done. They belong to the application, which may only free them from then on.
    comm->world->runtime->end(std::move(comm->ordered));
  }
  comm->world->release();
  delete comm;
}
FDL_KEEP_EXCEPTIONS

fdl_result fdl_comm_abort(fdl_comm* comm, const char* reason) try {
  Status usable = check(comm);
  if (!usable.ok()) return report(usable);
  // May be called from any thread, also while another one waits in a collective.
  comm->world->runtime->abort(*comm->ordered, reason == nullptr ? "no reason was given" : reason);
  return FDL_OK;
}
FDL_REPORT_EXCEPTIONS

int fdl_comm_rank(const fdl_comm* comm) { return comm == nullptr ? -1 : comm->ordered->comm->rank(); }
int fdl_comm_size(const fdl_comm* comm) { return comm == nullptr ? 0 : comm->ordered->comm->size(); }

void fdl_call_options_init(fdl_call_options* options) {
  *options = fdl_call_options{};
  options->struct_size = sizeof *options;
  options->prescale = 1;
  options->postscale = 1;
  // -1: as the setting FARANDOLE_DETERMINISTIC.
  options->deterministic = -1;
}

void fdl_call_init(fdl_call* call) { *call = make_call(FDL_ALLREDUCE, nullptr, nullptr, std::size_t{0}, FDL_FLOAT32); }

fdl_result fdl_call_ex(fdl_comm* comm, const fdl_call* call, const fdl_call_options* options,
                       fdl_request** request) try {
  if (call == nullptr) return refuse("fdl_call_ex: call must not be NULL");
  if (auto fault = fault_of_structures(*call, options)) return refuse("fdl_call_ex: " + *fault + at_rank(comm));
  const fdl_call known = known_call(*call);
  if (known.collective == FDL_SEND || known.collective == FDL_RECV) return run_message(comm, known, options, request);
  return run_collective(comm, known, options, request);
}
FDL_REPORT_EXCEPTIONS

fdl_result fdl_allreduce_ex(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype,
                            fdl_reduce_op op, const fdl_call_options* options) try {
  const fdl_call call = make_call(FDL_ALLREDUCE, input, output, count, dtype, op);
  if (auto fault = fault_of_structures(call, options)) return refuse("fdl_allreduce_ex: " + *fault + at_rank(comm));
  return run_collective(comm, call, options, nullptr);
}
FDL_REPORT_EXCEPTIONS

// ---- Short forms: blocking, then as requests ----

fdl_result fdl_allreduce(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype,
                         fdl_reduce_op op) {
  return run_collective(comm, make_call(FDL_ALLREDUCE, input, output, count, dtype, op), nullptr, nullptr);
}
fdl_result fdl_reduce(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype, fdl_reduce_op op,
                      int root) {
  return run_collective(comm, make_call(FDL_REDUCE, input, output, count, dtype, op, root), nullptr, nullptr);
}
// One buffer serves as input on the root and as output on the other ranks.
fdl_result fdl_broadcast(fdl_comm* comm, void* buffer, size_t count, fdl_dtype dtype, int root) {
  return run_collective(comm, make_call(FDL_BROADCAST, buffer, buffer, count, dtype, FDL_SUM, root), nullptr, nullptr);
}
fdl_result fdl_allgather(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype) {
  return run_collective(comm, make_call(FDL_ALLGATHER, input, output, count, dtype), nullptr, nullptr);
}
fdl_result fdl_allgatherv(fdl_comm* comm, const void* input, void* output, const size_t* counts, fdl_dtype dtype) {
  return run_v(comm, make_call(FDL_ALLGATHER, input, output, counts, nullptr, dtype), nullptr);
}
fdl_result fdl_reduce_scatter(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype,
                              fdl_reduce_op op) {
  return run_collective(comm, make_call(FDL_REDUCE_SCATTER, input, output, count, dtype, op), nullptr, nullptr);
}
fdl_result fdl_reduce_scatterv(fdl_comm* comm, const void* input, void* output, const size_t* counts, fdl_dtype dtype,
                               fdl_reduce_op op) {
  return run_v(comm, make_call(FDL_REDUCE_SCATTER, input, output, counts, nullptr, dtype, op), nullptr);
}
fdl_result fdl_alltoall(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype) {
  return run_collective(comm, make_call(FDL_ALLTOALL, input, output, count, dtype), nullptr, nullptr);
}
fdl_result fdl_alltoallv(fdl_comm* comm, const void* input, const size_t* send_counts, void* output,
                         const size_t* recv_counts, fdl_dtype dtype) {
  return run_v(comm, make_call(FDL_ALLTOALL, input, output, send_counts, recv_counts, dtype), nullptr);
}
fdl_result fdl_gather(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype, int root) {
  return run_collective(comm, make_call(FDL_GATHER, input, output, count, dtype, FDL_SUM, root), nullptr, nullptr);
}
fdl_result fdl_scatter(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype, int root) {
  return run_collective(comm, make_call(FDL_SCATTER, input, output, count, dtype, FDL_SUM, root), nullptr, nullptr);
}
fdl_result fdl_barrier(fdl_comm* comm) {
  return run_collective(comm, make_call(FDL_BARRIER, nullptr, nullptr, std::size_t{0}, FDL_UINT8), nullptr, nullptr);
}
fdl_result fdl_send(fdl_comm* comm, const void* buffer, size_t count, fdl_dtype dtype, int peer) {
  return run_message(comm, make_send(buffer, count, dtype, peer), nullptr, nullptr);
}
fdl_result fdl_recv(fdl_comm* comm, void* buffer, size_t count, fdl_dtype dtype, int peer) {
  return run_message(comm, make_recv(buffer, count, dtype, peer), nullptr, nullptr);
}

// Returns from the calling function with an error if `request` is NULL.
#define FDL_NEED_REQUEST() \
  if (request == nullptr) return refuse("request must not be NULL; the blocking form has no request")

// A request reads and writes the caller's buffers until it is done, and progresses only while some thread drives the
// communicator: in fdl_test, fdl_wait, fdl_comm_serve or a blocking call.
fdl_result fdl_iallreduce(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype,
                          fdl_reduce_op op, fdl_request** request) {
  FDL_NEED_REQUEST();
  return run_collective(comm, make_call(FDL_ALLREDUCE, input, output, count, dtype, op), nullptr, request);
}
fdl_result fdl_ireduce(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype, fdl_reduce_op op,
                       int root, fdl_request** request) {
  FDL_NEED_REQUEST();
  return run_collective(comm, make_call(FDL_REDUCE, input, output, count, dtype, op, root), nullptr, request);
}
fdl_result fdl_ibroadcast(fdl_comm* comm, void* buffer, size_t count, fdl_dtype dtype, int root,
                          fdl_request** request) {
  FDL_NEED_REQUEST();
  return run_collective(comm, make_call(FDL_BROADCAST, buffer, buffer, count, dtype, FDL_SUM, root), nullptr, request);
}
fdl_result fdl_iallgather(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype,
                          fdl_request** request) {
  FDL_NEED_REQUEST();
  return run_collective(comm, make_call(FDL_ALLGATHER, input, output, count, dtype), nullptr, request);
}
fdl_result fdl_iallgatherv(fdl_comm* comm, const void* input, void* output, const size_t* counts, fdl_dtype dtype,
                           fdl_request** request) {
  FDL_NEED_REQUEST();
  return run_v(comm, make_call(FDL_ALLGATHER, input, output, counts, nullptr, dtype), request);
}
fdl_result fdl_ireduce_scatter(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype,
                               fdl_reduce_op op, fdl_request** request) {
  FDL_NEED_REQUEST();
  return run_collective(comm, make_call(FDL_REDUCE_SCATTER, input, output, count, dtype, op), nullptr, request);
}
fdl_result fdl_ireduce_scatterv(fdl_comm* comm, const void* input, void* output, const size_t* counts, fdl_dtype dtype,
                                fdl_reduce_op op, fdl_request** request) {
  FDL_NEED_REQUEST();
  return run_v(comm, make_call(FDL_REDUCE_SCATTER, input, output, counts, nullptr, dtype, op), request);
}
fdl_result fdl_ialltoall(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype,
                         fdl_request** request) {
  FDL_NEED_REQUEST();
  return run_collective(comm, make_call(FDL_ALLTOALL, input, output, count, dtype), nullptr, request);
}
fdl_result fdl_ialltoallv(fdl_comm* comm, const void* input, const size_t* send_counts, void* output,
                          const size_t* recv_counts, fdl_dtype dtype, fdl_request** request) {
  FDL_NEED_REQUEST();
  return run_v(comm, make_call(FDL_ALLTOALL, input, output, send_counts, recv_counts, dtype), request);
}
fdl_result fdl_igather(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype, int root,
                       fdl_request** request) {
  FDL_NEED_REQUEST();
  return run_collective(comm, make_call(FDL_GATHER, input, output, count, dtype, FDL_SUM, root), nullptr, request);
}
fdl_result fdl_iscatter(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype, int root,
                        fdl_request** request) {
  FDL_NEED_REQUEST();
  return run_collective(comm, make_call(FDL_SCATTER, input, output, count, dtype, FDL_SUM, root), nullptr, request);
}
fdl_result fdl_ibarrier(fdl_comm* comm, fdl_request** request) {
  FDL_NEED_REQUEST();
  return run_collective(comm, make_call(FDL_BARRIER, nullptr, nullptr, std::size_t{0}, FDL_UINT8), nullptr, request);
}
fdl_result fdl_isend(fdl_comm* comm, const void* buffer, size_t count, fdl_dtype dtype, int peer,
                     fdl_request** request) {
  FDL_NEED_REQUEST();
  return run_message(comm, make_send(buffer, count, dtype, peer), nullptr, request);
}
fdl_result fdl_irecv(fdl_comm* comm, void* buffer, size_t count, fdl_dtype dtype, int peer, fdl_request** request) {
  FDL_NEED_REQUEST();
  return run_message(comm, make_recv(buffer, count, dtype, peer), nullptr, request);
}
