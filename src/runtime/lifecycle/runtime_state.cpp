// Runtime, part 8: answers users who ask what this rank does, in the thread that owns progress.
#include <algorithm>
#include <limits>

#include "engine/late_ranks.h"
#include "runtime/lifecycle/runtime.h"

namespace fdl {
namespace {

// How long the threads that drive communicators may take to answer. They do so at once unless the host is overloaded.
constexpr int64_t kDriverAnswer_ns = 500'000'000;
// The pause before the first look for their answers; it doubles.
constexpr int64_t kFirstPause_ns = 2'000'000;

constexpr const char* kNoStacks = "the program has not given its stacks in time: native code may hold its interpreter";

void add(RankState& state, const std::string& comm, InFlight flight) {
  if (!flight.any) return;
  state.add_operation(
      {comm, std::move(flight.operation), std::move(flight.phase), std::move(flight.ranks), flight.waited_ns});
}

}  // namespace

// Named operations and submitted calls belong to this thread. Other communicators belong to the threads that wait in
// their calls, which are asked.
void Runtime::begin_state_answer(uint64_t id, bool with_stacks) {
  const int64_t now = now_ns();
  StateQuery query{.id = id,
                   .state = {},
                   .asked = {},
                   .awaits_stacks = false,
                   .pause_ns = kFirstPause_ns,
                   .next_ns = now + kFirstPause_ns,
                   .until_ns = now + kDriverAnswer_ns};
  describe_comms(query);
  for (const auto& group : all_groups()) {
    group->named().describe(group->id(), group->still_for_ns(now), query.state);
  }
  if (with_stacks) {
    if (!stack_reader_) stack_reader_ = std::make_unique<StackReader>(options_.stacks);
    query.awaits_stacks = stack_reader_->begin();
  }
  if (query.asked.empty() && !query.awaits_stacks) return coordinator_client_->reply_state(id, query.state);
  progress_thread_->watch_by(query.next_ns);
  state_queries_.push_back(std::move(query));
}

// A communicator that never had a message and has no collective in flight needs no answer.
void Runtime::describe_comms(StateQuery& query) {
  const int64_t now = now_ns();
  MutexLock lock(mutex_);
  query.state.begun_ordered = begun_before_;
  for (OrderedComm* one : comms_) {
    Communicator& comm = *one->comm;
    query.state.begun_ordered += comm.begun();
    if (OrderedCalls* calls = one->calls; calls != nullptr) {
      if (!calls->waits()) continue;
      InFlight flight = comm.in_flight();
      if (flight.waited_ns < 0) flight.waited_ns = calls->still_for_ns(now);
      add(query.state, comm.id(), std::move(flight));
    } else if (comm.unfinished() > 0 || comm.has_messages()) {
      query.asked.push_back({comm.id(), comm.ask_in_flight()});
    }
  }
}

// Operations of a communicator that no thread drives at present were started as requests.
void Runtime::add_undriven(RankState& state, const Communicator& comm) const {
  const std::string phase = "started as a request, no thread waits for it";
  if (history_ == nullptr) {
    if (comm.unfinished() > 0) state.add_operation({comm.id(), "collective", phase, {}, -1});
    return;
  }
  history_->visit_unfinished(comm.history_group(), [&](const HistoryCall& call, int64_t age_ns) {
    if (call.kind < kCollectiveCount) {
      const std::string kind(name_of(static_cast<Collective>(call.kind)));
      return state.add_operation({comm.id(), kind, phase, {}, age_ns});
    }
    const Member& peer = comm.members()[static_cast<std::size_t>(call.root)];
    state.add_operation({comm.id(), call.kind == kHistorySend ? "send" : "recv", phase, {peer.world_rank}, age_ns});
  });
}

// Takes the answers that have come. Returns whether the state is complete.
bool Runtime::collect_state(StateQuery& query, int64_t now_ns) {
  if (query.awaits_stacks) {
    std::optional<std::string> stacks = stack_reader_->find();
    query.awaits_stacks = !stacks && now_ns < query.until_ns;
    if (!query.awaits_stacks) query.state.stacks = std::move(stacks).value_or(kNoStacks);
  }
  MutexLock lock(mutex_);
  std::erase_if(query.asked, [&](const StateQuery::Asked& asked) FDL_REQUIRES(mutex_) {
    OrderedComm* one = comm_of(asked.comm);
    if (one == nullptr) return true;
    std::optional<InFlight> flight = one->comm->find_in_flight(asked.question);
    if (flight) {
      add(query.state, asked.comm, std::move(*flight));
    } else if (now_ns < query.until_ns) {
      return false;
    } else {
      add_undriven(query.state, *one->comm);
    }
    return true;
  });
  return query.asked.empty() && !query.awaits_stacks;
}

// Sends the states that are complete. Returns the moment of the next look.
int64_t Runtime::answer_states(int64_t now_ns) {
  int64_t next = std::numeric_limits<int64_t>::max();
  std::erase_if(state_queries_, [&](StateQuery& query) {
    if (now_ns >= query.next_ns) {
      if (collect_state(query, now_ns)) {
        coordinator_client_->reply_state(query.id, query.state);
        return true;
      }
      query.pause_ns *= 2;
      query.next_ns = std::min(now_ns + query.pause_ns, query.until_ns);
    }
    next = std::min(next, query.next_ns);
    return false;
  });
  return next;
}

}  // namespace fdl
