// SocketClient is the CoordinatorClient over one framed socket: ClientProtocol with a connection, a clock and a lock.
// Only the driving thread receives; any thread sends, under the lock.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "bootstrap/client/client_protocol.h"
#include "bootstrap/coordinator/coordinator_client.h"
#include "bootstrap/coordinator/find_coordinator.h"
#include "bootstrap/rendezvous/framed_socket.h"
#include "system/event.h"
#include "system/poller.h"

namespace fdl {

class SocketClient final : public CoordinatorClient {
 public:
  SocketClient(FoundCoordinator found, const Hello& hello, const Limits& limits, Poller poller, Event sender)
      : limits_(limits),
        name_(process_name(hello)),
        size_(hello.size),
        poller_(std::move(poller)),
        sender_(std::move(sender)),
        socket_(std::move(found.fd), found.introduced.session_key, Direction::from_coordinator),
        protocol_(hello, limits) {}
  ~SocketClient() override;

  Status start(Deadline deadline);

  int wake_fd() const override { return poller_.fd(); }
  void progress() override;
  std::vector<CoordinatorEvent> take_events() override;
  std::vector<int> lost_ranks() override;

  Result<std::vector<Hello>> wait_for_all(Deadline deadline) override;
  Status publish_for(int readers, std::string_view key, std::string_view value) override;
  Result<std::string> fetch(std::string_view key, Deadline deadline) override { return fetch_from({}, key, deadline); }
  Result<ManyFacts> fetch_many(std::string_view prefix, const std::vector<int>& ranks, Deadline deadline) override;
  Result<std::string> fetch_from(const std::vector<int>& world_ranks, std::string_view key, Deadline deadline) override;
  void probe(const std::vector<int>& world_ranks) override;
  Result<std::shared_ptr<SetupWatch>> watch(const std::vector<int>& world_ranks, const std::string& comm) override;
  void end_set_ups(const Status& why) override;
  int64_t probe_watched(int64_t now_ns) override;
  bool has_open_probe() override;
  void report(const std::string& comm, const Status& why) override;
  void report(const SetupWatch& set_up, const Status& why) override;
  void query_progress(const std::string& comm, uint64_t query, const std::vector<int>& world_ranks,
                      int64_t timeout_ns) override;
  void reply_progress(const CoordinatorEvent& query, int64_t begun, bool waiting) override;
  void query_sends(const std::string& comm, const std::vector<int>& world_ranks) override;
  void reply_sends(const CoordinatorEvent& query, const SliceCounts& sent) override;
  void reply_state(uint64_t query, const RankState& state) override;
  void report_stall(const std::string& comm, const std::string& text, const std::vector<std::string>& names,
                    int64_t valid_ns) override;
  void leave() override;
  bool wait_until_left(Deadline deadline) override;

 private:
  Status wait_for_welcome(Deadline deadline);
  bool knows_fetch_many() FDL_EXCLUDES(mutex_);
  void receive() FDL_EXCLUDES(mutex_);
  void carry_out() FDL_REQUIRES(mutex_);
  void carry_out_and_wake() FDL_REQUIRES(mutex_);
  void tell(const CoordinatorMessage& message) FDL_EXCLUDES(mutex_);
  bool waits_until_settled(uint64_t id, const std::vector<int>& of, Deadline deadline) FDL_EXCLUDES(mutex_);
  Result<CoordinatorMessage> send_request(CoordinatorMessage request, const std::vector<int>& of, Deadline deadline)
      FDL_EXCLUDES(mutex_);

  const Limits limits_;
  const std::string name_;  // of this rank
  const int size_;          // of the job
  Poller poller_;
  Event sender_;  // rung by a sender that could not send everything at once
  bool watches_writing_ = false;

  Mutex mutex_;
  CondVar answered_;
  // Only the driving thread receives, without the lock: receiving shares no state with sending, which needs the lock.
  FramedSocket socket_;
  ClientProtocol protocol_ FDL_GUARDED_BY(mutex_);
  bool watches_socket_ FDL_GUARDED_BY(mutex_) = true;
};

}  // namespace fdl
