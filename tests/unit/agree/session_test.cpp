// Tests of the two sessions: single messages, and thousands of random histories in which messages are late.
#include "agree/session/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <random>

#include "agree/wire/wire.h"
#include "tests/support/agree_requests.h"
#include "tests/unit/agree/agreement_links.h"

namespace fdl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint64_t kSeed = 4711;

// AGREEMENT_HISTORIES=200000 build/bin/session_test runs as many instead.
int histories() {
  const char* text = std::getenv("AGREEMENT_HISTORIES");
  return text == nullptr ? 4000 : std::atoi(text);
}

// ---- One message at a time ----

class Sessions : public testing::Test {
 protected:
  void Start(int size, std::size_t capacity) {
    root_ = std::make_unique<RootSession>(options_for(size), capacity);
    members_.clear();
    for (int rank = 0; rank < size; ++rank) members_.push_back(std::make_unique<MemberSession>(capacity));
  }
  Status Send(int rank, const std::vector<Request>& requests) {
    return root_->receive(rank, members_[static_cast<std::size_t>(rank)]->encode_requests(requests), 0);
  }
  Status SendRaw(int rank, const RequestMessage& message) { return root_->receive(rank, encode(message), 0); }
  // Returns the plan, which is the same for all ranks.
  Plan Decide() {
    const auto bytes = root_->decide(0);
    if (!bytes) return {};
    Plan plan;
    for (auto& member : members_) {
      auto mine = member->decode_plan(*bytes);
      EXPECT_TRUE(mine.ok()) << mine.status().text();
      if (member != members_.front()) {
        EXPECT_EQ(mine->buckets, plan.buckets);
      }
      plan = mine.take();
    }
    return plan;
  }

  std::unique_ptr<RootSession> root_;
  std::vector<std::unique_ptr<MemberSession>> members_;
};

TEST_F(Sessions, CarryRequestsUpAndPlansDown) {
  Start(2, 8);
  ASSERT_TRUE(Send(0, {allreduce("a"), allreduce("b", Dtype::int8)}).ok());
  EXPECT_FALSE(root_->decide(0).has_value());
  EXPECT_EQ(root_->pending(), 2u);
  ASSERT_TRUE(Send(1, {allreduce("a"), allreduce("b")}).ok());
  const Plan plan = Decide();
  ASSERT_EQ(plan.buckets.size(), 2u);
  EXPECT_EQ(plan.error("a"), "");
  EXPECT_THAT(plan.error("b"), HasSubstr("b: rank 0 (host-a) has int8"));
  EXPECT_FALSE(root_->decide(0).has_value());
}

TEST_F(Sessions, RepeatedRequestIsSentAsANumber) {
  Start(2, 8);
  const Request request = allreduce(std::string(500, 'n'));
  const auto whole = members_[0]->encode_requests({request});
  EXPECT_GT(whole.size(), 500u);
  ASSERT_TRUE(root_->receive(0, whole, 0).ok());
  ASSERT_TRUE(Send(1, {request}).ok());
  Decide();
  const auto number = members_[0]->encode_requests({request});
  EXPECT_LT(number.size(), 100u);
  ASSERT_TRUE(root_->receive(0, number, 0).ok());
  ASSERT_TRUE(Send(1, {request}).ok());
  const auto bytes = root_->decide(0);
  ASSERT_TRUE(bytes.has_value());
  EXPECT_LT(bytes->size(), 100u);
  EXPECT_THAT(members_[0]->decode_plan(*bytes)->buckets[0].names, ElementsAre(request.name));
}

TEST_F(Sessions, MalformedMessageIsRejectedAsAWholeAndNamesTheRank) {
  Start(2, 4);
  ASSERT_TRUE(Send(0, {allreduce("a")}).ok());
  const Status damaged = root_->receive(1, bytes_of("no message at all"), 0);
  EXPECT_THAT(damaged.text(), HasSubstr("rank 1 (host-b): malformed control message"));
  Request bad = allreduce("z");
  bad.shape = {-1};
  EXPECT_THAT(SendRaw(1, {.requests = {allreduce("a"), bad}}).text(),
              HasSubstr("rank 1 (host-b): malformed control message: 'z': a dimension is negative"));
  EXPECT_THAT(SendRaw(1, {.cached = {3}, .requests = {allreduce("a")}}).text(),
              HasSubstr("rank 1 (host-b): it refers to cached request 3, which does not exist"));
  EXPECT_THAT(SendRaw(1, {.acknowledged = 1, .requests = {allreduce("a")}}).text(),
              HasSubstr("rank 1 (host-b): it acknowledges plan 1 after 0 of 0"));
  EXPECT_THAT(SendRaw(1, {.requests = {allreduce("a"), allreduce("a")}}).text(),
              HasSubstr("rank 1 (host-b): it submits 'a' twice"));
  EXPECT_THAT(SendRaw(0, {.requests = {allreduce("a")}}).text(), HasSubstr("rank 0 (host-a): it submits 'a' twice"));
  EXPECT_THAT(SendRaw(1, {.requests = {join(), join()}}).text(), HasSubstr("it submits 'join' twice"));
  EXPECT_FALSE(root_->decide(0).has_value()) << "a was not accepted from rank 1";
  ASSERT_TRUE(Send(1, {allreduce("a")}).ok());
  EXPECT_EQ(Decide().buckets.size(), 1u);
}

TEST_F(Sessions, PositionMayBeUsedOnlyAfterThePlanThatAnnouncedIt) {
  Start(2, 4);
  for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(Send(rank, {allreduce("a")}).ok());
  Decide();
  EXPECT_FALSE(SendRaw(0, {.acknowledged = 0, .cached = {0}}).ok()) << "position 0 was announced by plan 1";
  EXPECT_TRUE(SendRaw(0, {.acknowledged = 1, .cached = {0}}).ok());
  EXPECT_FALSE(SendRaw(0, {.acknowledged = 0}).ok()) << "an acknowledgement cannot be taken back";
}

TEST_F(Sessions, RejectPlansOutOfOrder) {
  Start(1, 4);
  ASSERT_TRUE(Send(0, {allreduce("a")}).ok());
  const auto first = root_->decide(0);
  ASSERT_TRUE(members_[0]->decode_plan(*first).ok());
  EXPECT_THAT(members_[0]->decode_plan(*first).status().text(), HasSubstr("plan 1 arrived instead of plan 2"));
  EXPECT_FALSE(members_[0]->decode_plan(bytes_of("no plan at all")).ok());
}

TEST_F(Sessions, CapacitiesMustBeEqual) {
  Start(1, 4);
  MemberSession smaller(0);
  ASSERT_TRUE(Send(0, {allreduce("a")}).ok());
  EXPECT_THAT(smaller.decode_plan(*root_->decide(0)).status().text(), HasSubstr("set the same cache capacity on all"));
}

TEST_F(Sessions, RankWithoutRequestsOwesPeriodicAcknowledgements) {
  Start(2, 4);
  ASSERT_TRUE(Send(1, {join()}).ok());
  int owed = 0;
  for (int step = 0; step < 100; ++step) {
    ASSERT_TRUE(Send(0, {allreduce("a")}).ok());
    ASSERT_EQ(Decide().buckets.size(), 1u);
    if (!members_[1]->owes_acknowledgement()) continue;
    ++owed;
    ASSERT_TRUE(Send(1, {}).ok());
    EXPECT_FALSE(members_[1]->owes_acknowledgement());
  }
  EXPECT_EQ(owed, 3);
}

TEST_F(Sessions, DepartedRankIsIgnoredAndNotWaitedFor) {
  Start(3, 1);
  ASSERT_TRUE(Send(0, {allreduce("a")}).ok());
  root_->leave(2, "killed");
  EXPECT_TRUE(Send(2, {allreduce("a")}).ok()) << "it was on its way";
  EXPECT_EQ(Decide().error("a"), "rank 2 (host-c) has shut down: killed");
  ASSERT_TRUE(Send(1, {allreduce("b")}).ok());
  EXPECT_EQ(Decide().find("b")->code, Code::shut_down);
}

TEST_F(Sessions, RequestAnsweredOnItsWayIsDropped) {
  NegotiatorOptions options = options_for(2);
  options.stall_shutdown_ns = 10;
  root_ = std::make_unique<RootSession>(options, 4);
  MemberSession zero(4), one(4);
  ASSERT_TRUE(root_->receive(0, zero.encode_requests({allreduce("a")}), 0).ok());
  const auto late = one.encode_requests({allreduce("a")});
  EXPECT_EQ(root_->next_alarm_ns(), 10);
  const auto failed = root_->decide(10);
  ASSERT_TRUE(failed.has_value());
  ASSERT_TRUE(root_->receive(1, late, 11).ok());
  EXPECT_EQ(root_->pending(), 0u) << "rank 1 had a pending when the failure arrived";
  ASSERT_TRUE(one.decode_plan(*failed).ok());
  ASSERT_TRUE(root_->receive(1, one.encode_requests({allreduce("a")}), 12).ok());
  EXPECT_EQ(root_->pending(), 1u) << "this request is new";
}

TEST_F(Sessions, JoinAnsweredOnItsWayIsDropped) {
  Start(3, 4);
  ASSERT_TRUE(Send(0, {join()}).ok());
  const auto late = members_[1]->encode_requests({join()});
  root_->leave(2);
  EXPECT_EQ(Decide().find("join")->code, Code::shut_down);
  ASSERT_TRUE(root_->receive(1, late, 0).ok());
  ASSERT_TRUE(Send(1, {join()}).ok()) << "its first join was answered, so it may join again";
  EXPECT_EQ(Decide().buckets.size(), 1u);
}

TEST_F(Sessions, MakeOnePlanThatTakesTurnsOnceARankSharesItsDevice) {
  Start(2, 8);
  ASSERT_TRUE(Send(0, {allreduce("a")}).ok());
  EXPECT_FALSE(Decide().takes_turns);
  ASSERT_TRUE(root_->receive(1, members_[1]->encode_borrowed({}, std::nullopt, true), 0).ok());
  const Plan plan = Decide();
  EXPECT_TRUE(plan.takes_turns);
  EXPECT_TRUE(plan.empty());
  ASSERT_TRUE(root_->receive(0, members_[0]->encode_borrowed({}, std::nullopt, true), 0).ok());
  EXPECT_FALSE(root_->decide(0).has_value());
  ASSERT_TRUE(Send(1, {allreduce("a")}).ok());
  EXPECT_FALSE(Decide().takes_turns);
}

// Ranks leave a locked order at one position, but at different times.
TEST_F(Sessions, TakeTurnsOnlyOutsideOfALockedOrder) {
  Start(2, 8);
  NegotiatorOptions options = options_for(2);
  options.lock_after = 2;
  root_ = std::make_unique<RootSession>(options, 8);
  Plan plan;
  for (int step = 0; plan.locked.empty(); ++step) {
    ASSERT_LT(step, 10);
    for (const int rank : {0, 1}) ASSERT_TRUE(Send(rank, {allreduce("a")}).ok());
    plan = Decide();
  }
  ASSERT_TRUE(root_->receive(1, members_[1]->encode_borrowed({}, std::nullopt, true), 0).ok());
  EXPECT_FALSE(root_->decide(0).has_value());
  root_->left_order(3);
  EXPECT_TRUE(Decide().takes_turns);
}

TEST_F(Sessions, ReportStalls) {
  NegotiatorOptions options = options_for(2);
  options.stall_warning_ns = 10;
  root_ = std::make_unique<RootSession>(options, 4);
  MemberSession zero(4);
  ASSERT_TRUE(root_->receive(0, zero.encode_requests({allreduce("a")}), 5).ok());
  EXPECT_EQ(root_->next_alarm_ns(), 15);
  EXPECT_EQ(root_->stalls(15).size(), 1u);
}

TEST_F(Sessions, ListWaitingNamesWithTheMissingRanks) {
  NegotiatorOptions options = options_for(3);
  options.stall_warning_ns = 10;
  root_ = std::make_unique<RootSession>(options, 4);
  MemberSession zero(4), two(4);
  ASSERT_TRUE(root_->receive(0, zero.encode_requests({allreduce("a"), allreduce("b")}), 5).ok());
  ASSERT_TRUE(root_->receive(2, two.encode_requests({allreduce("b")}), 7).ok());
  const std::vector<Stall> waiting = root_->waiting(8, 25);
  ASSERT_EQ(waiting.size(), 2u);
  EXPECT_THAT(waiting[0].names, ElementsAre("a"));
  EXPECT_THAT(waiting[0].missing, ElementsAre(1, 2));
  EXPECT_EQ(waiting[0].waiting_ns, 20);
  EXPECT_THAT(waiting[1].names, ElementsAre("b"));
  EXPECT_THAT(waiting[1].missing, ElementsAre(1));
  EXPECT_EQ(root_->waiting(1, 25).size(), 1u);
  EXPECT_EQ(root_->stalls(25).size(), 2u) << "the list must not mark names as reported";
}

// ---- Histories ----

// Requests that a rank submits at once.
using Step = std::vector<Request>;

// A group of ranks with a star or a tree of late messages between them and the root. The seed determines which event
// comes next; some ranks are slow. All ranks work through the same steps, each in its own order as far as names allow,
// and may stop early and join. Every invariant is checked at each event.
class History {
 public:
  explicit History(uint64_t seed) : random_(seed) {
    const int size = 2 + static_cast<int>(below(7));
    joins_ = chance(3);
    leaves_ = chance(5);
    times_out_ = chance(5);
    NegotiatorOptions options = options_for(size);
    options.fusion_bytes = chance(2) ? 64 : 0;
    options.stall_shutdown_ns = times_out_ ? 200 : 0;
    const std::size_t capacity = below(6);
    root_ = std::make_unique<RootSession>(options, capacity);
    ranks_.resize(static_cast<std::size_t>(size));
    for (Rank& rank : ranks_) {
      rank.member = std::make_unique<MemberSession>(capacity);
      rank.haste = chance(3) ? 1 : 12;
    }
    std::vector<int> hosts;
    for (int rank = 0; rank < size; ++rank) hosts.push_back(static_cast<int>(below(3)));
    links_.emplace(*root_, hosts, static_cast<int>(below(3)));
    std::vector<std::size_t> leaves;
    for (std::size_t rank = 1; rank < ranks_.size(); ++rank) {
      if (links_->is_leaf(rank)) leaves.push_back(rank);
    }
    leaver_ = leaves[below(leaves.size())];
    epochs_ = joins_ ? 1 + static_cast<int>(below(3)) : 1;
    write_steps();
  }

  std::vector<std::string> run() {
    while (violations_.empty() && (act() || wait())) {
    }
    for (std::size_t rank = 0; rank < ranks_.size() && violations_.empty(); ++rank) check_end(rank);
    return violations_;
  }

  std::size_t submitted() const { return submitted_; }
  std::size_t failures() const { return failures_; }
  bool has_relays() const { return links_->has_relays(); }

 private:
  struct Rank {
    std::unique_ptr<MemberSession> member;
    std::size_t haste = 1;
    std::vector<Step> todo;  // steps of this epoch that are not done
    int epoch = 0;
    std::map<std::string, Request> pending;
    bool joined = false;
    bool left = false;
    std::size_t plans = 0;
    std::size_t submitted = 0, completed = 0;
  };
  // What ranks decoded of one plan: the first rank to handle it writes, the others compare.
  struct Seen {
    Plan plan;
    std::map<std::string, Request> requests;  // by name, of names decided without error
  };

  std::size_t below(std::size_t limit) { return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random_); }
  bool chance(std::size_t of) { return below(of) == 0; }
  void violated(std::string what) { violations_.push_back(std::move(what)); }

  // Shapes change from use to use, which reveals ranks that mean different uses of a name and overflows the cache.
  Request any_request(const std::string& name) {
    const auto variant = static_cast<int64_t>(1 + below(3));
    Request request = allreduce(name, Dtype::float32, {variant, 2});
    request.priority = static_cast<int32_t>(below(2));
    if (joins_ || chance(2)) return request;
    request.kind = static_cast<RequestKind>(below(6));
    if (request.kind == RequestKind::broadcast) request.root = static_cast<int>(below(ranks_.size()));
    return request;
  }

  Step any_step(std::size_t number) {
    std::vector<std::string> names{"a", "b", "c", "d", "e", "f"};
    std::shuffle(names.begin(), names.end(), random_);
    const bool grouped = chance(4);
    names.resize(grouped ? 2 + below(2) : 1);
    Step step;
    for (const std::string& name : names) {
      step.push_back(any_request(name));
      if (!grouped) continue;
      step.back().group = "g" + std::to_string(number);
      step.back().group_size = static_cast<int32_t>(names.size());
    }
    return step;
  }

  void write_steps() {
    for (int epoch = 0; epoch < epochs_; ++epoch) {
      std::vector<Step> steps;
      for (std::size_t count = 3 + below(20); count > 0; --count) steps.push_back(any_step(steps.size()));
      steps_.push_back(std::move(steps));
    }
    for (Rank& rank : ranks_) rank.todo = steps_of(0);
  }

  // In an epoch that ends with a join, a rank may do only the first steps.
  std::vector<Step> steps_of(int epoch) {
    const auto& all = steps_[static_cast<std::size_t>(epoch)];
    const std::size_t count = joins_ ? below(all.size() + 1) : all.size();
    return {all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count)};
  }

  // ---- Events ----

  bool act() {
    std::vector<std::pair<std::size_t, std::function<void()>>> events;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      Rank& rank = ranks_[i];
      if (rank.left) continue;
      if (may_submit(rank)) events.emplace_back(rank.haste, [this, i] { submit(i); });
      if (links_->may_pass_on(i)) events.emplace_back(rank.haste, [this, i] { links_->pass_on(i); });
      if (links_->may_deliver_up(i)) events.emplace_back(rank.haste, [this, i] { deliver_up(i); });
      if (links_->may_deliver_down(i)) events.emplace_back(rank.haste, [this, i] { deliver_down(i); });
    }
    if (heard_) events.emplace_back(6, [this] { decide(); });
    if (leaves_ && chance(60)) events.emplace_back(20, [this] { leave(); });
    if (events.empty()) return false;
    std::size_t total = 0;
    for (const auto& event : events) total += event.first;
    std::size_t drawn = below(total);
    for (const auto& [weight, event] : events) {
      if (drawn < weight) {
        event();
        break;
      }
      drawn -= weight;
    }
    ++now_;
    return true;
  }

  // No event is possible, so only time can pass. Without time limits the history must have ended.
  bool wait() {
    if (root_->pending() == 0 || !times_out_) return false;
    now_ = root_->next_alarm_ns();
    if (now_ == std::numeric_limits<int64_t>::max()) return false;
    heard_ = true;
    return true;
  }

  // Steps whose names are all free and occur in none of the steps before them.
  std::vector<std::size_t> eligible(const Rank& rank) const {
    std::vector<std::size_t> result;
    std::map<std::string, bool> taken;
    for (std::size_t i = 0; i < rank.todo.size(); ++i) {
      bool is_free = true;
      for (const Request& request : rank.todo[i]) {
        is_free = is_free && !rank.pending.contains(request.name) && !taken[request.name];
        taken[request.name] = true;
      }
      if (is_free) result.push_back(i);
    }
    return result;
  }

  bool may_submit(const Rank& rank) const {
    if (rank.joined) return false;
    if (rank.todo.empty()) return joins_ && rank.epoch < epochs_;
    return !eligible(rank).empty();
  }

  // The fields that may legitimately differ between ranks.
  Request as_rank(Request request, std::size_t rank) const {
    const auto size = static_cast<int64_t>(ranks_.size());
    if (request.kind == RequestKind::allgather) request.shape[0] += static_cast<int64_t>(rank) % 2;
    if (request.kind == RequestKind::alltoall) {
      request.shape[0] *= size;
      if (rank % 2 == 0) request.splits.assign(ranks_.size(), request.shape[0] / size);
    }
    return request;
  }

  void submit(std::size_t index) {
    Rank& rank = ranks_[index];
    std::vector<Request> requests;
    for (std::size_t count = below(4); count > 0 || requests.empty(); count -= count > 0) {
      const auto choices = eligible(rank);
      if (choices.empty()) break;
      const std::size_t choice = choices[below(choices.size())];
      for (const Request& request : rank.todo[choice]) {
        requests.push_back(as_rank(request, index));
        rank.pending.emplace(request.name, requests.back());
      }
      rank.todo.erase(rank.todo.begin() + static_cast<std::ptrdiff_t>(choice));
    }
    if (rank.todo.empty() && joins_ && (requests.empty() || chance(2))) {
      requests.push_back(join());
      rank.joined = true;
    }
    rank.submitted += requests.size();
    submitted_ += requests.size();
    links_->write(index, rank.member->encode_requests(requests));
  }

  void deliver_up(std::size_t index) {
    const Status status = links_->deliver_up(index, now_);
    if (!status.ok()) violated("a message was refused: " + status.text());
    heard_ |= links_->take_arrival();
  }

  void decide() {
    const auto bytes = root_->decide(now_, chance(2) ? Negotiator::kBytesAhead : 0);
    if (bytes) links_->send_plan(*bytes);
    heard_ = root_->continues_at(0);
  }

  void leave() {
    leaves_ = false;
    has_left_ = true;
    Rank& rank = ranks_[leaver_];
    while (links_->may_deliver_up(leaver_)) deliver_up(leaver_);
    rank.left = true;
    links_->leave(leaver_);
    root_->leave(static_cast<int>(leaver_));
    heard_ = true;
  }

  void deliver_down(std::size_t index) {
    Rank& rank = ranks_[index];
    auto plan = rank.member->decode_plan(links_->deliver_down(index));
    if (!plan.ok()) return violated("a rank refused: " + plan.status().text());
    const bool first = rank.plans == seen_.size();
    if (first) seen_.push_back({*plan, {}});
    Seen& seen = seen_[rank.plans++];
    if (plan->buckets != seen.plan.buckets) violated("two ranks got different plans");
    for (const Bucket& bucket : plan->buckets) take(index, bucket, seen);
    if (rank.member->owes_acknowledgement()) links_->write(index, rank.member->encode_requests({}));
  }

  // ---- How a rank handles its plan ----

  void take(std::size_t index, const Bucket& bucket, Seen& seen) {
    Rank& rank = ranks_[index];
    if (bucket.code != Code::ok) ++failures_;
    if (bucket.code != Code::ok && !times_out_ && !has_left_) violated("failed without reason: " + bucket.error);
    if (bucket.kind == RequestKind::join) return take_join(rank, bucket);
    for (std::size_t i = 0; i < bucket.names.size(); ++i) {
      const auto found = rank.pending.find(bucket.names[i]);
      if (found == rank.pending.end()) {
        if (bucket.code == Code::ok && !rank.joined) violated("'" + bucket.names[i] + "' runs and is not pending");
        continue;
      }
      if (bucket.code == Code::ok) check_same(index, bucket, i, found->second, seen);
      rank.pending.erase(found);
      ++rank.completed;
    }
  }

  void take_join(Rank& rank, const Bucket& bucket) {
    if (!rank.joined) {
      if (bucket.code == Code::ok) violated("a join completes that was not submitted");
      return;
    }
    rank.joined = false;
    ++rank.completed;
    if (++rank.epoch < epochs_) rank.todo = steps_of(rank.epoch);
  }

  // All ranks must mean the same use of the name.
  void check_same(std::size_t index, const Bucket& bucket, std::size_t i, Request mine, Seen& seen) {
    const auto count = mine.element_count();
    if (!bucket.element_counts.empty() && bucket.element_counts[i] != count) violated("element counts differ");
    if (mine.kind == RequestKind::allgather && bucket.rows[index] != mine.shape[0]) violated("rows differ");
    if (mine.kind == RequestKind::allgather || mine.kind == RequestKind::alltoall) {
      mine.shape[0] = 0;
      mine.splits.clear();
    }
    const auto [found, is_first] = seen.requests.emplace(mine.name, mine);
    if (!is_first && !(found->second == mine)) violated("ranks mean different uses of '" + mine.name + "'");
  }

  void check_end(std::size_t index) {
    const Rank& rank = ranks_[index];
    if (rank.left) return;
    if (!rank.pending.empty()) violated("'" + rank.pending.begin()->first + "' was lost");
    if (rank.joined) violated("a join was lost");
    if (!rank.todo.empty()) violated("a step was never done");
    if (rank.completed != rank.submitted) violated("not everything completed exactly once");
    if (rank.plans != seen_.size()) violated("a rank has not seen all plans");
    if (root_->pending() != 0) violated("the root still waits for something");
  }

  std::mt19937_64 random_;
  bool joins_ = false, leaves_ = false, times_out_ = false, has_left_ = false;
  int epochs_ = 1;
  std::size_t leaver_ = 0;
  std::unique_ptr<RootSession> root_;
  std::optional<AgreementLinks> links_;
  std::vector<Rank> ranks_;
  std::vector<std::vector<Step>> steps_;  // by epoch
  std::vector<Seen> seen_;
  bool heard_ = false;
  int64_t now_ = 0;
  std::size_t submitted_ = 0, failures_ = 0;
  std::vector<std::string> violations_;
};

TEST(Histories, CompleteEveryRequestHoweverLateMessagesAre) {
  const int count = histories();
  std::size_t violations = 0, submitted = 0, failures = 0, with_relays = 0;
  for (int number = 0; number < count && violations < 5; ++number) {
    History history(kSeed + static_cast<uint64_t>(number));
    for (const std::string& violation : history.run()) {
      ADD_FAILURE() << "seed " << kSeed + static_cast<uint64_t>(number) << ": " << violation;
      ++violations;
    }
    submitted += history.submitted();
    failures += history.failures();
    with_relays += history.has_relays() ? 1 : 0;
  }
  std::printf(
      "agreement: %d histories, %zu of them with relays, %zu violations (seed %lu); %zu requests, %zu failed by plan\n",
      count, with_relays, violations, kSeed, submitted, failures);
  EXPECT_EQ(violations, 0u);
  EXPECT_GT(with_relays, static_cast<std::size_t>(count / 4));
}

}  // namespace
}  // namespace fdl
