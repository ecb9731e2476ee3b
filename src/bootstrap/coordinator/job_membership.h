// JobMembership holds the state of the coordinator and makes its decisions: members, store, probes and failure reports.
//
// It has no sockets, threads or clock, so tests drive it message by message. Each rank of the job has one entry, which
// is absent, present, left (after a leave message) or lost. An entry moves only in that direction, and never between
// left and lost. A peer is a connection, numbered by the caller; it belongs to a member once its hello was accepted.
#pragma once

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "bootstrap/coordinator/announcements.h"
#include "bootstrap/coordinator/coordinator.h"
#include "bootstrap/coordinator/coordinator_wire.h"
#include "bootstrap/rendezvous/store.h"

namespace fdl {

class JobMembership {
 public:
  using Peer = uint64_t;
  // A message to many peers is one object, so that it is encoded once.
  struct Outgoing {
    Peer peer;
    std::shared_ptr<const CoordinatorMessage> message;
  };

  // `address` and `process` (where the coordinator itself runs) appear in messages to ranks.
  JobMembership(const CoordinatorOptions& options, std::string address, CoordinatorClient::Hello process);

  // Each function adds the messages to send to take_outgoing(), and the connections to close to take_hang_ups().

  // Returns false if the hello is refused. The reason is in the outgoing messages; the caller closes the connection
  // once it is sent.
  // `messages`: the number of its hello, see CoordinatorMessage::kMessages.
  bool greet(Peer peer, const CoordinatorClient::Hello& hello, int64_t now_ns, int64_t messages = 0);
  // An error means that the peer violated the protocol; the caller closes its connection.
  Status receive(Peer peer, CoordinatorMessage message, int64_t now_ns);
  void closed(Peer peer);
  void tick(int64_t now_ns);
  // The next time at which tick() has an effect.
  Deadline next() const;
  // A client that is no rank asks what all ranks do. It gets a rank_state for each rank, and then a job_reply: when all
  // have answered, or after kStateAnswer_ns. An error means that it violated the protocol. `peer` may be kOwnPeer: the
  // process of the coordinator itself asks.
  Status query_job(Peer peer, int64_t now_ns, bool with_stacks = false);
  static constexpr Peer kOwnPeer = 1;
  // The launcher of a rank says that its process has ended. Without that rank the start fails on all others, which
  // would wait for it in vain. A rank that has arrived is lost, unless a message that is on its way says otherwise or
  // it answers within kEndedAnswer_ns: a child that it forked may keep its connections open. `peer` gets an empty
  // job_reply, unless it is kOwnPeer. An error means that the message makes no sense.
  Status process_ended(int rank, const Status& why, Peer peer = kOwnPeer);
  // The process of the coordinator cannot accept the connections of the ranks that have not arrived. The start fails on
  // all ranks.
  void fail_start_short_of(const Status& why);
  static constexpr int64_t kStateAnswer_ns = 2'000'000'000;
  static constexpr int64_t kEndedAnswer_ns = 500'000'000;
  // Announces to all members that the coordinator ends in good order. From then on no rank can join.
  void end();
  // Whether each member has left or has read the announcement. Until then a leave message may be on its way, and the
  // member would find the connection broken.
  bool all_know_of_end() const {
    return std::ranges::all_of(members_, [](const Member& member) {
      return member.state != Member::State::present || member.last_pong >= member.end_ping;
    });
  }

  // In the order in which they must be sent.
  std::vector<Outgoing> take_outgoing();
  std::vector<Peer> take_hang_ups() { return std::exchange(hang_ups_, {}); }
  // Ranks whose hello has not come yet.
  std::size_t absent_ranks() const { return static_cast<std::size_t>(options_.size - arrived_); }
  // Requests, reports and queries that are open; 0 once all ranks are gone.
  std::size_t open_entries() const {
    return waiting_.size() + store_.readers() + many_fetches_.size() + reports_.size() + job_queries_.size() +
           awaited_.size();
  }
  // Returns whether at least one rank arrived, none is present any more, and none has yet to get the reason why the
  // start failed.
  bool is_empty() const { return arrived_ > 0 && here_ == 0 && !must_report_failure(); }

 private:
  struct Member {
    enum class State { absent, present, left, lost };
    State state = State::absent;
    Peer peer = 0;
    CoordinatorClient::Hello hello;
    int64_t messages = 0;  // kMessages of its process
    Status end;            // the error for its leave or loss: the same text on all ranks
    // Pings are numbered; a pong answers its ping and all earlier ones.
    uint64_t last_ping = 0;
    uint64_t last_pong = 0;
    uint64_t end_ping = 0;                 // the one that follows the announcement of end()
    int64_t asked_ns = 0;                  // when the first ping without a pong was sent
    Deadline warn_at = Deadline::never();  // then all ranks are warned of its silence
    // Shortly before pong_until: a coordinator that is late for this moment has not run, and its rank gets more time.
    Deadline last_call = Deadline::never();
    Deadline pong_until = Deadline::never();  // then it is lost
    bool is_silent = false;                   // warn_at has passed
    bool has_ended = false;                   // says its launcher; it was asked all the same
  };
  struct Waiting {
    Peer peer;
    uint64_t id;
    Deadline until;
  };
  // A rank waits for the values of several keys: `prefix` and the number of each of `ranks`.
  struct ManyFetch {
    std::string prefix;
    std::vector<int> ranks;
    std::size_t missing = 0;  // keys that are not published yet
    Deadline until;
  };
  using RequestOfPeer = std::pair<Peer, uint64_t>;

  // When the others learn that a rank has gone.
  enum class News { at_once, together };

  struct LastDecision {
    std::string comm;
    Status why;  // OK: there is none
    int64_t moment_ns = 0;
  };
  // The ranks of a set-up that was not complete in time are asked whether they have begun it.
  struct SetUpQuery {
    std::set<int> unanswered;
    std::set<int> late;  // have answered that they have not
    bool is_open() const { return !unanswered.empty(); }
  };
  // A failure of a communicator that is not decided yet: the coordinator waits for a pong of the reported rank.
  struct FailureReport {
    std::string comm;
    int first_reporter = -1;
    std::map<int, Status> by_rank;  // the first report of each rank; a later one that names the rank itself replaces it
    // The rank at which the reports end, what is decided if it reports nothing, and its ping.
    int culprit = -1;
    Status why;
    uint64_t ping = 0;
    Deadline decide_at = Deadline::never();  // the culprit has answered: how long its own report may take
    std::optional<SetUpQuery> query = {};    // while it is open, nothing is decided
  };

  // One rank at a time queries how many collectives of a communicator the others have begun.
  struct Query {
    int rank = -1;
    uint64_t id = 0;
    int64_t until_ns = 0;      // from then on another rank may query
    std::set<int> unanswered;  // queried ranks that have not answered
  };

  // A start that has failed fails on all ranks, also on one that connects later: it gets the reason, and would wait for
  // its own limit otherwise. The coordinator must not end before that.
  bool must_report_failure() const;
  // The rank whose reports of stalls of a communicator count.
  struct StallReporter {
    int rank = -1;
    int64_t until_ns = 0;  // from then on another rank's reports may count
  };

  // A client that is no rank waits for the states of the ranks.
  struct JobQuery {
    Peer peer = 0;
    uint64_t id = 0;
    Deadline until = Deadline::never();
    std::set<int> unanswered;
  };

  Member* member_of(Peer peer);
  Member* member_at(int rank);
  std::string name_of(const Member& member) const;
  void send(Peer peer, CoordinatorMessage message) {
    outgoing_.push_back({peer, std::make_shared<const CoordinatorMessage>(std::move(message))});
  }
  void send_to_all(CoordinatorMessage message);
  void send_to_each(const std::vector<Peer>& peers, CoordinatorMessage message);
  std::vector<Peer> present_peers() const;
  void refuse(Peer peer, Status why);

  void compare_with_first(Member& member);
  Status refusal_of(const CoordinatorClient::Hello& hello) const;
  void start_over();
  void fail_start_without_ended();
  Deadline start_limit() const;
  void send_earlier_events(Peer peer);
  Status missing_after(double seconds) const;
  void answer_waiting(const Status& why);
  void list_members(CoordinatorMessage& reply, bool takes_table);
  void answer_waiting_in_time(int64_t now_ns);

  void wait(Peer peer, const CoordinatorMessage& message, int64_t now_ns);
  void publish(Peer peer, CoordinatorMessage message);
  void fetch(Peer peer, const CoordinatorMessage& message);
  Status fetch_many(Peer peer, CoordinatorMessage message, int64_t now_ns);
  void note_value(const Store::Reader& reader, CoordinatorMessage& reply);
  void answer_many(const RequestOfPeer& request, const ManyFetch& fetch);
  void answer_many_in_time(int64_t now_ns);
  void forget(Peer peer, uint64_t id);
  Status report(int reporter, const CoordinatorMessage& message, int64_t now_ns);
  void ask_set_up(FailureReport& failure, const std::vector<int>& ranks, int64_t now_ns);
  void note_set_up(int answering, const std::string& comm, bool has_begun, int64_t now_ns);
  void end_set_up_query(FailureReport& failure, int64_t now_ns);
  Status late_error(const std::set<int>& late);
  void examine(FailureReport& failure, int64_t now_ns);
  void await_culprit(FailureReport& failure, const Status& why, int64_t now_ns);
  void end_circle(FailureReport& failure, const std::set<int>& ranks, int64_t now_ns);
  Status relay_query(const Member& from, const CoordinatorMessage& message, int64_t now_ns);
  Status relay_sends(const Member& from, CoordinatorMessage message);
  Status relay_stall(const Member& from, const CoordinatorMessage& message, int64_t now_ns);
  bool may_query(const std::string& comm, int rank, int64_t now_ns);
  void forward_answer(int answering, const CoordinatorMessage& message);
  void forward_state(int answering, const CoordinatorMessage& message);
  void send_rank_state(const JobQuery& query, int rank, RankPresence presence, const RankState* state);
  void end_job_queries(int64_t now_ns);
  void answer_job_queries_for(const Member& member);
  void ping(Member& member, int64_t now_ns);
  void pong(Member& member, uint64_t id, int64_t now_ns);
  void expect_pong(Member& member, int64_t now_ns);
  void end_silence(Member& member, int64_t now_ns);
  void announce_silences_in_time(int64_t now_ns);
  std::string name_of(const std::vector<int>& ranks);
  static constexpr const char* kConnectionEnded = "its process ended or its connection broke";
  Status end_of(const Member& member, const std::string& how) const;
  Status end_by_silence(const Member& member) const;
  void discount_own_pause(int64_t now_ns);
  bool was_paused(int64_t now_ns) const;
  void given_up_by(Member& from, const Status& why, int64_t now_ns);
  void lose_and_notify(Member& member, Status why);
  bool serves_the_coordinator(const Member& member) const;
  bool is_own_process(const Member& member) const;
  void leave(Member& member, int64_t now_ns);
  void announce_losses();
  void announce_departures();
  void announce(const std::vector<int>& ranks, CoordinatorMessage together, int64_t messages,
                CoordinatorMessage::Kind each);
  std::vector<HostRanks> by_host(const std::vector<int>& ranks);
  void announce_departures_in_time(int64_t now_ns);
  void end_wait_for_pong(Member& member);
  void lose(Member& member, const std::string& how);
  void vacate(Member& member, Member::State state, News news);
  void decide(const std::string& comm, const Status& why);
  void decide_against_alive(int64_t now_ns);
  void ask_ended(int64_t now_ns);
  void decide_reports_of(int rank, const Status& why);
  Status end_with_reason(const Member& member) const;
  int64_t number_of_news() const;

  static constexpr int64_t kLongAgo_ns = std::numeric_limits<int64_t>::min() / 2;

  CoordinatorOptions options_;
  std::string address_;
  CoordinatorClient::Hello process_;
  int64_t began_ns_ = -1;                                 // when the first rank of this job arrived; -1: none has
  int64_t ticked_ns_ = 0;                                 // time of the last tick
  int64_t pause_ended_ns_ = kLongAgo_ns;                  // the end of the last pause, see was_paused()
  int64_t due_ns_ = std::numeric_limits<int64_t>::max();  // next() after it
  std::vector<Member> members_;
  std::unordered_map<Peer, int> rank_of_;
  int first_rank_ = -1;  // the first to arrive: its settings are compared with those of all others
  std::vector<CompatibilitySetting> first_settings_;
  std::string salt_;                  // of rank 0; only members get it
  std::optional<MemberTable> table_;  // once all ranks have arrived
  bool is_ending_ = false;            // end() was called
  int arrived_ = 0;
  int here_ = 0;                 // ranks that are present
  std::set<int> gone_;           // ranks that have left or were lost
  std::set<int> late_;           // ranks that arrived after the start had failed and received the reason
  std::map<int, Status> ended_;  // ranks whose processes have ended, with the text of their launcher
  Status start_failed_;          // ranks are missing or were lost before all had arrived, or settings differ
  std::vector<Waiting> waiting_;
  std::set<int> awaited_;             // ranks whose pong is due
  std::vector<int> lost_;             // ranks that were lost and have not been announced, in this order
  std::vector<int> lost_by_silence_;  // those of them whose connections are open, and will be closed
  AnnouncementPace losses_pace_;
  std::vector<int> departed_;  // ranks that have left and have not been announced
  AnnouncementPace departures_pace_;
  SilenceNews silences_;  // that have not been announced
  AnnouncementPace silences_pace_;
  Store store_;
  std::map<RequestOfPeer, ManyFetch> many_fetches_;
  std::vector<FailureReport> reports_;
  std::map<std::string, Status> decisions_;                // by communicator; OK while its first report is in reports_
  LastDecision last_decision_;                             // of these, but for departures
  int64_t last_failed_ns_ = kLongAgo_ns;                   // when the latest of decisions_ was made, departures too
  std::unordered_map<std::string, Query> queries_;         // by communicator
  std::unordered_map<std::string, StallReporter> stalls_;  // by communicator
  std::vector<JobQuery> job_queries_;
  uint64_t last_job_query_ = 0;
  // Those that `probed` in outgoing_ answers. A rank probes on while the coordinator is stopped, and the answers to all
  // of these probes would fill its connection before the news that follows.
  std::set<Peer> probers_;
  std::vector<Outgoing> outgoing_;
  std::vector<Peer> hang_ups_;
};

}  // namespace fdl
