// DeviceCollectives: memory that is held for the ranks' own tensors: taken together, known to the library alike on all
// ranks or on none, and forgotten together once nobody holds it any more.
#include <fmt/format.h>

#include <algorithm>

#include "engine/device/device_collectives.h"

namespace fdl {

// Whoever mixes memory that the library knows with memory that it does not, or knows otherwise, in one collective has
// no promise of it. So it knows this on all ranks, and within one circle.
DeviceLibrary* DeviceCollectives::holders_library() const {
  return by_library_ == nullptr || is_hierarchical() ? nullptr : library_;
}

// What is let go may still be used by what the group has queued.
Status DeviceCollectives::begin_registration() {
  const bool any_is_free =
      std::any_of(held_.begin(), held_.end(), [](const auto& each) { return each.second->is_let_go(); });
  scratch_step_ = any_is_free ? ScratchStep::emptying : ScratchStep::telling;
  if (holders_library() != nullptr) FDL_RETURN_IF_ERROR(scratch_->note_other_use(spec_.stream));
  if (!any_is_free) tell_registration();
  return {};
}

void DeviceCollectives::tell_registration() {
  scratch_step_ = ScratchStep::telling;
  DeviceLibrary* const library = holders_library();
  auto taken = SymmetricMemory::take(device_, library, symmetric_allocation_->stream, symmetric_allocation_->bytes);
  registration_word_ = {.word = Word::of(taken.status())};
  if (taken.ok()) taken_ = taken.take();
  registration_word_.is_librarys = taken_ != nullptr && taken_->is_librarys() ? 1 : 0;
  list_unused();
  if (members().size() > 1) {
    gather(&registration_word_, sizeof registration_word_, all_registration_words_.data());
  } else {
    all_registration_words_[0] = registration_word_;
    host_outcome_ = {};
    host_outcome_.finish();
  }
}

void DeviceCollectives::list_unused() {
  auto& unused = registration_word_.unused;
  unused.fill(-1);
  if (!group_is_through_) return;
  auto next = unused.begin();
  for (const auto& [number, memory] : held_) {
    if (next != unused.end() && memory->is_unused()) *next++ = number;
  }
}

Result<bool> DeviceCollectives::advance_registration() {
  if (scratch_step_ == ScratchStep::emptying) {
    FDL_ASSIGN_OR_RETURN(group_is_through_, scratch_->is_through());
    if (!group_is_through_) return false;
    tell_registration();
    group_is_through_ = false;
  }
  if (scratch_step_ == ScratchStep::telling) {
    const bool moved = !host_outcome_.done && host_->progress();
    if (!host_outcome_.done) return moved;
    host_ = nullptr;
    FDL_RETURN_IF_ERROR(host_outcome_.status.while_doing("telling each other of memory on their devices"));
    learn_registration();
    scratch_step_ = ScratchStep::forgetting;
  }
  FDL_ASSIGN_OR_RETURN(const bool forgotten, forget_unused());
  if (!forgotten) return false;
  FDL_RETURN_IF_ERROR(keep_registration());
  finish({});
  return true;
}

// The same on all ranks.
void DeviceCollectives::learn_registration() {
  symmetric_allocation_->number = next_held_++;
  for (std::size_t i = 0; i < all_registration_words_.size() && symmetric_allocation_->refusal.ok(); ++i) {
    const Status one = all_registration_words_[i].word.status();
    if (one.ok()) continue;
    symmetric_allocation_->refusal =
        Status::blame(members()[i].world_rank, members()[i].host_name, one.code(),
                      fmt::format("{} has no memory for the group: {}", name_of_member(i), one.text()));
  }
  to_forget_.clear();
  for (const int64_t number : registration_word_.unused) {
    const auto names_it = [number](const RegistrationWord& word) {
      return std::find(word.unused.begin(), word.unused.end(), number) != word.unused.end();
    };
    if (number >= 0 && std::all_of(all_registration_words_.begin(), all_registration_words_.end(), names_it)) {
      to_forget_.push_back(number);
    }
  }
}

// False: the library is at work.
Result<bool> DeviceCollectives::forget_unused() {
  while (!to_forget_.empty()) {
    const auto unused = held_.find(to_forget_.front());
    FDL_ASSIGN_OR_RETURN(const bool forgotten, library_->dismiss(*by_library_, unused->second->get()));
    if (!forgotten) return false;
    held_.erase(unused);
    to_forget_.erase(to_forget_.begin());
  }
  return true;
}

Status DeviceCollectives::keep_registration() {
  if (!symmetric_allocation_->refusal.ok()) return {};
  symmetric_allocation_->is_known = std::all_of(all_registration_words_.begin(), all_registration_words_.end(),
                                                [](const RegistrationWord& word) { return word.is_librarys != 0; });
  if (symmetric_allocation_->is_known) {
    FDL_RETURN_IF_ERROR(library_->enroll(*by_library_, taken_->get(), taken_->bytes(), true));
    held_[symmetric_allocation_->number] = taken_;
  }
  symmetric_allocation_->memory = std::move(taken_);
  return {};
}

}  // namespace fdl
