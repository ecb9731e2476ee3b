// BucketRun: carries out one bucket of a plan on a communicator: pack, collective, unpack, one piece at a time.
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
  void* output = nullptr;                        // null: the library allocates
  std::shared_ptr<DevicePlace> place = nullptr;  // null: input and output are the CPU's
  std::shared_ptr<Handle> handle;
  std::size_t index = 0;  // in the handle
  bool holds = false;     // no broadcast, but memory of its device for each rank, of as many bytes
  // Of the timeline: when the caller submitted it, and its number; 0 where it is not traced.
  int64_t submitted_ns = 0;
  uint64_t traced = 0;

  std::size_t element_count() const;
  std::size_t byte_count() const { return element_count() * size_of(request.dtype); }
};

class BucketRun {
 public:
  // `entries[i]` is this rank's tensor of bucket.names[i]; empty where this rank has joined and contributes zeros.
  // `trace` is null while nobody watches, and may change between any two calls. On trial: it is not certain that all
  // ranks begin it with their tensors. Then it stops once they must all have begun it, with all inputs as they were.
  // `device`: whose tensors they are, null for the CPU's; it is done when all is queued. What fails here alone ends
  // the communicator, for the other ranks wait for this one. `joint`: its collective is started by that, with others.
  BucketRun(std::shared_ptr<const Bucket> bucket, std::vector<std::optional<Entry>> entries, Communicator& comm,
            FusionBuffer& fusion, const std::unique_ptr<Trace>& trace, bool on_trial = false,
            DeviceWork* device = nullptr, GroupLaunch* joint = nullptr);

  // What it will need of a joint start.
  static GroupLaunch::Need need_of(const Bucket& bucket, const std::vector<std::optional<Entry>>& entries);

  // Does the next piece of work; true if anything moved. No piece is longer than the copy of one tensor.
  bool progress();
  bool done() const { return stage_ == Stage::done; }
  bool tried() const { return stage_ == Stage::tried; }
  // What the trial was for: it goes on, or ends without an outcome.
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

  // On a device (bucket_run_device.cpp): room, where there is not enough; then, round after round, pack, collective,
  // unpack; and the tensors' streams go on.
  Status begin_on_device();
  Status begin_fused_on_device();
  void take_scratch();
  // All ranks do, into the same room.
  static bool packs(const Bucket& bucket) { return bucket.names.size() > 1 || bucket.apart; }
  bool packs() const { return packs(bucket_); }
  Status begin_packing(DevicePacking::Scratch scratch);
  Status pack_on_device();    // one round
  Status unpack_on_device();  // it, and on to the next
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
  GroupLaunch* joint_;  // until its collective is given to that
  bool on_trial_;
  bool withdrawn_ = false;
  Stage stage_ = Stage::pack;
  Status status_;
  std::byte* packed_ = nullptr;
  std::size_t segment_ = 0;        // which tensor is packed or unpacked next
  std::size_t offset_ = 0;         // where it lies in the fusion buffer
  std::vector<Segment> segments_;  // the tensors in place, where nothing need be packed
  std::vector<std::size_t> counts_;
  std::vector<std::size_t> recv_counts_;
  // Of a tensor on trial: its first elements run before the others; where that overwrites them they are kept.
  const std::byte* source_ = nullptr;
  std::byte* target_ = nullptr;
  std::size_t tried_ = 0;
  std::byte* kept_ = nullptr;
  Operation operation_;
  std::optional<DevicePacking> packing_;  // on a device, where something has to be packed
  SymmetricAllocation symmetric_allocation_;
  std::optional<Adasum> adasum_;
};

}  // namespace fdl
