// BucketRun executes one bucket of a plan on a communicator: it packs the tensors, runs the collective and unpacks the
// results, one unit of work for each call. The thread that owns progress makes all calls.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agree/negotiation/message.h"
#include "data/reduce.h"
#include "engine/communicator.h"
#include "engine/host/adasum.h"
#include "runtime/device/device_packing.h"
#include "runtime/device/device_work.h"
#include "runtime/device/symmetric_places.h"
#include "runtime/named/fusion_buffer.h"
#include "runtime/named/group_launch.h"
#include "runtime/named/handle.h"
#include "runtime/telemetry/trace.h"

namespace fdl {

// One named operation of this rank, from submission to completion.
struct Entry {
  Request request;
  const void* input = nullptr;
  void* output = nullptr;                        // null: the library allocates it
  std::shared_ptr<DevicePlace> place = nullptr;  // null: input and output lie in the CPU's memory
  std::shared_ptr<Handle> handle;
  std::size_t index = 0;  // in the handle
  // Not a broadcast: it allocates symmetric memory of as many bytes on the device of each rank.
  bool holds = false;
  // For metrics and the timeline: the clock time of submission, and the number in the timeline (0: not traced).
  int64_t submitted_ns = 0;
  uint64_t traced = 0;

  std::size_t element_count() const;
  std::size_t byte_count() const { return element_count() * size_of(request.dtype); }
};

class BucketRun {
 public:
  // Starts the bucket. `entries[i]` is this rank's tensor of bucket.names[i]; it is empty if this rank has joined and
  // contributes zeros. `trace` is null while no timeline is written, and may change between any two calls.
  //
  // `on_trial`: some ranks may not begin this bucket with their tensors (optimistic order). The run then stops in the
  // state tried(), in which all ranks have begun it and all inputs can be restored.
  //
  // `device`: the device of the tensors, null for the CPU. Such a run is done when all its work is queued.
  // `group_launch`: the launch that starts the collective, or null if this run starts it.
  //
  // An error of this rank alone interrupts the communicator, because the other ranks wait for this rank. All references
  // outlive the run.
  BucketRun(std::shared_ptr<const Bucket> bucket, std::vector<std::optional<Entry>> entries, Communicator& comm,
            FusionBuffer& fusion, const std::unique_ptr<Trace>& trace, bool on_trial = false,
            DeviceWork* device = nullptr, GroupLaunch* group_launch = nullptr);

  // The memory that this bucket needs in a group launch.
  static GroupLaunch::Need need_of(const Bucket& bucket, const std::vector<std::optional<Entry>>& entries);

  // Does the next unit of work, at most the copy of one tensor. Returns whether anything moved.
  bool progress();
  bool done() const { return stage_ == Stage::done; }
  bool tried() const { return stage_ == Stage::tried; }
  // Only when tried(). go_on(): all ranks have begun the bucket, so it continues. withdraw() restores the inputs and
  // ends the run without a result.
  void go_on();
  void withdraw();
  bool withdrawn() const { return withdrawn_; }
  const Status& status() const { return status_; }
  const Bucket& bucket() const { return bucket_; }
  std::vector<std::optional<Entry>>& entries() { return entries_; }
  // "allreduce 'grad_7' and 3 more"
  std::string title() const;

 private:
  enum class Stage { symmetric_allocation, scratch, pack, collective, adasum, tried, unpack, done };

  bool fused() const { return bucket_.names.size() > 1; }
  Status begin();
  void set_reduction(CollectiveSpec& spec) const;
  Status begin_allreduce();
  Status begin_allreduce_on_trial();
  void start_elements(std::size_t from, std::size_t count);
  Status begin_adasum();
  Status begin_broadcast();
  Status begin_allgather();
  Status begin_alltoall();
  Status begin_reduce_scatter();
  Result<void*> make_output(Entry& entry, std::vector<int64_t> shape);
  bool is_adasum() const { return static_cast<Op>(bucket_.op) == Op::adasum; }
  void start_adasum();
  void load_one();
  void store_one();
  void list_segments();
  void pack_one();
  void unpack_one();
  void start_collective(CollectiveSpec spec, Buffers buffers);
  void conclude(const Status& status);
  void end_collective();
  void enter(Stage stage);
  void finish(Status status);
  void fail_here(const Status& why);

  // On a device (bucket_run_device.cpp): requests a larger scratch buffer if necessary, then packs, reduces and unpacks
  // in rounds. Finally the tensors' streams wait for the results.
  Status begin_on_device();
  Status begin_fused_on_device();
  void take_scratch();
  // Whether the tensors go through the scratch buffer; the same on all ranks.
  static bool packs(const Bucket& bucket) { return bucket.names.size() > 1 || bucket.apart; }
  bool packs() const { return packs(bucket_); }
  Status begin_packing(DevicePacking::Scratch scratch);
  Status pack_on_device();    // packs one round and starts its collective
  Status unpack_on_device();  // unpacks the round and begins the next one
  Status hand_over();
  void end_on_device();
  static bool lie_side_by_side(const Bucket& bucket, const std::vector<std::optional<Entry>>& entries);
  Status begin_registration();
  Status take_registration();
  Status copy(void* target, const void* source, std::size_t bytes);

  const std::shared_ptr<const Bucket> shared_bucket_;
  const Bucket& bucket_;
  std::vector<std::optional<Entry>> entries_;
  Communicator& comm_;
  FusionBuffer& fusion_;
  const std::unique_ptr<Trace>& trace_;
  DeviceWork* const device_;
  GroupLaunch* group_launch_;  // null once the collective has been added to it
  bool on_trial_;
  bool withdrawn_ = false;
  Stage stage_ = Stage::pack;
  Status status_;
  std::byte* packed_ = nullptr;      // in the fusion buffer; null where nothing is packed
  std::size_t segment_ = 0;          // index of the tensor that is packed or unpacked next
  std::size_t offset_ = 0;           // its offset in the fusion buffer, in bytes
  std::vector<Segment> segments_;    // the tensors where they lie, if the collective takes segments
  std::vector<std::size_t> counts_;  // elements of each rank; operation_.spec refers to them
  std::vector<std::size_t> recv_counts_;
  // A single tensor on trial: its first tried_ elements run before the others. If it is reduced in place, kept_ is a
  // copy of them.
  const std::byte* source_ = nullptr;
  std::byte* target_ = nullptr;
  std::size_t tried_ = 0;
  std::byte* kept_ = nullptr;
  Operation operation_;
  std::optional<DevicePacking> packing_;  // on a device, if tensors have to be packed
  SymmetricAllocation symmetric_allocation_;
  std::optional<Adasum> adasum_;
};

}  // namespace fdl
