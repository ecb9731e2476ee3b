// JobMembership removes ranks that have left or were lost, and announces it to the others: losses one by one and at
// once, departures in good order together.
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

// Sends the departures that have come together to all present ranks, as one message.
void JobMembership::announce_departures() {
  std::vector<int> ranks = std::exchange(departed_, {});
  if (ranks.empty()) return;
  std::ranges::sort(ranks);
  CoordinatorMessage together{.kind = Kind::departed};
  std::map<std::string_view, std::size_t> host_of;
  for (const int rank : ranks) {
    const std::string& host = member_at(rank)->hello.host_name;
    const auto [found, is_new] = host_of.try_emplace(host, together.hosts.size());
    if (is_new) together.hosts.push_back({.host_name = host});
    append_rank(together.hosts[found->second].ranges, rank);
  }
  std::vector<Peer> one_by_one;
  std::vector<Peer> at_once;
  for (const Peer peer : present_peers()) {
    const bool takes_lists = ranks.size() > 1 && member_of(peer)->messages >= CoordinatorMessage::kFirstLists;
    (takes_lists ? at_once : one_by_one).push_back(peer);
  }
  for (std::size_t i = 0; !one_by_one.empty() && i < ranks.size(); ++i) {
    CoordinatorMessage event{.kind = Kind::left, .rank = ranks[i]};
    event.why = member_at(ranks[i])->end;
    send_to_each(one_by_one, std::move(event));
  }
  if (!at_once.empty()) send_to_each(at_once, std::move(together));
}

// Loses a member whose process may only have been stopped. When it continues, it reads the same decision as the others.
void JobMembership::lose_and_notify(Member& member, Status why) {
  member.end = std::move(why);
  vacate(member, Member::State::lost, News::at_once);
  CoordinatorMessage decision{.kind = Kind::lost};
  decision.rank = member.hello.rank;
  decision.why = member.end;
  send(member.peer, std::move(decision));
  hang_ups_.push_back(member.peer);
}

void JobMembership::lose(Member& member, const std::string& how) {
  member.end = Status::blame(member.hello.rank, member.hello.host_name, Code::peer_lost,
                             fmt::format("{} was lost: {}", name_of(member), how));
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
  } else {
    CoordinatorMessage event{.kind = state == Member::State::left ? Kind::left : Kind::lost};
    event.rank = member.hello.rank;
    event.why = member.end;
    send_to_all(std::move(event));
  }
  answer_job_queries_for(member);
  decide_reports_of(member.hello.rank, member.end);
  if (arrived_ < options_.size && start_failed_.ok()) answer_waiting(start_failed_ = member.end);
}

void JobMembership::closed(Peer peer) {
  Member* member = member_of(peer);
  if (member != nullptr && member->state == Member::State::present && member->peer == peer) {
    lose(*member, "its process ended or its connection broke");
  }
  rank_of_.erase(peer);
  std::erase_if(job_queries_, [&](const JobQuery& one) { return one.peer == peer; });
}

}  // namespace fdl
