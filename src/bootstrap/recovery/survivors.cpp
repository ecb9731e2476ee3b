// Each event changes the sets of ranks that are here or gone; the decision follows from them.
#include "bootstrap/recovery/survivors.h"

#include <fmt/format.h>

#include <algorithm>

namespace fdl {

Survivors::Survivors(Options options, int64_t now_ns)
    : options_(std::move(options)),
      round_(options_.round),
      members_(options_.members),
      gone_(options_.gone),
      since_ns_(now_ns) {
  if (gone_.contains(options_.me)) fail(excluded());
  decide_if_complete(now_ns);
}

bool Survivors::is_member(int rank) const { return std::ranges::binary_search(members_, rank); }

std::string Survivors::name_of(int rank) const {
  const auto found = options_.names.find(rank);
  return found == options_.names.end() ? fmt::format("rank {}", rank) : found->second;
}

int Survivors::server() const {
  const auto found = std::ranges::find_if(members_, [&](int rank) { return !gone_.contains(rank); });
  return found == members_.end() ? options_.me : *found;
}

// The serving rank connects to ranks that are gone too: one that was only stopped finds there that it is excluded.
std::set<int> Survivors::wanted() const {
  std::set<int> ranks;
  if (server() == options_.me) {
    ranks.insert(options_.members.begin(), options_.members.end());
    ranks.erase(options_.me);
  } else {
    ranks.insert(server());
  }
  return ranks;
}

SurvivorMessage Survivors::message_to(int to, SurvivorMessage::Kind kind) const {
  SurvivorMessage message{
      .kind = kind, .from = options_.me, .to = to, .round = round_, .members = members_, .gone = gone_};
  return message;
}

SurvivorMessage Survivors::greeting(int rank) const {
  return message_to(rank,
                    has_decided() && is_member(rank) ? SurvivorMessage::Kind::decided : SurvivorMessage::Kind::here);
}

void Survivors::send(int to, SurvivorMessage::Kind kind, Status why) {
  SurvivorMessage message = message_to(to, kind);
  message.why = std::move(why);
  outgoing_.push_back(std::move(message));
}

// ---- Events ----

void Survivors::receive(const SurvivorMessage& message, int64_t now_ns) {
  if (state_ == State::failed || message.to != options_.me) return;
  if (message.kind == SurvivorMessage::Kind::failed) {
    // A failure of an earlier round is no news of this one.
    if (message.round >= round_ && state_ == State::gathering) fail(message.why);
    return;
  }
  if (message.kind == SurvivorMessage::Kind::address) return;  // the caller's
  if (message.round < round_) {
    // The sender missed a decision. One that is no member any more learns from `here` that it is gone.
    return send(message.from, is_member(message.from) ? SurvivorMessage::Kind::decided : SurvivorMessage::Kind::here);
  }
  if (message.round > round_) return adopt(message, now_ns);
  if (message.kind != SurvivorMessage::Kind::here) return;
  if (message.gone.contains(options_.me)) return fail(excluded());
  add_gone(message.gone);
  if (gone_.contains(message.from)) {
    send(message.from, SurvivorMessage::Kind::here);
  } else if (is_member(message.from) && here_.insert(message.from).second && message.from == server()) {
    since_ns_ = now_ns;  // from now on the serving rank's deadline counts, whose text names those that are missing
  }
  decide_if_complete(now_ns);
}

// The rank that has decided makes the world. A decision that another rank passes on is one whose world has failed.
void Survivors::adopt(const SurvivorMessage& message, int64_t now_ns) {
  std::vector<int> members = message.members;
  std::ranges::sort(members);
  if (!std::ranges::binary_search(members, options_.me) || message.gone.contains(options_.me)) return fail(excluded());
  round_ = message.round;
  members_ = std::move(members);
  here_.clear();
  since_ns_ = now_ns;
  state_ = State::gathering;
  add_gone(message.gone);
  if (message.kind == SurvivorMessage::Kind::decided && message.from == members_.front()) {
    state_ = State::decided;
    return;
  }
  if (message.kind == SurvivorMessage::Kind::here && is_member(message.from)) here_.insert(message.from);
  decide_if_complete(now_ns);
}

void Survivors::refused(int rank, int64_t now_ns) {
  if (rank == options_.me || state_ == State::failed) return;
  gone_.insert(rank);
  decide_if_complete(now_ns);
}

void Survivors::resume(const std::set<int>& lost, int64_t now_ns) {
  if (state_ == State::failed) return;
  state_ = State::gathering;
  since_ns_ = now_ns;
  add_gone(lost);
  if (gone_.contains(options_.me)) return fail(excluded());
  decide_if_complete(now_ns);
}

// A rank that has not called finds the error at its listener.
void Survivors::tick(int64_t now_ns) {
  if (state_ != State::gathering || now_ns < until_ns()) return;
  fail(missing());
  for (const int rank : wanted()) {
    if (!gone_.contains(rank)) send(rank, SurvivorMessage::Kind::failed, why_);
  }
}

Status Survivors::missing() const {
  const bool serves = server() == options_.me;
  std::string names;
  int count = 0;
  int last = -1;
  for (const int rank : serves ? members_ : std::vector<int>{server()}) {
    if (rank == options_.me || gone_.contains(rank) || (serves && here_.contains(rank))) continue;
    names += (names.empty() ? "" : ", ") + name_of(rank);
    ++count;
    last = rank;
  }
  const std::string text = fmt::format(
      "{} did not take part within {:g} s, and {} not ended; all ranks that are left must call fdl_world_shrink "
      "(farandole.shrink)",
      names, static_cast<double>(options_.timeout_ns) / 1e9, count == 1 ? "its process has" : "their processes have");
  return count == 1 ? Status::blame(last, "", Code::timeout, text) : Status(Code::timeout, text);
}

// ---- Decisions ----

void Survivors::add_gone(const std::set<int>& ranks) { gone_.insert(ranks.begin(), ranks.end()); }

// A connection may be open from an earlier round, or from the time when this rank did not serve.
void Survivors::announce_if_changed() {
  const std::pair now(round_, server());
  if (std::exchange(announced_, now) == now) return;
  for (const int rank : server() == options_.me ? members_ : std::vector<int>{server()}) {
    if (rank != options_.me && !gone_.contains(rank)) send(rank, SurvivorMessage::Kind::here);
  }
}

void Survivors::decide_if_complete(int64_t now_ns) {
  if (state_ != State::gathering) return;
  announce_if_changed();
  if (server() != options_.me) return;
  std::vector<int> left;
  for (const int rank : members_) {
    if (gone_.contains(rank)) continue;
    if (rank != options_.me && !here_.contains(rank)) return;
    left.push_back(rank);
  }
  ++round_;
  members_ = std::move(left);
  here_.clear();
  since_ns_ = now_ns;
  state_ = State::decided;
  for (const int rank : members_) {
    if (rank != options_.me) send(rank, SurvivorMessage::Kind::decided);
  }
}

void Survivors::fail(Status why) {
  state_ = State::failed;
  why_ = std::move(why);
}

Status Survivors::excluded() const {
  return Status::blame(options_.me, "", Code::peer_lost,
                       name_of(options_.me) +
                           " is not in the new world: the other ranks lost it (it was stopped, swapped out or cut off "
                           "for longer than FARANDOLE_LOST_AFTER_S) and continue without it; end this process");
}

}  // namespace fdl
