// Collectives: whoever can run a whole collective on a communicator: the scheduled engine, shared memory, later NCCL,
// MPI.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "contract/waitable.h"
#include "data/dtype.h"
#include "data/reduce.h"
#include "schedule/schedule.h"

namespace fdl {

class Device;

// One collective as one rank calls it. Counts are elements of `dtype`.
//   allreduce, reduce, broadcast   count: of the vector
//   allgather, gather              counts[r]: what rank r contributes          (output is their concatenation)
//   reduce_scatter, scatter        counts[r]: what rank r receives             (input is their concatenation)
//   alltoall                       counts[r]: what I send to r; recv_counts[r]: what I receive from r
//                                  (count: if not 0, a promise that all counts of all ranks are this)
//   barrier                        nothing
// counts of allgather, gather, reduce_scatter and scatter are equal on all ranks. The spans outlive the collective.
struct CollectiveSpec {
  Collective collective = Collective::allreduce;
  Dtype dtype = Dtype::float32;
  Reduction reduction;
  int root = 0;
  std::size_t count = 0;
  std::span<const std::size_t> counts;
  std::span<const std::size_t> recv_counts;
  double prescale = 1;   // factors of the reducing collectives: postscale * reduce(prescale * x)
  double postscale = 1;  // (average is sum with a postscale of 1/size, set by the caller)
  std::string_view algorithm = "auto";
  bool deterministic = false;
  // Where input and output lie; null: in the CPU's memory. What the caller has queued on the stream comes before the
  // collective, and what it queues there after completion comes after it: completion says that the host has no more to
  // do, not that the device is through.
  Device* device = nullptr;
  void* stream = nullptr;
};

// A part of a vector: no input means zeros, no output that this rank does not want it. Whole elements.
struct Segment {
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t bytes = 0;
};

// input == output (or the aliases that schedule.h names) means in place. Where a rank has no input or output: null.
// Where `pieces` are given, they are the vector, one behind the other, and input and output are not looked at. That is
// this rank's own affair: others may have the same vector in one place, or in other pieces. They outlive the
// collective.
struct Buffers {
  const void* input = nullptr;
  void* output = nullptr;
  std::span<const Segment> segments = {};
};

// One of several collectives that are started together.
struct Call {
  const CollectiveSpec* spec = nullptr;
  Buffers buffers;
};

// Where the outcome goes. Owned by the caller, which keeps it until done.
struct Completion {
  bool done = false;
  Status status;

  void finish(Status outcome = {}) {
    status = std::move(outcome);
    done = true;
  }
};

// One thread drives it. At most one collective is in flight: start() is legal when the last one is done.
class Collectives : public Waitable {
 public:
  virtual std::string_view name() const = 0;  // "shared memory"
  // Must give the same answer on every rank of the communicator for the same collective.
  virtual bool can(const CollectiveSpec& spec) const = 0;
  // Whether start() understands pieces for it. The others need their vector in one place.
  virtual bool takes_segments(const CollectiveSpec&) const { return false; }
  // The outcome appears in `completion`, perhaps at once. Does not block. Failures end this object: later collectives
  // fail at once with the same error.
  virtual void start(const CollectiveSpec& spec, Buffers buffers, Completion& completion) = 0;
  // Whether launch_group() takes it among others; as with can(), the same answer on every rank.
  virtual bool takes_group(const CollectiveSpec&) const { return false; }
  // Several at once, on one stream, of which all ranks give the same ones in the same order: done when all are, and
  // failed when one is.
  virtual void launch_group(std::span<const Call>, Completion& completion) {
    completion.finish(Status(Code::internal, "these collectives run one by one; please report it"));
  }
  // Moves what can be moved; true if anything did.
  virtual bool progress() = 0;
  // Whatever is in flight, and everything later, ends with this error. From the driving thread.
  virtual void interrupt(const Status& why) = 0;
  // What ran last, for errors and the log: "ring, step 9: recv_reduce chunk 3 from rank 2".
  virtual std::string phase() const = 0;
  // The ranks of the group that the collective in flight waits for, for errors. Empty: none, or they are not known.
  // From the driving thread.
  virtual std::vector<int> late_ranks() { return {}; }
};

}  // namespace fdl
