// Symmetric allocations of DeviceCollectives: all ranks allocate together, the library registers the memory on all
// ranks or on none, and all ranks unregister it together once no rank uses it.
#include <fmt/format.h>

#include <algorithm>

#include "engine/device/device_collectives.h"

namespace fdl {

// ---- Memory of the caller, which this rank alone registers ----

Status DeviceCollectives::register_memory(void* memory, std::size_t bytes) {
  if (by_library_ != nullptr) return library_->enroll(*by_library_, memory, bytes, false);
  if (stage_ != Stage::negotiated) early_memory_.emplace_back(memory, bytes);
  return {};
}

Result<bool> DeviceCollectives::forget_memory(void* memory) {
  std::erase_if(early_memory_, [&](const auto& one) { return one.first == memory; });
  if (by_library_ == nullptr || !ended_.ok()) return true;
  return library_->dismiss(*by_library_, memory);
}

// ---- Symmetric memory, which all ranks register together ----

// A library gives no guarantee for a collective that mixes memory that it has registered with other memory, or memory
// that is registered differently. So memory is registered on all ranks, and only if all of them joined one library
// group.
DeviceLibrary* DeviceCollectives::registering_library() const {
  return by_library_ == nullptr || is_hierarchical() ? nullptr : library_;
}

// The group's queued work may still use memory that its holder has released, so it must run first.
Status DeviceCollectives::begin_registration() {
  const bool any_is_free =
      std::any_of(registered_.begin(), registered_.end(), [](const auto& each) { return each.second->is_released(); });
  if (registering_library() != nullptr) FDL_RETURN_IF_ERROR(scratch_->note_other_use(spec_.stream));
  return any_is_free ? ok_status() : begin_taking();
}

// Allocates this rank's memory.
Status DeviceCollectives::begin_taking() {
  taken_.reset();
  const auto take = [this, library = registering_library(), stream = symmetric_allocation_->stream,
                     bytes = symmetric_allocation_->bytes]() -> Status {
    FDL_ASSIGN_OR_RETURN(taken_, SymmetricMemory::take(device_, library, stream, bytes));
    return {};
  };
  return call_in_background(ScratchStep::taking, take);
}

// Exchanges the outcome of the allocation, with the list of registrations that are unused here.
void DeviceCollectives::exchange_registration() {
  scratch_step_ = ScratchStep::exchanging;
  registration_report_ = {.report = StatusReport::of(background_outcome_)};
  registration_report_.is_librarys = taken_ != nullptr && taken_->is_librarys() ? 1 : 0;
  list_unused();
  if (members().size() > 1) {
    gather(&registration_report_, sizeof registration_report_, all_registration_reports_.data());
  } else {
    all_registration_reports_[0] = registration_report_;
    host_outcome_ = {};
    host_outcome_.finish();
  }
}

// Up to 63 numbers fit into the message; the rest is listed at a later allocation.
void DeviceCollectives::list_unused() {
  auto& unused = registration_report_.unused;
  unused.fill(-1);
  if (!group_is_through_) return;
  auto next = unused.begin();
  for (const auto& [number, memory] : registered_) {
    if (next != unused.end() && memory->is_unused()) *next++ = number;
  }
}

Result<bool> DeviceCollectives::advance_registration() {
  if (scratch_step_ == ScratchStep::emptying) {
    FDL_ASSIGN_OR_RETURN(group_is_through_, scratch_->is_through());
    if (!group_is_through_) return false;
    FDL_RETURN_IF_ERROR(begin_taking());
  }
  if (scratch_step_ == ScratchStep::taking) {
    if (!background_has_ended()) return false;
    exchange_registration();
    group_is_through_ = false;
  }
  if (scratch_step_ == ScratchStep::exchanging) {
    const bool moved = !host_outcome_.done && host_->progress();
    if (!host_outcome_.done) return moved;
    host_ = nullptr;
    FDL_RETURN_IF_ERROR(host_outcome_.status.while_doing("exchanging the results of an allocation"));
    read_registrations();
    scratch_step_ = ScratchStep::forgetting;
  }
  if (scratch_step_ == ScratchStep::forgetting) {
    FDL_ASSIGN_OR_RETURN(const bool forgotten, forget_unused());
    if (!forgotten) return false;
    FDL_RETURN_IF_ERROR(keep_registration());
    FDL_RETURN_IF_ERROR(begin_releasing());
  }
  if (!background_has_ended()) return false;
  finish({});
  return true;
}

// Releases what is registered nowhere any more. The memory ends with its last reference.
Status DeviceCollectives::begin_releasing() {
  scratch_step_ = ScratchStep::releasing;
  if (unused_.empty()) return {};
  return call_in_background(ScratchStep::releasing, [unused = std::exchange(unused_, {})]() mutable -> Status {
    unused.clear();
    return {};
  });
}

// Derives the same result on all ranks: the refusal by the first rank that failed, and the registrations to remove,
// which are those that every rank lists as unused.
void DeviceCollectives::read_registrations() {
  symmetric_allocation_->number = next_number_++;
  for (std::size_t i = 0; i < all_registration_reports_.size() && symmetric_allocation_->refusal.ok(); ++i) {
    const Status one = all_registration_reports_[i].report.status();
    if (one.ok()) continue;
    symmetric_allocation_->refusal =
        Status::blame(members()[i].world_rank, members()[i].host_name, one.code(),
                      fmt::format("{} has no memory for the group: {}", name_of_member(i), one.text()));
  }
  to_forget_.clear();
  for (const int64_t number : registration_report_.unused) {
    const auto names_it = [number](const RegistrationReport& report) {
      return std::find(report.unused.begin(), report.unused.end(), number) != report.unused.end();
    };
    if (number >= 0 && std::all_of(all_registration_reports_.begin(), all_registration_reports_.end(), names_it)) {
      to_forget_.push_back(number);
    }
  }
}

// Unregisters in the same order on all ranks. Returns false while the library is at work; call it again later.
Result<bool> DeviceCollectives::forget_unused() {
  while (!to_forget_.empty()) {
    const auto unused = registered_.find(to_forget_.front());
    FDL_ASSIGN_OR_RETURN(const bool forgotten, library_->dismiss(*by_library_, unused->second->get()));
    if (!forgotten) return false;
    unused_.push_back(std::move(unused->second));
    registered_.erase(unused);
    to_forget_.erase(to_forget_.begin());
  }
  return true;
}

Status DeviceCollectives::keep_registration() {
  if (!symmetric_allocation_->refusal.ok()) {
    if (taken_ != nullptr) unused_.push_back(std::move(taken_));
    return {};
  }
  symmetric_allocation_->is_registered =
      std::all_of(all_registration_reports_.begin(), all_registration_reports_.end(),
                  [](const RegistrationReport& report) { return report.is_librarys != 0; });
  if (symmetric_allocation_->is_registered) {
    FDL_RETURN_IF_ERROR(library_->enroll(*by_library_, taken_->get(), taken_->bytes(), true));
    registered_[symmetric_allocation_->number] = taken_;
  }
  symmetric_allocation_->memory = std::move(taken_);
  return {};
}

}  // namespace fdl
