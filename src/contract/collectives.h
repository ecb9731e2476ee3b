// Collectives runs whole collectives on one communicator. The scheduled engine, shared memory and the device libraries
// implement it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "contract/waitable.h"
#include "data/compression.h"
#include "data/dtype.h"
#include "data/reduce.h"
#include "schedule/schedule.h"

namespace fdl {

class Device;

// One collective as one rank calls it. Counts are elements of `dtype`.
//   allreduce, reduce, broadcast   count: of the vector
//   allgather, gather              counts[r]: what rank r contributes          (output is their concatenation)
//   reduce_scatter, scatter        counts[r]: what rank r receives             (input is their concatenation)
//   alltoall                       counts[r]: what this rank sends to r; recv_counts[r]: what it receives from r
//                                  (`count`, if not 0, promises that every count of every rank has that value)
//   barrier                        nothing
// All ranks pass the same counts to allgather, gather, reduce_scatter and scatter. The caller keeps the spans valid
// until the collective is done.
struct CollectiveSpec {
  Collective collective = Collective::allreduce;
  Dtype dtype = Dtype::float32;
  Reduction reduction;
  int root = 0;
  std::size_t count = 0;
  std::span<const std::size_t> counts;
  std::span<const std::size_t> recv_counts;
  double prescale = 1;   // factors of the reducing collectives: postscale * reduce(prescale * x)
  double postscale = 1;  // (average is sum with a postscale of 1.0/size, which divides; set by the caller)
  std::string_view algorithm = "auto";
  bool deterministic = false;
  // The block format in which values pass between the ranks, for the calls that engine/host/compressed_collectives.h
  // takes. Where to write a bound of the largest absolute error before completion; may be null.
  Compression compression = Compression::none;
  double* error_bound = nullptr;
  // The collective that this one is a part of, whose arguments all ranks must give alike; usually null.
  const CollectiveSpec* part_of = nullptr;
  // The device that holds input and output; null means the CPU's memory. The collective runs after everything that the
  // caller has queued on the stream. Work that the caller queues there after completion runs after the collective.
  // Completion means that the host has no more to do; the device may still be at work.
  Device* device = nullptr;
  void* stream = nullptr;
};

// A part of a vector, in whole elements. A null input contributes zeros; a null output drops the result of this part.
struct Segment {
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t bytes = 0;
};

// The memory of one collective. A side that this rank does not have is null. The collective runs in place if input and
// output are equal, or are the aliases that schedule.h names.
//
// If `segments` is not empty, its segments in order form the vector, and input and output are ignored. The choice is
// local: other ranks may hold the vector in one block or in other segments. The caller keeps the segments valid until
// the collective is done.
struct Buffers {
  const void* input = nullptr;
  void* output = nullptr;
  std::span<const Segment> segments = {};
};

// One collective of a group launch.
struct Call {
  const CollectiveSpec* spec = nullptr;
  Buffers buffers;
};

// Receives the outcome of a collective. The caller owns it and keeps it alive until `done` is true. Only the driving
// thread writes it.
struct Completion {
  bool done = false;
  Status status;

  void finish(Status outcome = {}) {
    status = std::move(outcome);
    done = true;
  }
};

// One thread drives it. At most one collective is in flight: start() is allowed only after the previous one is done.
class Collectives : public Waitable {
 public:
  virtual std::string_view name() const = 0;  // "shared memory"
  // Returns whether start() supports this collective. The result must be the same on every rank of the communicator.
  virtual bool can(const CollectiveSpec& spec) const = 0;
  // Returns whether start() accepts Buffers::segments for this collective. If not, the vector must be contiguous.
  virtual bool takes_segments(const CollectiveSpec&) const { return false; }
  // Starts a collective and does not block. `completion` may be done when start() returns. A failure is final for this
  // object: later collectives fail at once with the same error.
  virtual void start(const CollectiveSpec& spec, Buffers buffers, Completion& completion) = 0;
  // Returns whether this collective can be part of a group launch. As with can(), the result is the same on every rank.
  virtual bool takes_group(const CollectiveSpec&) const { return false; }
  // Starts several collectives at once on one stream. All ranks pass the same collectives in the same order. The
  // completion is done when all of them are, and has failed if one of them has.
  virtual void launch_group(std::span<const Call>, Completion& completion) {
    completion.finish(Status(Code::internal, "these collectives do not support a group launch; please report it"));
  }
  // Advances the collective in flight without blocking. Returns whether anything moved.
  virtual bool progress() = 0;
  // Ends the collective in flight and all later ones with this error. Call from the driving thread.
  virtual void interrupt(const Status& why) = 0;
  // Describes the step that ran last, for errors and the log: "ring, step 9: recv_reduce chunk 3 from rank 2".
  virtual std::string phase() const = 0;
  // Returns the ranks of the group that the collective in flight waits for; errors name them. Empty if there are none
  // or they cannot be determined. Call from the driving thread.
  virtual std::vector<int> late_ranks() { return {}; }
};

}  // namespace fdl
