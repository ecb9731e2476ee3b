// GroupPlace runs the set-up of one communicator: come, wait for all, confirm, and wait for the outcome.
#include "transports/shm/memory_group/group_place.h"

#include <unistd.h>

#include <algorithm>

namespace fdl {
namespace {

// A rank that fails or ends is news of the coordinator too, with the reason. A rank that leaves in good order is news
// that the coordinator holds back for a second.
constexpr double kNews_s = 2;

}  // namespace

Result<std::shared_ptr<GroupPlace>> GroupPlace::make(std::shared_ptr<MemoryGroup> group, Facts facts) {
  FDL_ASSIGN_OR_RETURN(auto wait, group->waits_->begin());
  return std::shared_ptr<GroupPlace>(new GroupPlace(std::move(group), std::move(facts), std::move(wait)));
}

GroupPlace::GroupPlace(std::shared_ptr<MemoryGroup> group, Facts facts, std::unique_ptr<SetUpWait> wait)
    : group_(std::move(group)),
      facts_(std::move(facts)),
      creator_(::getpid()),
      wait_(std::move(wait)),
      load_(group_->take_load()) {
  for (const int rank : facts_.group_of) members_ |= bit_of(rank);
}

GroupPlace::~GroupPlace() {
  if (::getpid() != creator_) {
    static_cast<void>(wait_.release());  // intentionally leaked: it is of the parent
    return;
  }
  if (record_) {
    const Arena::Outcome outcome = group_->arena_.decide(*record_, Arena::Outcome::closed, mine());
    group_->arena_.add(*record_, mine(), Arena::kLeft);
    // Those that wait for this set-up look again. Once it is made, no member does.
    if (outcome == Arena::Outcome::closed) group_->ring(members_);
    group_->retire(*record_, members_, chunks_);
  }
  if (load_) group_->give_back(*load_);
}

// ---- Meeting ----

Status GroupPlace::announce() {
  auto announced = group_->announce(facts_.key, members_, facts_.bytes, load_, chunks_);
  if (!announced.ok()) return announced.status();
  record_ = *announced;
  over_sockets_ = record_->kind == Arena::Kind::sockets;
  group_->ring(members_);
  return {};
}

// The first member may announce later. A record that this member may not come to is closed, and its memory may be in
// use again.
Status GroupPlace::find_and_come(Deadline deadline) {
  while (true) {
    const auto found = group_->arena_.find(first(), facts_.key);
    const uint64_t flags = load_ ? uint64_t{0} : uint64_t{Arena::kWantsSockets};
    if (found && group_->arena_.come(*found, mine(), load_ ? load_->doorbell : 0, flags)) {
      record_ = found;
      over_sockets_ = found->kind == Arena::Kind::sockets;
      if (over_sockets_) return {};
      const auto chunks = group_->arena_.chunks_of(*found, facts_.bytes);
      if (!chunks) {
        return Status(Code::internal, "shm: " + name_of(facts_.members.front()) +
                                          " has announced shared memory of another size for " + facts_.id);
      }
      chunks_ = *chunks;
      return {};
    }
    // The set-up has failed without this member. The record may have been used again since it was found: the outcome is
    // then another communicator's, and find() does not return the record.
    if (found && group_->arena_.outcome_of(*found) == Arena::Outcome::closed) {
      const Status closed = closed_error(*found);
      const auto again = group_->arena_.find(first(), facts_.key);
      const bool is_same = again && again->index == found->index && again->generation == found->generation;
      if (is_same) return with_news(deadline, closed);
    }
    FDL_RETURN_IF_ERROR(failure(deadline, Arena::kCame));
    wait_->sleep(deadline);
  }
}

Status GroupPlace::meet(Deadline deadline) {
  FDL_RETURN_IF_ERROR(is_first() ? announce() : find_and_come(deadline));
  if (over_sockets_) return {};
  // The last one to come wakes those that wait; any other one would wake them for nothing.
  if (all_have(Arena::kCame)) group_->ring(members_);
  while (!all_have(Arena::kCame)) {
    FDL_RETURN_IF_ERROR(failure(deadline, Arena::kCame));
    wait_->sleep(deadline);
  }
  over_sockets_ = group_->arena_.with(*record_, members_, Arena::kWantsSockets) != 0;
  return {};
}

bool GroupPlace::all_have(uint64_t flags) const { return group_->arena_.with(*record_, members_, flags) == members_; }

std::shared_ptr<const LivesWatch> GroupPlace::lives() const {
  const MutexLock lock(group_->mutex_);
  return group_->watches_[load_->watch].lives;
}

std::vector<std::shared_ptr<const Doorbell>> GroupPlace::doorbells() const {
  std::vector<std::shared_ptr<const Doorbell>> found;
  for (const int rank : facts_.group_of) {
    const auto& its = group_->doorbells_[static_cast<std::size_t>(rank)];
    // Another process has written the number.
    const auto number = static_cast<std::size_t>(group_->arena_.doorbell_of(*record_, rank));
    found.push_back(its[rank == mine() ? static_cast<std::size_t>(load_->doorbell) : number % its.size()]);
  }
  return found;
}

// ---- Confirming ----

Status GroupPlace::confirm(Deadline deadline) {
  Arena& arena = group_->arena_;
  arena.add(*record_, mine(), Arena::kConfirmed);
  Status failed;
  while (true) {
    // A member that was killed between its confirmation and the outcome leaves this to the others.
    if (all_have(Arena::kConfirmed) && arena.outcome_of(*record_) == Arena::Outcome::open) {
      if (arena.decide(*record_, Arena::Outcome::made, mine()) == Arena::Outcome::made) group_->ring(members_);
    }
    if (arena.outcome_of(*record_) == Arena::Outcome::made) {
      wait_.reset();
      return {};
    }
    failed = failure(deadline, Arena::kConfirmed);
    // The outcome is one for all: it may have become that of success meanwhile.
    if (!failed.ok() && arena.decide(*record_, Arena::Outcome::closed, mine()) != Arena::Outcome::made) return failed;
    if (failed.ok()) wait_->sleep(deadline);
  }
}

// ---- Failures ----

Status GroupPlace::failure(Deadline deadline, Arena::Flag awaited) const {
  const RankMask ended = wait_->ended() & members_;
  if (ended != 0) return with_news(deadline, ended_error(ended));
  if (record_ && group_->arena_.outcome_of(*record_) == Arena::Outcome::closed) {
    return with_news(deadline, closed_error(*record_));
  }
  if (!deadline.passed()) return {};
  // The members that are not here yet have time left: this one ends because of other news.
  if (deadline.is_brought_forward()) return Status(Code::timeout, "shm: the set-up of " + facts_.id + " was ended");
  return close_without_late(awaited);
}

// The deadline is that of the set-up, which the news brings forward. That members were late is the reason itself.
Status GroupPlace::with_news(Deadline deadline, Status failure) const {
  const bool is_reason = failure.code() == Code::timeout;
  if (!is_reason && deadline.interrupt_fd() >= 0) wait_readable(-1, deadline.earlier(Deadline::after_seconds(kNews_s)));
  return failure;
}

const Member& GroupPlace::member_of(int group_rank) const {
  const auto found = std::ranges::find(facts_.group_of, group_rank) - facts_.group_of.begin();
  return facts_.members[static_cast<std::size_t>(found)];
}

Status GroupPlace::ended_error(RankMask ended) const {
  const Member& lost = member_of(first_of(ended));
  return Status::blame(lost.world_rank, lost.host_name, Code::peer_lost,
                       "shm: rank " + std::to_string(lost.world_rank) + " (" + lost.host_name + ", process " +
                           std::to_string(lost.process_id) + ") is gone: its process ended");
}

Status GroupPlace::closed_error(const Arena::Record& record) const {
  if (const auto late = group_->arena_.late_of(record, members_)) return late_error(*late);
  const int by = group_->arena_.closed_by(record);
  const bool is_member = by >= 0 && by < kMostRanksOfMask && (members_ & bit_of(by)) != 0;
  if (!is_member) return Status(Code::transport, "shm: another rank has ended the set-up of " + facts_.id);
  const Member& closer = member_of(by);
  return Status::blame(closer.world_rank, closer.host_name, Code::transport,
                       "shm: " + name_of(closer) + " has ended its part of the set-up of " + facts_.id);
}

// Each member could find others late than the next one does: the record has those that count. Without a record the
// first member is late, and no member knows of the others.
Status GroupPlace::close_without_late(Arena::Flag awaited) const {
  if (!record_) return late_error({bit_of(first()), awaited});
  Arena& arena = group_->arena_;
  const RankMask late = members_ & ~arena.with(*record_, members_, awaited);
  if (late == 0) return {};
  if (arena.close_without(*record_, late, awaited, mine()) == Arena::Outcome::made) return {};
  group_->ring(members_);
  return closed_error(*record_);
}

// The texts are those of the exchange over sockets and of the coordinator.
Status GroupPlace::late_error(const Arena::Late& late) const {
  std::string names;
  for (const int rank : each_of(late.ranks)) names += (names.empty() ? "" : ", ") + name_of(member_of(rank));
  const bool several = (late.ranks & (late.ranks - 1)) != 0;
  const Member& first_late = member_of(first_of(late.ranks));
  return Status::blame(
      first_late.world_rank, first_late.host_name, Code::timeout,
      late.awaited == Arena::kConfirmed
          ? names + (several ? " have" : " has") + " not finished " + (several ? "their" : "its") + " part in time"
          : "shm: " + names + " did not join the shared memory of " + facts_.id + " in time");
}

}  // namespace fdl
