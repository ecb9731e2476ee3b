// Runtime, part 1: stop, groups, the coordinator's events and named operations.
#include "runtime/lifecycle/runtime.h"

#include <sys/mman.h>

#include <algorithm>

#include "agree/wire/wire.h"
#include "base/log.h"
#include "runtime/group/group_making.h"
#include "runtime/lifecycle/assemble.h"
#include "runtime/lifecycle/store_exchange.h"
#include "system/poller.h"

namespace fdl {
namespace {

// How long a rank that leaves goes on with buckets that are already agreed upon.
constexpr int64_t kFarewellNs = 2'000'000'000;

// The kernel zeroes this page in a forked child. So a load detects a fork, and no pthread_atfork handler is installed.
constexpr std::size_t kPageBytes = 4096;

std::atomic<bool>* make_fork_witness() {
  void* page = ::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  FDL_CHECK(page != MAP_FAILED);
  FDL_CHECK(::madvise(page, kPageBytes, MADV_WIPEONFORK) == 0);
  return new (page) std::atomic<bool>(true);
}

}  // namespace

Runtime::Runtime() : alive_here_(make_fork_witness()) {}

Runtime::~Runtime() {
  if (is_forked_child()) {
    // A forked child has none of our threads: it must not join them, nor touch the parent's sockets.
    if (coordinator_thread_.joinable()) coordinator_thread_.detach();
    static_cast<void>(progress_thread_.release());
    new std::shared_ptr<TcpConnector>(std::move(tcp_connector_));
    static_cast<void>(coordinator_client_.release());
    static_cast<void>(coordinator_.release());
    static_cast<void>(timeline_.release());
    static_cast<void>(metrics_server_.release());
    static_cast<void>(history_.release());
    static_cast<void>(stack_reader_.release());
    // Intentionally leaked: ending a group would touch the parent's sockets and shared memory. No lock is taken: a
    // thread of the parent may have held it at the fork.
    for (auto& group : groups_) new std::shared_ptr<Group>(std::move(group));
    return;
  }
  shut_down();
  ::munmap(alive_here_, kPageBytes);
}

Status Runtime::usable() const {
  if (is_forked_child()) {
    return Status(
        Code::not_initialized,
        "this process was forked after farandole was initialized; initialize it in the child, or fork before");
  }
  if (shut_down_.load(std::memory_order_relaxed)) {
    return Status(Code::shut_down, "rank " + std::to_string(identity_.rank) + " has shut farandole down");
  }
  return {};
}

// ---- stop ----
// The order matters: agreed work is finished first, then the timeline, then the other ranks are notified, then the
// threads end.

void Runtime::shut_down() {
  if (shut_down_.exchange(true)) return;
  leave(Status(Code::shut_down, "rank " + std::to_string(identity_.rank) + " has shut farandole down"), kFarewellNs);
  recovery_.listener.reset();
  // A start that has failed has failed on all ranks, and no rank waits for another one.
  const double patience_s = all_ == nullptr ? Coordinator::kAnnounceEnd_s : config_.lost_after_s;
  // The process may end after this call, and a message that was lost on its way would not be sent again.
  if (coordinator_client_ && !coordinator_client_->wait_until_left(Deadline::after_seconds(patience_s))) {
    log_warning(
        "rank {}: the coordinator has not confirmed within {:g} s that this rank has ended; the other ranks may "
        "be told that it was lost",
        identity_.rank, patience_s);
  }
  // The other ranks may still need the coordinator to detect failures; this rank waits for them only a short while.
  if (coordinator_) coordinator_->wait_until_empty(Deadline::after_ns(kFarewellNs));
  end_coordinator(patience_s);
}

// The coordinator client stays until the end: a thread that waits in a communicator may still probe peers with it.
void Runtime::leave(const Status& why, int64_t farewell_ns) {
  if (coordinator_client_) coordinator_client_->end_set_ups(why);
  if (progress_thread_) {
    progress_thread_->call([&] {
      has_left_ = true;
      const Deadline deadline = Deadline::after_ns(farewell_ns);
      const auto groups = all_groups();  // without the lock: callbacks of handles may call farandole
      // Prepare all groups before draining one: while one is drained, the others are not driven.
      for (const auto& group : groups) group->named().prepare_to_leave();
      for (const auto& group : groups) {
        progress_thread_->drain(*group, deadline);
        group->named().leave(why);
        progress_thread_->remove(*group);
      }
    });
    end_ordered_calls(why);
  }
  report_traffic();
  {
    MutexLock lock(timeline_mutex_);
    static_cast<void>(finish_timeline());  // logs its failures
  }
  if (coordinator_client_) coordinator_client_->leave();
  interrupt_comms([](const Communicator&) { return true; }, why);
  if (progress_thread_) progress_thread_->end();
  stack_reader_.reset();
  if (tcp_connector_) stop_connector(*tcp_connector_);
  failure_decisions_.close();
  metrics_server_.reset();
  MutexLock lock(mutex_);
  for (auto& group : groups_) group->comm().interrupt(why);
}

void Runtime::end_coordinator(double patience_s) {
  if (!coordinator_) return;
  coordinator_->stop(patience_s);
  if (coordinator_thread_.joinable()) coordinator_thread_.join();
  coordinator_.reset();
}

// ---- groups ----

// A group of all ranks in their order shares the world's list.
Members Runtime::members_with(const std::vector<int>& world_ranks) const {
  std::size_t in_place = 0;
  while (in_place < world_ranks.size() && world_ranks[in_place] == static_cast<int>(in_place)) ++in_place;
  if (in_place == members_.size()) return members_;
  std::vector<Member> members;
  for (const int rank : world_ranks) members.push_back(members_[static_cast<std::size_t>(rank)]);
  return members;
}

Result<Group*> Runtime::open_group(std::string id, const std::vector<int>& world_ranks) {
  const Members members = members_with(world_ranks);
  const int mine = static_cast<int>(std::ranges::find(world_ranks, identity_.rank) - world_ranks.begin());
  FDL_ASSIGN_OR_RETURN(auto connected, connect("group " + id, members, mine));
  const bool is_world = members.size() == members_.size();
  OrderTuning tuning = order_tuning(config_, tuning_, connected.comm->shape(), is_world && mine == 0);
  auto group = std::make_shared<Group>(std::move(id), mine, members, std::move(connected.comm), config_, memory_,
                                       std::move(tuning), launch_turns_);
  Group* opened = group.get();
  opened->named().count_with(metrics_of(*opened));
  if (history_) opened->named().record_in(*history_, opened->id());
  opened->named().report_stalls_to(
      [this, comm = opened->comm().id()](const Stall& stall) { report_stall(comm, stall.text, stall.names); });
  Status added;
  // leave() ends all groups that are listed, in the same thread: one that is driven must be among them.
  const bool has_run = progress_thread_->call([&] {
    added = has_left_ ? already_shut_down() : progress_thread_->add(*opened);
    if (has_left_) return;
    if (traced_by_ != nullptr)
      opened->named().trace_with(traced_by_->trace(opened->id(), opened->rank(), opened->size()));
    MutexLock lock(mutex_);
    groups_.push_back(group);
  });
  if (!has_run) return already_shut_down();
  const Status made = commit(connected.set_up, opened->comm(), added);
  if (made.ok()) return opened;
  withdraw(*opened, made);
  return made;
}

Result<Group*> Runtime::make_group(const std::vector<int>& world_ranks) {
  FDL_RETURN_IF_ERROR(usable());
  FDL_RETURN_IF_ERROR(may_wait());
  std::vector<int> sorted = world_ranks;
  std::sort(sorted.begin(), sorted.end());
  const auto refuse = [&](const std::string& why) {
    return Status(Code::invalid_argument, "ranks " + id_of_ranks(world_ranks) + ": " + why);
  };
  if (sorted.empty()) return refuse("a group needs at least one rank");
  if (sorted.front() < 0 || sorted.back() >= facts_.size) {
    return refuse("ranks of this world are 0 to " + std::to_string(facts_.size - 1));
  }
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) return refuse("a rank is named twice");
  if (!std::binary_search(sorted.begin(), sorted.end(), identity_.rank)) {
    return refuse("rank " + std::to_string(identity_.rank) + " is no member; only members make a group");
  }
  int number = 0;
  {
    MutexLock lock(mutex_);
    number = groups_of_ranks_[world_ranks]++;
  }
  return open_group(id_of_ranks(world_ranks) + " #" + std::to_string(number), world_ranks);
}

Result<Group*> Runtime::split(Group& group, int color, int key) {
  FDL_RETURN_IF_ERROR(usable());
  FDL_RETURN_IF_ERROR(may_wait());
  const std::string id = group.id() + " split " + std::to_string(group.next_number());
  StoreExchange exchange(*coordinator_client_, id);
  FDL_ASSIGN_OR_RETURN(const SetUp set_up, begin_set_up(others(group.members()), id));
  const auto chosen = exchange_colors(group.members(), group.rank(), {color, key}, exchange, set_up.deadline);
  // The others may have failed without this rank, which finds the choices that they have left. One that is gone may
  // have finished its part before.
  const Status complete = chosen.ok() ? set_up.watch->decision() : outcome(set_up, chosen.status());
  if (!complete.ok()) return complete.while_doing("splitting group " + group.id());
  if (color < 0) return static_cast<Group*>(nullptr);
  std::vector<int> ranks;
  for (const int rank : *chosen) ranks.push_back(group.members()[static_cast<std::size_t>(rank)].world_rank);
  return open_group(id + " color " + std::to_string(color), ranks);
}

// Removes the group from the list of groups. Null if another thread has.
std::shared_ptr<Group> Runtime::unlist(Group& group) {
  MutexLock lock(mutex_);
  const auto found = std::ranges::find(groups_, &group, &std::shared_ptr<Group>::get);
  if (found == groups_.end()) return nullptr;
  std::shared_ptr<Group> kept = std::move(*found);
  groups_.erase(found);
  return kept;
}

// A callback may run while the group is driven, so there the group ends in a task of its own, after the callback.
void Runtime::end(Group& group) {
  const std::shared_ptr<Group> kept = unlist(group);
  if (kept == nullptr) return;
  const auto end_it = [this, kept] {
    kept->named().prepare_to_leave();
    progress_thread_->drain(*kept, Deadline::after_ns(kFarewellNs));
    kept->named().leave(Status(Code::shut_down, "the group " + kept->id() + " has been destroyed"));
    progress_thread_->remove(*kept);
  };
  // While another thread is in shut_down() the group is still driven. If the task is refused, nothing drives it any
  // more.
  if (progress_thread_->drives_here()) {
    static_cast<void>(progress_thread_->post(end_it));
  } else if (!is_forked_child()) {
    static_cast<void>(progress_thread_->call(end_it));
  }
}

std::vector<std::shared_ptr<Group>> Runtime::all_groups() {
  MutexLock lock(mutex_);
  return groups_;
}

// ---- events of the coordinator (in the thread that owns progress) ----

void Runtime::on_event(const CoordinatorEvent& event) {
  const auto groups = all_groups();  // keeps them: another thread may end a group meanwhile
  const auto has_rank = [&](const std::vector<Member>& members) {
    return std::any_of(members.begin(), members.end(),
                       [&](const Member& member) { return member.world_rank == event.rank; });
  };
  log_debug("coordinator: {}", event.why.text());
  switch (event.kind) {
    case CoordinatorEvent::Kind::lost:
      for (const auto& group : groups) {
        if (has_rank(group->members())) group->named().fail_all(event.why);
      }
      interrupt_comms([&](const Communicator& comm) { return has_rank(comm.members()); }, event.why);
      break;
    case CoordinatorEvent::Kind::left:
      for (const auto& group : groups) {
        if (const int rank = group->rank_of(event.rank); rank >= 0) group->named().depart(rank, event.why);
      }
      break;
    case CoordinatorEvent::Kind::comm_failed:
      for (const auto& group : groups) {
        if (group->comm().id() == event.comm) group->named().fail_all(event.why);
      }
      interrupt_comms([&](const Communicator& comm) { return comm.id() == event.comm; }, event.why);
      break;
    case CoordinatorEvent::Kind::silent:
    case CoordinatorEvent::Kind::answers_again:
      log_warning("rank {}: {}", identity_.rank, event.why.text());
      break;
    case CoordinatorEvent::Kind::stalled:
      if (event.rank != identity_.rank)
        log_info("rank {}: reported by rank {}: {}", identity_.rank, event.rank, event.why.text());
      note_stall(event);
      if (options_.stalled) options_.stalled(std::string(event.why.text()));
      break;
    case CoordinatorEvent::Kind::progress_query:
      answer_device_query(event);
      break;
    case CoordinatorEvent::Kind::state_query:
      begin_state_answer(event.query, event.with_stacks);
      break;
    case CoordinatorEvent::Kind::sends_query:
      answer_sends_query(event);
      break;
    case CoordinatorEvent::Kind::sends_reply:
      take_sends_reply(event);
      break;
    case CoordinatorEvent::Kind::progress_reply:
      take_device_answer(event);
      break;
    case CoordinatorEvent::Kind::coordinator_lost:
      // After an orderly stop of the coordinator the groups go on: communicators detect lost peers by themselves.
      if (event.why.code() == Code::shut_down) {
        for (const auto& group : groups) group->named().end_decisions();
      } else {
        for (const auto& group : groups) group->named().fail_all(event.why);
        interrupt_comms([](const Communicator&) { return true; }, event.why);
      }
      failure_decisions_.close();  // last: a rank that waits for a decision gets the one above
      break;
  }
}

// For an operation that passed usable() before another thread shut the world down.
Status Runtime::already_shut_down() { return Status(Code::shut_down, "farandole has been shut down"); }

// ---- named operations ----

Status Runtime::submit(Group& group, std::vector<Entry> entries) {
  FDL_RETURN_IF_ERROR(usable());
  if (metrics_ || stamps_entries_.load(std::memory_order_relaxed)) stamp_entries(entries);
  if (progress_thread_->submit(group, std::move(entries))) return {};
  return already_shut_down();
}

Status Runtime::submit_and_wait(Group& group, std::vector<Entry> entries, Handle& handle, Deadline deadline) {
  FDL_RETURN_IF_ERROR(usable());
  FDL_RETURN_IF_ERROR(may_wait());
  if (metrics_ || stamps_entries_.load(std::memory_order_relaxed)) stamp_entries(entries);
  if (progress_thread_->submit_and_wait(group, std::move(entries), handle, deadline)) return {};
  return already_shut_down();
}

Result<bool> Runtime::wait(Handle& handle, Deadline deadline) {
  if (handle.done()) return true;
  if (is_forked_child()) return usable();
  FDL_RETURN_IF_ERROR(may_wait());
  return progress_thread_->wait(handle, deadline);
}

// A thread that waits for the handle may be asleep as the owner of progress.
void Runtime::complete(Handle& handle) {
  handle.finish_one({});
  if (!is_forked_child() && !progress_thread_->drives_here()) static_cast<void>(progress_thread_->post([] {}));
}

Result<std::shared_ptr<DevicePlace>> Runtime::device_place(Group& group, int kind, int index, Stream stream) {
  FDL_ASSIGN_OR_RETURN(auto used, device(kind, index));
  if (!group.claim_device(int64_t{kind} << 32 | index)) {
    return Status(Code::invalid_argument, "rank " + std::to_string(facts_.rank) + ": tensors of group '" + group.id() +
                                              "' lie on another device than " + std::string(used->device().name()) +
                                              "; a group works on one device a rank: make another group for this one");
  }
  if (group.is_first_on_device()) prepare_staging(*used);
  return DevicePlace::make(std::move(used), stream);
}

// The ranks agree on the allocation as on a broadcast. A rank that cannot use its device takes part as well, so that
// the others do not wait for it.
Result<GroupMemory> Runtime::allocate_symmetric(Group& group, int kind, int index, Stream stream, std::size_t bytes) {
  FDL_RETURN_IF_ERROR(usable());
  const auto handle = std::make_shared<Handle>(1);
  Entry entry{.handle = handle, .allocates_symmetric = true};
  entry.request.kind = RequestKind::broadcast;
  entry.request.name = "device memory " + std::to_string(group.next_memory());
  entry.request.dtype = Dtype::uint8;
  entry.request.shape = {static_cast<int64_t>(bytes)};
  entry.request.root = 0;
  auto place = device_place(group, kind, index, stream);
  if (place.ok()) {
    entry.place = place.take();
    entry.request.device = kind;
  }
  FDL_RETURN_IF_ERROR(check_request(entry.request));
  std::vector<Entry> entries;
  entries.push_back(std::move(entry));
  FDL_RETURN_IF_ERROR(submit_and_wait(group, std::move(entries), *handle, Deadline::never()));
  if (!place.ok()) return place.status();
  FDL_RETURN_IF_ERROR(handle->status());
  FDL_RETURN_IF_ERROR(handle->order_streams());
  SymmetricAllocation& allocation = handle->output(0).symmetric_allocation;
  group.symmetric_places()->add(allocation);
  return GroupMemory{devices_, group.symmetric_places(), std::move(allocation.memory)};
}

Status Runtime::may_wait() const {
  if (!progress_thread_->drives_here()) return {};
  return Status(Code::invalid_argument, "a callback of a handle must not wait for an operation that is in flight");
}

Runtime::NamedCounts Runtime::count_named() {
  NamedCounts counts;
  if (!usable().ok()) return counts;
  progress_thread_->call([&] {
    for (const auto& group : all_groups()) {
      const NamedOperations::Counts of_group = group->named().counts();
      counts.operations += of_group.operations;
      counts.buckets += of_group.buckets;
      counts.control_messages += of_group.control_messages;
      counts.locked_steps += of_group.locked_steps;
      counts.lock_epochs += of_group.lock_epochs;
    }
  });
  return counts;
}

}  // namespace fdl
