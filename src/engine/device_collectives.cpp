// DeviceCollectives: three small collectives on the host, each followed by a step that all ranks take alike.
#include "engine/device_collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "algorithms/choose.h"
#include "algorithms/tuning_table.h"
#include "base/log.h"
#include "engine/device_failure.h"
#include "engine/hierarchical_collectives.h"

namespace fdl {
namespace {

uint64_t number_of(std::string_view text) {
  uint64_t state = 0xcbf29ce484222325;
  for (const char c : text) state = (state ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return state;
}

Status check_wish(const std::string& wish) {
  if (wish == "auto" || wish == "nccl" || wish == "staged" || wish == "hierarchical") return {};
  return Status(Code::invalid_argument,
                fmt::format("device_collectives={}: there is nccl, staged, hierarchical and auto", wish));
}

}  // namespace

DeviceCollectives::Word DeviceCollectives::Word::of(const Status& status) {
  Word word;
  if (status.ok()) return word;
  word.code = static_cast<int32_t>(status.code());
  std::strncpy(word.text, status.text().c_str(), sizeof word.text - 1);
  return word;
}

Status DeviceCollectives::Word::status() const {
  return code == 0 ? Status() : Status(static_cast<Code>(code), std::string(text, ::strnlen(text, sizeof text)));
}

Result<std::unique_ptr<DeviceCollectives>> DeviceCollectives::make(Parts parts, Device& device) {
  FDL_RETURN_IF_ERROR(check_wish(parts.config->device_collectives));
  FDL_ASSIGN_OR_RETURN(Poller poller, Poller::make());
  const auto rank = parts.rank;
  const auto size = static_cast<int>(parts.members->size());
  std::unique_ptr<DeviceCollectives> made(new DeviceCollectives(std::move(parts), device, std::move(poller)));
  FDL_ASSIGN_OR_RETURN(
      made->staged_,
      StagedCollectives::make(device, rank, size, made->parts_.config->device_staging_bytes, made->parts_.choose_host));
  FDL_ASSIGN_OR_RETURN(made->room_, DeviceRoom::make(device));
  FDL_RETURN_IF_ERROR(made->poller_.add(made->staged_->wake_fd(), 0));
  FDL_RETURN_IF_ERROR(made->poller_.add(made->room_->fd(), 2));
  if (size == 1) made->stage_ = Stage::settled;  // nobody to agree with
  return made;
}

DeviceCollectives::DeviceCollectives(Parts parts, Device& device, Poller poller)
    : parts_(std::move(parts)),
      device_(device),
      poller_(std::move(poller)),
      all_facts_(parts_.members->size()),
      all_ids_(parts_.members->size()),
      all_outcomes_(parts_.members->size()) {}

// The room first is forgotten by the library, and ends after it.
DeviceCollectives::~DeviceCollectives() {
  if (room_ != nullptr) room_->leave(Deadline::after_seconds(parts_.config->suspect_after_s));
  schedules_.reset();
  joined_.reset();
}

std::string DeviceCollectives::name_of_member(std::size_t member) const {
  const Member& who = members()[member];
  return fmt::format("rank {}{}{}{}", who.world_rank, who.host_name.empty() ? "" : " (", who.host_name,
                     who.host_name.empty() ? "" : ")");
}

void DeviceCollectives::start(const CollectiveSpec& spec, Buffers buffers, Completion& completion) {
  buffers_ = buffers;
  start_or_settle(spec, completion);
}

void DeviceCollectives::make_room(const CollectiveSpec& spec, std::size_t& bytes, void*& memory,
                                  Completion& completion) {
  room_bytes_ = &bytes;
  room_memory_ = &memory;
  start_or_settle(spec, completion);
}

void DeviceCollectives::start_or_settle(const CollectiveSpec& spec, Completion& completion) {
  FDL_CHECK(completion_ == nullptr);
  if (!ended_.ok()) return completion.finish(ended_);
  if (spec.device != &device_) {
    return completion.finish(Status(
        Code::invalid_argument,
        fmt::format("{} on {}: this communicator's collectives are on {}, and each rank uses one device in it; make "
                    "another communicator for the other device",
                    fdl::name_of(spec.collective), spec.device->name(), device_.name())));
  }
  completion_ = &completion;
  spec_ = spec;
  if (stage_ == Stage::settled) return dispatch();
  facts_ = own_facts();
  stage_ = Stage::facts;
  gather(&facts_, sizeof facts_, all_facts_.data());
  progress();
}

// The library is not looked for where nobody wants it.
DeviceFacts DeviceCollectives::own_facts() {
  DeviceFacts facts;
  const std::string& wish = parts_.config->device_collectives;
  facts.kind = device_.kind();
  facts.device = device_.identity();
  facts.host = number_of(members()[static_cast<std::size_t>(parts_.rank)].host_id);
  facts.required = wish == "nccl" ? 1 : 0;
  if (wish == "staged" || !parts_.library) return facts;
  auto found = parts_.library();
  if (!found.ok()) {
    log_at(facts.required != 0 ? LogLevel::warning : LogLevel::info, "no library for collectives on devices: {}",
           found.status().text());
  } else if (*found != nullptr) {
    library_ = *found;
    facts.version = library_->version();
    facts.shares_devices = library_->shares_devices() ? 1 : 0;
  }
  return facts;
}

void DeviceCollectives::gather(const void* mine, std::size_t bytes, void* all) {
  counts_.assign(members().size(), bytes);
  host_spec_ = {.collective = Collective::allgather, .dtype = Dtype::uint8, .counts = counts_};
  host_outcome_ = {};
  host_ = &parts_.choose_host(host_spec_);
  host_->start(host_spec_, {mine, all}, host_outcome_);
}

Status DeviceCollectives::take_next_step() {
  switch (stage_) {
    case Stage::facts:
      return judge();
    case Stage::id:
      return learn_id();
    case Stage::joins:
      return learn_joins();
    default:
      return {};
  }
}

// The same on all ranks, also on those that have no library to ask.
Status DeviceCollectives::verdict() const {
  for (std::size_t i = 0; i < all_facts_.size(); ++i) {
    if (all_facts_[i].version != 0) continue;
    return Status(Code::unsupported,
                  fmt::format("{} has no library for collectives on devices that it may use: install NCCL there (for "
                              "example the Python package nvidia-nccl), name it by nccl_library, and do not set "
                              "device_collectives=staged",
                              name_of_member(i)));
  }
  if (is_hierarchical() && !parts_.across_hosts) {
    return Status(Code::unsupported,
                  "device_collectives=hierarchical needs several hosts that hold equally many ranks, more than one, in "
                  "neighbouring blocks");
  }
  for (std::size_t i = 0; i < members().size();) {
    const Circle circle = circle_of(i);
    FDL_RETURN_IF_ERROR(library_->verdict(std::span(all_facts_).subspan(i, circle.count),
                                          std::span(members()).subspan(i, circle.count)));
    i += circle.count;
  }
  return {};
}

DeviceCollectives::Circle DeviceCollectives::circle_of(std::size_t member) const {
  if (!is_hierarchical()) return {0, members().size()};
  const auto locals = static_cast<std::size_t>(parts_.shape.ranks_per_host);
  return {member / locals * locals, locals};
}

Status DeviceCollectives::judge() {
  if (Status against = verdict(); !against.ok()) return go_without(against);
  stage_ = Stage::id;
  const auto me = static_cast<std::size_t>(parts_.rank);
  if (circle_of(me).first == me) {
    auto made = library_->make_id();
    id_.word = Word::of(made.status());
    if (made.ok()) id_.id = *made;
  }
  gather(&id_, sizeof id_, all_ids_.data());
  return {};
}

Status DeviceCollectives::learn_id() {
  for (std::size_t i = 0; i < all_ids_.size(); ++i) {
    const Status made = all_ids_[i].word.status();
    if (!made.ok()) return go_without(made.while_doing(fmt::format("{} made an id for all", name_of_member(i))));
  }
  stage_ = Stage::joins;
  const auto me = static_cast<std::size_t>(parts_.rank);
  const Circle circle = circle_of(me);
  auto joined = library_->join(all_ids_[circle.first].id, static_cast<int>(me - circle.first),
                               std::span(members()).subspan(circle.first, circle.count), device_,
                               Deadline::after_seconds(parts_.config->start_timeout_s));
  outcome_ = Word::of(joined.status());
  if (joined.ok()) joined_ = joined.take();
  gather(&outcome_, sizeof outcome_, all_outcomes_.data());
  return {};
}

Status DeviceCollectives::learn_joins() {
  for (std::size_t i = 0; i < all_outcomes_.size(); ++i) {
    const Status one = all_outcomes_[i].status();
    if (!one.ok()) return go_without(one.while_doing(fmt::format("{} joined the others", name_of_member(i))));
  }
  stage_ = Stage::settled;
  by_library_ = joined_.get();
  room_->belong_to(*library_, *by_library_, !is_hierarchical());
  log_at(parts_.rank == 0 ? LogLevel::info : LogLevel::debug,
         "collectives of {} ranks on devices are run by {} on {}{}", members().size(), library_->name(), device_.name(),
         is_hierarchical() ? ", inside hosts" : "");
  if (is_hierarchical()) {
    FDL_RETURN_IF_ERROR(compose());
  } else if (auto lanes = library_->lanes_of(*joined_); lanes != nullptr) {
    schedules_ =
        std::make_unique<DeviceSchedules>(std::move(lanes), device_, parts_.rank, parts_.shape, *parts_.config);
  }
  if (joined_->wake_fd() >= 0) FDL_RETURN_IF_ERROR(poller_.add(joined_->wake_fd(), 1));
  return {};
}

// The other way round would be the library between hosts and the rest inside: the same line.
Status DeviceCollectives::compose() {
  const HierarchicalCollectives::Place place{.local_rank = parts_.rank % parts_.shape.ranks_per_host,
                                             .local_size = parts_.shape.ranks_per_host,
                                             .host = parts_.rank / parts_.shape.ranks_per_host,
                                             .hosts = parts_.shape.hosts};
  across_hosts_ = parts_.across_hosts();
  FDL_ASSIGN_OR_RETURN(
      auto between, StagedCollectives::make(device_, place.host, place.hosts, parts_.config->device_staging_bytes,
                                            [this](const CollectiveSpec&) -> Collectives& { return *across_hosts_; }));
  FDL_ASSIGN_OR_RETURN(joined_, HierarchicalCollectives::make(std::move(joined_), std::move(between), place));
  return {};
}

// All ranks come here alike, with the same words.
Status DeviceCollectives::go_without(const Status& why) {
  if (joined_ != nullptr) {
    joined_->interrupt(why);
    joined_.reset();
  }
  stage_ = Stage::settled;
  const auto any = [&](const auto& has) { return std::any_of(all_facts_.begin(), all_facts_.end(), has); };
  if (any([](const DeviceFacts& facts) { return facts.required != 0; })) {
    refused_ = Status(Code::unsupported, "device_collectives=nccl cannot be: " + why.text());
    return {};
  }
  if (parts_.rank == 0 && parts_.config->device_collectives != "staged") {
    const bool some_have = any([](const DeviceFacts& facts) { return facts.version != 0; });
    log_at(some_have ? LogLevel::warning : LogLevel::info, "collectives on devices go through the host's memory: {}",
           why.text());
  }
  return {};
}

Collectives& DeviceCollectives::runner_for(const CollectiveSpec& spec) const {
  if (schedules_ != nullptr && schedules_->can(spec)) return *schedules_;
  const bool named = !is_auto(spec.algorithm) && spec.algorithm != kWhole;
  if (joined_ == nullptr || named || !joined_->can(spec)) return *staged_;
  return *joined_;
}

bool DeviceCollectives::stages(const CollectiveSpec& spec) const { return &runner_for(spec) == staged_.get(); }

void DeviceCollectives::dispatch() {
  if (!refused_.ok()) return finish(refused_);
  if (room_bytes_ != nullptr) return begin_room();
  running_ = &runner_for(spec_);
  Completion* completion = completion_;
  running_->start(spec_, buffers_, *completion);
  if (!completion->done) return;
  running_ = nullptr;
  completion_ = nullptr;
}

void DeviceCollectives::finish(Status outcome) {
  host_ = nullptr;
  room_step_ = RoomStep::none;
  room_bytes_ = nullptr;
  std::exchange(completion_, nullptr)->finish(std::move(outcome));
}

bool DeviceCollectives::progress() {
  if (running_ != nullptr) {
    // Lanes move with what they belong to.
    if (running_ == schedules_.get()) joined_->progress();
    const bool moved = running_->progress();
    if (!completion_->done) return moved;
    running_ = nullptr;
    completion_ = nullptr;
    return true;
  }
  if (room_step_ != RoomStep::none) return progress_room();
  if (completion_ == nullptr) return joined_ != nullptr && ended_.ok() && joined_->progress();
  bool moved = false;
  while (stage_ != Stage::settled) {
    moved |= !host_outcome_.done && host_->progress();
    if (!host_outcome_.done) return moved;
    host_ = nullptr;
    Status next = host_outcome_.status.while_doing("telling each other of their devices");
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

// ---- the room for packing

void DeviceCollectives::begin_room() {
  room_step_ = RoomStep::emptying;
  const Status begun = room_->begin(spec_.stream);
  if (begun.ok()) {
    progress_room();
  } else {
    ended_ = as_device_failure(begun);
    finish(ended_);
  }
}

bool DeviceCollectives::progress_room() {
  const auto moved = advance_room();
  if (moved.ok()) return *moved;
  ended_ = as_device_failure(moved.status());
  finish(ended_);
  return true;
}

// A rank that has no memory must not leave the others waiting where they make theirs known together.
Result<bool> DeviceCollectives::advance_room() {
  if (room_step_ == RoomStep::emptying) {
    FDL_ASSIGN_OR_RETURN(const bool emptied, room_->emptied());
    if (!emptied) return false;
    const Status taken = room_->take(*room_bytes_);
    if (!room_->is_librarys()) {
      FDL_RETURN_IF_ERROR(taken);
    } else {
      outcome_ = Word::of(taken);
      gather(&outcome_, sizeof outcome_, all_outcomes_.data());
      room_step_ = RoomStep::agreeing;
    }
  }
  if (room_step_ == RoomStep::agreeing) {
    const bool moved = !host_outcome_.done && host_->progress();
    if (!host_outcome_.done) return moved;
    FDL_RETURN_IF_ERROR(host_outcome_.status.while_doing("telling each other of room on their devices"));
    FDL_RETURN_IF_ERROR(keep_room());
  }
  *room_bytes_ = room_->bytes();
  *room_memory_ = room_->memory();
  finish({});
  return true;
}

Status DeviceCollectives::keep_room() {
  bool all_have_it = true;
  for (std::size_t i = 0; i < all_outcomes_.size(); ++i) {
    const Status one = all_outcomes_[i].status();
    all_have_it &= one.ok();
    if (one.ok() || static_cast<int>(i) != parts_.rank) continue;
    log_info("{}: the fusion buffer is other memory, which {} does not know", one.text(), library_->name());
  }
  return room_->keep(all_have_it);
}

// ---- the end, and questions

void DeviceCollectives::interrupt(const Status& why) {
  if (!ended_.ok()) return;
  ended_ = why;
  if (host_ != nullptr) host_->interrupt(why);
  // What is queued may still run on others' devices: who leaves in good order leaves it be.
  const bool in_order = why.code() == Code::shut_down && completion_ == nullptr;
  if (joined_ != nullptr && !in_order) joined_->interrupt(why);
  if (schedules_ != nullptr) schedules_->interrupt(why);
  staged_->interrupt(why);
  if (completion_ == nullptr) return;
  if (running_ == nullptr) return finish(why);
  running_ = nullptr;
  completion_ = nullptr;
}

Status DeviceCollectives::status() const {
  if (!ended_.ok() || by_library_ == nullptr) return ended_;
  return library_->status_of(*by_library_);
}

bool DeviceCollectives::takes_pieces(const CollectiveSpec& spec) const {
  return is_settled() && refused_.ok() && runner_for(spec).takes_pieces(spec);
}

std::string_view DeviceCollectives::runner_name(const CollectiveSpec& spec) const {
  if (!refused_.ok()) return {};
  return stages(spec) ? staged_->name() : joined_->name();
}

std::string_view DeviceCollectives::algorithm_of(const CollectiveSpec& spec) const {
  return &runner_for(spec) == schedules_.get() ? schedules_->algorithm_of(spec) : std::string_view();
}

std::string_view DeviceCollectives::staged_over(std::string_view host) const {
  return *names_.insert(fmt::format("staged over {}", host)).first;
}

const Collectives* DeviceCollectives::host_at_work() const {
  return running_ == staged_.get() ? staged_->host_at_work() : host_;
}

std::string DeviceCollectives::phase() const {
  if (running_ != nullptr) return fmt::format("{}, {}", running_->name(), running_->phase());
  if (room_step_ == RoomStep::emptying) return "waiting until the memory for packing is free";
  if (host_ == nullptr) return {};
  const std::string_view what = is_settled()             ? "telling each other of room on their devices"
                                : stage_ == Stage::facts ? "telling each other of their devices"
                                : stage_ == Stage::id    ? "waiting for the library's id"
                                                         : "telling each other who could join";
  const std::string on_host = host_->phase();
  return fmt::format("{}: {}", what, on_host.empty() ? host_->name() : std::string_view(on_host));
}

bool DeviceCollectives::prepare_to_sleep() {
  library_may_sleep_ = joined_ != nullptr && is_settled();
  if (library_may_sleep_ && !joined_->prepare_to_sleep()) return false;
  if (room_step_ == RoomStep::emptying) return room_->prepare_to_sleep();
  if (running_ == nullptr || running_ == joined_.get()) return true;
  return running_->prepare_to_sleep();
}

void DeviceCollectives::finish_sleep() {
  if (library_may_sleep_) joined_->finish_sleep();
  library_may_sleep_ = false;
}

}  // namespace fdl
