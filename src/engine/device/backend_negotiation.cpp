// Backend negotiation of DeviceCollectives: the ranks exchange their facts, the library's id and the outcome of joining
// it, and later the sizes of their scratch buffers. After each exchange all ranks take the same step.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "engine/device/device_collectives.h"
#include "engine/device/device_facts.h"
#include "engine/device/device_failure.h"
#include "engine/host/hierarchical_collectives.h"

namespace fdl {

DeviceCollectives::StatusReport DeviceCollectives::StatusReport::of(const Status& status) {
  StatusReport report;
  if (status.ok()) return report;
  report.code = static_cast<int32_t>(status.code());
  std::strncpy(report.text, status.text().c_str(), sizeof report.text - 1);
  return report;
}

Status DeviceCollectives::StatusReport::status() const {
  return code == 0 ? Status() : Status(static_cast<Code>(code), std::string(text, ::strnlen(text, sizeof text)));
}

std::string DeviceCollectives::name_of_member(std::size_t member) const {
  const Member& named = members()[member];
  return fmt::format("rank {}{}{}{}", named.world_rank, named.host_name.empty() ? "" : " (", named.host_name,
                     named.host_name.empty() ? "" : ")");
}

DeviceFacts DeviceCollectives::own_facts() {
  const Member& me = members()[static_cast<std::size_t>(parts_.rank)];
  return device_facts(device_, me, *parts_.config, parts_.library, library_);
}

// Starts an allgather of `bytes` from every rank into `all`, on host memory. One exchange is in flight at a time.
void DeviceCollectives::gather(const void* mine, std::size_t bytes, void* all) {
  counts_.assign(members().size(), bytes);
  host_spec_ = {.collective = Collective::allgather, .dtype = Dtype::uint8, .counts = counts_};
  host_outcome_ = {};
  host_ = &parts_.choose_host(host_spec_);
  host_->start(host_spec_, {mine, all}, host_outcome_);
}

// Called when an exchange has finished. Each step may start the next exchange.
Status DeviceCollectives::take_next_step() {
  switch (stage_) {
    case Stage::facts:
      return choose_backend();
    case Stage::id:
      return join_library();
    case Stage::joins:
      return conclude_negotiation();
    case Stage::blocks:
      return open_blocks();
    case Stage::opens:
      return conclude_one_shot();
    default:
      return {};
  }
}

// Why the ranks cannot use the library together. The result is the same on all ranks, also on those without a library,
// because the first loop returns before library_ is used.
Status DeviceCollectives::conflict() const {
  for (std::size_t i = 0; i < all_facts_.size(); ++i) {
    if (all_facts_[i].version != 0) continue;
    return Status(Code::unsupported,
                  fmt::format("{} has no library for collectives on devices that it may use: install NCCL there (for "
                              "example the Python package nvidia-nccl), name it by nccl_library, and do not set "
                              "device_collectives=staged",
                              name_of_member(i)));
  }
  if (is_hierarchical() && !parts_.side_of_hosts) {
    return Status(
        Code::unsupported,
        fmt::format("device_collectives={} needs several hosts that hold equally many ranks, more than one, in "
                    "neighbouring blocks",
                    parts_.config->device_collectives));
  }
  for (std::size_t i = 0; i < members().size(); ++i) {
    const LibraryGroup library_group = library_group_of(i);
    if (library_group.first != i) continue;
    FDL_RETURN_IF_ERROR(library_->conflict(library_group.of(all_facts_), library_group.of<Member>(members())));
  }
  return {};
}

DeviceCollectives::LibraryGroup DeviceCollectives::library_group_of(std::size_t member) const {
  if (!is_hierarchical()) return {0, members().size()};
  const auto locals = static_cast<std::size_t>(parts_.shape.ranks_per_host);
  if (library_is_between()) return {member % locals, members().size() / locals, locals};
  return {member / locals * locals, locals};
}

Status DeviceCollectives::choose_backend() {
  if (Status against = conflict(); !against.ok()) return reject_library(against);
  stage_ = Stage::id;
  const auto me = static_cast<std::size_t>(parts_.rank);
  // The first rank of each library group makes its id. Its failure is sent with the id, so no rank waits in vain.
  if (library_group_of(me).first == me) {
    auto made = library_->make_id();
    id_.report = StatusReport::of(made.status());
    if (made.ok()) id_.id = *made;
  }
  gather(&id_, sizeof id_, all_ids_.data());
  return {};
}

// Distributes the id and joins the library. join() returns at once; the ranks then exchange whether it succeeded.
Status DeviceCollectives::join_library() {
  for (std::size_t i = 0; i < all_ids_.size(); ++i) {
    const Status made = all_ids_[i].report.status();
    if (!made.ok()) return reject_library(made.while_doing(fmt::format("{} made an id for all", name_of_member(i))));
  }
  stage_ = Stage::joins;
  const auto me = static_cast<std::size_t>(parts_.rank);
  const LibraryGroup library_group = library_group_of(me);
  auto joined = library_->join(
      all_ids_[library_group.first].id, static_cast<int>((me - library_group.first) / library_group.apart),
      library_group.of<Member>(members()), device_, Deadline::after_seconds(parts_.config->start_timeout_s));
  outcome_ = StatusReport::of(joined.status());
  if (joined.ok()) joined_ = joined.take();
  gather(&outcome_, sizeof outcome_, all_outcomes_.data());
  return {};
}

// All ranks have joined, or all use staging. From here on the choice of the backend is final.
Status DeviceCollectives::conclude_negotiation() {
  for (std::size_t i = 0; i < all_outcomes_.size(); ++i) {
    const Status one = all_outcomes_[i].status();
    if (!one.ok()) return reject_library(one.while_doing(fmt::format("{} joined the others", name_of_member(i))));
  }
  stage_ = Stage::negotiated;
  by_library_ = joined_.get();
  scratch_->belong_to(*library_, *by_library_, !is_hierarchical());
  for (const auto& [memory, bytes] : std::exchange(early_memory_, {})) {
    FDL_RETURN_IF_ERROR(library_->enroll(*by_library_, memory, bytes, false));
  }
  log_at(parts_.rank == 0 ? LogLevel::info : LogLevel::debug,
         "collectives of {} ranks on devices are run by {} on {}{}", members().size(), library_->name(), device_.name(),
         library_is_between() ? ", between hosts"
         : is_hierarchical()  ? ", inside hosts"
                              : "");
  if (is_hierarchical()) {
    FDL_RETURN_IF_ERROR(compose());
  } else if (auto channels = library_->channels_of(*joined_); channels != nullptr) {
    schedules_ =
        std::make_unique<DeviceSchedules>(std::move(channels), device_, parts_.rank, parts_.shape, *parts_.config);
  }
  if (joined_->wake_fd() >= 0) FDL_RETURN_IF_ERROR(poller_.add(joined_->wake_fd(), 1));
  return prepare_one_shot();
}

// Composes the library's collectives with staged ones, which run the side that the library does not.
Status DeviceCollectives::compose() {
  const HierarchicalCollectives::Place place{.local_rank = parts_.rank % parts_.shape.ranks_per_host,
                                             .local_size = parts_.shape.ranks_per_host,
                                             .host = parts_.rank / parts_.shape.ranks_per_host,
                                             .hosts = parts_.shape.hosts};
  const bool staged_between = !library_is_between();
  side_of_hosts_ = parts_.side_of_hosts(staged_between);
  // Staging sees one rank per host (between), or the ranks of this host (inside).
  FDL_ASSIGN_OR_RETURN(
      std::unique_ptr<Collectives> staged,
      StagedCollectives::make(device_, staged_between ? place.host : place.local_rank,
                              staged_between ? place.hosts : place.local_size, parts_.config->device_staging_bytes,
                              [this](const CollectiveSpec&) -> Collectives& { return *side_of_hosts_; }));
  if (!staged_between) std::swap(joined_, staged);
  FDL_ASSIGN_OR_RETURN(joined_, HierarchicalCollectives::make(std::move(joined_), std::move(staged), place));
  return {};
}

// All ranks come here together, with the same reason, and use staging from now on.
Status DeviceCollectives::reject_library(const Status& why) {
  // This rank may have joined although another rank could not.
  if (joined_ != nullptr) {
    joined_->interrupt(why);
    joined_.reset();
  }
  stage_ = Stage::negotiated;
  const auto any = [&](const auto& has) { return std::any_of(all_facts_.begin(), all_facts_.end(), has); };
  if (any([](const DeviceFacts& facts) { return facts.required != 0; })) {
    refused_ = Status(Code::unsupported, "device_collectives=nccl is not possible: " + why.text());
    return {};
  }
  if (parts_.rank == 0 && parts_.config->device_collectives != "staged") {
    const bool some_have = any([](const DeviceFacts& facts) { return facts.version != 0; });
    log_at(some_have ? LogLevel::warning : LogLevel::info, "collectives on devices go through the host's memory: {}",
           why.text());
  }
  return prepare_one_shot();
}

// ---- The scratch buffer ----

void DeviceCollectives::begin_scratch() {
  scratch_step_ = ScratchStep::emptying;
  const Status begun = symmetric_allocation_ == nullptr ? scratch_->begin(spec_.stream) : begin_registration();
  if (begun.ok()) {
    progress_scratch();
  } else {
    ended_ = as_device_failure(begun);
    finish(ended_);
  }
}

bool DeviceCollectives::progress_scratch() {
  const auto moved = symmetric_allocation_ == nullptr ? advance_scratch() : advance_registration();
  if (moved.ok()) return *moved;
  ended_ = as_device_failure(moved.status());
  finish(ended_);
  return true;
}

// Buckets are cut by the buffer's size, so it must be the same on all ranks. One exchange is enough if all have equally
// much. Otherwise the ranks that have more shrink to the least size, may end up with even less, and exchange again.
Result<bool> DeviceCollectives::advance_scratch() {
  if (scratch_step_ == ScratchStep::emptying) {
    FDL_ASSIGN_OR_RETURN(const bool emptied, scratch_->emptied());
    if (!emptied) return false;
    FDL_RETURN_IF_ERROR(
        call_in_background(ScratchStep::taking, [this, bytes = *scratch_bytes_] { return scratch_->take(bytes); }));
  }
  for (;;) {
    if (scratch_step_ == ScratchStep::taking) {
      if (!background_has_ended()) return false;
      FDL_RETURN_IF_ERROR(background_outcome_);
      exchange_scratch();
    }
    const bool moved = !host_outcome_.done && host_->progress();
    if (!host_outcome_.done) return moved;
    FDL_RETURN_IF_ERROR(host_outcome_.status.while_doing("exchanging the sizes of scratch buffers"));
    const std::size_t least = least_scratch();
    const auto has_more = [least](const ScratchReport& report) { return report.bytes > least; };
    if (std::none_of(all_scratch_reports_.begin(), all_scratch_reports_.end(), has_more)) break;
    if (has_more(scratch_report_)) {
      FDL_RETURN_IF_ERROR(call_in_background(ScratchStep::taking, [this, least] { return scratch_->shrink(least); }));
    } else {
      exchange_scratch();
    }
  }
  FDL_RETURN_IF_ERROR(keep_scratch());
  *scratch_bytes_ = scratch_->bytes();
  *scratch_memory_ = scratch_->memory();
  finish({});
  return true;
}

// Allocating and freeing memory of the library may wait for the device, and this thread may be the one that launches
// what the device waits for. Without a library the memory is that of the driver's pool, which needs no wait.
Status DeviceCollectives::call_in_background(ScratchStep step, std::function<Status()> call) {
  scratch_step_ = step;
  if (by_library_ == nullptr) {
    background_outcome_ = call();
    return {};
  }
  if (background_ == nullptr) {
    FDL_ASSIGN_OR_RETURN(background_, BackgroundCall::make());
    FDL_RETURN_IF_ERROR(poller_.add(background_->fd(), 3));
  }
  background_->begin([this, call = std::move(call)] { background_outcome_ = call(); });
  return {};
}

void DeviceCollectives::exchange_scratch() {
  scratch_step_ = ScratchStep::agreeing;
  scratch_report_ = {.bytes = scratch_->bytes(), .is_librarys = scratch_->has_librarys()};
  // A single rank has its own answer at once.
  if (members().size() > 1) return gather(&scratch_report_, sizeof scratch_report_, all_scratch_reports_.data());
  all_scratch_reports_[0] = scratch_report_;
  host_outcome_ = {};
  host_outcome_.finish();
}

// A rank without device memory takes pinned host memory, so it does not limit the other ranks.
std::size_t DeviceCollectives::least_scratch() const {
  std::size_t least = DeviceScratch::size_for(*scratch_bytes_);
  for (const ScratchReport& report : all_scratch_reports_) {
    if (report.bytes > 0) least = std::min<std::size_t>(least, report.bytes);
  }
  return least;
}

// Registers the buffer of the agreed size. It is mapped alike only if the library allocated it on all ranks.
Status DeviceCollectives::keep_scratch() {
  const bool all_have_librarys = std::all_of(all_scratch_reports_.begin(), all_scratch_reports_.end(),
                                             [](const ScratchReport& report) { return report.is_librarys != 0; });
  FDL_RETURN_IF_ERROR(scratch_->keep(least_scratch(), all_have_librarys));
  log_shortage();
  return {};
}

// Logs why this rank lacks memory; a rank that has what was requested logs nothing.
void DeviceCollectives::log_shortage() const {
  const std::string me = name_of_member(static_cast<std::size_t>(parts_.rank));
  if (scratch_->lack().ok()) {
    if (scratch_->librarys_lack().ok()) return;
    return log_info("{}: {}; the fusion buffer is other memory, not registered with {}", me,
                    scratch_->librarys_lack().text(), library_->name());
  }
  const std::string what =
      scratch_->is_hosts()
          ? fmt::format("its fusion buffer of {} bytes is in memory of the host, which is slow", scratch_->bytes())
          : fmt::format("the fusion buffer of all ranks has {} bytes instead of {}, and larger buckets go in rounds",
                        scratch_->bytes(), DeviceScratch::size_for(*scratch_bytes_));
  log_warning("{}: {}; {}: free memory of the device, or lower FARANDOLE_FUSION_BYTES", me, scratch_->lack().text(),
              what);
}

}  // namespace fdl
