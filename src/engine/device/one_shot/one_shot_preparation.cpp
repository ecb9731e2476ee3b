// The last part of backend negotiation in DeviceCollectives: the ranks of one host prepare the one-shot kernels.
#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "engine/device/device_collectives.h"

namespace fdl {

// All ranks come here together. A failure is sent in place of the block's address, so that no rank waits in vain.
Status DeviceCollectives::prepare_one_shot() {
  if (!OneShotCollectives::applies(*parts_.config, all_facts_)) return {};
  stage_ = Stage::blocks;
  const Config& config = *parts_.config;
  auto made = OneShotCollectives::make(device_, parts_.rank, static_cast<int>(members().size()), config.one_shot_bytes,
                                       config.suspect_after_s);
  Status allocated = made.status();
  if (made.ok()) {
    one_shot_ = made.take();
    allocated = one_shot_->allocate(block_.address);
  }
  block_.report = StatusReport::of(allocated);
  all_blocks_.resize(members().size());
  gather(&block_, sizeof block_, all_blocks_.data());
  return {};
}

// A rank that opens no blocks reports the failure of another rank, which is then the first one on all ranks.
Status DeviceCollectives::open_blocks() {
  stage_ = Stage::opens;
  Status outcome;
  std::vector<OneShotSums::Address> addresses;
  for (std::size_t i = 0; i < all_blocks_.size() && outcome.ok(); ++i) {
    const Status one = all_blocks_[i].report.status();
    if (!one.ok()) outcome = one.while_doing(fmt::format("{} allocated its block", name_of_member(i)));
    addresses.push_back(all_blocks_[i].address);
  }
  if (outcome.ok()) {
    const auto me = static_cast<std::size_t>(parts_.rank);
    outcome = one_shot_->open(addresses).while_doing(fmt::format("{} opened the blocks", name_of_member(me)));
  }
  outcome_ = StatusReport::of(outcome);
  gather(&outcome_, sizeof outcome_, all_outcomes_.data());
  return {};
}

Status DeviceCollectives::conclude_one_shot() {
  stage_ = Stage::negotiated;
  const auto failed = std::find_if(all_outcomes_.begin(), all_outcomes_.end(),
                                   [](const StatusReport& outcome) { return !outcome.status().ok(); });
  const bool is_first = parts_.rank == 0;
  if (failed == all_outcomes_.end()) {
    log_at(is_first ? LogLevel::info : LogLevel::debug, "sums of up to {} bytes on devices are {} of {} ranks",
           parts_.config->one_shot_bytes, one_shot_->name(), members().size());
    return {};
  }
  log_at(is_first ? LogLevel::warning : LogLevel::debug, "one_shot_bytes={} has no effect for {} ranks: {}",
         parts_.config->one_shot_bytes, members().size(), failed->status().text());
  if (one_shot_ != nullptr) one_shot_->give_up();
  one_shot_.reset();
  return {};
}

}  // namespace fdl
