// BucketCollective is the collective that runs one bucket. prepare_collective() turns each kind of named operation into
// it: counts, reduction, and the memory of the results.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/communicator.h"
#include "runtime/device/device_work.h"
#include "runtime/named/entry.h"

namespace fdl {

// The spec of the operation refers to the counts, and the communicator to the operation, so it neither moves nor ends
// before the operation has completed.
struct BucketCollective {
  BucketCollective() = default;
  BucketCollective(const BucketCollective&) = delete;
  BucketCollective& operator=(const BucketCollective&) = delete;

  Operation operation;
  std::vector<std::size_t> counts;  // elements of each rank
  std::vector<std::size_t> recv_counts;
  double error_bound = 0;  // of the newest operation; see CollectiveSpec::error_bound
};

// "allreduce 'grad_7' and 3 more"
std::string title_of(const Bucket& bucket);

// Returns whether the bucket's kind has a collective. For a barrier or a join, the agreement on the plan is all.
bool has_collective(const Bucket& bucket);

// Each function below makes the results of the entries, in memory of the device of `device`, or of the CPU if that is
// null. The collective must not start if this fails.

// An allreduce of all tensors of the bucket; the caller sets the buffers. An average runs as a sum with a postscale
// (average.h).
Status prepare_allreduce(const Communicator& comm, const Bucket& bucket, Entries& entries, DeviceWork* device,
                         BucketCollective& collective);

// A broadcast, allgather, alltoall or reduce_scatter, with its buffers. On the root of a broadcast it copies the input
// to the output first, because the collective works in place.
Status prepare_collective(const Communicator& comm, const Bucket& bucket, Entry& entry, DeviceWork* device,
                          BucketCollective& collective);

}  // namespace fdl
