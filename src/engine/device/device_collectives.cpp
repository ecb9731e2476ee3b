// DeviceCollectives runs one collective at a time with the backend that was negotiated, and ends it on failures.
#include "engine/device/device_collectives.h"

#include <fmt/format.h>

#include "algorithms/choice/choose.h"
#include "algorithms/choice/tuning_table.h"

namespace fdl {
namespace {

Status check_setting(const std::string& setting) {
  for (const char* known : {"auto", "nccl", "staged", "hierarchical", "nccl_between"}) {
    if (setting == known) return {};
  }
  return Status(
      Code::invalid_argument,
      fmt::format("device_collectives={}: must be auto, nccl, staged, hierarchical or nccl_between", setting));
}

}  // namespace

Result<std::unique_ptr<DeviceCollectives>> DeviceCollectives::make(Parts parts, Device& device) {
  FDL_RETURN_IF_ERROR(check_setting(parts.config->device_collectives));
  FDL_ASSIGN_OR_RETURN(Poller poller, Poller::make());
  const auto rank = parts.rank;
  const auto size = static_cast<int>(parts.members->size());
  std::unique_ptr<DeviceCollectives> made(new DeviceCollectives(std::move(parts), device, std::move(poller)));
  FDL_ASSIGN_OR_RETURN(
      made->staged_,
      StagedCollectives::make(device, rank, size, made->parts_.config->device_staging_bytes, made->parts_.choose_host));
  FDL_ASSIGN_OR_RETURN(made->scratch_, DeviceScratch::make(device));
  FDL_RETURN_IF_ERROR(made->poller_.add(made->staged_->wake_fd(), 0));
  FDL_RETURN_IF_ERROR(made->poller_.add(made->scratch_->fd(), 2));
  if (size == 1) made->stage_ = Stage::negotiated;  // a single rank has nothing to negotiate
  return made;
}

DeviceCollectives::DeviceCollectives(Parts parts, Device& device, Poller poller)
    : parts_(std::move(parts)),
      device_(device),
      poller_(std::move(poller)),
      all_facts_(parts_.members->size()),
      all_ids_(parts_.members->size()),
      all_outcomes_(parts_.members->size()),
      all_scratch_reports_(parts_.members->size()),
      all_registration_reports_(parts_.members->size()) {}

// The library must unregister the scratch buffer before its collectives end; the buffer itself ends after them.
DeviceCollectives::~DeviceCollectives() {
  background_.reset();
  if (scratch_ != nullptr) scratch_->leave(Deadline::after_seconds(parts_.config->suspect_after_s));
  one_shot_.reset();
  schedules_.reset();
  joined_.reset();
}

void DeviceCollectives::start(const CollectiveSpec& spec, Buffers buffers, Completion& completion) {
  buffers_ = buffers;
  start_or_negotiate(spec, completion);
}

// The negotiation ends on all ranks at the same collective, so all ranks give the same answer here.
bool DeviceCollectives::takes_group(const CollectiveSpec& spec) const {
  if (!can(spec) || !is_negotiated() || !refused_.ok()) return false;
  return runner_for(spec).takes_group(spec);
}

void DeviceCollectives::launch_group(std::span<const Call> calls, Completion& completion) {
  FDL_CHECK(completion_ == nullptr);
  if (!ended_.ok()) return completion.finish(ended_);
  completion_ = &completion;
  spec_ = *calls.front().spec;
  running_ = &runner_for(spec_);
  running_->launch_group(calls, completion);
  release_if(completion.done);
}

// A scratch request or a symmetric allocation takes the place of a collective, also in the negotiation.
void DeviceCollectives::request_scratch(const CollectiveSpec& spec, std::size_t& bytes, void*& memory,
                                        Completion& completion) {
  scratch_bytes_ = &bytes;
  scratch_memory_ = &memory;
  start_or_negotiate(spec, completion);
}

void DeviceCollectives::register_symmetric(const CollectiveSpec& spec, SymmetricAllocation& symmetric_allocation,
                                           Completion& completion) {
  symmetric_allocation_ = &symmetric_allocation;
  start_or_negotiate(spec, completion);
}

void DeviceCollectives::start_or_negotiate(const CollectiveSpec& spec, Completion& completion) {
  FDL_CHECK(completion_ == nullptr);
  completion_ = &completion;
  if (!ended_.ok()) return finish(ended_);
  if (spec.device != &device_) {
    return finish(Status(
        Code::invalid_argument,
        fmt::format("{} on {}: this communicator's collectives are on {}, and each rank uses one device in it; make "
                    "another communicator for the other device",
                    fdl::name_of(spec.collective), spec.device->name(), device_.name())));
  }
  spec_ = spec;
  // The first collective starts the negotiation; dispatch() runs it afterwards.
  if (stage_ == Stage::negotiated) return dispatch();
  // A device that cannot answer fails in a call that follows, which ends the communicator on all ranks.
  if (const auto captured = device_.is_captured(spec.stream); captured.ok() && *captured) {
    return finish(Status(
        Code::unsupported,
        fmt::format(
            "{}: the stream is being captured into a graph, and the first collective of a communicator on a device "
            "prepares it together with the other ranks; run one collective before the capture begins",
            fdl::name_of(spec.collective))));
  }
  facts_ = own_facts();
  stage_ = Stage::facts;
  gather(&facts_, sizeof facts_, all_facts_.data());
  progress();
}

// The host runs collectives whose named algorithm has no channels on the device.
Collectives& DeviceCollectives::runner_for(const CollectiveSpec& spec) const {
  if (one_shot_ != nullptr && one_shot_->can(spec)) return *one_shot_;
  if (schedules_ != nullptr && schedules_->can(spec)) return *schedules_;
  const bool named = !is_auto(spec.algorithm) && !is_whole(spec.algorithm);
  if (joined_ == nullptr || named || !joined_->can(spec)) return *staged_;
  return *joined_;
}

bool DeviceCollectives::stages(const CollectiveSpec& spec) const { return &runner_for(spec) == staged_.get(); }

void DeviceCollectives::dispatch() {
  if (!refused_.ok()) return finish(refused_);
  if (scratch_bytes_ != nullptr || symmetric_allocation_ != nullptr) return begin_scratch();
  running_ = &runner_for(spec_);
  // start() may finish the collective at once, so the completion is read after it through a copy of the pointer.
  const Completion* completion = completion_;
  running_->start(spec_, buffers_, *completion_);
  release_if(completion->done);
}

// If the collective is done, it belongs to its owner again. Returns `done`.
bool DeviceCollectives::release_if(bool done) {
  if (!done) return false;
  running_ = nullptr;
  completion_ = nullptr;
  return true;
}

// Ends the request or the collective in flight. The owner may reuse its completion from inside finish(), so every
// member is reset first.
void DeviceCollectives::finish(Status outcome) {
  host_ = nullptr;
  scratch_step_ = ScratchStep::none;
  scratch_bytes_ = nullptr;
  symmetric_allocation_ = nullptr;
  std::exchange(completion_, nullptr)->finish(std::move(outcome));
}

// Work in flight may wait on the device for what the library was given before, and channels progress with the
// collectives that they belong to. So the library makes progress beside whatever else runs. Returns whether it has
// moved or failed.
bool DeviceCollectives::progress_library() {
  if (by_library_ == nullptr || running_ == by_library_ || completion_ == nullptr || !ended_.ok()) return false;
  const bool moved = by_library_->progress();
  const Status met = library_->status_of(*by_library_);
  if (!met.ok() && completion_ != nullptr) interrupt(met);
  return moved || !met.ok();
}

bool DeviceCollectives::progress() {
  bool moved = progress_library();
  if (!ended_.ok()) return moved;
  if (running_ != nullptr) {
    moved |= running_->progress();
    return release_if(completion_->done) || moved;
  }
  if (scratch_step_ != ScratchStep::none) return progress_scratch() || moved;
  if (completion_ == nullptr) return joined_ != nullptr && joined_->progress();
  while (stage_ != Stage::negotiated) {
    moved |= !host_outcome_.done && host_->progress();
    if (!host_outcome_.done) return moved;
    host_ = nullptr;
    Status next = host_outcome_.status.while_doing("exchanging facts about devices");
    if (next.ok()) next = take_next_step();
    if (!next.ok()) {
      ended_ = next;
      finish(std::move(next));
      return true;
    }
  }
  dispatch();
  return true;
}

// ---- End and queries ----

void DeviceCollectives::interrupt(const Status& why) {
  if (!ended_.ok()) return;
  ended_ = why;
  if (host_ != nullptr) host_->interrupt(why);
  // Queued work may still run on other ranks' devices. A rank that leaves in good order does not interrupt it.
  const bool in_order = why.code() == Code::shut_down && completion_ == nullptr;
  if (joined_ != nullptr && !in_order) joined_->interrupt(why);
  if (schedules_ != nullptr) schedules_->interrupt(why);
  if (one_shot_ != nullptr && !in_order) one_shot_->interrupt(why);
  staged_->interrupt(why);
  if (completion_ == nullptr) return;
  if (running_ == nullptr) return finish(why);
  running_ = nullptr;
  completion_ = nullptr;
}

Status DeviceCollectives::status() const {
  if (!ended_.ok()) return ended_;
  if (one_shot_ != nullptr && !one_shot_->status().ok()) return one_shot_->status();
  return by_library_ == nullptr ? Status() : library_->status_of(*by_library_);
}

DeviceLibrary::Work DeviceCollectives::poll_work() {
  if (!ended_.ok()) return {};
  DeviceLibrary::Work work;
  if (by_library_ != nullptr) work = library_->poll_work(*by_library_);
  if (one_shot_ == nullptr) return work;
  const DeviceLibrary::Work sums = one_shot_->poll_work();
  return {work.in_flight || sums.in_flight, work.passed + sums.passed};
}

bool DeviceCollectives::takes_segments(const CollectiveSpec& spec) const {
  return is_negotiated() && refused_.ok() && runner_for(spec).takes_segments(spec);
}

std::string_view DeviceCollectives::runner_name(const CollectiveSpec& spec) const {
  if (!refused_.ok()) return {};
  const Collectives& runner = runner_for(spec);
  return &runner == schedules_.get() ? joined_->name() : runner.name();
}

std::string_view DeviceCollectives::algorithm_of(const CollectiveSpec& spec) const {
  return &runner_for(spec) == schedules_.get() ? schedules_->algorithm_of(spec) : std::string_view();
}

std::string_view DeviceCollectives::staged_over(std::string_view host) const {
  return *names_.insert(fmt::format("staged over {}", host)).first;
}

// Either a staged collective runs a segment on the host, or an exchange between the ranks is in flight.
Collectives* DeviceCollectives::host_at_work() const {
  return running_ == staged_.get() ? staged_->host_at_work() : host_;
}

std::string DeviceCollectives::phase() const {
  if (running_ != nullptr) return fmt::format("{}, {}", running_->name(), running_->phase());
  if (scratch_step_ == ScratchStep::forgetting) return "unregistering memory that is no longer used";
  if (scratch_step_ == ScratchStep::emptying && symmetric_allocation_ != nullptr)
    return "waiting until the memory that was freed is unused";
  if (scratch_step_ == ScratchStep::emptying) return "waiting until the scratch buffer is free";
  if (scratch_step_ == ScratchStep::taking) return "allocating memory of the device";
  if (scratch_step_ == ScratchStep::releasing) return "releasing memory of the device";
  if (host_ == nullptr) return {};
  const std::string_view what = is_negotiated()          ? "exchanging the sizes of scratch buffers"
                                : stage_ == Stage::facts ? "exchanging facts about devices"
                                : stage_ == Stage::id    ? "waiting for the library's id"
                                : stage_ == Stage::blocks || stage_ == Stage::opens
                                    ? "sharing memory between the devices of the host"
                                    : "exchanging whether each rank could join";
  const std::string on_host = host_->phase();
  return fmt::format("{}: {}", what, on_host.empty() ? host_->name() : std::string_view(on_host));
}

bool DeviceCollectives::prepare_to_sleep() {
  library_may_sleep_ = joined_ != nullptr && is_negotiated();
  if (library_may_sleep_ && !joined_->prepare_to_sleep()) return false;
  // While the scratch buffer is being emptied, its notifier wakes the thread.
  if (scratch_step_ == ScratchStep::emptying) return scratch_->prepare_to_sleep();
  if (scratch_step_ == ScratchStep::taking || scratch_step_ == ScratchStep::releasing) {
    return background_ != nullptr && !background_->has_ended();
  }
  if (running_ == nullptr || running_ == joined_.get()) return true;
  return running_->prepare_to_sleep();
}

void DeviceCollectives::finish_sleep() {
  if (library_may_sleep_) joined_->finish_sleep();
  library_may_sleep_ = false;
}

}  // namespace fdl
