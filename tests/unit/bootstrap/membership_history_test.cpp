// Seeded histories of JobMembership: ranks that probe, report, pause, crash and leave, over links with random delays,
// and a coordinator that pauses itself. The invariants of a job hold in each of them.
//
// Only JobMembership is the shipped class. Ranks, links and the clock are models, and each history runs in one thread.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>

#include "bootstrap/coordinator/job_membership.h"

namespace fdl {
namespace {

using Kind = CoordinatorMessage::Kind;

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kLostAfter = 1000 * kMs;
constexpr int64_t kLongestDelay = 50 * kMs;  // of a link, one way
constexpr int64_t kShortPause = 300 * kMs;   // with delays and several small pauses of all less than kLostAfter
constexpr int64_t kActions = 8000 * kMs;     // how long ranks do something new

struct ModelRank {
  enum class State { present, crashed, left, lost };
  State state = State::present;
  int64_t runs_from = 0;  // it is paused until then
  int64_t longest_pause = 0;
  std::map<int, std::string> gone;             // by rank: the text with which it was reported
  std::map<std::string, std::string> decided;  // by communicator
  std::map<std::string, int64_t> reported;     // when; without those that are decided
  std::set<std::string> begun;                 // set-ups
  std::set<std::string> late;                  // set-ups that it had not begun when it was asked
};

class History {
 public:
  explicit History(unsigned seed)
      : chance_(seed), size_(between(2, 6)), membership_(options(size_, seed), "here", {}), ranks_(of(size_)) {
    to_coordinator_.resize(of(size_));
    to_rank_.resize(of(size_));
    for (int rank = 0; rank < size_; ++rank) {
      connected_.insert(rank);
      EXPECT_TRUE(membership_.greet(peer(rank), {rank, size_, "h" + std::to_string(rank), "boot", 100 + rank}, 0,
                                    CoordinatorMessage::kMessages - (seed % 3 == 0 ? 0 : rank % 4)));
    }
    send_all();
  }

  void run() {
    while (const auto next = next_event()) {
      now_ = std::max(now_, *next);
      if (now_ >= coordinator_runs_from_) run_coordinator();
      for (int rank = 0; rank < size_; ++rank) run_rank(rank);
      if (now_ >= next_action_ && now_ < kActions) act();
    }
  }

  int late_decisions() const { return late_decisions_; }

  void check() const {
    std::map<std::string, std::string> decisions;
    for (int rank = 0; rank < size_; ++rank) {
      const ModelRank& one = ranks_[of(rank)];
      if (one.state != ModelRank::State::present) continue;
      EXPECT_TRUE(one.reported.empty()) << "rank " << rank << " has no decision on " << one.reported.begin()->first;
      for (const auto& [comm, text] : one.decided) {
        EXPECT_EQ(decisions.emplace(comm, text).first->second, text) << comm;
        check_words(text);
      }
      for (int other = 0; other < size_; ++other) check_knowledge(rank, other);
    }
  }

 private:
  struct Flying {
    int64_t arrives;
    CoordinatorMessage message;
    bool is_end = false;  // of the connection
  };

  static std::size_t of(int rank) { return static_cast<std::size_t>(rank); }
  static JobMembership::Peer peer(int rank) { return static_cast<JobMembership::Peer>(10 + rank); }
  static CoordinatorOptions options(int size, unsigned seed) {
    CoordinatorOptions options;
    options.size = size;
    options.silence_warning_s = 0.2;
    options.lost_after_s = kLostAfter / 1e9;
    options.server_name = "test";
    if (seed % 2 == 1) options.losses_together_from = 1;
    return options;
  }
  int between(int least, int most) { return std::uniform_int_distribution<int>(least, most)(chance_); }

  // ---- links ----

  // A link keeps the order of its messages.
  void post(std::deque<Flying>& link, Flying flying) {
    flying.arrives = now_ + between(0, static_cast<int>(kLongestDelay / kMs)) * kMs;
    if (!link.empty()) flying.arrives = std::max(flying.arrives, link.back().arrives);
    link.push_back(std::move(flying));
  }
  void send(int rank, CoordinatorMessage message) { post(to_coordinator_[of(rank)], {0, std::move(message)}); }
  void send_all() {
    for (auto& one : membership_.take_outgoing()) {
      post(to_rank_[of(static_cast<int>(one.peer) - 10)], {0, *one.message});
    }
    for (const auto& hung_up : membership_.take_hang_ups()) {
      close(static_cast<int>(hung_up) - 10);
      post(to_rank_[of(static_cast<int>(hung_up) - 10)], {0, {}, true});
    }
  }

  void close(int rank) {
    connected_.erase(rank);
    membership_.closed(peer(rank));
  }

  std::optional<int64_t> next_event() const {
    int64_t next = std::numeric_limits<int64_t>::max();
    for (int rank = 0; rank < size_; ++rank) {
      if (!to_coordinator_[of(rank)].empty()) {
        next = std::min(next, std::max(to_coordinator_[of(rank)].front().arrives, coordinator_runs_from_));
      }
      if (!to_rank_[of(rank)].empty()) {
        next = std::min(next, std::max(to_rank_[of(rank)].front().arrives, ranks_[of(rank)].runs_from));
      }
    }
    if (!membership_.next().is_never()) {
      next = std::min(next, std::max(membership_.next().moment_ns(), coordinator_runs_from_));
    }
    if (next_action_ < kActions) next = std::min(next, next_action_);
    if (next == std::numeric_limits<int64_t>::max()) return std::nullopt;
    return next;
  }

  // ---- the coordinator ----

  // What has arrived counts before limits, as in Coordinator::run().
  void run_coordinator() {
    for (int rank = 0; rank < size_; ++rank) {
      auto& link = to_coordinator_[of(rank)];
      while (!link.empty() && link.front().arrives <= now_) {
        const Flying flying = std::move(link.front());
        link.pop_front();
        if (!connected_.contains(rank)) continue;  // the coordinator has closed this connection
        if (flying.is_end) {
          close(rank);
        } else {
          EXPECT_TRUE(membership_.receive(peer(rank), flying.message, now_).ok());
        }
      }
    }
    membership_.tick(now_);
    send_all();
  }

  // ---- a rank ----

  void run_rank(int rank) {
    ModelRank& me = ranks_[of(rank)];
    auto& link = to_rank_[of(rank)];
    while (!link.empty() && link.front().arrives <= now_ && me.runs_from <= now_) {
      const Flying flying = std::move(link.front());
      link.pop_front();
      if (me.state != ModelRank::State::present) continue;
      const CoordinatorMessage& message = flying.message;
      if (flying.is_end) {
        EXPECT_TRUE(me.gone.contains(rank)) << "rank " << rank << " has no reason for the end of its connection";
        me.state = ModelRank::State::lost;
      } else if (message.kind == Kind::ping) {
        CoordinatorMessage pong{.kind = Kind::pong};
        pong.id = message.id;
        send(rank, std::move(pong));
      } else if (message.kind == Kind::set_up_query) {
        const bool has_begun = me.begun.contains(message.key);
        if (!has_begun) me.late.insert(message.key);
        send(rank, {.kind = Kind::set_up_reply, .number = has_begun ? 1 : 0, .key = message.key});
      } else if (message.kind == Kind::lost || message.kind == Kind::left) {
        me.gone.emplace(message.rank, message.why.text());
      } else if (message.kind == Kind::lost_together) {
        for (std::size_t i = 0; i < message.ranks.size(); ++i) me.gone.emplace(message.ranks[i], message.values[i]);
      } else if (message.kind == Kind::departed) {
        for (const HostRanks& host : message.hosts) {
          for (const RankRange& range : host.ranges) {
            for (int left = range.first; left < range.first + range.count; ++left) {
              me.gone.emplace(left, departure_of(left, host.host_name).text());
            }
          }
        }
      } else if (message.kind == Kind::comm_failed) {
        note_decision(me, message);
      }
    }
  }

  // A report is passed on at most from rank to rank, and each of them has kLostAfter.
  void note_decision(ModelRank& me, const CoordinatorMessage& message) {
    const auto first = me.decided.emplace(message.key, message.why.text()).first;
    EXPECT_EQ(first->second, message.why.text()) << "two decisions on " << message.key;
    const bool names_late = message.why.text().find(" not made this call") != std::string::npos;
    if (names_late && message.why.code() == Code::timeout) {
      ++late_decisions_;
      EXPECT_TRUE(ranks_[of(message.why.error().culprit_rank)].late.contains(message.key)) << message.why.text();
    }
    const auto report = me.reported.find(message.key);
    if (report == me.reported.end()) return;
    EXPECT_LE(now_ - report->second, (size_ + 1) * (kLostAfter + 2 * kLongestDelay) + pauses_) << message.key;
    me.reported.erase(report);
  }

  // ---- actions ----

  void act() {
    next_action_ = now_ + between(1, 200) * kMs;
    const int rank = between(0, size_ - 1);
    ModelRank& me = ranks_[of(rank)];
    const int what = between(0, 99);
    if (what < 3) return pause_coordinator();
    if (what < 6) return pause_machine();
    if (me.state != ModelRank::State::present || me.runs_from > now_) return;
    if (what < 55) return probe(rank);
    if (what < 65) return report(rank);
    if (what < 70) return begin_set_up(me);
    if (what < 75) return report_set_up(rank);
    if (what < 90) return pause(me, between(0, 3) == 0 ? 3000 * kMs : between(1, kShortPause / kMs) * kMs);
    if (what < 95) return leave(rank);
    me.state = ModelRank::State::crashed;
    post(to_coordinator_[of(rank)], {0, {}, true});
  }
  void probe(int rank) {
    CoordinatorMessage message{.kind = Kind::probe};
    for (int other = 0; other < size_; ++other) {
      if (other != rank && between(0, 1) == 1) message.ranks.push_back(other);
    }
    send(rank, std::move(message));
  }
  void report(int rank) {
    CoordinatorMessage message{.kind = Kind::report};
    message.key = "comm " + std::to_string(between(0, 9));
    message.why = Status::blame(between(-1, size_ - 1), "h", Code::transport, "words of rank " + std::to_string(rank));
    if (!ranks_[of(rank)].decided.contains(message.key)) ranks_[of(rank)].reported.emplace(message.key, now_);
    send(rank, std::move(message));
  }
  void begin_set_up(ModelRank& me) {
    for (int i = 0; i < 5; ++i) me.begun.insert("comm " + std::to_string(between(0, 9)));
  }
  // One that was not complete in time.
  void report_set_up(int rank) {
    ModelRank& me = ranks_[of(rank)];
    CoordinatorMessage message{.kind = Kind::report, .key = "comm " + std::to_string(between(0, 9))};
    me.begun.insert(message.key);
    for (int other = 0; other < size_; ++other) {
      if (other != rank) message.ranks.push_back(other);
    }
    const int culprit = message.ranks[of(between(0, size_ - 2))];
    message.why = Status::blame(culprit, "h", Code::timeout, "words of rank " + std::to_string(rank));
    if (!me.decided.contains(message.key)) me.reported.emplace(message.key, now_);
    send(rank, std::move(message));
  }
  void pause(ModelRank& me, int64_t how_long) {
    me.runs_from = now_ + how_long;
    me.longest_pause = std::max(me.longest_pause, how_long);
    pauses_ += how_long;
  }
  void pause_coordinator() {
    const int64_t how_long = between(1, 3000) * kMs;
    coordinator_runs_from_ = std::max(coordinator_runs_from_, now_ + how_long);
    pauses_ += how_long;
  }
  // Of a virtual machine with all of the job. It makes no rank silent.
  void pause_machine() {
    pause_coordinator();
    for (ModelRank& one : ranks_) one.runs_from = std::max(one.runs_from, coordinator_runs_from_);
  }
  void leave(int rank) {
    send(rank, {.kind = Kind::leave});
    post(to_coordinator_[of(rank)], {0, {}, true});
    ranks_[of(rank)].state = ModelRank::State::left;
  }

  // ---- invariants ----

  // No text says that a rank was lost which was there all the time.
  void check_words(const std::string& text) const {
    for (int rank = 0; rank < size_; ++rank) {
      const bool names = text.find("rank " + std::to_string(rank) + " on h") != std::string::npos;
      if (!names || text.find("was lost") == std::string::npos) continue;
      const ModelRank& named = ranks_[of(rank)];
      EXPECT_TRUE(named.state == ModelRank::State::crashed || named.longest_pause > kShortPause) << text;
    }
  }

  void check_knowledge(int rank, int other) const {
    const ModelRank& me = ranks_[of(rank)];
    const ModelRank& one = ranks_[of(other)];
    const auto known = me.gone.find(other);
    if (rank == other || one.state == ModelRank::State::present) {
      EXPECT_EQ(known, me.gone.end()) << "rank " << rank << " takes rank " << other << " for gone";
      return;
    }
    ASSERT_NE(known, me.gone.end()) << "rank " << rank << " does not know that rank " << other << " is gone";
    check_words(known->second);
    for (const ModelRank& third : ranks_) {
      if (third.state != ModelRank::State::present || !third.gone.contains(other)) continue;
      EXPECT_EQ(third.gone.at(other), known->second) << "two texts about rank " << other;
    }
  }

  std::mt19937 chance_;
  int size_;
  JobMembership membership_;
  std::vector<ModelRank> ranks_;
  std::set<int> connected_;
  std::vector<std::deque<Flying>> to_coordinator_;
  std::vector<std::deque<Flying>> to_rank_;
  int64_t now_ = 0;
  int64_t next_action_ = 0;
  int64_t coordinator_runs_from_ = 0;
  int64_t pauses_ = 0;  // of all together
  int late_decisions_ = 0;
};

TEST(MembershipHistories, OneVerdictOfAllRanksAndNoHealthyRankIsLost) {
  int late_decisions = 0;
  for (unsigned seed = 0; seed < 2000; ++seed) {
    History history(seed);
    history.run();
    history.check();
    late_decisions += history.late_decisions();
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
  EXPECT_GT(late_decisions, 1000);
}

}  // namespace
}  // namespace fdl
