// A rank watches the set-ups in which it takes part, and tells the coordinator which ones it has begun.
#include <algorithm>
#include <limits>

#include "bootstrap/client/client_protocol.h"

namespace fdl {

// What came first counts, as for a watch that was there before. The loss of the coordinator is the last news of all.
void ClientProtocol::add_watch(const std::shared_ptr<SetupWatch>& watch, int64_t now_ns) {
  std::erase_if(watches_, [](const auto& one) { return one.expired(); });
  watches_.push_back(watch);
  if (!watch->comm().empty()) note_begun(watch->comm());
  if (!set_ups_ended_by_.ok()) watch->fire(set_ups_ended_by_, now_ns);
  const auto decided = decided_.find(watch->comm());
  const News* gone = first_gone_of(watch->ranks());
  const bool is_decided = decided != decided_.end();
  if (gone != nullptr && !(is_decided && decided->second.number < gone->number)) {
    watch->fire(gone->why, now_ns + (gone->why.code() == Code::peer_lost ? 0 : SetupWatch::kLeftGrace_ns));
  }
  if (is_decided) watch->decide(decided->second.why, now_ns);
  if (!is_open()) watch->fire(coordinator_lost_, now_ns);
}

void ClientProtocol::note_begun(const std::string& comm) {
  if (!begun_.insert(comm).second) return;
  begun_in_order_.push_back(comm);
  if (begun_in_order_.size() <= kMostBegun) return;
  begun_.erase(begun_in_order_.front());
  begun_in_order_.pop_front();
}

// One that has lasted long may not be among the latest ones any more.
bool ClientProtocol::has_begun(const std::string& comm) const {
  return begun_.contains(comm) || std::ranges::any_of(watches_, [&](const std::weak_ptr<SetupWatch>& one) {
           const std::shared_ptr<SetupWatch> watch = one.lock();
           return watch && watch->comm() == comm;
         });
}

void ClientProtocol::end_set_ups(const Status& why, int64_t now_ns) {
  set_ups_ended_by_ = why;
  for (const auto& one : watches_) {
    if (const auto watch = one.lock()) watch->fire(why, now_ns);
  }
  has_changed_ = true;
}

// A probe without an answer is repeated at the usual rate, so that the silence of the coordinator counts in full. All
// ranks may wait for replies at the same time, so an open request is probed for as seldom as a set-up of all ranks.
int64_t ClientProtocol::probe_watched(int64_t now_ns) {
  const int64_t usual_ns = usual_probe_interval_ns(limits_.suspect_after_s);
  bool any = !undecided_.empty() || !replies_.empty();
  std::size_t most = replies_.empty() ? 0 : static_cast<std::size_t>(hello_.size);
  std::set<int> ranks;
  for (const std::weak_ptr<SetupWatch>& one : watches_) {
    const std::shared_ptr<SetupWatch> watch = one.lock();
    if (!watch) continue;
    any = true;
    most = std::max(most, watch->ranks().size());
    const std::vector<int> probed = ranks_to_probe(watch->ranks(), hello_.rank);
    ranks.insert(probed.begin(), probed.end());
  }
  if (!any) return std::numeric_limits<int64_t>::max();
  const int64_t interval_ns = probe_interval_ns(most, usual_ns, seconds_to_ns(limits_.lost_after_s));
  const int64_t due_ns = probed_watched_ns_ + interval_ns;
  if (now_ns < due_ns && !silence_.is_open()) return due_ns;
  probed_watched_ns_ = now_ns;
  probe(ranks_to_probe({ranks.begin(), ranks.end()}, hello_.rank), now_ns);
  return now_ns + usual_ns;
}

}  // namespace fdl
