// JobMembership relays the question of a user, what all ranks do, and passes each answer on as it arrives.
#include <fmt/core.h>

#include <algorithm>

#include "bootstrap/coordinator/job_membership.h"

namespace fdl {
namespace {

using Kind = CoordinatorMessage::Kind;

// Limits of the queries that are open at once.
constexpr std::size_t kMostJobQueries = 16;

}  // namespace

// A member that is present gets a state_query. Of all others the state is known already.
Status JobMembership::query_job(Peer peer, int64_t now_ns) {
  const auto is_of_peer = [&](const JobQuery& one) { return one.peer == peer; };
  if (std::ranges::any_of(job_queries_, is_of_peer)) {
    return Status(Code::transport, "coordinator: a second job query before the reply to the first");
  }
  if (job_queries_.size() >= kMostJobQueries) {
    CoordinatorMessage refusal{.kind = Kind::job_reply};
    refusal.why = Status(Code::resource, fmt::format("{} other queries of this job are open; ask again in {:g} s",
                                                     kMostJobQueries, static_cast<double>(kStateAnswer_ns) / 1e9));
    send(peer, std::move(refusal));
    return {};
  }
  JobQuery query{
      .peer = peer, .id = ++last_job_query_, .until = Deadline::at_ns(now_ns + kStateAnswer_ns), .unanswered = {}};
  for (int rank = 0; rank < options_.size; ++rank) {
    const Member& member = *member_at(rank);
    switch (member.state) {
      case Member::State::present: {
        query.unanswered.insert(rank);
        CoordinatorMessage asked{.kind = Kind::state_query};
        asked.id = query.id;
        send(member.peer, std::move(asked));
        break;
      }
      case Member::State::absent:
        send_rank_state(query, rank, RankPresence::absent, nullptr);
        break;
      case Member::State::left:
        send_rank_state(query, rank, RankPresence::left, nullptr);
        break;
      case Member::State::lost:
        send_rank_state(query, rank, RankPresence::lost, nullptr);
        break;
    }
  }
  job_queries_.push_back(std::move(query));
  end_job_queries(now_ns);
  return {};
}

void JobMembership::send_rank_state(const JobQuery& query, int rank, RankPresence presence, const RankState* state) {
  const Member& member = *member_at(rank);
  CoordinatorMessage message{.kind = Kind::rank_state};
  message.rank = rank;
  message.number = static_cast<int64_t>(presence);
  message.members = {member.hello};
  message.members.front().settings.clear();
  if (presence == RankPresence::left || presence == RankPresence::lost) message.why = member.end;
  if (state != nullptr) message.state = *state;
  send(query.peer, std::move(message));
}

// Ignores unsolicited and duplicate answers, and those that come too late.
void JobMembership::forward_state(int answering, const CoordinatorMessage& message) {
  const auto query = std::ranges::find(job_queries_, message.id, &JobQuery::id);
  if (query == job_queries_.end() || !message.state || query->unanswered.erase(answering) == 0) return;
  send_rank_state(*query, answering, RankPresence::answered, &*message.state);
  end_job_queries(0);
}

// A member that leaves or is lost while its state is awaited answers by that.
void JobMembership::answer_job_queries_for(const Member& member) {
  for (JobQuery& query : job_queries_) {
    if (query.unanswered.erase(member.hello.rank) == 0) continue;
    const bool has_left = member.state == Member::State::left;
    send_rank_state(query, member.hello.rank, has_left ? RankPresence::left : RankPresence::lost, nullptr);
  }
  end_job_queries(0);
}

// Replies to the queries that are complete or due at `now_ns`.
void JobMembership::end_job_queries(int64_t now_ns) {
  std::erase_if(job_queries_, [&](const JobQuery& query) {
    if (!query.unanswered.empty() && query.until.moment_ns() > now_ns) return false;
    for (const int rank : query.unanswered) send_rank_state(query, rank, RankPresence::silent, nullptr);
    CoordinatorMessage reply{.kind = Kind::job_reply};
    reply.number = options_.size;
    reply.key = options_.server_name;
    send(query.peer, std::move(reply));
    return true;
  });
}

}  // namespace fdl
