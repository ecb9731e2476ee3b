// BucketCollective has one function for each kind of named operation.
#include "runtime/named/bucket/bucket_collective.h"

#include <cstring>
#include <numeric>
#include <span>

#include "runtime/named/average.h"

namespace fdl {
namespace {

std::size_t product(std::span<const int64_t> dimensions) {
  std::size_t count = 1;
  for (const int64_t dimension : dimensions) count *= static_cast<std::size_t>(dimension);
  return count;
}

std::size_t elements_of_row(const Entry& entry) { return product(std::span(entry.request.shape).subspan(1)); }

// Returns the memory for the result: the caller's, or newly allocated memory that the handle owns.
Result<void*> make_output(const Bucket& bucket, Entry& entry, DeviceWork* device, std::vector<int64_t> shape) {
  Handle::Output& output = entry.result();
  output.shape = std::move(shape);
  output.data = entry.output;
  if (entry.output != nullptr) return output.data;
  const std::size_t bytes = product(output.shape) * size_of(bucket.dtype);
  if (device != nullptr) {
    FDL_ASSIGN_OR_RETURN(void* allocated, device->device().allocate(bytes));
    output.memory = OwnedMemory(allocated, {device->shared_device(), entry.place->stream()});
  } else {
    output.memory = allocate_aligned(bytes);
  }
  output.data = output.memory.get();
  if (output.data == nullptr) {
    return Status(Code::resource,
                  title_of(bucket) + ": no memory for an output of " + std::to_string(bytes) + " bytes");
  }
  return output.data;
}

void set_reduction(const Communicator& comm, const Bucket& bucket, CollectiveSpec& spec) {
  const auto op = static_cast<Op>(bucket.op);
  spec.reduction.op = folding(op);
  spec.prescale = bucket.prescale;
  spec.postscale = bucket.postscale * postscale_of(op, comm.size());
}

void set_compression(const Bucket& bucket, BucketCollective& collective) {
  collective.operation.spec.compression = bucket.compression;
  if (bucket.compression != Compression::none) collective.operation.spec.error_bound = &collective.error_bound;
}

Status copy(DeviceWork* device, void* target, const void* source, std::size_t bytes) {
  if (device != nullptr) return device->device().copy(device->stream(), target, source, bytes);
  std::memcpy(target, source, bytes);
  return {};
}

Status prepare_broadcast(const Communicator& comm, const Bucket& bucket, Entry& entry, DeviceWork* device,
                         BucketCollective& collective) {
  FDL_ASSIGN_OR_RETURN(void* output, make_output(bucket, entry, device, entry.request.shape));
  collective.operation.spec.collective = Collective::broadcast;
  collective.operation.spec.count = entry.element_count();
  collective.operation.buffers = {output, output};
  if (comm.rank() != bucket.root || output == entry.input || entry.byte_count() == 0) return {};
  return copy(device, output, entry.input, entry.byte_count());
}

// The ranks may contribute different numbers of rows, which the plan lists.
Status prepare_allgather(const Bucket& bucket, Entry& entry, DeviceWork* device, BucketCollective& collective) {
  const std::size_t row = elements_of_row(entry);
  for (const int64_t rows : bucket.rows) collective.counts.push_back(static_cast<std::size_t>(rows) * row);
  std::vector<int64_t> shape = entry.request.shape;
  shape[0] = std::accumulate(bucket.rows.begin(), bucket.rows.end(), int64_t{0});
  FDL_ASSIGN_OR_RETURN(void* output, make_output(bucket, entry, device, std::move(shape)));
  collective.operation.spec.collective = Collective::allgather;
  collective.operation.buffers = {entry.input, output};
  return {};
}

// bucket.rows[from * size + to] is the number of rows that rank `from` sends to rank `to`.
Status prepare_alltoall(const Communicator& comm, const Bucket& bucket, Entry& entry, DeviceWork* device,
                        BucketCollective& collective) {
  const auto size = static_cast<std::size_t>(comm.size());
  const auto me = static_cast<std::size_t>(comm.rank());
  const std::size_t row = elements_of_row(entry);
  std::vector<int64_t> received(size);
  for (std::size_t peer = 0; peer < size; ++peer) {
    collective.counts.push_back(static_cast<std::size_t>(bucket.rows[me * size + peer]) * row);
    received[peer] = bucket.rows[peer * size + me];
    collective.recv_counts.push_back(static_cast<std::size_t>(received[peer]) * row);
  }
  std::vector<int64_t> shape = entry.request.shape;
  shape[0] = std::accumulate(received.begin(), received.end(), int64_t{0});
  FDL_ASSIGN_OR_RETURN(void* output, make_output(bucket, entry, device, std::move(shape)));
  entry.result().received_splits = std::move(received);
  collective.operation.spec.collective = Collective::alltoall;
  collective.operation.buffers = {entry.input, output};
  return {};
}

// Rows are the unit of the parts; all ranks derive the same counts from the shape.
Status prepare_reduce_scatter(const Communicator& comm, const Bucket& bucket, Entry& entry, DeviceWork* device,
                              BucketCollective& collective) {
  const auto size = static_cast<int64_t>(comm.size());
  const std::size_t row = elements_of_row(entry);
  const int64_t rows = entry.request.shape[0];
  // The first (rows % size) ranks receive one more row than the others.
  for (int64_t rank = 0; rank < size; ++rank) {
    collective.counts.push_back(static_cast<std::size_t>(rows / size + (rank < rows % size ? 1 : 0)) * row);
  }
  std::vector<int64_t> shape = entry.request.shape;
  shape[0] = rows / size + (comm.rank() < rows % size ? 1 : 0);
  FDL_ASSIGN_OR_RETURN(void* output, make_output(bucket, entry, device, std::move(shape)));
  collective.operation.spec.collective = Collective::reduce_scatter;
  set_reduction(comm, bucket, collective.operation.spec);
  collective.operation.buffers = {entry.input, output};
  return {};
}

}  // namespace

std::string title_of(const Bucket& bucket) {
  std::string title =
      bucket.names.empty() ? std::string(name_of(bucket.kind)) : title_of(bucket.kind, bucket.names.front());
  if (bucket.names.size() > 1) title += " and " + std::to_string(bucket.names.size() - 1) + " more";
  return title;
}

bool has_collective(const Bucket& bucket) {
  return bucket.kind != RequestKind::barrier && bucket.kind != RequestKind::join;
}

Status prepare_allreduce(const Communicator& comm, const Bucket& bucket, Entries& entries, DeviceWork* device,
                         BucketCollective& collective) {
  CollectiveSpec& spec = collective.operation.spec;
  spec.collective = Collective::allreduce;
  spec.dtype = bucket.dtype;
  spec.count = bucket.packed_element_count();
  set_compression(bucket, collective);
  set_reduction(comm, bucket, spec);
  for (auto& entry : entries) {
    if (!entry) continue;
    FDL_ASSIGN_OR_RETURN([[maybe_unused]] void* output, make_output(bucket, *entry, device, entry->request.shape));
  }
  return {};
}

Status prepare_collective(const Communicator& comm, const Bucket& bucket, Entry& entry, DeviceWork* device,
                          BucketCollective& collective) {
  Status prepared;
  switch (bucket.kind) {
    case RequestKind::broadcast:
      prepared = prepare_broadcast(comm, bucket, entry, device, collective);
      break;
    case RequestKind::allgather:
      prepared = prepare_allgather(bucket, entry, device, collective);
      break;
    case RequestKind::alltoall:
      prepared = prepare_alltoall(comm, bucket, entry, device, collective);
      break;
    case RequestKind::reduce_scatter:
      prepared = prepare_reduce_scatter(comm, bucket, entry, device, collective);
      break;
    case RequestKind::allreduce:
    case RequestKind::barrier:
    case RequestKind::join:
      FDL_CHECK(false);  // they have no single entry that the collective works on
  }
  CollectiveSpec& spec = collective.operation.spec;
  spec.dtype = bucket.dtype;
  set_compression(bucket, collective);
  spec.root = bucket.root;
  spec.counts = collective.counts;
  spec.recv_counts = collective.recv_counts;
  return prepared;
}

}  // namespace fdl
