// ClientProtocol is a rank's part of the coordinator's protocol. It is pure: it has no socket, thread or clock, so
// tests and the simulation of a job drive it message by message.
//
// The caller passes it what the coordinator sends, and sends what take_outgoing() returns. It answers pings, keeps the
// news of ranks that are gone and the decisions on communicators, and finds that the coordinator is silent. After the
// coordinator is lost, nothing more is queued.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "bootstrap/client/silence.h"
#include "bootstrap/coordinator/coordinator_client.h"
#include "bootstrap/coordinator/coordinator_wire.h"

namespace fdl {

class ClientProtocol {
 public:
  using Hello = CoordinatorClient::Hello;
  using Limits = CoordinatorClient::Limits;

  ClientProtocol(const Hello& hello, const Limits& limits);

  // ---- the connection ----
  // Queues the hello.
  void begin();
  void receive(std::vector<CoordinatorMessage> messages, int64_t now_ns);
  // The connection has ended, behind all that was received.
  void closed(int64_t now_ns) { lose_coordinator("its connection closed", now_ns); }
  // The network has ended the connection, after a time without answers. A rank that waits for nothing sends no query,
  // so it finds a coordinator that does not answer in this way.
  void cut_off(int64_t now_ns);
  // Whether the coordinator was silent for too long. The caller then calls give_up(), sends what is queued, and closes
  // the connection. A message that waited in the socket takes it back.
  bool must_give_up() const { return is_silent_ && is_open(); }
  void give_up(int64_t now_ns);
  std::vector<CoordinatorMessage> take_outgoing() { return std::exchange(outgoing_, {}); }
  bool is_open() const { return coordinator_lost_.ok(); }
  const Status& coordinator_lost() const { return coordinator_lost_; }

  // ---- the start ----
  const Hello& hello() const { return hello_; }
  bool is_welcome() const { return welcome_; }
  const Status& refusal() const { return refusal_; }
  bool knows_fetch_many() const { return coordinator_messages_ >= CoordinatorMessage::kFirstLists; }

  // ---- requests that have a reply ----
  // Returns the number of the request. An error: this rank has left.
  Result<uint64_t> request(CoordinatorMessage message);
  // Whether there is a reply, or none will come: the coordinator is lost, this rank has left, or one of the ranks `of`
  // is gone.
  bool is_settled(uint64_t id, const std::vector<int>& of) const;
  // Ends the request. One without a reply is an error, and is withdrawn at the coordinator.
  Result<CoordinatorMessage> take_reply(uint64_t id, const std::vector<int>& of);
  std::size_t open_requests() const { return replies_.size(); }

  // ---- messages that have none ----
  void tell(const CoordinatorMessage& message);
  void probe(const std::vector<int>& world_ranks, int64_t now_ns);
  void report(const std::string& comm, const Status& why, int64_t now_ns) { report(comm, why, {}, now_ns); }
  void report(const SetupWatch& set_up, const Status& why, int64_t now_ns);
  int64_t probe_watched(int64_t now_ns);
  bool has_open_probe() const { return silence_.is_open() && is_open() && !left_; }
  void leave();
  bool has_left() const { return left_; }
  // Whether the coordinator has the goodbye, or cannot get it any more.
  bool is_leave_settled() const { return !left_ || leave_confirmed_ || !is_open(); }

  // ---- news ----
  void add_watch(const std::shared_ptr<SetupWatch>& watch, int64_t now_ns);
  // This rank ends its world: set-ups in which it takes part end with `why`, and later ones at once.
  void end_set_ups(const Status& why, int64_t now_ns);
  std::vector<CoordinatorEvent> take_events() { return std::exchange(events_, {}); }
  std::vector<int> lost_ranks() const;
  // Whether something has changed since the last call for which a thread may wait.
  bool take_change() { return std::exchange(has_changed_, false); }
  // Whether a probe has found the coordinator silent: the driving thread has an event, or must give up.
  bool take_call_of_driver() { return std::exchange(calls_driver_, false); }

 private:
  struct News {
    uint64_t number = 0;  // in the order of arrival
    Status why;
  };
  struct Decision {
    std::string comm;
    Status why;
    int64_t moment_ns = 0;
  };
  struct Loss {
    int rank = -1;
    Status why;
    int64_t moment_ns = 0;
  };

  void send(CoordinatorMessage message);
  void report(const std::string& comm, const Status& why, const std::vector<int>& set_up_ranks, int64_t now_ns);
  void note_begun(const std::string& comm);
  bool has_begun(const std::string& comm) const;
  void handle(CoordinatorMessage message, int64_t now_ns);
  void handle_event(CoordinatorMessage message);
  void note_decision(const CoordinatorMessage& message, int64_t now_ns);
  void add_event(CoordinatorEvent event);
  void note_lost(CoordinatorMessage message, int64_t now_ns);
  void note_lost_together(const CoordinatorMessage& message, int64_t now_ns);
  void note_departed(const CoordinatorMessage& message, int64_t now_ns);
  void note_left(int rank, const Status& why, bool is_after_failure, int64_t now_ns);
  void note_gone(CoordinatorEvent::Kind kind, const CoordinatorMessage& message, int64_t now_ns);
  Status with_last_decision(int rank, const Status& why) const;
  Status with_last_loss(int rank, const Status& why, int64_t now_ns) const;
  void note_answer();
  void note_query(int64_t now_ns);
  std::string name_of_coordinator() const;
  bool ends_in_order() const;
  std::string not_answered() const;
  bool a_rank_serves() const;
  void lose_coordinator(const std::string& how, int64_t now_ns);
  const News* first_gone_of(const std::vector<int>& ranks) const;
  Status has_left_error() const;

  // The most decisions in decided_.
  static constexpr std::size_t kMostDecided = 1024;
  // The most set-ups in begun_. A rank may still be asked about one that it has finished.
  static constexpr std::size_t kMostBegun = 4096;
  // The longest time between two queries that counts in full as silence.
  static constexpr int64_t kLeastStep_ns = 1'000'000'000;

  const Hello hello_;
  const Limits limits_;
  bool welcome_ = false;
  Status refusal_;
  std::string server_name_;
  int64_t coordinator_messages_ = 0;  // kMessages of its process
  std::vector<Hello> server_;         // the rank that serves the coordinator, if one does
  bool left_ = false;
  bool leave_confirmed_ = false;   // the coordinator has the leave message
  bool coordinator_ends_ = false;  // in good order
  Status coordinator_lost_;
  Silence silence_;         // of the coordinator
  bool is_silent_ = false;  // for too long: the connection is to be closed
  std::vector<std::weak_ptr<SetupWatch>> watches_;
  std::unordered_set<std::string> begun_;  // the latest set-ups that this rank has begun
  std::deque<std::string> begun_in_order_;
  Status set_ups_ended_by_;                        // OK: this rank has not ended its world
  int64_t probed_watched_ns_ = 0;                  // the last time
  std::set<std::string> undecided_;                // communicators that this rank has reported
  std::unordered_map<std::string, News> decided_;  // for set-ups that begin later
  Decision last_decision_;
  Loss last_loss_;  // of another rank
  std::unordered_map<int, News> gone_;
  uint64_t last_news_ = 0;
  uint64_t last_id_ = 0;
  std::map<uint64_t, std::optional<CoordinatorMessage>> replies_;  // of the open requests, once they are here
  std::vector<CoordinatorEvent> events_;
  std::vector<CoordinatorMessage> outgoing_;
  bool has_changed_ = false;
  bool calls_driver_ = false;
};

}  // namespace fdl
