// The ordered calls check one call, translate it into an operation of the communicator, and start it. Then they wait,
// or return a request.
#include "capi/ordered_call.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/thread_role.h"
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
static_assert(static_cast<int>(Compression::bfloat16) == FDL_COMPRESSION_BFLOAT16);
static_assert(kCompressionCount == FDL_COMPRESSION_BFLOAT16 + 1);

const char* title_of(fdl_collective collective) { return name_of(static_cast<Collective>(collective)).data(); }

// The limit of this call, or else the configured one, or else none.
Deadline deadline_of(fdl_comm* comm, int64_t timeout_ns) {
  if (timeout_ns > 0) return Deadline::after_ns(timeout_ns);
  const double configured = comm->world->runtime->config().timeout_s;
  return configured > 0 ? Deadline::after_seconds(configured) : Deadline::never();
}

// Fills a new spec, except for counts and device. It points to the caller's algorithm name and operation, which live
// until the call has ended.
void fill(CollectiveSpec& spec, fdl_comm* comm, const fdl_call& call, const fdl_call_options& options) {
  const auto op = static_cast<Op>(call.op);
  const auto dtype = static_cast<Dtype>(call.dtype);
  spec.collective = static_cast<Collective>(call.collective);
  spec.dtype = dtype;
  spec.root = call.root;
  spec.count = call.counts == nullptr ? call.count : 0;  // a nonzero count would promise equal counts on all ranks
  if (options.algorithm != nullptr) spec.algorithm = options.algorithm;
  const Config& config = comm->world->runtime->config();
  spec.compression = static_cast<Compression>(options.compression);
  spec.error_bound = options.error_bound;
  spec.deterministic = options.deterministic < 0 ? config.deterministic : options.deterministic != 0;
  if (reduces(call.collective)) {
    // An average runs as a sum whose postscale has the factor 1/size.
    spec.reduction = {folding(op), options.user_op == nullptr ? nullptr : &options.user_op->op};
    spec.prescale = options.prescale;
    // Each rank scales the same sum in the same way, so all ranks have the same bits.
    spec.postscale = options.postscale * postscale_of(op, comm->comm().size());
  }
}

// Sets the device and the stream of `placed`, a CollectiveSpec or a Message.
template <typename Placed>
Result<std::shared_ptr<UsedDevice>> place_on_device(fdl_comm* comm, const fdl_call& call, Placed& placed) {
  FDL_ASSIGN_OR_RETURN(auto used, comm->world->runtime->device(call.device_kind, call.device_index));
  if (!comm->uses_device.load(std::memory_order_relaxed) && !comm->uses_device.exchange(true)) {
    comm->world->runtime->prepare_staging(*used);
  }
  placed.device = &used->device();  // it lives as long as the world
  placed.stream = stream_on_any_thread(call.stream);
  return used;
}

// Reports the outcome of a call. After a failure Runtime::await_decision() first determines the error that all ranks
// report.
fdl_result report_outcome(fdl_comm* comm, const Status& status, const char* title) {
  if (status.ok()) return FDL_OK;
  return report(comm->world->runtime->await_decision(
      *comm->ordered, status.during(title, comm->comm().phase(), comm->ordered->group_id)));
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

// Checks a collective and translates it into `operation`. `kept` takes what must outlive this function; it is null if
// the caller's own call does. Inlined, which removes 53 instructions from a blocking call (bench/instructions.sh).
[[gnu::always_inline]] inline fdl_result translate(fdl_comm* comm, const fdl_call& call,
                                                   const fdl_call_options& options, OrderedCall* kept,
                                                   const char*& title, Operation& operation) {
  const int size = comm->comm().size();
  title = "collective";
  std::span<const std::size_t> counts;
  std::span<const std::size_t> recv_counts;
  if (call.collective >= FDL_ALLREDUCE && call.collective <= FDL_BARRIER) title = title_of(call.collective);
  if (has_counts(call.collective)) {
    if (auto fault = fault_of_lengths(call, size)) return refuse(std::string(title) + ": " + *fault + at_rank(comm));
    counts = counts_of(call.counts, call.count, size, kept != nullptr ? kept->counts : comm->even_counts);
    recv_counts = call.recv_counts != nullptr ? std::span(call.recv_counts, static_cast<std::size_t>(size)) : counts;
    if (kept != nullptr) {
      kept->recv_counts.assign(recv_counts.begin(), recv_counts.end());
      kept->counts = std::vector<std::size_t>(counts.begin(), counts.end());
      counts = kept->counts;
      recv_counts = kept->recv_counts;
    }
  }
  if (auto fault = fault_of_collective(call, options, comm->comm().rank(), size, counts, recv_counts)) {
    return refuse(std::string(title) + ": " + *fault + at_rank(comm));
  }
  CollectiveSpec& spec = operation.spec;
  fill(spec, comm, call, options);
  if (call.device_kind != FDL_DEVICE_CPU) {
    auto placed = place_on_device(comm, call, spec);
    if (!placed.ok()) return report(placed.status().during(title));
    if (kept != nullptr) kept->used = placed.take();
  }
  spec.counts = counts;
  spec.recv_counts = recv_counts;
  operation.buffers = {call.input, call.output};
  if (kept == nullptr) return FDL_OK;
  kept->title = title;
  if (options.algorithm != nullptr) spec.algorithm = kept->algorithm = options.algorithm;
  kept->began_ns = begin_of_count(comm);
  if (kept->began_ns != 0) kept->bytes = bytes_given(spec, comm->comm().rank());
  return FDL_OK;
}

// `used` takes the device of the buffer; it may be null.
fdl_result translate(fdl_comm* comm, const fdl_call& call, const fdl_call_options& options,
                     std::shared_ptr<UsedDevice>* used, const char*& title, Message& message) {
  const bool outgoing = call.collective == FDL_SEND;
  title = outgoing ? "send" : "recv";
  if (auto fault = fault_of_message(call, comm->comm().size()))
    return refuse(std::string(title) + ": " + *fault + at_rank(comm));
  if (options.batch < 0) {
    return refuse(std::string(title) + ": fdl_call_options.batch is " + std::to_string(options.batch) +
                  "; 0 means not said" + at_rank(comm));
  }
  message.between_devices = options.between_devices != 0;
  message.batch = message.between_devices ? static_cast<uint32_t>(options.batch) : 0;
  message.peer = call.root;
  message.outgoing = outgoing;
  // Message has one pointer for both directions; a send only reads through it.
  message.data = static_cast<std::byte*>(outgoing ? const_cast<void*>(call.input) : call.output);
  message.bytes = call.count * fdl_dtype_size(call.dtype);
  if (call.device_kind == FDL_DEVICE_CPU) return FDL_OK;
  auto placed = place_on_device(comm, call, message);
  if (!placed.ok()) return report(placed.status().during(title));
  // A message through the host needs a block of this size (StagedMessages). A lack of memory is found later.
  if (!message.between_devices && !is_library_thread) {
    (void)(*placed)->device().reserve_pinned(std::bit_ceil(std::max(message.bytes, std::size_t{4096})), 1);
  }
  if (used != nullptr) *used = placed.take();
  return FDL_OK;
}

bool is_message(const fdl_call& call) { return call.collective == FDL_SEND || call.collective == FDL_RECV; }

// Checks a call and translates it into `kept`, which outlives the caller's structures.
fdl_result translate(fdl_comm* comm, const fdl_call& call, const fdl_call_options& options, OrderedCall& kept) {
  if (is_message(call)) return translate(comm, call, options, &kept.used, kept.title, kept.work.emplace<Message>());
  return translate(comm, call, options, &kept, kept.title, std::get<Operation>(kept.work));
}

// A call for the world's progress, with a handle.
fdl_result make_submitted(fdl_comm* comm, const fdl_call& call, const fdl_call_options* given,
                          std::unique_ptr<OrderedCall>& made) {
  const fdl_call_options options = known_options(given);
  made = std::make_unique<OrderedCall>();
  const fdl_result translated = translate(comm, call, options, *made);
  if (translated != FDL_OK) return translated;
  const double configured = comm->world->runtime->config().timeout_s;
  made->timeout_ns = options.timeout_ns > 0 ? options.timeout_ns : configured > 0 ? seconds_to_ns(configured) : 0;
  made->may_never_come = options.may_never_come != 0;
  made->handle = std::make_shared<Handle>(1);
  return FDL_OK;
}

// A blocking call on a shared communicator runs behind the calls that are submitted already.
fdl_result run_shared(fdl_comm* comm, const fdl_call& call, const fdl_call_options* given, fdl_request** request) {
  if (request != nullptr) return refuse_shared(comm, "a request");
  std::unique_ptr<OrderedCall> made;
  const fdl_result translated = make_submitted(comm, call, given, made);
  if (translated != FDL_OK) return translated;
  const std::shared_ptr<Handle> handle = made->handle.shared();
  made->used.reset();  // the caller's own stream has the collective, and nothing else waits for it
  const Status submitted = comm->world->runtime->submit_and_wait(*comm->ordered, std::move(made), *handle);
  return report(submitted.ok() ? handle->status() : submitted);
}

fdl_result start_request(fdl_comm* comm, const fdl_call& call, const fdl_call_options* given, fdl_request** request) {
  auto made = std::make_unique<fdl_request>();
  made->comm = comm;
  const fdl_call_options options = known_options(given);
  made->call.timeout_ns = options.timeout_ns;
  const fdl_result translated = translate(comm, call, options, made->call);
  if (translated != FDL_OK) return translated;
  // The program may call collectives on this stream before it waits. They must not be behind a message that the peer
  // can only receive after them.
  if (auto* message = std::get_if<Message>(&made->call.work)) message->waits_later = message->between_devices;
  const Status started = drive(comm, [&] {
    std::visit([&](auto& work) { comm->comm().start(work); }, made->call.work);
    return Status();
  });
  if (!started.ok()) return report_outcome(comm, started, made->call.title);
  *request = made.release();
  return FDL_OK;
}

}  // namespace

Fault fault_of_structures(const fdl_call& call, const fdl_call_options* options) {
  if (auto fault = fault_of_size("fdl_call", call.struct_size)) return fault;
  if (options == nullptr) return std::nullopt;
  if (auto fault = fault_of_size("fdl_call_options", options->struct_size)) return fault;
  constexpr std::size_t kWithTimeout = offsetof(fdl_call_options, timeout_ns) + sizeof options->timeout_ns;
  if (options->struct_size < kWithTimeout || options->timeout_ns >= 0) return std::nullopt;
  return "fdl_call_options.timeout_ns is " + std::to_string(options->timeout_ns) + "; 0 means as configured";
}

fdl_call known_call(const fdl_call& given) {
  fdl_call known;
  fdl_call_init(&known);
  std::memcpy(&known, &given, std::min(given.struct_size, sizeof known));
  return known;
}

fdl_result refuse_shared(fdl_comm* comm, const char* function) {
  return refuse(std::string(function) + " is not possible on communicator '" + comm->comm().id() +
                "', because calls are submitted to it: use fdl_call_submit and its handle" + at_rank(comm));
}

Status check(fdl_comm* comm) {
  if (comm == nullptr)
    return Status(Code::not_initialized, "the communicator is NULL: create a world and a communicator first");
  return comm->world->runtime->usable();
}

fdl_result run_collective(fdl_comm* comm, const fdl_call& call, const fdl_call_options* given,
                          fdl_request** request) try {
  Status usable = check(comm);
  if (!usable.ok()) return report(usable);
  if (comm->is_shared()) [[unlikely]]
    return run_shared(comm, call, given, request);
  if (request != nullptr) return start_request(comm, call, given, request);
  if (is_in_callback(comm)) [[unlikely]]
    return report(comm->world->runtime->may_wait());
  const fdl_call_options options = known_options(given);
  const char* title = nullptr;
  // On the stack: wait() returns only when the completion is done, also after a failure, and then the engine has no
  // reference to the operation.
  Operation operation;
  const fdl_result translated = translate(comm, call, options, nullptr, title, operation);
  if (translated != FDL_OK) return translated;
  const int64_t began_ns = begin_of_count(comm);
  const Status outcome = drive(comm, [&] {
    comm->comm().start(operation);
    // A collective that has completed in start() needs no wait().
    if (operation.completion.done && operation.completion.status.ok()) return Status();
    return comm->comm().wait(operation.completion, deadline_of(comm, options.timeout_ns));
  });
  if (began_ns != 0) {
    count_end(*comm->ordered->metrics, operation.spec.collective, bytes_given(operation.spec, comm->comm().rank()),
              began_ns, outcome);
  }
  return report_outcome(comm, outcome, title);
}
FDL_REPORT_EXCEPTIONS

fdl_result run_message(fdl_comm* comm, const fdl_call& call, const fdl_call_options* given, fdl_request** request) try {
  Status usable = check(comm);
  if (!usable.ok()) return report(usable);
  if (comm->is_shared()) return run_shared(comm, call, given, request);
  if (request != nullptr) return start_request(comm, call, given, request);
  if (is_in_callback(comm)) return report(comm->world->runtime->may_wait());
  const char* title = nullptr;
  Message message;
  const fdl_result translated = translate(comm, call, known_options(given), nullptr, title, message);
  if (translated != FDL_OK) return translated;
  if (message.peer == comm->comm().rank() && !comm->comm().has_message_to_self(!message.outgoing)) {
    return refuse(std::string(title) + ": peer " + std::to_string(message.peer) +
                  " is this rank, which would wait for itself for ever; start the " +
                  (message.outgoing ? "receive with fdl_irecv (irecv)" : "send with fdl_isend (isend)") +
                  " before this call" + at_rank(comm));
  }
  const Status outcome = drive(comm, [&] {
    comm->comm().start(message);
    return comm->comm().wait(message.completion, deadline_of(comm, known_options(given).timeout_ns));
  });
  return report_outcome(comm, outcome, title);
}
FDL_REPORT_EXCEPTIONS

fdl_result submit_call(fdl_comm* comm, const fdl_call& call, const fdl_call_options* given, fdl_handle** handle) try {
  Status usable = check(comm);
  if (!usable.ok()) return report(usable);
  std::unique_ptr<OrderedCall> made;
  const fdl_result translated = make_submitted(comm, call, given, made);
  if (translated != FDL_OK) return translated;
  Status shared = comm->world->runtime->share(*comm->ordered);
  if (!shared.ok()) return report(shared.during(made->title));
  auto given_handle = std::make_unique<fdl_handle>(comm->world, made->handle.shared());
  Status submitted = comm->world->runtime->submit(*comm->ordered, std::move(made));
  if (!submitted.ok()) return report(submitted);
  *handle = given_handle.release();
  return FDL_OK;
}
FDL_REPORT_EXCEPTIONS

fdl_result submit_group(fdl_comm* comm, std::span<const fdl_call> calls, const fdl_call_options* const* options,
                        fdl_handle** handles) try {
  Status usable = check(comm);
  if (!usable.ok()) return report(usable);
  // All are checked before the first is submitted.
  std::unique_ptr<OrderedCall> first;
  std::vector<std::unique_ptr<fdl_handle>> given;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (is_message(calls[i])) return refuse("fdl_call_submit_group: messages are not launched with collectives");
    std::unique_ptr<OrderedCall> made;
    const fdl_result translated = make_submitted(comm, calls[i], options == nullptr ? nullptr : options[i], made);
    if (translated != FDL_OK) return translated;
    given.push_back(std::make_unique<fdl_handle>(comm->world, made->handle.shared()));
    (first == nullptr ? first : first->with.emplace_back()) = std::move(made);
  }
  Status shared = comm->world->runtime->share(*comm->ordered);
  if (!shared.ok()) return report(shared.during(first->title));
  Status submitted = comm->world->runtime->submit(*comm->ordered, std::move(first));
  if (!submitted.ok()) return report(submitted);
  for (std::size_t i = 0; i < given.size(); ++i) handles[i] = given[i].release();
  return FDL_OK;
}
FDL_REPORT_EXCEPTIONS

Status order_stream_behind(OrderedCall& call) {
  auto* const message = std::get_if<Message>(&call.work);
  if (message == nullptr || message->finished == nullptr) return {};
  const auto result = DeviceResult::adopt(call.used, std::exchange(message->finished, nullptr));
  return message->completion.status.ok() ? result->order_before(message->stream) : Status();
}

// The limit counts from the wait and not from the start: a request may be in flight as long as the program computes.
Deadline limit_of(const fdl_request& request) { return deadline_of(request.comm, request.call.timeout_ns); }

fdl_result finish(fdl_request* request) { return finish(request, limit_of(*request)); }

fdl_result finish(fdl_request* request, Deadline limit) try {
  fdl_comm* comm = request->comm;
  const std::unique_ptr<fdl_request> owned(request);  // freed also if the wait fails
  const Status outcome = drive(comm, [&] { return comm->comm().wait(request->completion(), limit); });
  count_end(comm->ordered->metrics.get(), request->call, outcome);
  Status ordered = order_stream_behind(request->call);
  if (!outcome.ok()) return report_outcome(comm, outcome, request->call.title);
  return report(ordered.ok() ? ordered : ordered.during(request->call.title));
}
FDL_REPORT_EXCEPTIONS

}  // namespace fdl::capi
