// SocketClient is the CoordinatorClient over one framed socket. Only the driving thread receives; any thread sends,
// under the lock.
#pragma once

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "bootstrap/coordinator/coordinator_client.h"
#include "bootstrap/coordinator/find_coordinator.h"
#include "bootstrap/coordinator/silence.h"
#include "bootstrap/rendezvous/framed_socket.h"
#include "system/event.h"
#include "system/poller.h"

namespace fdl {

class SocketClient final : public CoordinatorClient {
 public:
  SocketClient(FoundCoordinator found, const Hello& hello, const Limits& limits, Poller poller, Event sender)
      : hello_(hello),
        limits_(limits),
        poller_(std::move(poller)),
        sender_(std::move(sender)),
        socket_(std::move(found.fd), found.introduced.session_key, Direction::from_coordinator),
        silence_(seconds_to_ns(limits.silence_warning_s), seconds_to_ns(limits.lost_after_s),
                 std::max(kLeastStep_ns, 2 * seconds_to_ns(limits.suspect_after_s))) {}
  ~SocketClient() override;

  Status start(Deadline deadline);

  int wake_fd() const override { return poller_.fd(); }
  void progress() override;
  std::vector<CoordinatorEvent> take_events() override;
  std::vector<int> lost_ranks() override;

  Result<std::vector<Hello>> wait_for_all(Deadline deadline) override;
  Status publish(std::string_view key, std::string_view value) override;
  Result<std::string> fetch(std::string_view key, Deadline deadline) override { return fetch_from({}, key, deadline); }
  Result<ManyFacts> fetch_many(std::string_view prefix, const std::vector<int>& ranks, Deadline deadline) override;
  Result<std::string> fetch_from(const std::vector<int>& world_ranks, std::string_view key, Deadline deadline) override;
  void probe(const std::vector<int>& world_ranks) override;
  Result<std::shared_ptr<SetupWatch>> watch(const std::vector<int>& world_ranks, const std::string& comm) override;
  int64_t probe_watched(int64_t now_ns) override;
  bool has_open_probe() override;
  void report(const std::string& comm, const Status& why) override;
  void query_progress(const std::string& comm, uint64_t query, const std::vector<int>& world_ranks,
                      int64_t timeout_ns) override;
  void reply_progress(const CoordinatorEvent& query, int64_t begun, bool waiting) override;
  void query_sends(const std::string& comm, const std::vector<int>& world_ranks) override;
  void reply_sends(const CoordinatorEvent& query, const SliceCounts& sent) override;
  void reply_state(uint64_t query, const RankState& state) override;
  void report_stall(const std::string& comm, const std::string& text, int64_t valid_ns) override;
  void leave() override;
  bool wait_until_left(Deadline deadline) override;

 private:
  // The reply to a request. The caller that waits in send_request() owns it. That caller leaves only after it has
  // removed its entry from pending_, so the pointer stays valid for as long as the driving thread can find it.
  struct Answer {
    bool is_here = false;
    CoordinatorMessage message;
  };

  Status wait_for_welcome(Deadline deadline);
  bool knows_fetch_many() FDL_EXCLUDES(mutex_);
  void receive() FDL_EXCLUDES(mutex_);
  void handle(CoordinatorMessage message) FDL_REQUIRES(mutex_);
  void handle_event(CoordinatorMessage message) FDL_REQUIRES(mutex_);
  void note_decision(const CoordinatorMessage& message) FDL_REQUIRES(mutex_);
  void add_event(CoordinatorEvent event) FDL_REQUIRES(mutex_);
  void note_departed(const std::vector<HostRanks>& hosts) FDL_REQUIRES(mutex_);
  void note_gone(CoordinatorEvent::Kind kind, const CoordinatorMessage& message) FDL_REQUIRES(mutex_);
  void note_answer() FDL_REQUIRES(mutex_);
  void note_query() FDL_REQUIRES(mutex_);
  void give_up() FDL_REQUIRES(mutex_);
  std::string name_of_coordinator() const FDL_REQUIRES(mutex_);
  bool a_rank_serves() const FDL_REQUIRES(mutex_);
  void lose_coordinator(const std::string& how) FDL_REQUIRES(mutex_);
  void send(const CoordinatorMessage& message) FDL_REQUIRES(mutex_);
  void probe_locked(const std::vector<int>& world_ranks) FDL_REQUIRES(mutex_);
  void send_and_wake(const CoordinatorMessage& message) FDL_REQUIRES(mutex_);
  const Status* first_gone_of(const std::vector<int>& ranks) const FDL_REQUIRES(mutex_);
  Result<CoordinatorMessage> send_request(CoordinatorMessage request, const std::vector<int>& of, Deadline deadline)
      FDL_EXCLUDES(mutex_);

  // The most decisions in decided_.
  static constexpr std::size_t kMostDecided = 1024;
  // The longest time between two queries that counts in full as silence.
  static constexpr int64_t kLeastStep_ns = 1'000'000'000;

  const Hello hello_;
  const Limits limits_;
  Poller poller_;
  Event sender_;  // rung by a sender that could not send everything at once
  bool watches_writing_ = false;

  Mutex mutex_;
  CondVar answered_;
  // Only the driving thread receives, without the lock: receiving shares no state with sending, which needs the lock.
  FramedSocket socket_;
  bool welcome_ FDL_GUARDED_BY(mutex_) = false;
  Status refusal_ FDL_GUARDED_BY(mutex_);
  std::string server_name_ FDL_GUARDED_BY(mutex_);
  int64_t coordinator_messages_ FDL_GUARDED_BY(mutex_) = 0;  // kMessages of its process
  std::vector<Hello> server_ FDL_GUARDED_BY(mutex_);         // the rank that serves the coordinator, if one does
  bool left_ FDL_GUARDED_BY(mutex_) = false;
  bool leave_confirmed_ FDL_GUARDED_BY(mutex_) = false;   // the coordinator has the leave message
  bool coordinator_ends_ FDL_GUARDED_BY(mutex_) = false;  // in good order
  Status coordinator_lost_ FDL_GUARDED_BY(mutex_);
  Silence silence_ FDL_GUARDED_BY(mutex_);         // of the coordinator
  bool is_silent_ FDL_GUARDED_BY(mutex_) = false;  // for too long: the driving thread closes the connection
  std::vector<std::weak_ptr<SetupWatch>> watches_ FDL_GUARDED_BY(mutex_);
  int64_t probed_watched_ns_ FDL_GUARDED_BY(mutex_) = 0;                    // the last time
  std::set<std::string> undecided_ FDL_GUARDED_BY(mutex_);                  // communicators that this rank has reported
  std::unordered_map<std::string, Status> decided_ FDL_GUARDED_BY(mutex_);  // for set-ups that begin later
  std::unordered_map<int, Status> gone_ FDL_GUARDED_BY(mutex_);
  uint64_t last_id_ FDL_GUARDED_BY(mutex_) = 0;
  std::unordered_map<uint64_t, Answer*> pending_ FDL_GUARDED_BY(mutex_);
  std::vector<CoordinatorEvent> events_ FDL_GUARDED_BY(mutex_);
};

}  // namespace fdl
