// This file has the requests that JobMembership answers: a rank fetches facts from the store, and a user reads the
// state of all ranks.
#include <fmt/core.h>

#include <algorithm>

#include "bootstrap/coordinator/job_membership.h"

namespace fdl {
namespace {

using Kind = CoordinatorMessage::Kind;

// Limits of the queries that are open at once.
constexpr std::size_t kMostJobQueries = 16;
// The limit of the values of one reply; less than a frame may have.
constexpr std::size_t kMostManyBytes = 32_MiB;

}  // namespace

// ---- Facts ----

// Readers that wait under one number share a message: those of a fact that all ranks fetch usually do.
void JobMembership::publish(Peer peer, CoordinatorMessage message) {
  CoordinatorMessage reply{.kind = Kind::reply, .id = message.id};
  const int64_t most_reads = std::clamp<int64_t>(message.number, 0, kMostRanks);
  auto readers = store_.publish(rank_of_[peer], message.key, message.value, most_reads);
  if (!readers.ok()) {
    reply.why = readers.status();
    return send(peer, std::move(reply));
  }
  send(peer, reply);
  std::map<uint64_t, std::vector<Peer>> peers;
  for (const Store::Reader& reader : *readers) {
    const auto many = many_fetches_.find({reader.peer, reader.id});
    if (many == many_fetches_.end()) {
      peers[reader.id].push_back(reader.peer);
    } else if (--many->second.missing == 0) {
      answer_many(many->first, many->second);
      many_fetches_.erase(many);
    }
  }
  reply.value = std::move(message.value);
  for (const auto& [id, waiting] : peers) {
    reply.id = id;
    send_to_each(waiting, reply);
    store_.note_reads(message.key, waiting.size());
  }
}

void JobMembership::fetch(Peer peer, const CoordinatorMessage& message) {
  const std::string* value = store_.fetch(message.key, {peer, message.id});
  if (value == nullptr) return;
  CoordinatorMessage reply{.kind = Kind::reply, .id = message.id};
  reply.value = *value;
  send(peer, std::move(reply));
  store_.note_reads(message.key, 1);
}

Status JobMembership::fetch_many(Peer peer, CoordinatorMessage message, int64_t now_ns) {
  const RequestOfPeer request{peer, message.id};
  const bool fits = message.ranks.size() <= static_cast<std::size_t>(options_.size) && message.key.size() <= kMostKey;
  if (!fits || many_fetches_.contains(request)) {
    return Status(Code::transport, "coordinator: a request for too many facts");
  }
  const int64_t timeout = std::clamp<int64_t>(message.number, 0, int64_t{1} << 61);
  ManyFetch fetch{
      .prefix = std::move(message.key), .ranks = std::move(message.ranks), .until = Deadline::at_ns(now_ns + timeout)};
  for (const int rank : fetch.ranks) {
    fetch.missing += store_.fetch(fetch.prefix + std::to_string(rank), {peer, message.id}) == nullptr ? 1 : 0;
  }
  if (fetch.missing == 0) {
    answer_many(request, fetch);
  } else {
    many_fetches_.emplace(request, std::move(fetch));
  }
  return {};
}

// The values in the order of the requested ranks; those of missing ones are empty.
void JobMembership::answer_many(const RequestOfPeer& request, const ManyFetch& fetch) {
  CoordinatorMessage reply{.kind = Kind::reply, .id = request.second};
  std::size_t bytes = 0;
  for (const int rank : fetch.ranks) {
    const std::string key = fetch.prefix + std::to_string(rank);
    const std::string* value = store_.find(key);
    if (value == nullptr) reply.ranks.push_back(rank);
    reply.values.push_back(value == nullptr ? std::string() : *value);
    store_.note_reads(key, 1);
    bytes += reply.values.back().size();
    if (bytes > kMostManyBytes) {
      reply.ranks.clear();
      reply.values.clear();
      reply.why = Status(Code::resource, fmt::format("the facts '{:.64}...' have more than {} bytes together",
                                                     fetch.prefix, kMostManyBytes));
      break;
    }
  }
  send(request.first, std::move(reply));
}

void JobMembership::answer_many_in_time(int64_t now_ns) {
  std::erase_if(many_fetches_, [&](const auto& one) {
    if (one.second.until.moment_ns() > now_ns) return false;
    store_.forget({one.first.first, one.first.second});
    answer_many(one.first, one.second);
    return true;
  });
}

void JobMembership::forget(Peer peer, uint64_t id) {
  many_fetches_.erase({peer, id});
  store_.forget({peer, id});
}

// ---- The state of the job ----

// A member that is present gets a state_query. Of all others the state is known already.
Status JobMembership::query_job(Peer peer, int64_t now_ns, bool with_stacks) {
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
        asked.number = with_stacks ? 1 : 0;
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
