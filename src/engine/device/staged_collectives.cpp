// StagedCollectives queues copies out as far ahead as its slots allow, and runs one segment at a time on the host.
#include "engine/device/staged_collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/bytes.h"
#include "engine/device/device_failure.h"
#include "engine/host/aliasing.h"

namespace fdl {
namespace {

constexpr std::size_t kAreaAlignment = 256;

// Whether all ranks have one vector; the other collectives have one block for each rank.
bool is_vector(Collective collective) {
  return collective == Collective::allreduce || collective == Collective::reduce || collective == Collective::broadcast;
}

bool has_input(const CollectiveSpec& spec, int rank) {
  if (spec.collective == Collective::broadcast || spec.collective == Collective::scatter) return rank == spec.root;
  return spec.collective != Collective::barrier;
}

bool has_output(const CollectiveSpec& spec, int rank) {
  if (spec.collective == Collective::reduce || spec.collective == Collective::gather) return rank == spec.root;
  return spec.collective != Collective::barrier;
}

bool gathers(Collective collective) { return collective == Collective::allgather || collective == Collective::gather; }
bool scatters(Collective collective) {
  return collective == Collective::reduce_scatter || collective == Collective::scatter;
}

}  // namespace

Result<std::unique_ptr<StagedCollectives>> StagedCollectives::make(Device& device, int rank, int size,
                                                                   std::size_t segment_bytes, HostRunner choose_host) {
  FDL_ASSIGN_OR_RETURN(CompletionNotifier notifier, CompletionNotifier::take());
  std::unique_ptr<StagedCollectives> made(
      new StagedCollectives(device, rank, size, segment_bytes, std::move(choose_host), std::move(notifier)));
  if (size > 1) FDL_RETURN_IF_ERROR(made->prepare());
  return made;
}

StagedCollectives::StagedCollectives(Device& device, int rank, int size, std::size_t segment_bytes,
                                     HostRunner choose_host, CompletionNotifier notifier)
    : device_(device),
      rank_(rank),
      size_(size),
      segment_bytes_(std::max(segment_bytes, std::size_t{1})),
      choose_host_(std::move(choose_host)),
      notifier_(std::move(notifier)) {}

// Own streams let copies overlap with the user's work and with each other.
Status StagedCollectives::prepare() {
  FDL_ASSIGN_OR_RETURN(out_, device_.make_stream());
  FDL_ASSIGN_OR_RETURN(back_, device_.make_stream());
  FDL_ASSIGN_OR_RETURN(user_at_, device_.make_event());
  FDL_ASSIGN_OR_RETURN(ours_at_, device_.make_event());
  for (Slot& slot : slots_) {
    FDL_ASSIGN_OR_RETURN(slot.copied_out, device_.make_event());
    FDL_ASSIGN_OR_RETURN(slot.copied_back, device_.make_event());
  }
  return {};
}

// Copies may still be queued. The device releases memory and events only after they have run.
StagedCollectives::~StagedCollectives() {
  for (Slot& slot : slots_) {
    if (slot.memory != nullptr) device_.release_pinned(slot.memory);
    if (slot.copied_out != nullptr) device_.end_event(slot.copied_out);
    if (slot.copied_back != nullptr) device_.end_event(slot.copied_back);
  }
  if (user_at_ != nullptr) device_.end_event(user_at_);
  if (ours_at_ != nullptr) device_.end_event(ours_at_);
  if (out_ != nullptr) device_.end_stream(out_);
  if (back_ != nullptr) device_.end_stream(back_);
}

void StagedCollectives::start(const CollectiveSpec& spec, Buffers buffers, Completion& completion) {
  FDL_CHECK(completion_ == nullptr && spec.device == &device_);
  if (!ended_.ok()) return completion.finish(ended_);
  if (size_ == 1) return completion.finish(run_alone(spec, buffers));
  const auto captured = device_.is_captured(spec.stream);
  if (captured.ok() && *captured) {
    return completion.finish(
        Status(Code::unsupported,
               fmt::format(
                   "{} through the host's memory cannot be captured into a graph, for the host has to run it each "
                   "time: leave it out of the capture, or let NCCL run it (device_collectives=nccl reports why it does "
                   "not)",
                   name_of(spec.collective))));
  }
  completion_ = &completion;
  spec_ = spec;
  Status begun = captured.ok() ? begin(spec, buffers) : captured.status();
  if (!begun.ok()) return conclude(as_device_failure(begun));
  progress();
}

// A group of one rank works on the device alone, on the user's stream. It scales twice, as the host does.
Status StagedCollectives::run_alone(const CollectiveSpec& spec, Buffers buffers) {
  if (spec.collective == Collective::barrier) return {};
  const std::size_t count = is_vector(spec.collective) ? spec.count : spec.counts[0];
  if (count == 0) return {};
  const bool scales = reduces(spec.collective);
  const double prescale = scales ? spec.prescale : 1;
  if (prescale != 1) {
    const void* const source[] = {buffers.input};
    FDL_RETURN_IF_ERROR(device_.reduce(spec.stream, spec.dtype, Op::sum, buffers.output, source, count, prescale));
  } else if (buffers.input != buffers.output) {
    FDL_RETURN_IF_ERROR(device_.copy(spec.stream, buffers.output, buffers.input, count * size_of(spec.dtype)));
  }
  if (!scales || spec.postscale == 1) return {};
  const void* const source[] = {buffers.output};
  return device_.reduce(spec.stream, spec.dtype, Op::sum, buffers.output, source, count, spec.postscale);
}

// Neither stream may touch the user's memory before the work that the user has queued so far.
Status StagedCollectives::begin(const CollectiveSpec& spec, Buffers buffers) {
  lay_out(spec, buffers);
  FDL_RETURN_IF_ERROR(device_.set(user_at_, spec.stream));
  // A rank without input need not wait, except in a barrier, which must show that the stream has come this far.
  if (input_.present || spec.collective == Collective::barrier) FDL_RETURN_IF_ERROR(device_.wait(out_, user_at_));
  if (output_.present) FDL_RETURN_IF_ERROR(device_.wait(back_, user_at_));
  return {};
}

// All ranks must compute the same number of segments. The counts of an alltoall differ between ranks unless `count`
// promises equal chunks, so such an alltoall uses a single segment.
void StagedCollectives::lay_out(const CollectiveSpec& spec, Buffers buffers) {
  vector_count_ = spec.count;
  const std::span<const std::size_t> one_vector(&vector_count_, 1);
  const auto own = [&] { return spec.counts.subspan(static_cast<std::size_t>(rank_), 1); };
  const Collective kind = spec.collective;
  const auto* input = kind == Collective::barrier ? nullptr : aliasing_of(spec, buffers, rank_).input;
  input_ = {has_input(spec, rank_), const_cast<std::byte*>(input), {}};
  output_ = {has_output(spec, rank_), static_cast<std::byte*>(buffers.output), {}};
  const std::size_t elements = std::max(segment_bytes_ / size_of(spec.dtype), std::size_t{1});
  std::size_t largest = 0;
  if (is_vector(kind)) {
    input_.counts = output_.counts = one_vector;
    block_elements_ = elements;
    largest = vector_count_;
  } else if (kind != Collective::barrier) {
    const bool to_all = kind == Collective::alltoall;
    input_.counts = gathers(kind) ? own() : spec.counts;
    output_.counts = scatters(kind) ? own() : (to_all ? spec.recv_counts : spec.counts);
    block_elements_ = std::max(elements / static_cast<std::size_t>(size_), std::size_t{1});
    largest = *std::max_element(spec.counts.begin(), spec.counts.end());
    if (to_all && spec.count == 0) {
      largest = block_elements_ =
          std::max(largest, *std::max_element(spec.recv_counts.begin(), spec.recv_counts.end()));
    }
  }
  segments_ = largest == 0 ? 1 : parts_of(largest, block_elements_);
  queued_ = done_ = 0;
}

// The elements of a block of `count` elements that belong to a segment; may be empty.
StagedCollectives::Part StagedCollectives::part_of(std::size_t count, std::size_t segment) const {
  const std::size_t first = std::min(segment * block_elements_, count);
  return {first, std::min(block_elements_, count - first)};
}

std::size_t StagedCollectives::bytes_of(const Side& side, std::size_t segment) const {
  if (!side.present) return 0;
  std::size_t elements = 0;
  for (const std::size_t count : side.counts) elements += part_of(count, segment).count;
  return elements * size_of(spec_.dtype);
}

// Whether the host works in place, because input and output are one vector.
bool StagedCollectives::one_area() const { return is_vector(spec_.collective); }

// The first segment is the longest, so later segments of a collective never grow a slot.
Status StagedCollectives::reserve(Slot& slot, std::size_t segment) {
  const std::size_t in = bytes_of(input_, segment);
  const std::size_t out = bytes_of(output_, segment);
  const std::size_t bytes = one_area() ? std::max(in, out) : round_up(in, kAreaAlignment) + out;
  if (bytes <= slot.capacity) return {};
  if (slot.memory != nullptr) device_.release_pinned(std::exchange(slot.memory, nullptr));
  slot.capacity = 0;
  // The usual size, so that the blocks that were reserved for it serve (Devices::prepare_staging()).
  const std::size_t capacity = std::max(bytes, segment_bytes_);
  FDL_ASSIGN_OR_RETURN(void* memory, device_.allocate_pinned(capacity));
  slot.memory = static_cast<std::byte*>(memory);
  slot.capacity = capacity;
  return {};
}

// Calls copy(offset in device memory, offset in the slot, bytes) for each block that has a part in the segment.
template <typename Copy>
Status StagedCollectives::for_each_part(const Side& side, std::size_t segment, const Copy& copy) const {
  const std::size_t element = size_of(spec_.dtype);
  std::size_t block = 0;
  std::size_t in_area = 0;
  for (const std::size_t count : side.counts) {
    const Part part = part_of(count, segment);
    if (part.count > 0) {
      FDL_RETURN_IF_ERROR(copy((block + part.first) * element, in_area * element, part.count * element));
    }
    block += count;
    in_area += part.count;
  }
  return {};
}

// Queues the copy of a segment's input into its slot, behind the copy that still reads the slot.
Status StagedCollectives::queue_out(std::size_t segment) {
  Slot& slot = slots_[segment % kSlots];
  FDL_RETURN_IF_ERROR(reserve(slot, segment));
  FDL_RETURN_IF_ERROR(device_.wait(out_, slot.copied_back));
  if (input_.present) {
    FDL_RETURN_IF_ERROR(for_each_part(input_, segment, [&](std::size_t at, std::size_t in_area, std::size_t bytes) {
      return device_.copy(out_, slot.memory + in_area, input_.memory + at, bytes);
    }));
  }
  // The event is set before the notifier rings, so that a woken thread finds it reached.
  FDL_RETURN_IF_ERROR(device_.set(slot.copied_out, out_));
  return device_.ring(out_, notifier_.event());
}

CollectiveSpec StagedCollectives::host_spec(const CollectiveSpec& spec) const {
  CollectiveSpec on_host = spec;
  on_host.device = nullptr;
  on_host.stream = nullptr;
  return on_host;
}

// Starts the host's collective on the slot, with the counts of this segment.
void StagedCollectives::start_host(std::size_t segment) {
  Slot& slot = slots_[segment % kSlots];
  const auto cut = [&](std::span<const std::size_t> counts, std::vector<std::size_t>& cuts) {
    cuts.resize(counts.size());
    for (std::size_t i = 0; i < cuts.size(); ++i) cuts[i] = part_of(counts[i], segment).count;
  };
  cut(spec_.counts, slot.counts);
  cut(spec_.recv_counts, slot.recv_counts);
  host_spec_ = host_spec(spec_);
  host_spec_.count = part_of(spec_.count, segment).count;
  host_spec_.counts = slot.counts;
  host_spec_.recv_counts = slot.recv_counts;
  std::byte* second = slot.memory + (one_area() ? 0 : round_up(bytes_of(input_, segment), kAreaAlignment));
  const Buffers on_host{input_.present ? slot.memory : nullptr, output_.present ? second : nullptr};
  host_outcome_ = {};
  host_ = &choose_host_(host_spec_);
  host_->start(host_spec_, on_host, host_outcome_);
}

Status StagedCollectives::queue_back(std::size_t segment) {
  if (!output_.present) return {};
  Slot& slot = slots_[segment % kSlots];
  // The root of a broadcast has the data on its device already.
  const bool own = spec_.collective == Collective::broadcast && input_.present;
  if (own && input_.memory == output_.memory) return {};
  const std::byte* area = slot.memory + (one_area() ? 0 : round_up(bytes_of(input_, segment), kAreaAlignment));
  FDL_RETURN_IF_ERROR(for_each_part(output_, segment, [&](std::size_t at, std::size_t in_area, std::size_t bytes) {
    return device_.copy(back_, output_.memory + at, own ? input_.memory + at : area + in_area, bytes);
  }));
  return device_.set(slot.copied_back, back_);
}

// Whether the segment's input has arrived in its slot.
Result<bool> StagedCollectives::is_out(std::size_t segment) {
  return device_.reached(slots_[segment % kSlots].copied_out);
}

// Moves the pipeline forward and returns whether anything moved.
Result<bool> StagedCollectives::advance() {
  bool moved = false;
  while (done_ < segments_) {
    for (; queued_ < std::min(segments_, done_ + kSlots); ++queued_) {
      FDL_RETURN_IF_ERROR(queue_out(queued_));
      moved = true;
    }
    if (host_ == nullptr) {
      FDL_ASSIGN_OR_RETURN(const bool out, is_out(done_));
      if (!out) return moved;
      start_host(done_);
      moved = true;
    } else {
      moved |= host_->progress();
    }
    if (!host_outcome_.done) return moved;
    host_ = nullptr;
    FDL_RETURN_IF_ERROR(host_outcome_.status);
    FDL_RETURN_IF_ERROR(queue_back(done_));
    ++done_;
  }
  return moved;
}

bool StagedCollectives::progress() {
  if (completion_ == nullptr) return false;
  const auto moved = advance();
  if (!moved.ok()) {
    // A call that the host rejected before it affected any peer leaves the object usable.
    const bool refused = !host_outcome_.status.ok() && done_ == 0;
    conclude(refused ? moved.status() : as_device_failure(moved.status()));
    return true;
  }
  if (done_ < segments_) return *moved;
  conclude(output_.present ? as_device_failure(order_user_behind(back_)) : Status());
  return true;
}

// From here on the caller's stream orders its memory: the stream waits for all copies that use it.
void StagedCollectives::conclude(Status outcome) {
  if (!outcome.ok()) {
    (void)order_user_behind(out_);  // a failure here can be ignored: a failed device accesses no memory
    (void)order_user_behind(back_);
    const bool lives_on = outcome.code() == Code::unsupported || outcome.code() == Code::invalid_argument;
    // After any other failure the ranks may be out of step, so later calls fail too.
    if (!lives_on && ended_.ok()) ended_ = outcome;
  }
  host_ = nullptr;
  host_outcome_ = {};
  std::exchange(completion_, nullptr)->finish(std::move(outcome));
}

// Makes the user's stream wait for everything that is queued on one of our streams.
Status StagedCollectives::order_user_behind(Stream own) {
  FDL_RETURN_IF_ERROR(device_.set(ours_at_, own));
  return device_.wait(spec_.stream, ours_at_);
}

void StagedCollectives::interrupt(const Status& why) {
  if (!ended_.ok()) return;
  ended_ = why;
  if (completion_ == nullptr) return;
  if (host_ != nullptr) host_->interrupt(why);
  conclude(why);
}

std::string StagedCollectives::phase() const {
  if (completion_ == nullptr) return {};
  const std::string segment = segments_ == 1 ? std::string() : fmt::format(" segment {} of {}", done_ + 1, segments_);
  if (host_ == nullptr) return fmt::format("copying{} to the host", segment);
  const std::string on_host = host_->phase();
  return fmt::format("on the host{}: {}", segment, on_host.empty() ? host_->name() : std::string_view(on_host));
}

bool StagedCollectives::prepare_to_sleep() {
  notifier_.clear();
  if (completion_ == nullptr || host_ != nullptr) return true;
  const auto out = is_out(done_);
  return out.ok() && !*out;
}

}  // namespace fdl
