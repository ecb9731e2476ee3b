// Runtime, part 7: set-ups of communicators with other ranks, which succeed on all of them or on none.
#include <algorithm>

#include "base/log.h"
#include "bootstrap/topology/topology.h"
#include "runtime/lifecycle/assemble.h"
#include "runtime/lifecycle/runtime.h"
#include "runtime/lifecycle/store_exchange.h"
#include "system/poller.h"

namespace fdl {
namespace {

// Ranks that have connected wait this much longer for the others: one that has not reports which rank it misses.
constexpr int64_t kLaterReport_ns = 1'000'000'000;

// The error of a wait for a word of another rank.
Status in_time(const Status& wait, const std::string& who) {
  return wait.code() == Code::timeout ? Status(Code::timeout, who + " has not finished its part in time") : wait;
}

}  // namespace

Result<Runtime::Connected> Runtime::connect(const std::string& id, const Members& members, int rank,
                                            std::function<void()> watch) {
  auto begun = begin_set_up(others(members), id);
  if (!begun.ok()) return begun.status().while_doing("connecting " + id);
  SetUp set_up = begun.take();
  StoreExchange exchange(*coordinator_client_, "comm");
  const Membership membership{.id = id,
                              .rank = rank,
                              .members = members,
                              .job_key = identity_.job_key,
                              .session_key = session_key_,
                              .key_is_secret = !identity_.job_key_is_derived,
                              .config = &config_,
                              .locations = locations_,
                              .memory = memory_,
                              .memory_group = memory_group_,
                              .tcp_connector = tcp_connector_,
                              .exchange = &exchange,
                              .deadline = set_up.deadline};
  const auto suspect = [this](Communicator& waiting, int64_t waited_ns) {
    check_interrupt(waiting);
    on_suspect(waiting, waited_ns);
  };
  const auto find_library = [devices = devices_.get()] { return devices->library(); };
  auto comm = assemble(membership, suspect, &tuning_.table, find_library, std::move(watch), options_.waiting);
  if (!comm.ok()) return outcome(set_up, comm.status()).while_doing("connecting " + id);
  return Connected{comm.take(), std::move(set_up)};
}

// A rank that has connected must not go on if another one fails in the rest of its set-up. The first member collects
// the others' words and answers all of them, so that the number of messages is that of the members. A communicator that
// was made in the members' memory needs no message.
Status Runtime::commit(const SetUp& set_up, Communicator& comm, const Status& own) {
  StoreExchange exchange(*coordinator_client_, set_up.comm + " made");
  const auto all_have = [&]() -> Status {
    FDL_RETURN_IF_ERROR(own);
    if (comm.can_confirm()) return comm.confirm(set_up.deadline.shifted_by_ns(kLaterReport_ns));
    if (comm.rank() > 0) {
      FDL_RETURN_IF_ERROR(exchange.publish_for(1, std::to_string(comm.rank()), "1"));
      const Deadline last = set_up.deadline.shifted_by_ns(2 * kLaterReport_ns);
      return in_time(exchange.fetch("all", last).status(), "some rank");
    }
    std::vector<int> others;
    for (int rank = 1; rank < comm.size(); ++rank) others.push_back(rank);
    const auto words = exchange.fetch_many("", others, set_up.deadline.shifted_by_ns(kLaterReport_ns));
    FDL_RETURN_IF_ERROR(in_time(words.status(), "some rank"));
    if (!words->missing.empty()) {
      const Member& late = comm.members()[static_cast<std::size_t>(words->missing.front())];
      return in_time(Status(Code::timeout, ""), name_of(late));
    }
    return comm.size() == 1 ? ok_status() : exchange.publish_for(comm.size() - 1, "all", "1");
  };
  const Status status = all_have();
  if (status.ok()) return status;
  const Status failed = outcome(set_up, status);
  // A rank can abort the communicator only after all ranks have connected. Here the abort, which is the decision on it,
  // overtook the message that says so: the communicator exists, and its first call returns the abort.
  if (own.ok() && failed.code() == Code::aborted && !set_up.watch->is_interrupted()) return {};
  return failed.while_doing("connecting " + set_up.comm);
}

// While a set-up is watched, the progress thread probes its ranks, so that one that is stopped is found too.
Result<Runtime::SetUp> Runtime::begin_set_up(const std::vector<int>& others, const std::string& comm) {
  auto watched = coordinator_client_->watch(others, comm);
  if (!watched.ok()) return comm.empty() ? watched.status() : report_own(comm, watched.status());
  const std::shared_ptr<SetupWatch> watch = watched.take();
  if (options_.interrupted) watch->end_when(options_.interrupted, interrupted());
  const Deadline deadline = Deadline::after_seconds(config_.start_timeout_s).interrupted_by(watch->interrupt());
  progress_thread_->watch();
  return SetUp{watch, deadline, comm};
}

Status Runtime::interrupted() const {
  return Status(Code::aborted, "its program was interrupted while it waited for the other ranks");
}

// The failure with this rank's name, for the other ranks. In the start the members may not be known yet.
Status Runtime::as_of_this_rank(const Status& failure) const {
  const auto rank = static_cast<std::size_t>(identity_.rank);
  const Member me = rank < members_.size()
                        ? members_[rank]
                        : Member{.world_rank = identity_.rank, .host_id = {}, .host_name = host_facts().host_name};
  std::string text(failure.text());
  if (text.find(name_of(me)) == std::string::npos) text = name_of(me) + ": " + text;
  return Status::blame(me.world_rank, me.host_name, failure.code(), text);
}

// The other ranks, which wait for this one in the set-up, get its error as the failure decision.
Status Runtime::report_own(const std::string& comm, const Status& failure) {
  coordinator_client_->report(comm, as_of_this_rank(failure));
  return failure;
}

// An error that concerns this rank alone stays: the cause is here, and not in the rank that has gone meanwhile. The end
// of the coordinator is none: its rank may have ended because of another one that was lost before. A connection that
// breaks is often noticed before the coordinator's news of the rank that was at its other end. In the start, a rank
// that left in good order has often failed for a reason that it told the others, so an error of the transport stays;
// later it has reported such a reason, which is the decision, and an error of the transport may name a rank that has
// given up because of the one that left. While the coordinator does not answer, it may be the cause: another rank that
// finds this first leaves first.
Status Runtime::outcome(const SetUp& set_up, const Status& failure) {
  FDL_RETURN_IF_ERROR(usable());  // another thread has ended this world
  const bool is_own = failure.code() != Code::timeout && failure.code() != Code::transport &&
                      failure.code() != Code::peer_lost && failure.code() != Code::authentication;
  const Status told = set_up.watch->why();
  if (set_up.watch->is_interrupted()) return set_up.comm.empty() ? told : report_own(set_up.comm, told);
  if (failure.code() == Code::shut_down && !told.ok()) return report_departure(set_up, told);
  if (is_own) return set_up.comm.empty() ? failure : report_own(set_up.comm, failure);
  const Deadline limit = decision_deadline(config_);
  coordinator_client_->probe({});
  do {
    wait_readable(set_up.watch->interrupt().fd, limit.earlier(Deadline::after_seconds(config_.suspect_after_s)));
  } while (set_up.watch->why().ok() && coordinator_client_->has_open_probe() && !limit.passed());
  if (set_up.watch->why().ok() && !set_up.comm.empty() && failure.code() != Code::authentication) {
    request_decision(set_up, failure, limit);
  }
  const Status gone = set_up.watch->why();
  // The others could only say that this rank had left. Its own reason came too late to become the decision.
  const bool names_this_rank = !gone.ok() && gone.error().culprit_rank == identity_.rank;
  if (names_this_rank && gone.code() != Code::peer_lost && gone.text() != failure.text()) {
    log_warning("rank {}: the other ranks name this one, which had failed with: {}", identity_.rank, failure.text());
  }
  const bool is_told = set_up.comm.empty() && gone.code() == Code::shut_down && failure.code() == Code::transport;
  return gone.ok() || is_told ? failure : report_departure(set_up, gone);
}

// A rank that begins this set-up later may know more: another one may have ended meanwhile because of this failure. So
// the end of a rank that left in good order becomes the decision for all; a loss is news that comes first anyway.
Status Runtime::report_departure(const SetUp& set_up, const Status& gone) {
  if (gone.code() == Code::shut_down && !set_up.comm.empty()) coordinator_client_->report(set_up.comm, gone);
  return gone;
}

// No rank is gone, but some members cannot connect. They run into the time limit, each with a text of its own, and
// others find that these have closed their connections. All return the decision of the coordinator.
void Runtime::request_decision(const SetUp& set_up, const Status& failure, Deadline limit) {
  coordinator_client_->report(*set_up.watch, failure);
  progress_thread_->watch();
  while (set_up.watch->why().ok() && !limit.passed()) wait_readable(set_up.watch->interrupt().fd, limit);
}

int64_t Runtime::watch_set_ups(int64_t now_ns) { return coordinator_client_->probe_watched(now_ns); }

// Ends a group that some member could not make. Nothing has been submitted to it.
void Runtime::withdraw(Group& group, const Status& why) {
  const std::shared_ptr<Group> kept = unlist(group);
  if (kept == nullptr) return;
  static_cast<void>(progress_thread_->call([&] {
    kept->named().fail_all(why);
    progress_thread_->remove(*kept);
  }));
}

}  // namespace fdl
