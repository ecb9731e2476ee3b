// The ordered calls check one call, translate it into an operation of the communicator, and start it. Then they wait,
// or return a request.
#include "capi/ordered_call.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "capi/call_checks.h"
#include "runtime/named/average.h"

namespace fdl::capi {
namespace {

// The C constants have the numbers of Collective, so values are converted by a cast.
#define SAME(name, number) static_assert(static_cast<int>(Collective::name) == number)
SAME(allreduce, FDL_ALLREDUCE);
SAME(reduce, FDL_REDUCE);
SAME(broadcast, FDL_BROADCAST);
SAME(allgather, FDL_ALLGATHER);
SAME(reduce_scatter, FDL_REDUCE_SCATTER);
SAME(alltoall, FDL_ALLTOALL);
SAME(gather, FDL_GATHER);
SAME(scatter, FDL_SCATTER);
SAME(barrier, FDL_BARRIER);
#undef SAME
static_assert(kCollectiveCount == FDL_BARRIER + 1);

const char* title_of(fdl_collective collective) { return name_of(static_cast<Collective>(collective)).data(); }

// The limit of this call, or else the configured one, or else none.
Deadline deadline_of(fdl_comm* comm, const fdl_call_options& options) {
  if (options.timeout_ns > 0) return Deadline::after_ns(options.timeout_ns);
  const double configured = comm->world->runtime->config().timeout_s;
  return configured > 0 ? Deadline::after_seconds(configured) : Deadline::never();
}

// The spec points to the caller's algorithm name and operation, which live until the call has ended.
CollectiveSpec spec_of(fdl_comm* comm, const fdl_call& call, const fdl_call_options& options) {
  const auto op = static_cast<Op>(call.op);
  const auto dtype = static_cast<Dtype>(call.dtype);
  CollectiveSpec spec{
      .collective = static_cast<Collective>(call.collective), .dtype = dtype, .root = call.root, .count = call.count};
  if (options.algorithm != nullptr) spec.algorithm = options.algorithm;
  const Config& config = comm->world->runtime->config();
  spec.deterministic = options.deterministic < 0 ? config.deterministic : options.deterministic != 0;
  if (reduces(call.collective)) {
    // An average runs as a sum whose postscale has the factor 1/size.
    spec.reduction = {folding(op), options.user_op == nullptr ? nullptr : &options.user_op->op};
    spec.prescale = options.prescale;
    // Each rank scales the same sum in the same way, so all ranks have the same bits.
    spec.postscale = options.postscale * postscale_of(op, dtype, comm->comm().size());
  }
  return spec;
}

// Sets the device and the stream of `placed`, a CollectiveSpec or a Message.
template <typename Placed>
Status place_on_device(fdl_comm* comm, const fdl_call& call, Placed& placed) {
  FDL_ASSIGN_OR_RETURN(const auto used, comm->world->runtime->device(call.device_kind, call.device_index));
  placed.device = &used->device();  // it lives as long as the world
  placed.stream = stream_on_any_thread(call.stream);
  return {};
}

// Reports the outcome of a call. After a failure Runtime::settle() first determines the error that all ranks report.
fdl_result report_outcome(fdl_comm* comm, const Status& status, const char* title) {
  if (status.ok()) return FDL_OK;
  return report(comm->world->runtime->settle(*comm->ordered,
                                             status.during(title, comm->comm().phase(), comm->ordered->group->id())));
}

// Copies the caller's options. Fields that an older version of the structure lacks keep their defaults.
fdl_call_options known_options(const fdl_call_options* given) {
  fdl_call_options options;
  fdl_call_options_init(&options);
  if (given != nullptr) std::memcpy(&options, given, std::min(given->struct_size, sizeof options));
  return options;
}

// Returns the caller's counts, or `count` for each rank. `even` owns the latter, and is reused between calls.
std::span<const std::size_t> counts_of(const std::size_t* given, std::size_t count, int size,
                                       std::vector<std::size_t>& even) {
  if (given != nullptr) return {given, static_cast<std::size_t>(size)};
  // Repeated calls with the same count, as in a training loop, allocate and write nothing.
  if (even.size() != static_cast<std::size_t>(size) || even.front() != count) {
    even.assign(static_cast<std::size_t>(size), count);
  }
  return even;
}

// The bytes that this rank contributes to the collective, for the metrics; for a scatter those that it receives.
uint64_t bytes_given(const CollectiveSpec& spec, int rank) {
  std::size_t elements = spec.count;
  if (spec.collective == Collective::reduce_scatter || spec.collective == Collective::alltoall) {
    elements = std::accumulate(spec.counts.begin(), spec.counts.end(), std::size_t{0});
  } else if (!spec.counts.empty()) {
    elements = spec.counts[static_cast<std::size_t>(rank)];
  }
  return elements * size_of(spec.dtype);
}

// Returns 0 if metrics are off.
int64_t begin_of_count(fdl_comm* comm) { return comm->ordered->metrics == nullptr ? 0 : now_ns(); }

void count_end(fdl_comm* comm, Collective collective, uint64_t bytes, int64_t began_ns, const Status& outcome) {
  if (began_ns == 0) return;
  // A shutdown ends what is in flight in good order and is not counted as a failure.
  const bool failed = !outcome.ok() && outcome.code() != Code::shut_down;
  comm->ordered->metrics->ended(GroupMetrics::row_of(collective), bytes, now_ns() - began_ns, failed);
}

}  // namespace

Status check(fdl_comm* comm) {
  if (comm == nullptr)
    return Status(Code::not_initialized, "the communicator is NULL: create a world and a communicator first");
  return comm->world->runtime->usable();
}

fdl_result run_collective(fdl_comm* comm, const fdl_call& call, const fdl_call_options* given, fdl_request** request) {
  Status usable = check(comm);
  if (!usable.ok()) return report(usable);
  const fdl_call_options options = known_options(given);
  const int size = comm->comm().size();
  const char* title = "collective";
  std::unique_ptr<fdl_request> made;
  // Allocated before anything starts, so that an operation in flight always has an owner.
  if (request != nullptr) made = std::make_unique<fdl_request>();

  std::span<const std::size_t> counts;
  std::span<const std::size_t> recv_counts;
  if (call.collective >= FDL_ALLREDUCE && call.collective <= FDL_BARRIER) title = title_of(call.collective);
  if (has_counts(call.collective)) {
    if (auto fault = fault_of_lengths(call, size)) return refuse(std::string(title) + ": " + *fault + at_rank(comm));
    counts = counts_of(call.counts, call.count, size, made ? made->counts : comm->even_counts);
    recv_counts = call.recv_counts != nullptr ? std::span(call.recv_counts, static_cast<std::size_t>(size)) : counts;
    if (made) {  // the caller's arrays need not outlive this call
      made->recv_counts.assign(recv_counts.begin(), recv_counts.end());
      made->counts = std::vector<std::size_t>(counts.begin(), counts.end());
      counts = made->counts;
      recv_counts = made->recv_counts;
    }
  }
  if (auto fault = fault_of_collective(call, options, comm->comm().rank(), size, counts, recv_counts)) {
    return refuse(std::string(title) + ": " + *fault + at_rank(comm));
  }
  CollectiveSpec spec = spec_of(comm, call, options);
  if (call.device_kind != FDL_DEVICE_CPU) {
    const Status placed = place_on_device(comm, call, spec);
    if (!placed.ok()) return report(placed.during(title));
  }
  spec.counts = counts;
  spec.recv_counts = recv_counts;
  if (call.counts != nullptr) spec.count = 0;  // a nonzero count would promise equal counts on all ranks
  const Buffers buffers{call.input, call.output};
  const int64_t began_ns = begin_of_count(comm);
  const uint64_t bytes = began_ns == 0 ? 0 : bytes_given(spec, comm->comm().rank());
  if (made) {
    made->comm = comm;
    made->title = title;
    // The spans of the spec refer to made->counts, which does not move with the unique_ptr.
    made->operation.spec = spec;
    made->operation.buffers = buffers;
    made->began_ns = began_ns;
    made->bytes = bytes;
    comm->comm().start(made->operation);
    *request = made.release();
    return FDL_OK;
  }
  // On the stack: wait() returns only when the completion is done, also after a failure, and then the engine has no
  // reference to the operation.
  Operation operation{.spec = spec, .buffers = buffers};
  comm->comm().start(operation);
  // A collective that has completed in start() needs no wait().
  Status outcome;
  if (!operation.completion.done || !operation.completion.status.ok()) {
    outcome = comm->comm().wait(operation.completion, deadline_of(comm, options));
  }
  count_end(comm, spec.collective, bytes, began_ns, outcome);
  return report_outcome(comm, outcome, title);
}

fdl_result run_message(fdl_comm* comm, const fdl_call& call, const fdl_call_options* given, fdl_request** request) {
  Status usable = check(comm);
  if (!usable.ok()) return report(usable);
  const bool outgoing = call.collective == FDL_SEND;
  const char* title = outgoing ? "send" : "recv";
  if (auto fault = fault_of_message(call, comm->comm().size()))
    return refuse(std::string(title) + ": " + *fault + at_rank(comm));
  Message message{.peer = call.root,
                  .outgoing = outgoing,
                  // Message has one pointer for both directions; a send only reads through it.
                  .data = static_cast<std::byte*>(outgoing ? const_cast<void*>(call.input) : call.output),
                  .bytes = call.count * fdl_dtype_size(call.dtype)};
  if (call.device_kind != FDL_DEVICE_CPU) {
    const Status placed = place_on_device(comm, call, message);
    if (!placed.ok()) return report(placed.during(title));
  }
  if (request == nullptr) {
    comm->comm().start(message);
    return report_outcome(comm, comm->comm().wait(message.completion, deadline_of(comm, known_options(given))), title);
  }
  auto made = std::make_unique<fdl_request>();
  made->comm = comm;
  made->title = title;
  made->is_message = true;
  made->message = message;
  comm->comm().start(made->message);
  *request = made.release();
  return FDL_OK;
}

fdl_result finish(fdl_request* request) {
  fdl_comm* comm = request->comm;
  const std::unique_ptr<fdl_request> owned(request);  // freed also if the wait fails
  // The configured limit counts from here and not from the start: a request may be in flight as long as the program
  // computes.
  const Status outcome = comm->comm().wait(request->completion(), deadline_of(comm, known_options(nullptr)));
  count_end(comm, request->operation.spec.collective, request->bytes, request->began_ns, outcome);
  return report_outcome(comm, outcome, request->title.c_str());
}

}  // namespace fdl::capi
