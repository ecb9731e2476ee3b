// JobMembership removes ranks that have left or were lost, and announces it to the others: a loss at once, those that
// follow it closely in a large job together, and departures in good order together.
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "bootstrap/coordinator/job_membership.h"

namespace fdl {
namespace {

using Kind = CoordinatorMessage::Kind;

}  // namespace

void JobMembership::leave(Member& member, int64_t now_ns) {
  member.end = departure_of(member.hello.rank, member.hello.host_name);
  vacate(member, Member::State::left, News::together);
  announce_departures_in_time(now_ns);
  // It waits for this confirmation.
  send(member.peer, {.kind = Kind::left, .rank = member.hello.rank, .why = member.end});
}

void JobMembership::announce_departures_in_time(int64_t now_ns) {
  if (departed_.empty() || !departures_pace_.is_due(now_ns)) return;
  departures_pace_.note(now_ns, here_);
  announce_departures();
}

// `ranks` in ascending order, by their hosts.
std::vector<HostRanks> JobMembership::by_host(const std::vector<int>& ranks) {
  std::vector<HostRanks> hosts;
  std::map<std::string_view, std::size_t> place_of;
  for (const int rank : ranks) {
    const std::string& name = member_at(rank)->hello.host_name;
    const auto [found, is_new] = place_of.try_emplace(name, hosts.size());
    if (is_new) hosts.push_back({.host_name = name});
    append_rank(hosts[found->second].ranges, rank);
  }
  return hosts;
}

// Sends `together`, about several ranks, to all present ones, and to those that are lost and still connected. Those of
// former versions, and all if it is one rank, get a message of kind `each` for each of `ranks`.
void JobMembership::announce(const std::vector<int>& ranks, CoordinatorMessage together, int64_t messages, Kind each) {
  std::vector<Peer> one_by_one;
  std::vector<Peer> at_once;
  const auto add = [&](const Member& member) {
    const bool takes_lists = ranks.size() > 1 && member.messages >= messages;
    (takes_lists ? at_once : one_by_one).push_back(member.peer);
  };
  for (const Member& member : members_) {
    if (member.state == Member::State::present) add(member);
  }
  for (const int rank : lost_by_silence_) add(*member_at(rank));
  for (std::size_t i = 0; !one_by_one.empty() && i < ranks.size(); ++i) {
    CoordinatorMessage event{.kind = each, .number = together.number, .rank = ranks[i]};
    event.why = member_at(ranks[i])->end;
    send_to_each(one_by_one, std::move(event));
  }
  if (!at_once.empty()) send_to_each(at_once, std::move(together));
}

// Sends the departures that have come together to all present ranks, as one message.
void JobMembership::announce_departures() {
  std::vector<int> ranks = std::exchange(departed_, {});
  if (ranks.empty()) return;
  announce_losses();
  std::ranges::sort(ranks);
  CoordinatorMessage together{.kind = Kind::departed};
  together.hosts = by_host(ranks);
  together.number = number_of_news();
  announce(ranks, std::move(together), CoordinatorMessage::kFirstLists, Kind::left);
}

// Their order counts: survivors take the first one for the cause.
void JobMembership::announce_losses() {
  std::vector<int> ranks = std::exchange(lost_, {});
  if (ranks.empty()) return;
  losses_pace_.note(ticked_ns_, here_);
  CoordinatorMessage together{.kind = Kind::lost_together};
  together.ranks = ranks;
  for (const int rank : ranks) together.values.emplace_back(member_at(rank)->end.text());
  std::vector<int> sorted = ranks;
  std::ranges::sort(sorted);
  together.hosts = by_host(sorted);
  together.number = number_of_news();
  announce(ranks, std::move(together), CoordinatorMessage::kFirstLosses, Kind::lost);
  for (const int rank : std::exchange(lost_by_silence_, {})) hang_ups_.push_back(member_at(rank)->peer);
}

// Loses a member whose process may only have been stopped. When it continues, it reads the same news as the others.
void JobMembership::lose_and_notify(Member& member, Status why) {
  member.end = std::move(why);
  lost_by_silence_.push_back(member.hello.rank);
  vacate(member, Member::State::lost, News::at_once);
}

void JobMembership::lose(Member& member, const std::string& how) {
  member.end = end_of(member, how);
  vacate(member, Member::State::lost, News::at_once);
}

// Removes a member that left or was lost, informs the others, and decides the reports that name it.
void JobMembership::vacate(Member& member, Member::State state, News news) {
  member.state = state;
  gone_.insert(member.hello.rank);
  end_wait_for_pong(member);
  silences_.forget(member.hello.rank);
  --here_;
  store_.forget_all_of(member.peer);
  std::erase_if(many_fetches_, [&](const auto& one) { return one.first.first == member.peer; });
  std::erase_if(waiting_, [&](const Waiting& one) { return one.peer == member.peer; });
  if (news == News::together) {
    departed_.push_back(member.hello.rank);
  } else if (state == Member::State::lost) {
    announce_departures();
    lost_.push_back(member.hello.rank);
    if (here_ < options_.losses_together_from) announce_losses();
  } else {
    CoordinatorMessage event{.kind = Kind::left};
    event.rank = member.hello.rank;
    event.why = member.end;
    event.number = number_of_news();
    send_to_all(std::move(event));
  }
  answer_job_queries_for(member);
  decide_reports_of(member.hello.rank, end_with_reason(member));
  if (arrived_ < options_.size && start_failed_.ok()) answer_waiting(start_failed_ = member.end);
}

void JobMembership::closed(Peer peer) {
  Member* member = member_of(peer);
  if (member != nullptr && member->state == Member::State::present && member->peer == peer) {
    lose(*member, kConnectionEnded);
  }
  rank_of_.erase(peer);
  std::erase_if(job_queries_, [&](const JobQuery& one) { return one.peer == peer; });
}

}  // namespace fdl
