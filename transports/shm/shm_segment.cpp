// Setup runs the exchange behind share_segment() and share_sparse(): as the leader, which creates the segment, or as a
// member that joins it.
#include "transports/shm/shm_segment.h"

#include <poll.h>
#include <sys/socket.h>

#include <charconv>
#include <cstring>
#include <list>
#include <optional>

#include "system/handshake.h"
#include "system/poller.h"
#include "system/socket.h"
#include "transports/shm/memory_group/lives_watch.h"
#include "transports/shm/set_up/shm_caller.h"
#include "transports/shm/set_up/shm_decision.h"
#include "transports/shm/shm_mappings.h"

namespace fdl {
namespace {

constexpr double kHandshakeSeconds = 10;    // limit for one connection's handshake
constexpr std::size_t kMostCallers = 4096;  // connections in their handshake; the oldest one is closed for a new one
// Members wait this much longer than the deadline, so that the leader's error with the missing ranks reaches them.
constexpr double kDecisionSeconds = 1;
// Sparse segments only. The leader publishes kNone and a reason instead of an address; a member that has mapped the
// segment answers kMapped.
constexpr std::string_view kNone = "none: ";
constexpr std::byte kMapped{1};
constexpr int kRetryAcceptMs = 20;

class Setup {
 public:
  Setup(const Membership& membership, const std::vector<int>& members, std::string_view purpose)
      : membership_(membership), members_(members), purpose_("shm " + membership.id + " " + std::string(purpose)) {
    // The key names the lowest member too, because several hosts of one communicator have segments of their own.
    key_ = membership.id + "/shm/" + std::string(purpose) + "/" + std::to_string(members.front());
    share_.members.reserve(members.size());
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (members[i] == membership.rank) share_.index = static_cast<int>(i);
      share_.members.push_back(membership.members[static_cast<std::size_t>(members[i])]);
    }
  }

  // Shares a segment with doorbells and liveness descriptors.
  Result<ShmShare> run(std::size_t bytes) {
    FDL_ASSIGN_OR_RETURN(doorbell_, take_doorbell());
    FDL_ASSIGN_OR_RETURN(liveness_, make_liveness());
    share_.lives.reserve(members_.size());
    share_.doorbells.reserve(members_.size());
    if (share_.index == 0) {
      FDL_RETURN_IF_ERROR(lead(bytes));
    } else {
      FDL_RETURN_IF_ERROR(follow());
    }
    share_.own_life = std::move(liveness_.kept);
    share_.bytes = share_.segment->bytes().size();
    return std::move(share_);
  }

  // Shares a sparse segment alone. The code `unsupported` means that no member has it, and that all know this.
  Result<std::shared_ptr<SharedSegment>> run_sparse(std::size_t bytes) {
    passed_ = 0;
    FDL_RETURN_IF_ERROR(share_.index == 0 ? lead_sparse(bytes) : follow_sparse());
    return std::move(share_.segment);
  }

  // Shares a sparse segment, so many doorbells of each member, and the liveness descriptors; else as run_sparse().
  Result<GroupMeeting> run_meeting(std::size_t bytes, std::size_t backed_bytes, std::size_t doorbells) {
    backed_bytes_ = backed_bytes;
    passed_ = doorbells + 1;
    for (std::size_t i = 0; i < doorbells; ++i) {
      FDL_ASSIGN_OR_RETURN(Event event, Event::make());
      doorbells_.push_back(std::make_shared<Doorbell>(Doorbell{0, std::move(event)}));
    }
    FDL_ASSIGN_OR_RETURN(liveness_, make_liveness());
    FDL_RETURN_IF_ERROR(share_.index == 0 ? lead_sparse(bytes) : follow_sparse());
    meeting_.segment = std::move(share_.segment);
    meeting_.own_life = std::move(liveness_.kept);
    return std::move(meeting_);
  }

 private:
  int size() const { return static_cast<int>(members_.size()); }

  // ---- The leader ----
  // Wire protocol, per connection: handshake, then (member to leader) the id of its doorbell, the doorbell and the
  // liveness descriptor, then (leader to member) a decision: a length of 0 for success, else the length of an error
  // text and the text. After a success the leader sends the ids of all doorbells and the segment, then the doorbell and
  // the liveness descriptor of each member in order.
  Status lead(std::size_t bytes) {
    auto segment = SharedSegment::create_on_demand(bytes);
    if (!segment.ok()) {
      return segment.status().while_doing("reserving " + std::to_string(bytes >> 10) + " KiB of shared memory for " +
                                          std::to_string(size()) + " ranks (see FARANDOLE_SHM_BYTES)");
    }
    share_.segment = keep_mapping(segment.take());
    FDL_RETURN_IF_ERROR(assemble_members());
    std::vector<int> fds{share_.segment->fd(), doorbell_->event.fd(), liveness_.watched.get()};
    doorbell_ids_.front() = doorbell_->id;
    for (std::size_t i = 1; i < members_.size(); ++i) {
      fds.push_back(received_fds_[i][0].get());
      fds.push_back(received_fds_[i][1].get());
    }
    send_to_members(fds, doorbell_ids_);

    for (std::size_t i = 0; i < members_.size(); ++i) {
      const bool mine = i == 0;
      share_.doorbells.push_back(mine ? doorbell_ : keep_doorbell(doorbell_ids_[i], std::move(received_fds_[i][0])));
      share_.lives.push_back(mine ? nullptr : lives_.share(std::move(received_fds_[i][1])));
    }
    return {};
  }

  int followers() const { return static_cast<int>(members_.size()) - 1; }

  // Listens and accepts all members. On failure, those that have connected get the error.
  Status assemble_members() {
    FDL_ASSIGN_OR_RETURN(const Listening listening, listen_unix());
    FDL_RETURN_IF_ERROR(membership_.exchange->publish_for(followers(), key_, listening.addresses.front().text));
    sockets_.resize(members_.size());
    received_fds_.resize(members_.size());
    doorbell_ids_.resize(members_.size());
    arrived_.resize(members_.size());
    const Status gathered = gather(listening.fd.get());
    return gathered.ok() || goes_on_without(gathered) ? gathered : refuse(gathered);
  }

  // Whether all members were told already that they go on without the segment.
  bool goes_on_without(const Status& gathered) const { return is_sparse_ && gathered.code() == Code::unsupported; }

  // A leader that cannot create the segment publishes the reason under the key of its address.
  Status lead_sparse(std::size_t bytes) {
    is_sparse_ = true;
    auto segment = SharedSegment::create_sparse(bytes);
    if (segment.ok() && backed_bytes_ > 0) {
      if (const Status backed = segment->commit(0, backed_bytes_); !backed.ok()) segment = backed;
    }
    if (!segment.ok()) {
      FDL_RETURN_IF_ERROR(
          membership_.exchange->publish_for(followers(), key_, std::string(kNone) + segment.status().text()));
      return Status(Code::unsupported, segment.status().text());
    }
    share_.segment = keep_mapping(segment.take());
    FDL_RETURN_IF_ERROR(assemble_members());
    std::vector<int> fds{share_.segment->fd()};
    const std::vector<int> mine = passed_by_me();
    fds.insert(fds.end(), mine.begin(), mine.end());
    for (const auto& received : received_fds_) {
      for (const UniqueFd& fd : received) fds.push_back(fd.get());
    }
    send_to_members(fds);
    if (const Status own = take_meeting(std::move(received_fds_)); !own.ok()) {
      return refuse(Status(Code::unsupported, own.text()));
    }
    for (std::size_t i = 1; i < members_.size(); ++i) {
      // All members must be able to map the segment, or none uses it.
      const std::string limits = passed_ > 0 ? "ulimit -v and ulimit -n" : "FARANDOLE_MEMORY_BYTES and ulimit -v";
      std::byte mapped{0};
      const Status answered = read_all(sockets_[i].get(), std::span(&mapped, 1), membership_.deadline);
      if (answered.ok() && mapped == kMapped) continue;
      return refuse(Status(Code::unsupported, "shm: " + membership_.name_of(members_[i]) + " cannot map " +
                                                  std::to_string(bytes >> 20) + " MiB of address space (see " + limits +
                                                  ")"));
    }
    approve();
    return {};
  }

  // All handshakes run at once, so that a silent connection delays no member. If this process has too few descriptors
  // for a sparse segment, it sends each member a refusal once that member has proved the key, and disconnects it.
  Status gather(int listening_fd) {
    std::list<ShmCaller> callers;
    for (int missing = size() - 1; missing > 0;) {
      if (membership_.deadline.passed()) return missing_members_error();
      // A queue that this process cannot accept from stays readable.
      const bool pauses = std::exchange(cannot_accept_, false);
      std::vector<pollfd> waits{{pauses ? -1 : listening_fd, POLLIN, 0},
                                {membership_.deadline.interrupt_fd(), POLLIN, 0}};
      Deadline until = membership_.deadline;
      if (pauses) until = until.earlier(Deadline::after_ns(int64_t{kRetryAcceptMs} * 1'000'000));
      for (const ShmCaller& caller : callers) {
        const bool sends = !caller.index && caller.introduction.has_output();
        waits.push_back({caller.fd.get(), static_cast<short>(sends ? POLLOUT : POLLIN), 0});
        if (!caller.index) until = until.earlier(caller.timeout);
      }
      ::poll(waits.data(), waits.size(), until.remaining_ms());
      std::size_t at = 2;
      for (auto caller = callers.begin(); caller != callers.end(); ++at) {
        const bool is_ready = waits[at].revents != 0;
        const Progress progress = is_ready ? advance(*caller) : Progress::waits;
        if (progress == Progress::admitted) --missing;
        // A member that has proved the key gets the time of the whole set-up.
        const bool stays = progress == Progress::waits && (caller->index || !caller->timeout.passed());
        caller = stays ? std::next(caller) : callers.erase(caller);
      }
      FDL_RETURN_IF_ERROR(own_failure_);
      if (waits[0].revents == 0) continue;
      const Status accepted = accept_callers(listening_fd, callers);
      if (accepted.ok()) continue;
      if (!is_sparse_ || accepted.code() != Code::resource) return accepted;
      cannot_accept_ = true;
      give_up(accepted);
    }
    return given_up_;
  }

  // All members go on without the segment. The connected members get the refusal at once. Their connections, and what
  // this member has made for the segment, are closed, which frees descriptors.
  void give_up(const Status& why) {
    if (!given_up_.ok()) return;
    given_up_ = Status(Code::unsupported, leader() + ": " + std::string(why.text()));
    for (const UniqueFd& socket : sockets_) {
      if (socket) send_refusal(socket.get(), given_up_);
    }
    for (UniqueFd& socket : sockets_) socket.reset();
    for (auto& fds : received_fds_) fds.clear();
    share_.segment.reset();
    doorbells_.clear();
    liveness_ = {};
  }

  Status accept_callers(int listening_fd, std::list<ShmCaller>& callers) {
    while (true) {
      FDL_ASSIGN_OR_RETURN(UniqueFd fd, accept_one(listening_fd));
      if (!fd) return {};
      if (is_of_another_user(fd.get())) continue;
      if (callers.size() >= kMostCallers) callers.pop_front();
      // The next turn sends the greeting. Here the handshake could complete unseen if the caller is quick, and a caller
      // that has nothing more to send would not be looked at again.
      callers.push_back({std::move(fd), Introduction(Introduction::Role::server, membership_.job_key, purpose_, "0"),
                         Deadline::after_seconds(kHandshakeSeconds)});
    }
  }

  // A failed connection is ignored: it may not belong to the job, or its member has died, and then the deadline's error
  // names that member.
  enum class Progress { waits, admitted, refused };
  Progress advance(ShmCaller& caller) {
    if (!caller.index) {
      const auto finished = caller.introduction.advance(caller.fd.get());
      if (!finished.ok()) refused_ = finished.status().text();
      if (!finished.ok() || !*finished) return finished.ok() ? Progress::waits : Progress::refused;
      caller.index = index_of(caller.introduction.introduced().peer);
      if (!caller.index) return Progress::refused;
    }
    if (!given_up_.ok()) return dismiss(caller);
    if (sockets_[*caller.index]) return Progress::refused;  // a second connection of the same member
    if (passed_ > 0) {
      const Progress passed = receive_doorbell(caller);
      if (passed != Progress::admitted) return passed;
    }
    arrived_[*caller.index] = true;
    sockets_[*caller.index] = std::move(caller.fd);
    return Progress::admitted;
  }

  // A member that has proved the key, after give_up().
  Progress dismiss(const ShmCaller& caller) {
    if (arrived_[*caller.index]) return Progress::refused;
    arrived_[*caller.index] = true;
    send_refusal(caller.fd.get(), given_up_);
    return Progress::admitted;
  }

  Progress receive_doorbell(ShmCaller& caller) {
    const int socket = caller.fd.get();
    const ShmCaller::Id id = caller.receive_id();
    if (id == ShmCaller::Id::broken) return Progress::refused;
    if (id == ShmCaller::Id::waits || !wait_readable(socket, Deadline::at_ns(0))) return Progress::waits;
    auto fds = recv_fds(socket, passed_, Deadline::at_ns(0));
    if (!fds.ok() && fds.status().code() == Code::resource) {
      if (is_sparse_) {
        give_up(fds.status());
        return dismiss(caller);
      }
      own_failure_ = fds.status();
    }
    if (!fds.ok()) return Progress::refused;
    received_fds_[*caller.index] = fds.take();
    std::memcpy(&doorbell_ids_[*caller.index], caller.doorbell.data(), caller.doorbell.size());
    return Progress::admitted;
  }

  // The index of a member from the text of its handshake.
  std::optional<std::size_t> index_of(const std::string& text) const {
    std::size_t index = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), index);
    if (parsed.ec != std::errc() || index == 0 || index >= members_.size()) return std::nullopt;
    return index;
  }

  Status missing_members_error() const {
    std::string names;
    for (std::size_t i = 1; i < members_.size(); ++i) {
      if (arrived_[i]) continue;
      if (!names.empty()) names += ", ";
      names += membership_.name_of(members_[i]);
    }
    std::string text = "shm: " + names + " did not join the shared memory of " + membership_.id + " in time";
    if (!refused_.empty()) text += " (one connection was refused: " + refused_ + ")";
    return Status(Code::timeout, std::move(text));
  }

  // Write errors are ignored: a member that dies here is found by its liveness descriptor, as later.
  void approve() {
    for (std::size_t i = 1; i < members_.size(); ++i) (void)send_approval(sockets_[i].get(), membership_.deadline);
  }

  void send_to_members(std::span<const int> fds, std::span<const uint64_t> ids = {}) {
    approve();
    for (std::size_t i = 1; i < members_.size(); ++i) {
      (void)write_all(sockets_[i].get(), std::as_bytes(ids), membership_.deadline);
      (void)send_fds_in_parts(sockets_[i].get(), fds, membership_.deadline);
    }
  }

  // Sends the error to all connected members and returns it.
  Status refuse(const Status& why) {
    for (const UniqueFd& socket : sockets_) {
      if (socket) send_refusal(socket.get(), why);
    }
    return why;
  }

  void send_refusal(int socket, const Status& why) const {
    const bool goes_on = is_sparse_ && why.code() == Code::unsupported;
    fdl::send_refusal(socket, why, goes_on, Deadline::after_seconds(kDecisionSeconds));
  }

  // ---- The other members ----
  Status follow() {
    FDL_RETURN_IF_ERROR(join_leader());
    const int socket = leader_socket_.get();
    const Status sent = pass(doorbell_->id, {doorbell_->event.fd(), liveness_.watched.get()});
    FDL_RETURN_IF_ERROR(receive_decision());
    FDL_RETURN_IF_ERROR(sent);
    std::vector<uint64_t> ids(members_.size());
    const Status passed = read_all(socket, std::as_writable_bytes(std::span(ids)), timeout());
    if (!passed.ok()) return passed.while_doing("receiving the shared memory of " + leader());
    FDL_ASSIGN_OR_RETURN(auto fds, receive_fds(1 + 2 * members_.size()));
    FDL_ASSIGN_OR_RETURN(share_.segment, map_once(std::move(fds[0])));
    for (std::size_t i = 0; i < members_.size(); ++i) {
      const bool is_own = static_cast<int>(i) == share_.index;
      share_.doorbells.push_back(is_own ? doorbell_ : keep_doorbell(ids[i], std::move(fds[1 + 2 * i])));
      share_.lives.push_back(is_own ? nullptr : lives_.share(std::move(fds[2 + 2 * i])));
    }
    return {};
  }

  Status follow_sparse() {
    FDL_RETURN_IF_ERROR(join_leader());
    const Status sent = passed_ > 0 ? pass(0, passed_by_me()) : Status();
    FDL_RETURN_IF_ERROR(receive_decision());
    FDL_RETURN_IF_ERROR(sent);
    const Status taken = take_segment();
    const std::byte answer = taken.ok() ? kMapped : std::byte{0};
    const Status answered = write_all(leader_socket_.get(), std::span(&answer, 1), membership_.deadline);
    FDL_RETURN_IF_ERROR(receive_decision());
    FDL_RETURN_IF_ERROR(answered);
    return taken;
  }

  // A failure is the answer to the leader, so that no member uses the segment.
  Status take_segment() {
    FDL_ASSIGN_OR_RETURN(auto fds, receive_fds(1 + passed_ * members_.size()));
    std::vector<std::vector<UniqueFd>> passed(members_.size());
    for (std::size_t i = 1; i < fds.size(); ++i) passed[(i - 1) / passed_].push_back(std::move(fds[i]));
    FDL_ASSIGN_OR_RETURN(share_.segment, map_once(std::move(fds[0])));
    return take_meeting(std::move(passed));
  }

  // ---- A meeting ----
  // Each member passes its doorbells and its liveness descriptor, in this order.
  std::vector<int> passed_by_me() const {
    std::vector<int> fds;
    for (const auto& doorbell : doorbells_) fds.push_back(doorbell->event.fd());
    if (passed_ > 0) fds.push_back(liveness_.watched.get());
    return fds;
  }

  Status take_meeting(std::vector<std::vector<UniqueFd>> passed) {
    if (passed_ == 0) return {};
    std::vector<UniqueFd> lives(members_.size());
    for (std::size_t i = 0; i < members_.size(); ++i) {
      meeting_.doorbells.emplace_back();
      if (static_cast<int>(i) == share_.index) {
        meeting_.doorbells.back() = doorbells_;
        continue;
      }
      lives[i] = std::move(passed[i].back());
      passed[i].pop_back();
      for (UniqueFd& fd : passed[i]) {
        meeting_.doorbells.back().push_back(std::make_shared<Doorbell>(Doorbell{0, Event(std::move(fd))}));
      }
    }
    FDL_ASSIGN_OR_RETURN(meeting_.lives, LivesWatch::make(std::move(lives)));
    return {};
  }

  // Connects to the leader and authenticates.
  Status join_leader() {
    auto address = membership_.exchange->fetch(key_, membership_.deadline);
    if (!address.ok()) return address.status().while_doing("waiting for the shared memory of " + leader());
    if (address->starts_with(kNone)) return Status(Code::unsupported, address->substr(kNone.size()));
    const Address target{address.take()};
    auto connected = connect_any(std::span(&target, 1), membership_.deadline);
    if (!connected.ok()) return connected.status().while_doing("joining the shared memory of " + leader());
    leader_socket_ = connected.take();
    const auto introduced = introduce_as_client(leader_socket_.get(), membership_.job_key, purpose_,
                                                std::to_string(share_.index), membership_.deadline);
    return introduced.ok() ? Status() : introduced.status().while_doing("joining the shared memory of " + leader());
  }

  Status pass(uint64_t doorbell_id, const std::vector<int>& fds) {
    const int socket = leader_socket_.get();
    FDL_RETURN_IF_ERROR(write_all(socket, std::as_bytes(std::span(&doorbell_id, 1)), membership_.deadline));
    return send_fds(socket, fds, membership_.deadline);
  }

  std::string leader() const { return membership_.name_of(members_.front()); }

  // The membership's deadline plus the time that the leader's error may need.
  Deadline timeout() const { return membership_.deadline.shifted_by_ns(seconds_to_ns(kDecisionSeconds)); }

  // A leader that refuses closes the connection, so that what this member sends then may fail: the refusal is the
  // reason.
  Status receive_decision() const { return fdl::receive_decision(leader_socket_.get(), leader(), timeout()); }

  Result<std::vector<UniqueFd>> receive_fds(std::size_t count) const {
    return receive_fds_in_parts(leader_socket_.get(), count, leader(), timeout());
  }

  const Membership& membership_;
  const std::vector<int>& members_;
  const std::string purpose_;
  std::string key_;
  std::size_t passed_ = 2;  // descriptors that each member passes
  bool is_sparse_ = false;  // the segment may be done without
  std::shared_ptr<const Doorbell> doorbell_;
  Liveness liveness_;
  SharedLives lives_;
  ShmShare share_;
  std::vector<std::shared_ptr<const Doorbell>> doorbells_;  // of this rank, in a meeting
  GroupMeeting meeting_;
  std::size_t backed_bytes_ = 0;  // of a meeting: the front of the segment
  UniqueFd leader_socket_;
  // Used by the leader only, by index.
  std::vector<UniqueFd> sockets_;
  std::vector<std::vector<UniqueFd>> received_fds_;  // doorbells, liveness descriptor
  std::vector<uint64_t> doorbell_ids_;
  std::vector<bool> arrived_;  // members that are not missing any more
  Status given_up_;            // why all members go on without the segment
  Status own_failure_;         // why this member cannot receive the descriptors of another one
  bool cannot_accept_ = false;
  std::string refused_;  // the error of the last connection whose handshake failed
};

Status check_count(const std::vector<int>& members) {
  if (members.size() <= static_cast<std::size_t>(kMaxShmRanks)) return {};
  return Status(Code::unsupported, "shm: " + std::to_string(members.size()) + " ranks on one host, at most " +
                                       std::to_string(kMaxShmRanks) + " can share memory");
}

}  // namespace

Status too_much_memory(std::size_t bytes_of_rank, std::size_t ranks) {
  return Status(Code::resource, "shm: FARANDOLE_SHM_BYTES=" + std::to_string(bytes_of_rank) + " for each of " +
                                    std::to_string(ranks) + " ranks is more than any host has");
}

Result<std::shared_ptr<SharedSegment>> share_sparse(const Membership& membership, const std::vector<int>& members,
                                                    std::string_view purpose, std::size_t bytes) {
  FDL_RETURN_IF_ERROR(check_count(members));
  return Setup(membership, members, purpose).run_sparse(bytes);
}

Result<GroupMeeting> meet_group(const Membership& membership, const std::vector<int>& members, std::size_t bytes,
                                std::size_t backed_bytes, int doorbells) {
  FDL_RETURN_IF_ERROR(check_count(members));
  return Setup(membership, members, "group").run_meeting(bytes, backed_bytes, static_cast<std::size_t>(doorbells));
}

Result<ShmShare> share_segment(const Membership& membership, const std::vector<int>& members, std::string_view purpose,
                               std::size_t bytes) {
  FDL_RETURN_IF_ERROR(check_count(members));
  return Setup(membership, members, purpose).run(bytes);
}

std::vector<int> members_of_my_memory_group(const Membership& membership) {
  std::vector<int> members;
  for (int i = 0; i < membership.size(); ++i) {
    if (in_one_memory_group(membership.members[static_cast<std::size_t>(i)], membership.me())) members.push_back(i);
  }
  return members;
}

}  // namespace fdl
