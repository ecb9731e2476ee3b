// C API: ordered communicators: arguments are checked here, once, and never again below.
#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "capi/objects.h"
#include "runtime/named/average.h"

using namespace fdl;
using namespace fdl::capi;

namespace {

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

bool reduces(fdl_collective kind) { return kind == FDL_ALLREDUCE || kind == FDL_REDUCE || kind == FDL_REDUCE_SCATTER; }

bool has_counts(fdl_collective kind) {
  return kind == FDL_ALLGATHER || kind == FDL_GATHER || kind == FDL_REDUCE_SCATTER || kind == FDL_SCATTER ||
         kind == FDL_ALLTOALL;
}

bool has_root(fdl_collective kind) {
  return kind == FDL_REDUCE || kind == FDL_BROADCAST || kind == FDL_GATHER || kind == FDL_SCATTER;
}

// How many elements this rank's input and output hold.
struct Elements {
  std::size_t input = 0;
  std::size_t output = 0;
};

// Whether this rank's call has an input or output at all; the other ranks' pointers and sizes are ignored.
bool needs_input(const fdl_call& call, int rank) { return call.collective != FDL_SCATTER || call.root == rank; }
bool needs_output(const fdl_call& call, int rank) {
  return (call.collective != FDL_REDUCE && call.collective != FDL_GATHER) || call.root == rank;
}

bool sum_fits(std::span<const std::size_t> counts, std::size_t element_bytes, std::size_t& sum) {
  sum = 0;
  const std::size_t most = static_cast<std::size_t>(std::numeric_limits<int64_t>::max()) / element_bytes;
  for (const std::size_t count : counts) {
    if (count > most - sum) return false;
    sum += count;
  }
  return true;
}

// On the CPU the index is a field that is not used.
Fault fault_of_call_place(const fdl_call& call) {
  if (call.device_kind == FDL_DEVICE_CPU) return std::nullopt;
  return fault_of_place(call.device_kind, call.device_index);
}

// How many elements this rank reads and writes, or what is wrong with the counts. `counts` and `recv_counts` have one
// entry for each rank where the collective takes them.
Fault fault_of_counts(const fdl_call& call, int rank, std::span<const std::size_t> counts,
                      std::span<const std::size_t> recv_counts, Elements& elements) {
  const std::size_t dtype_bytes = fdl_dtype_size(call.dtype);
  const bool root = call.root == rank;
  elements = {call.count, call.count};
  if (has_counts(call.collective)) {
    std::size_t all = 0;
    std::size_t received = 0;
    if (!sum_fits(counts, dtype_bytes, all) || !sum_fits(recv_counts, dtype_bytes, received)) {
      return "the counts add up to more bytes than there can be";
    }
    const std::size_t mine = counts[static_cast<std::size_t>(rank)];
    switch (call.collective) {
      case FDL_ALLGATHER:
        elements = {mine, all};
        break;
      case FDL_GATHER:
        elements = {mine, root ? all : 0};
        break;
      case FDL_REDUCE_SCATTER:
        elements = {all, mine};
        break;
      case FDL_SCATTER:
        elements = {root ? all : 0, mine};
        break;
      default:
        elements = {all, received};
        break;
    }
  } else if (call.count > static_cast<std::size_t>(std::numeric_limits<int64_t>::max()) / dtype_bytes) {
    return "count " + std::to_string(call.count) + " is more than memory can hold (was it negative?)";
  }
  if (call.collective == FDL_REDUCE && !root) elements.output = 0;
  if (call.collective == FDL_BROADCAST) (root ? elements.output : elements.input) = 0;
  return std::nullopt;
}

// The ranges that may share bytes: the same start, or the rank's own part of the larger buffer (engine/aliasing.h).
bool is_in_place(const fdl_call& call, int rank, std::span<const std::size_t> counts) {
  if (call.input == call.output) return true;
  if (call.collective == FDL_ALLREDUCE || call.collective == FDL_REDUCE || call.collective == FDL_ALLTOALL)
    return false;
  const std::size_t before = std::accumulate(counts.begin(), counts.begin() + rank, std::size_t{0});
  const bool gathers = call.collective == FDL_ALLGATHER || call.collective == FDL_GATHER;
  const auto* whole = static_cast<const std::byte*>(gathers ? call.output : call.input);
  const void* part = gathers ? call.input : call.output;
  return part == whole + before * fdl_dtype_size(call.dtype);
}

Fault fault_of_buffers(const fdl_call& call, int rank, std::span<const std::size_t> counts, const Elements& elements) {
  if (elements.input > 0 && call.input == nullptr) return "input is NULL";
  if (elements.output > 0 && call.output == nullptr) return "output is NULL";
  if (call.collective == FDL_BROADCAST) {
    const std::size_t stated = call.root == rank ? call.input_elements : call.output_elements;
    return fault_of_elements("the buffer", stated, call.count);
  }
  if (needs_input(call, rank)) {
    if (auto fault = fault_of_elements("input", call.input_elements, elements.input)) return fault;
  }
  if (needs_output(call, rank)) {
    if (auto fault = fault_of_elements("output", call.output_elements, elements.output)) return fault;
  }
  const std::size_t dtype_bytes = fdl_dtype_size(call.dtype);
  const Extent input{"input", call.input, elements.input * dtype_bytes};
  const Extent output{"output", call.output, elements.output * dtype_bytes};
  if (!overlap(input, output) || is_in_place(call, rank, counts)) return std::nullopt;
  return fault_of_overlap(input, output);
}

Fault fault_of_reduction(const fdl_call& call, const fdl_call_options& options) {
  const auto dtype = static_cast<Dtype>(call.dtype);
  if (!is_op(call.op)) return "op " + std::to_string(call.op) + " does not exist";
  if (!supports(dtype, static_cast<Op>(call.op))) {
    return "op " + std::string(name_of(static_cast<Op>(call.op))) + " is not defined for dtype " +
           std::string(name_of(dtype));
  }
  if ((call.op == FDL_USER) != (options.user_op != nullptr)) {
    return "op FDL_USER and fdl_call_options.user_op go together";
  }
  return std::nullopt;
}

// To be checked before any entry is read.
Fault fault_of_lengths(const fdl_call& call, int size) {
  if (call.collective == FDL_ALLTOALL && (call.counts == nullptr) != (call.recv_counts == nullptr)) {
    return "pass both counts and recv_counts, or neither";
  }
  if (call.counts != nullptr) {
    if (auto fault = fault_of_length("counts", call.counts_length, size)) return fault;
  }
  if (call.recv_counts != nullptr) return fault_of_length("recv_counts", call.recv_counts_length, size);
  return std::nullopt;
}

// What is wrong with the call, or nothing.
Fault fault_of(fdl_comm* comm, const fdl_call& call, const fdl_call_options& options,
               std::span<const std::size_t> counts, std::span<const std::size_t> recv_counts) {
  if (call.collective < FDL_ALLREDUCE || call.collective > FDL_BARRIER) {
    return "collective " + std::to_string(call.collective) + " does not exist";
  }
  if (call.collective == FDL_BARRIER) return std::nullopt;
  if (!is_dtype(call.dtype)) return "dtype " + std::to_string(call.dtype) + " does not exist";
  const int size = comm->comm().size();
  const int rank = comm->comm().rank();
  if (reduces(call.collective)) {
    if (auto fault = fault_of_reduction(call, options)) return fault;
  }
  if (has_root(call.collective) && (call.root < 0 || call.root >= size)) {
    return "root " + std::to_string(call.root) + " is not a rank of this communicator (0 to " +
           std::to_string(size - 1) + ")";
  }
  if (auto fault = fault_of_call_place(call)) return fault;
  Elements elements;
  if (auto fault = fault_of_counts(call, rank, counts, recv_counts, elements)) return fault;
  return fault_of_buffers(call, rank, counts, elements);
}

Status check(fdl_comm* comm) {
  if (comm == nullptr) return Status(Code::not_initialized, "the communicator is NULL: create a world and one first");
  return comm->world->runtime->usable();
}

Deadline deadline_of(fdl_comm* comm, const fdl_call_options& options) {
  if (options.timeout_ns > 0) return Deadline::after_ns(options.timeout_ns);
  const double configured = comm->world->runtime->config().timeout_s;
  return configured > 0 ? Deadline::after_seconds(configured) : Deadline::never();
}

CollectiveSpec spec_of(fdl_comm* comm, const fdl_call& call, const fdl_call_options& options) {
  const auto op = static_cast<Op>(call.op);
  const auto dtype = static_cast<Dtype>(call.dtype);
  CollectiveSpec spec{
      .collective = static_cast<Collective>(call.collective), .dtype = dtype, .root = call.root, .count = call.count};
  if (options.algorithm != nullptr) spec.algorithm = options.algorithm;
  const Config& config = comm->world->runtime->config();
  spec.deterministic = options.deterministic < 0 ? config.deterministic : options.deterministic != 0;
  if (reduces(call.collective)) {
    spec.reduction = {folding(op), options.user_op == nullptr ? nullptr : &options.user_op->op};
    spec.prescale = options.prescale;
    spec.postscale = options.postscale * postscale_of(op, dtype, comm->comm().size());
  }
  return spec;
}

// `placed`: a CollectiveSpec or a Message.
template <typename Placed>
Status place_on_device(fdl_comm* comm, const fdl_call& call, Placed& placed) {
  FDL_ASSIGN_OR_RETURN(const auto used, comm->world->runtime->device(call.device_kind, call.device_index));
  placed.device = &used->device();  // it lives as long as the world
  placed.stream = stream_on_any_thread(call.stream);
  return {};
}

fdl_result settle(fdl_comm* comm, const Status& status, const char* title) {
  if (status.ok()) return FDL_OK;
  return report(comm->world->runtime->settle(*comm->ordered,
                                             status.during(title, comm->comm().phase(), comm->ordered->group->id())));
}

fdl_call_options known_options(const fdl_call_options* given) {
  fdl_call_options options;
  fdl_call_options_init(&options);
  if (given != nullptr) std::memcpy(&options, given, std::min(given->struct_size, sizeof options));
  return options;
}

std::span<const std::size_t> counts_of(const std::size_t* given, std::size_t count, int size,
                                       std::vector<std::size_t>& even) {
  if (given != nullptr) return {given, static_cast<std::size_t>(size)};
  if (even.size() != static_cast<std::size_t>(size) || even.front() != count) {
    even.assign(static_cast<std::size_t>(size), count);
  }
  return even;
}

// What this rank gives to the collective, or has of it.
uint64_t bytes_given(const CollectiveSpec& spec, int rank) {
  std::size_t elements = spec.count;
  if (spec.collective == Collective::reduce_scatter || spec.collective == Collective::alltoall) {
    elements = std::accumulate(spec.counts.begin(), spec.counts.end(), std::size_t{0});
  } else if (!spec.counts.empty()) {
    elements = spec.counts[static_cast<std::size_t>(rank)];
  }
  return elements * size_of(spec.dtype);
}

// 0 where nobody counts.
int64_t begin_of_count(fdl_comm* comm) { return comm->ordered->metrics == nullptr ? 0 : now_ns(); }

void count_end(fdl_comm* comm, Collective collective, uint64_t bytes, int64_t began_ns, const Status& outcome) {
  if (began_ns == 0) return;
  const bool failed = !outcome.ok() && outcome.code() != Code::shut_down;
  comm->ordered->metrics->ended(GroupMetrics::row_of(collective), bytes, now_ns() - began_ns, failed);
}

fdl_result run(fdl_comm* comm, const fdl_call& call, const fdl_call_options* given, fdl_request** request) {
  Status usable = check(comm);
  if (!usable.ok()) return report(usable);
  const fdl_call_options options = known_options(given);
  const int size = comm->comm().size();
  const char* title = "collective";
  std::unique_ptr<fdl_request> made;
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
  if (auto fault = fault_of(comm, call, options, counts, recv_counts)) {
    return refuse(std::string(title) + ": " + *fault + at_rank(comm));
  }
  CollectiveSpec spec = spec_of(comm, call, options);
  if (call.device_kind != FDL_DEVICE_CPU) {
    const Status placed = place_on_device(comm, call, spec);
    if (!placed.ok()) return report(placed.during(title));
  }
  spec.counts = counts;
  spec.recv_counts = recv_counts;
  if (call.counts != nullptr) spec.count = 0;  // uneven: what count says is not agreed upon
  const Buffers buffers{call.input, call.output};
  const int64_t began_ns = begin_of_count(comm);
  const uint64_t bytes = began_ns == 0 ? 0 : bytes_given(spec, comm->comm().rank());
  if (made) {
    made->comm = comm;
    made->title = title;
    made->operation.spec = spec;
    made->operation.buffers = buffers;
    made->began_ns = began_ns;
    made->bytes = bytes;
    comm->comm().start(made->operation);
    *request = made.release();
    return FDL_OK;
  }
  Operation operation{.spec = spec, .buffers = buffers};
  comm->comm().start(operation);
  Status outcome;
  if (!operation.completion.done || !operation.completion.status.ok()) {
    outcome = comm->comm().wait(operation.completion, deadline_of(comm, options));
  }
  count_end(comm, spec.collective, bytes, began_ns, outcome);
  return settle(comm, outcome, title);
}

// What is wrong with a message, or nothing.
Fault fault_of_message(fdl_comm* comm, const fdl_call& call) {
  if (!is_dtype(call.dtype)) return "dtype " + std::to_string(call.dtype) + " does not exist";
  if (call.root < 0 || call.root >= comm->comm().size()) {
    return "peer " + std::to_string(call.root) + " is not a rank of this communicator (0 to " +
           std::to_string(comm->comm().size() - 1) + ")";
  }
  if (auto fault = fault_of_call_place(call)) return fault;
  if (call.count > static_cast<std::size_t>(std::numeric_limits<int64_t>::max()) / fdl_dtype_size(call.dtype)) {
    return "count " + std::to_string(call.count) + " is more than memory can hold (was it negative?)";
  }
  const bool outgoing = call.collective == FDL_SEND;
  if (call.count > 0 && (outgoing ? call.input : call.output) == nullptr) return "buffer is NULL";
  return fault_of_elements("the buffer", outgoing ? call.input_elements : call.output_elements, call.count);
}

fdl_result run_message(fdl_comm* comm, const fdl_call& call, const fdl_call_options* given, fdl_request** request) {
  Status usable = check(comm);
  if (!usable.ok()) return report(usable);
  const bool outgoing = call.collective == FDL_SEND;
  const char* title = outgoing ? "send" : "recv";
  if (auto fault = fault_of_message(comm, call)) return refuse(std::string(title) + ": " + *fault + at_rank(comm));
  Message message{.peer = call.root,
                  .outgoing = outgoing,
                  .data = static_cast<std::byte*>(outgoing ? const_cast<void*>(call.input) : call.output),
                  .bytes = call.count * fdl_dtype_size(call.dtype)};
  if (call.device_kind != FDL_DEVICE_CPU) {
    const Status placed = place_on_device(comm, call, message);
    if (!placed.ok()) return report(placed.during(title));
  }
  if (request == nullptr) {
    comm->comm().start(message);
    return settle(comm, comm->comm().wait(message.completion, deadline_of(comm, known_options(given))), title);
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

fdl_call make_call(fdl_collective kind, const void* input, void* output, const std::size_t* counts,
                   const std::size_t* recv_counts, fdl_dtype dtype, fdl_reduce_op op = FDL_SUM) {
  fdl_call call = make_call(kind, input, output, std::size_t{0}, dtype, op);
  call.counts = counts;
  call.recv_counts = recv_counts;
  return call;
}

fdl_call make_send(const void* buffer, std::size_t count, fdl_dtype dtype, int peer) {
  return make_call(FDL_SEND, buffer, nullptr, count, dtype, FDL_SUM, peer);
}

fdl_call make_recv(void* buffer, std::size_t count, fdl_dtype dtype, int peer) {
  return make_call(FDL_RECV, nullptr, buffer, count, dtype, FDL_SUM, peer);
}

// The forms that need an array of counts: NULL is no even form there.
fdl_result run_v(fdl_comm* comm, const fdl_call& call, fdl_request** request) {
  if (call.counts == nullptr) return refuse(std::string(title_of(call.collective)) + ": counts is NULL");
  return run(comm, call, nullptr, request);
}

// Waits for one request and frees it.
fdl_result finish(fdl_request* request) {
  fdl_comm* comm = request->comm;
  const std::unique_ptr<fdl_request> owned(request);
  const Status outcome = comm->comm().wait(request->completion(), deadline_of(comm, known_options(nullptr)));
  count_end(comm, request->operation.spec.collective, request->bytes, request->began_ns, outcome);
  return settle(comm, outcome, request->title.c_str());
}

}  // namespace

// ---- communicators
// -----------------------------------------------------------------------------------------------------

fdl_result fdl_comm_create(fdl_group* group, fdl_comm** comm) {
  if (group == nullptr) {
    return report(Status(Code::not_initialized, "fdl_comm_create: the group is NULL: create a world first"));
  }
  if (comm == nullptr) return refuse("fdl_comm_create: comm must not be NULL");
  auto made = group->world->runtime->make_comm(*group->group);
  if (!made.ok()) return report(made.status());
  group->world->hold();
  *comm = new fdl_comm{group->world, made.take(), {}};
  return FDL_OK;
}

void fdl_comm_destroy(fdl_comm* comm) {
  if (comm == nullptr) return;
  if (comm->world->runtime->usable().code() == Code::not_initialized) {
    static_cast<void>(comm->ordered.release());  // a forked child leaves the parent's sockets alone
  } else {
    comm->world->runtime->end(std::move(comm->ordered));
  }
  comm->world->release();
  delete comm;
}

fdl_result fdl_comm_abort(fdl_comm* comm, const char* reason) {
  Status usable = check(comm);
  if (!usable.ok()) return report(usable);
  comm->world->runtime->abort(*comm->ordered, reason == nullptr ? "no reason was given" : reason);
  return FDL_OK;
}

int fdl_comm_rank(const fdl_comm* comm) { return comm == nullptr ? -1 : comm->ordered->comm->rank(); }
int fdl_comm_size(const fdl_comm* comm) { return comm == nullptr ? 0 : comm->ordered->comm->size(); }

void fdl_call_options_init(fdl_call_options* options) {
  *options = fdl_call_options{};
  options->struct_size = sizeof *options;
  options->prescale = 1;
  options->postscale = 1;
  options->deterministic = -1;
}

void fdl_call_init(fdl_call* call) { *call = make_call(FDL_ALLREDUCE, nullptr, nullptr, std::size_t{0}, FDL_FLOAT32); }

fdl_result fdl_call_ex(fdl_comm* comm, const fdl_call* call, const fdl_call_options* options, fdl_request** request) {
  if (call == nullptr) return refuse("fdl_call_ex: call must not be NULL");
  fdl_call known;
  fdl_call_init(&known);
  std::memcpy(&known, call, std::min(call->struct_size, sizeof known));
  if (known.collective == FDL_SEND || known.collective == FDL_RECV) return run_message(comm, known, options, request);
  return run(comm, known, options, request);
}

fdl_result fdl_allreduce_ex(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype,
                            fdl_reduce_op op, const fdl_call_options* options) {
  return run(comm, make_call(FDL_ALLREDUCE, input, output, count, dtype, op), options, nullptr);
}

// ---- the short forms: blocking, then as requests
// -----------------------------------------------------------------------

fdl_result fdl_allreduce(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype,
                         fdl_reduce_op op) {
  return run(comm, make_call(FDL_ALLREDUCE, input, output, count, dtype, op), nullptr, nullptr);
}
fdl_result fdl_reduce(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype, fdl_reduce_op op,
                      int root) {
  return run(comm, make_call(FDL_REDUCE, input, output, count, dtype, op, root), nullptr, nullptr);
}
fdl_result fdl_broadcast(fdl_comm* comm, void* buffer, size_t count, fdl_dtype dtype, int root) {
  return run(comm, make_call(FDL_BROADCAST, buffer, buffer, count, dtype, FDL_SUM, root), nullptr, nullptr);
}
fdl_result fdl_allgather(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype) {
  return run(comm, make_call(FDL_ALLGATHER, input, output, count, dtype), nullptr, nullptr);
}
fdl_result fdl_allgatherv(fdl_comm* comm, const void* input, void* output, const size_t* counts, fdl_dtype dtype) {
  return run_v(comm, make_call(FDL_ALLGATHER, input, output, counts, nullptr, dtype), nullptr);
}
fdl_result fdl_reduce_scatter(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype,
                              fdl_reduce_op op) {
  return run(comm, make_call(FDL_REDUCE_SCATTER, input, output, count, dtype, op), nullptr, nullptr);
}
fdl_result fdl_reduce_scatterv(fdl_comm* comm, const void* input, void* output, const size_t* counts, fdl_dtype dtype,
                               fdl_reduce_op op) {
  return run_v(comm, make_call(FDL_REDUCE_SCATTER, input, output, counts, nullptr, dtype, op), nullptr);
}
fdl_result fdl_alltoall(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype) {
  return run(comm, make_call(FDL_ALLTOALL, input, output, count, dtype), nullptr, nullptr);
}
fdl_result fdl_alltoallv(fdl_comm* comm, const void* input, const size_t* send_counts, void* output,
                         const size_t* recv_counts, fdl_dtype dtype) {
  return run_v(comm, make_call(FDL_ALLTOALL, input, output, send_counts, recv_counts, dtype), nullptr);
}
fdl_result fdl_gather(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype, int root) {
  return run(comm, make_call(FDL_GATHER, input, output, count, dtype, FDL_SUM, root), nullptr, nullptr);
}
fdl_result fdl_scatter(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype, int root) {
  return run(comm, make_call(FDL_SCATTER, input, output, count, dtype, FDL_SUM, root), nullptr, nullptr);
}
fdl_result fdl_barrier(fdl_comm* comm) {
  return run(comm, make_call(FDL_BARRIER, nullptr, nullptr, std::size_t{0}, FDL_UINT8), nullptr, nullptr);
}
fdl_result fdl_send(fdl_comm* comm, const void* buffer, size_t count, fdl_dtype dtype, int peer) {
  return run_message(comm, make_send(buffer, count, dtype, peer), nullptr, nullptr);
}
fdl_result fdl_recv(fdl_comm* comm, void* buffer, size_t count, fdl_dtype dtype, int peer) {
  return run_message(comm, make_recv(buffer, count, dtype, peer), nullptr, nullptr);
}

#define FDL_NEED_REQUEST() \
  if (request == nullptr) return refuse("request must not be NULL; the blocking form has no request")

fdl_result fdl_iallreduce(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype,
                          fdl_reduce_op op, fdl_request** request) {
  FDL_NEED_REQUEST();
  return run(comm, make_call(FDL_ALLREDUCE, input, output, count, dtype, op), nullptr, request);
}
fdl_result fdl_ireduce(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype, fdl_reduce_op op,
                       int root, fdl_request** request) {
  FDL_NEED_REQUEST();
  return run(comm, make_call(FDL_REDUCE, input, output, count, dtype, op, root), nullptr, request);
}
fdl_result fdl_ibroadcast(fdl_comm* comm, void* buffer, size_t count, fdl_dtype dtype, int root,
                          fdl_request** request) {
  FDL_NEED_REQUEST();
  return run(comm, make_call(FDL_BROADCAST, buffer, buffer, count, dtype, FDL_SUM, root), nullptr, request);
}
fdl_result fdl_iallgather(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype,
                          fdl_request** request) {
  FDL_NEED_REQUEST();
  return run(comm, make_call(FDL_ALLGATHER, input, output, count, dtype), nullptr, request);
}
fdl_result fdl_iallgatherv(fdl_comm* comm, const void* input, void* output, const size_t* counts, fdl_dtype dtype,
                           fdl_request** request) {
  FDL_NEED_REQUEST();
  return run_v(comm, make_call(FDL_ALLGATHER, input, output, counts, nullptr, dtype), request);
}
fdl_result fdl_ireduce_scatter(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype,
                               fdl_reduce_op op, fdl_request** request) {
  FDL_NEED_REQUEST();
  return run(comm, make_call(FDL_REDUCE_SCATTER, input, output, count, dtype, op), nullptr, request);
}
fdl_result fdl_ireduce_scatterv(fdl_comm* comm, const void* input, void* output, const size_t* counts, fdl_dtype dtype,
                                fdl_reduce_op op, fdl_request** request) {
  FDL_NEED_REQUEST();
  return run_v(comm, make_call(FDL_REDUCE_SCATTER, input, output, counts, nullptr, dtype, op), request);
}
fdl_result fdl_ialltoall(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype,
                         fdl_request** request) {
  FDL_NEED_REQUEST();
  return run(comm, make_call(FDL_ALLTOALL, input, output, count, dtype), nullptr, request);
}
fdl_result fdl_ialltoallv(fdl_comm* comm, const void* input, const size_t* send_counts, void* output,
                          const size_t* recv_counts, fdl_dtype dtype, fdl_request** request) {
  FDL_NEED_REQUEST();
  return run_v(comm, make_call(FDL_ALLTOALL, input, output, send_counts, recv_counts, dtype), request);
}
fdl_result fdl_igather(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype, int root,
                       fdl_request** request) {
  FDL_NEED_REQUEST();
  return run(comm, make_call(FDL_GATHER, input, output, count, dtype, FDL_SUM, root), nullptr, request);
}
fdl_result fdl_iscatter(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype, int root,
                        fdl_request** request) {
  FDL_NEED_REQUEST();
  return run(comm, make_call(FDL_SCATTER, input, output, count, dtype, FDL_SUM, root), nullptr, request);
}
fdl_result fdl_ibarrier(fdl_comm* comm, fdl_request** request) {
  FDL_NEED_REQUEST();
  return run(comm, make_call(FDL_BARRIER, nullptr, nullptr, std::size_t{0}, FDL_UINT8), nullptr, request);
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

// ---- requests
// ----------------------------------------------------------------------------------------------------------

fdl_result fdl_test(fdl_request* request, int* done) {
  if (request == nullptr || done == nullptr) return refuse("fdl_test: request and done must not be NULL");
  if (!request->completion().done) request->comm->comm().progress();
  *done = request->completion().done ? 1 : 0;
  return *done ? finish(request) : FDL_OK;
}

fdl_result fdl_wait(fdl_request* request) {
  if (request == nullptr) return refuse("fdl_wait: request must not be NULL (was it waited for already?)");
  return finish(request);
}

fdl_result fdl_wait_all(fdl_request** requests, size_t count) {
  if (requests == nullptr && count > 0) return refuse("fdl_wait_all: requests must not be NULL");
  fdl_result first = FDL_OK;
  Status story;
  for (size_t i = 0; i < count; ++i) {
    if (requests[i] == nullptr) continue;
    const fdl_result result = finish(requests[i]);
    requests[i] = nullptr;
    if (first == FDL_OK && result != FDL_OK) {
      first = result;
      const fdl_error& error = *fdl_last_error();
      story = Status(Error{static_cast<Code>(error.code), error.text, error.culprit_rank, error.culprit_host,
                           error.operation, error.phase, error.group});
    }
  }
  return report(story);
}

fdl_result fdl_wait_any(fdl_request** requests, size_t count, size_t* index) {
  if (requests == nullptr || index == nullptr) return refuse("fdl_wait_any: requests and index must not be NULL");
  fdl_comm* comm = nullptr;
  for (size_t i = 0; i < count; ++i) {
    if (requests[i] == nullptr) continue;
    if (comm != nullptr && requests[i]->comm != comm) {
      return refuse("fdl_wait_any: the requests belong to different communicators");
    }
    comm = requests[i]->comm;
  }
  if (comm == nullptr) return refuse("fdl_wait_any: all requests are NULL");
  while (true) {
    for (size_t i = 0; i < count; ++i) {
      if (requests[i] == nullptr || !requests[i]->completion().done) continue;
      *index = i;
      return finish(std::exchange(requests[i], nullptr));
    }
    if (!comm->comm().progress()) comm->comm().sleep_until_ready(Deadline::after_ns(1'000'000'000));
  }
}

fdl_result fdl_comm_serve(fdl_comm* comm, fdl_request** requests, size_t count, int64_t timeout_ns, size_t* index) {
  Status usable = check(comm);
  if (!usable.ok()) return report(usable);
  if ((requests == nullptr && count > 0) || index == nullptr) {
    return refuse("fdl_comm_serve: requests and index must not be NULL" + at_rank(comm));
  }
  const std::span<fdl_request*> served(requests, count);
  if (std::any_of(served.begin(), served.end(), [&](auto* one) { return one != nullptr && one->comm != comm; })) {
    return refuse("fdl_comm_serve: a request belongs to another communicator" + at_rank(comm));
  }
  const auto first_done = [&] {
    return std::find_if(served.begin(), served.end(),
                        [](fdl_request* one) { return one != nullptr && one->completion().done; });
  };
  comm->comm().serve([&] { return first_done() != served.end(); },
                     timeout_ns < 0 ? Deadline::never() : Deadline::after_ns(timeout_ns));
  const auto done = first_done();
  *index = static_cast<size_t>(done - served.begin());
  return done == served.end() ? FDL_OK : finish(std::exchange(*done, nullptr));
}

fdl_result fdl_comm_wake(fdl_comm* comm) {
  Status usable = check(comm);
  if (!usable.ok()) return report(usable);
  comm->comm().wake();
  return FDL_OK;
}

void fdl_request_free(fdl_request* request) {
  if (request == nullptr) return;
  // Done already, perhaps because its communicator was destroyed: nothing of that is touched.
  if (request->completion().done) {
    delete request;
  } else {
    static_cast<void>(finish(request));
  }
}
