// This file implements the C API's named operations: it checks and translates them, and submits them to the runtime.
#include <cstring>
#include <limits>

#include "agree/wire/wire.h"
#include "capi/call_checks.h"
#include "capi/in_flight.h"
#include "capi/objects.h"
#include "capi/owners.h"
#include "engine/host/adasum.h"

using namespace fdl;
using namespace fdl::capi;

namespace {

// The C constants have the numbers of RequestKind, so values are converted by a cast.
#define SAME(name, number) static_assert(static_cast<int>(RequestKind::name) == number)
SAME(allreduce, FDL_NAMED_ALLREDUCE);
SAME(allgather, FDL_NAMED_ALLGATHER);
SAME(broadcast, FDL_NAMED_BROADCAST);
SAME(alltoall, FDL_NAMED_ALLTOALL);
SAME(reduce_scatter, FDL_NAMED_REDUCE_SCATTER);
SAME(barrier, FDL_NAMED_BARRIER);
#undef SAME

// The limit of NumPy 2. A tensor with more is taken for a corrupt structure.
constexpr int kMaxDimensions = 64;

// Checked before the operation is submitted, so that the error names the argument and no other rank takes part.
Fault fault_of_adasum(const fdl_operation& operation, int size) {
  if (operation.kind != FDL_NAMED_ALLREDUCE) return "op adasum is for allreduce only";
  if (!adasum_takes(static_cast<Dtype>(operation.input.dtype))) {
    return "op adasum is not defined for dtype " + std::string(fdl_dtype_name(operation.input.dtype)) +
           "; it takes floating-point types";
  }
  if (operation.input.device_kind != FDL_DEVICE_CPU) {
    return "op adasum is for tensors on the CPU; copy the tensor to the CPU";
  }
  if ((size & (size - 1)) == 0) return std::nullopt;
  return "op adasum combines ranks in pairs, and " + std::to_string(size) +
         " is not a power of two; use a group whose size is";
}

bool reduces(fdl_kind kind) { return kind == FDL_NAMED_ALLREDUCE || kind == FDL_NAMED_REDUCE_SCATTER; }

// Checks the tensor and sets `elements` to its number of elements.
Fault fault_of_tensor(const fdl_tensor& tensor, std::size_t& elements) {
  if (!is_dtype(tensor.dtype)) return "dtype " + std::to_string(tensor.dtype) + " does not exist";
  if (auto fault = fault_of_place(tensor.device_kind, tensor.device_index)) return fault;
  if (tensor.ndim < 0 || tensor.ndim > kMaxDimensions)
    return "ndim " + std::to_string(tensor.ndim) + " is out of range";
  if (tensor.ndim > 0 && tensor.shape == nullptr) return "shape is NULL";
  elements = 1;
  for (int i = 0; i < tensor.ndim; ++i) {
    if (tensor.shape[i] < 0) return "shape has a negative dimension, " + std::to_string(tensor.shape[i]);
    if (__builtin_mul_overflow(elements, static_cast<std::size_t>(tensor.shape[i]), &elements) ||
        // More than any memory has. The bytes of 2^60 elements still fit into 64 bits.
        elements > (std::size_t{1} << 60)) {
      return "shape has more elements than memory can hold";
    }
  }
  if (elements > 0 && tensor.data == nullptr) return "input.data is NULL";
  return std::nullopt;
}

// Allreduce and broadcast write to the caller's memory, which has the input's shape. For the other kinds the library
// allocates the result.
Fault fault_of_output(const fdl_operation& operation, std::size_t elements) {
  if (operation.kind != FDL_NAMED_ALLREDUCE && operation.kind != FDL_NAMED_BROADCAST) return std::nullopt;
  if (operation.output == nullptr) return std::nullopt;
  if (auto fault = fault_of_elements("output", operation.output_elements, elements)) return fault;
  if (operation.output == operation.input.data) return std::nullopt;
  const std::size_t bytes = elements * fdl_dtype_size(operation.input.dtype);
  return fault_of_overlap({"input", operation.input.data, bytes}, {"output", operation.output, bytes});
}

Fault fault_of_splits(const fdl_operation& operation, int size) {
  if (operation.input.ndim == 0) return std::nullopt;  // the agreement rejects it, with the tensor's name
  if (operation.splits != nullptr) {
    if (auto fault = fault_of_length("splits", operation.splits_length, size)) return fault;
  }
  const int64_t rows = operation.input.shape[0];
  if (operation.splits == nullptr) {
    if (rows % size == 0) return std::nullopt;
    return "splits were not given, but the first dimension " + std::to_string(rows) + " is not divisible by " +
           std::to_string(size) + " ranks";
  }
  int64_t sum = 0;
  for (int rank = 0; rank < size; ++rank) {
    const int64_t split = operation.splits[rank];
    if (split < 0) return "splits has a negative entry, " + std::to_string(split);
    if (split > std::numeric_limits<int64_t>::max() - sum) {
      return "splits add up to more than an int64 holds, and the first dimension is " + std::to_string(rows);
    }
    sum += split;
  }
  if (sum <= rows) return std::nullopt;
  return "splits add up to " + std::to_string(sum) + ", more than the first dimension " + std::to_string(rows);
}

Fault fault_of(const fdl_operation& operation, int size) {
  if (operation.name == nullptr || *operation.name == '\0') return "it needs a name";
  if (operation.kind < FDL_NAMED_ALLREDUCE || operation.kind > FDL_NAMED_BARRIER) {
    return "kind " + std::to_string(operation.kind) + " does not exist";
  }
  const bool compresses = reduces(operation.kind) || operation.kind == FDL_NAMED_ALLGATHER;
  if (auto fault = fault_of_compression(operation.compression, operation.input.dtype, compresses,
                                        reduces(operation.kind), operation.op, operation.input.device_kind)) {
    return fault;
  }
  if (operation.kind == FDL_NAMED_BARRIER) return std::nullopt;
  std::size_t elements = 0;
  if (auto fault = fault_of_tensor(operation.input, elements)) return fault;
  if (auto fault = fault_of_output(operation, elements)) return fault;
  if (reduces(operation.kind)) {
    if (!is_op(operation.op) || operation.op == FDL_USER) {
      return "op " + std::to_string(operation.op) + " cannot be used by name; user operations need a communicator";
    }
    if (operation.op == FDL_ADASUM) return fault_of_adasum(operation, size);
    if (!supports(static_cast<Dtype>(operation.input.dtype), static_cast<Op>(operation.op))) {
      return "op " + std::string(name_of(static_cast<Op>(operation.op))) + " is not defined for dtype " +
             fdl_dtype_name(operation.input.dtype);
    }
  }
  if (operation.kind == FDL_NAMED_BROADCAST && (operation.root < 0 || operation.root >= size)) {
    return "root " + std::to_string(operation.root) + " is not a rank of this group (0 to " + std::to_string(size - 1) +
           ")";
  }
  if (operation.kind == FDL_NAMED_ALLTOALL) return fault_of_splits(operation, size);
  return std::nullopt;
}

// Translates a checked operation. `index` is its position among the handle's operations.
Entry entry_of(const fdl_operation& operation, int size, std::shared_ptr<Handle> handle, std::size_t index) {
  Entry entry{.input = operation.input.data, .output = operation.output, .handle = std::move(handle), .index = index};
  Request& request = entry.request;
  request.kind = static_cast<RequestKind>(operation.kind);
  request.name = operation.name;
  request.priority = operation.priority;
  if (operation.kind == FDL_NAMED_BARRIER) {
    request.dtype = Dtype::uint8;
    return entry;
  }
  request.dtype = static_cast<Dtype>(operation.input.dtype);
  if (operation.input.device_kind != FDL_DEVICE_CPU) request.device = operation.input.device_kind;
  request.shape.assign(operation.input.shape, operation.input.shape + operation.input.ndim);
  if (reduces(operation.kind)) {
    request.op = static_cast<uint8_t>(operation.op);
    request.prescale = operation.prescale;
    request.postscale = operation.postscale;
  }
  request.compression = static_cast<Compression>(operation.compression);
  if (operation.kind == FDL_NAMED_BROADCAST) request.root = operation.root;
  if (operation.kind == FDL_NAMED_ALLTOALL && operation.splits != nullptr) {
    request.splits.assign(operation.splits, operation.splits + size);
  }
  return entry;
}

// One submission: its checked operations, and the handle of all of them, which takes their names. The handle is shared
// with each entry and completes when the last entry has.
struct Submission {
  std::vector<Entry> entries;
  std::shared_ptr<Handle> handle;
};

// Marks the names as in flight on this rank, or rejects the submission if one already is. All or none: after a conflict
// no name of this submission is taken.
fdl_result take_names(fdl_group* group, const Submission& submission) {
  std::vector<std::string> names;
  for (const Entry& entry : submission.entries) names.push_back(entry.request.name);
  submission.handle->begin(submission.entries.front().request.kind);
  const auto taken = submission.handle->names().take(group->group->named().names(), std::move(names));
  if (!taken) return FDL_OK;
  return refuse("'" + *taken + "' is in flight already on rank " + std::to_string(group->world->runtime->facts().rank) +
                "; wait for it, or give the second operation another name");
}

// Releases the names of a submission that was not accepted.
fdl_result give_up(Handle& handle, const Status& why) {
  handle.names().release();
  return report(why);
}

Deadline deadline_of(int64_t timeout_ns) { return timeout_ns < 0 ? Deadline::never() : Deadline::after_ns(timeout_ns); }

bool is_forked_child(const fdl_handle& handle) { return handle.world->runtime->is_forked_child(); }

// The caller has observed that the handle is done: its names are free from now on. A forked child submits nothing, so
// it leaves them alone.
void free_names(const fdl_handle& handle) {
  if (!is_forked_child(handle)) handle.handle->names().release();
}

// Reports the outcome of an operation that is done to the caller. The caller's stream on a device is ordered after it.
fdl_result report_end(const fdl_handle& handle, std::optional<Stream> stream = std::nullopt) {
  free_names(handle);
  const Status ordered = handle.handle->order_streams(stream);
  return report(ordered.ok() ? handle.handle->status() : ordered);
}

fdl_result wait_for(fdl_handle* handle, int64_t timeout_ns, std::optional<Stream> stream) {
  const auto done = handle->world->runtime->wait(*handle->handle, deadline_of(timeout_ns));
  if (!done.ok()) return report(done.status());
  return *done ? report_end(*handle, stream) : report(still_in_flight(*handle));
}

fdl_result submit(fdl_group* group, Submission submission, fdl_handle** handle) {
  const fdl_result taken = take_names(group, submission);
  if (taken != FDL_OK) return taken;
  // The entries reach the progress thread in one step, so it never sees a part of a submission.
  const Status submitted = group->world->runtime->submit(*group->group, std::move(submission.entries));
  if (!submitted.ok()) return give_up(*submission.handle, submitted);
  *handle = new fdl_handle(group->world, std::move(submission.handle));
  return FDL_OK;
}

Status check(const fdl_group* group) {
  if (group == nullptr) return Status(Code::not_initialized, "the group is NULL: create a world first");
  return group->world->runtime->usable();
}

// Sets the device, stream and symmetric memory of the newest entry's tensors. The tensors of one submission usually
// share their device and stream; the entry then shares the DevicePlace of the entry before it.
Status find_place(fdl_group* group, const fdl_operation& operation, std::vector<Entry>& entries) {
  Entry& entry = entries.back();
  if (entry.request.device < 0) return {};
  // A value that is equal on two ranks if the tensors lie alike in symmetric memory there; -1 outside of it.
  entry.request.place = group->group->symmetric_places()->place_of(operation.input.data, operation.output,
                                                                   operation.kind == FDL_NAMED_ALLREDUCE);
  void* const stream = operation.input.stream;
  if (entries.size() > 1) {
    const auto& before = entries[entries.size() - 2].place;
    if (before != nullptr && before->stream() == stream &&
        before->used()->device().kind() == operation.input.device_kind &&
        before->used()->device().index() == operation.input.device_index) {
      entry.place = before;
      return {};
    }
  }
  FDL_ASSIGN_OR_RETURN(entry.place, group->world->runtime->device_place(*group->group, operation.input.device_kind,
                                                                        operation.input.device_index, stream));
  return {};
}

// Copies the caller's operation. Fields that an older version of the structure lacks keep the values of
// fdl_operation_init.
void copy_operation(const char* given, fdl_operation& operation) {
  fdl_operation_init(&operation);
  const size_t size = reinterpret_cast<const fdl_operation*>(given)->struct_size;
  std::memcpy(&operation, given, std::min(size, sizeof operation));
}

fdl_result translate(fdl_group* group, const fdl_operation* operations, size_t count, Submission& submission) {
  Status usable = check(group);
  if (!usable.ok()) return report(usable);
  if (operations == nullptr || count == 0) return refuse("operations must not be NULL, nor their count 0");
  submission.handle = std::make_shared<Handle>(count);
  submission.entries.reserve(count);
  const int size = group->group->size();
  // The caller's version of the structure defines the distance between two elements: struct_size.
  const auto* next = reinterpret_cast<const char*>(operations);
  for (size_t i = 0; i < count; ++i) {
    fdl_operation operation;
    const size_t struct_size = reinterpret_cast<const fdl_operation*>(next)->struct_size;
    if (auto fault = fault_of_size("fdl_operation", struct_size)) return refuse(*fault);
    copy_operation(next, operation);
    // copy_operation() has set struct_size to the caller's, which is the distance between its elements.
    next += operation.struct_size;
    if (auto fault = fault_of(operation, size)) {
      return refuse("operation '" + std::string(operation.name == nullptr ? "" : operation.name) + "': " + *fault +
                    " (rank " + std::to_string(group->world->runtime->facts().rank) + ")");
    }
    submission.entries.push_back(entry_of(operation, size, submission.handle, i));
    Status placed = find_place(group, operation, submission.entries);
    if (!placed.ok()) return report(placed.during("operation '" + std::string(operation.name) + "'"));
  }
  // The operations of one submission form a group, named after the first one and the number of the others.
  if (count > 1) {
    // The root puts the members of a group into plans together: all of them, or none yet.
    const std::string group_name = submission.entries.front().request.name + "+" + std::to_string(count - 1);
    for (Entry& entry : submission.entries) {
      entry.request.group = group_name;
      entry.request.group_size = static_cast<int32_t>(count);
    }
  }
  std::size_t bytes = 0;
  for (const Entry& entry : submission.entries) {
    Status sound = check_request(entry.request);
    if (!sound.ok()) return report(sound);
    bytes += entry.request.message_bytes();
  }
  Status fits = check_group(count, bytes);
  return fits.ok() ? FDL_OK : report(fits);
}

// The outputs on devices that callers have taken and not freed. Intentionally leaked, as Owners explains.
Owners<FreeMemory>& device_outputs() {
  static auto& instance = *new Owners<FreeMemory>;
  return instance;
}

}  // namespace

void fdl_operation_init(fdl_operation* operation) {
  *operation = fdl_operation{};
  operation->struct_size = sizeof *operation;
  operation->input.dtype = FDL_FLOAT32;
  operation->prescale = 1;
  operation->postscale = 1;
  operation->output_elements = FDL_UNSTATED;
  operation->splits_length = FDL_UNSTATED;
}

fdl_result fdl_submit(fdl_group* group, const fdl_operation* operations, size_t count, fdl_handle** handle) try {
  if (handle == nullptr) return refuse("fdl_submit: handle must not be NULL");
  Submission submission;
  const fdl_result translated = translate(group, operations, count, submission);
  return translated == FDL_OK ? submit(group, std::move(submission), handle) : translated;
}
FDL_REPORT_EXCEPTIONS

fdl_result fdl_run(fdl_group* group, const fdl_operation* operations, size_t count, int64_t timeout_ns,
                   fdl_handle** handle) try {
  if (handle != nullptr) *handle = nullptr;
  Submission submission;
  const fdl_result translated = translate(group, operations, count, submission);
  if (translated != FDL_OK) return translated;
  const fdl_result taken = take_names(group, submission);
  if (taken != FDL_OK) return taken;
  // A wait that times out leaves the operation in flight. Only a caller that passed `handle` can wait for it again.
  const fdl_handle running(group->world, submission.handle);  // keeps the world alive during the wait
  const Status submitted = group->world->runtime->submit_and_wait(*group->group, std::move(submission.entries),
                                                                  *running.handle, deadline_of(timeout_ns));
  if (!submitted.ok()) return give_up(*running.handle, submitted);
  if (handle != nullptr) *handle = new fdl_handle(group->world, running.handle);
  if (running.handle->done()) return report_end(running);
  if (handle == nullptr) running.handle->abandon();
  return report(still_in_flight(running));
}
FDL_REPORT_EXCEPTIONS

fdl_result fdl_join(fdl_group* group, fdl_handle** handle) try {
  Status usable = check(group);
  if (!usable.ok()) return report(usable);
  if (handle == nullptr) return refuse("fdl_join: handle must not be NULL");
  Submission submission{.entries = {}, .handle = std::make_shared<Handle>(1)};
  Entry& entry = submission.entries.emplace_back(Entry{.handle = submission.handle});
  entry.request.kind = RequestKind::join;
  // A rank has at most one join in flight, because names are unique.
  entry.request.name = "join";
  entry.request.dtype = Dtype::uint8;
  return submit(group, std::move(submission), handle);
}
FDL_REPORT_EXCEPTIONS

fdl_result fdl_poll(fdl_handle* handle, int* done) try {
  if (handle == nullptr || done == nullptr) return refuse("fdl_poll: handle and done must not be NULL");
  // An acquire load: the outputs of a handle that is done are visible to this thread.
  *done = handle->handle->done() ? 1 : 0;
  if (*done != 0) free_names(*handle);
  return FDL_OK;
}
FDL_REPORT_EXCEPTIONS

fdl_result fdl_wait_handle(fdl_handle* handle, int64_t timeout_ns) try {
  if (handle == nullptr) return refuse("fdl_wait_handle: handle must not be NULL");
  return wait_for(handle, timeout_ns, std::nullopt);
}
FDL_REPORT_EXCEPTIONS

fdl_result fdl_wait_handle_on(fdl_handle* handle, int64_t timeout_ns, void* stream) try {
  if (handle == nullptr) return refuse("fdl_wait_handle_on: handle must not be NULL");
  return wait_for(handle, timeout_ns, stream);
}
FDL_REPORT_EXCEPTIONS

fdl_result fdl_poll_device(fdl_handle* handle, int* done) try {
  if (handle == nullptr || done == nullptr) return refuse("fdl_poll_device: handle and done must not be NULL");
  *done = handle->handle->done() && handle->handle->is_done_on_device() ? 1 : 0;
  return FDL_OK;
}
FDL_REPORT_EXCEPTIONS

fdl_result fdl_handle_notify(fdl_handle* handle, void (*function)(void* context), void* context) try {
  if (handle == nullptr || function == nullptr) {
    return refuse("fdl_handle_notify: handle and function must not be NULL");
  }
  if (is_forked_child(*handle)) return report(handle->world->runtime->usable());
  // Runs in the thread that completes the handle, or in this one if it is done. It may submit and must not wait.
  handle->handle->notify([function, context] { function(context); });
  return FDL_OK;
}
FDL_REPORT_EXCEPTIONS

fdl_result fdl_handle_output(fdl_handle* handle, size_t index, fdl_output* output) try {
  if (handle == nullptr || output == nullptr) return refuse("fdl_handle_output: handle and output must not be NULL");
  if (auto fault = fault_of_size("fdl_output", output->struct_size)) return refuse("fdl_handle_output: " + *fault);
  if (!handle->handle->done()) return refuse("fdl_handle_output: the operation is not done; wait for it first");
  if (!handle->handle->status().ok()) return report(handle->handle->status());
  if (index >= handle->handle->operation_count()) {
    return refuse("fdl_handle_output: index " + std::to_string(index) + " of " +
                  std::to_string(handle->handle->operation_count()) + " operations");
  }
  // The caller gets ownership of the memory. fdl_output_free() needs the deleter of memory on a device, which is kept.
  Handle::Output& known = handle->handle->output(index);
  if (known.memory && known.memory.get_deleter().device) {
    device_outputs().keep(known.memory.get(), std::make_shared<FreeMemory>(known.memory.get_deleter()));
  }
  // Shapes and splits belong to the handle and live until fdl_handle_free(); the data is the caller's.
  const fdl_output all{.struct_size = sizeof(fdl_output),
                       .data = known.memory ? known.memory.release() : nullptr,
                       .ndim = static_cast<int>(known.shape.size()),
                       .shape = known.shape.data(),
                       .received_splits = known.received_splits.empty() ? nullptr : known.received_splits.data(),
                       .last_joined = known.last_joined,
                       .error_bound = known.error_bound};
  const std::size_t size = std::min(output->struct_size, sizeof all);
  std::memcpy(output, &all, size);
  output->struct_size = size;
  return FDL_OK;
}
FDL_REPORT_EXCEPTIONS

void fdl_output_free(void* data) try {
  if (const auto owner = device_outputs().forget(data))
    return owner->device->release_after(stream_on_any_thread(owner->stream), data);
  std::free(data);
}
FDL_KEEP_EXCEPTIONS

void fdl_handle_free(fdl_handle* handle) try {
  if (handle == nullptr) return;
  if (!is_forked_child(*handle)) handle->handle->abandon();
  delete handle;
}
FDL_KEEP_EXCEPTIONS
