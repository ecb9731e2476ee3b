// Tests of PublishedReadiness: which words are written, read and watched, over readiness flags in this process.
#include "runtime/named/order/published_readiness.h"

#include "tests/support/thread_ranks.h"

namespace fdl::test {
namespace {

// Flags whose words the test sets.
class FakeFlags final : public ReadinessFlags {
 public:
  explicit FakeFlags(std::size_t size) : words(size, 0) {}
  void publish(uint64_t word) override {
    words[0] = word;
    ++publications;
  }
  uint64_t word_of(int rank) const override { return words[static_cast<std::size_t>(rank)]; }
  void watch(uint64_t ranks) override { watched = ranks; }
  bool prepare_to_sleep() override { return true; }
  void finish_sleep() override {}
  int wake_fd() const override { return event_.fd(); }

  std::vector<uint64_t> words;
  int publications = 0;
  uint64_t watched = ~uint64_t{0};

 private:
  Event event_ = require(Event::make());
};

// Rank 0 of three, with an order of one barrier, "a".
class PublishedReadinessTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string id = unique_id();
    run_ranks(3, [&](int rank) {
      const Membership membership = make_membership(id, rank, 3, config_);
      Communicator::Parts parts{.id = id, .rank = rank, .members = membership.members, .config = &config_};
      parts.shape = {.ranks = 3, .hosts = 1, .ranks_per_host = 3};
      parts.transport = require(connect_loopback(membership));
      if (rank == 0) {
        auto flags = std::make_unique<FakeFlags>(3);
        flags_ = flags.get();
        parts.readiness_flags = std::move(flags);
      }
      comms_[static_cast<std::size_t>(rank)] = require(Communicator::make(std::move(parts)));
    });
    readiness_.emplace(*comms_[0]);
    std::vector<Bucket> buckets(1);
    buckets[0].kind = RequestKind::barrier;
    buckets[0].dtype = Dtype::uint8;
    buckets[0].names = {"a"};
    submissions_.lock(std::move(buckets), [](const std::string&) { return nullptr; });
  }
  void SubmitBarrier() {
    Entry entry;
    entry.request.kind = RequestKind::barrier;
    entry.request.dtype = Dtype::uint8;
    entry.request.name = "a";
    submissions_.submit(std::move(entry));
  }
  // The other ranks have tensors of so many positions of the same order.
  void OthersPublish(uint64_t count, bool frozen = false) {
    for (const std::size_t rank : {1, 2}) {
      flags_->words[rank] = to_word({readiness_of(order().word()).epoch, count, frozen});
    }
  }
  const LockedOrder& order() const { return *submissions_.order(); }

  const Config config_ = make_config();
  std::array<std::unique_ptr<Communicator>, 3> comms_;
  FakeFlags* flags_ = nullptr;
  Submissions<Entry> submissions_{0, 3};
  std::optional<PublishedReadiness> readiness_;
};

TEST_F(PublishedReadinessTest, PublishesAWordOnlyWhenItHasChanged) {
  EXPECT_TRUE(readiness_->available());
  readiness_->publish(nullptr);
  EXPECT_EQ(flags_->publications, 0);
  readiness_->publish(&order());
  readiness_->publish(&order());
  EXPECT_EQ(flags_->publications, 1);
  SubmitBarrier();
  readiness_->publish(&order());
  EXPECT_EQ(flags_->publications, 2);
  EXPECT_EQ(readiness_of(flags_->words[0]).count, 1u);
}

TEST_F(PublishedReadinessTest, OwnWordIsPublishedBeforeTheWordsAreRead) {
  SubmitBarrier();
  OthersPublish(1);
  EXPECT_FALSE(readiness_->read(submissions_, nullptr));
  EXPECT_EQ(readiness_of(flags_->words[0]).count, 1u);
  EXPECT_TRUE(submissions_.begin()) << "all three words are read as ready";
}

TEST_F(PublishedReadinessTest, FrozenRankFreezesThisRankWhichPublishesThat) {
  OthersPublish(0, /*frozen=*/true);
  EXPECT_TRUE(readiness_->read(submissions_, nullptr));
  EXPECT_TRUE(readiness_of(flags_->words[0]).frozen);
  EXPECT_FALSE(readiness_->read(submissions_, nullptr));
}

TEST_F(PublishedReadinessTest, WatchesTheRanksThatAreBehind) {
  readiness_->watch(order());
  EXPECT_EQ(flags_->watched, 0u) << "this rank waits for no other rank";
  SubmitBarrier();
  OthersPublish(0);
  flags_->words[1] = to_word({readiness_of(order().word()).epoch, 1, false});
  readiness_->read(submissions_, nullptr);
  readiness_->watch(order());
  EXPECT_EQ(flags_->watched, uint64_t{1} << 2);
  readiness_->stop_watching();
  EXPECT_EQ(flags_->watched, 0u);
}

TEST_F(PublishedReadinessTest, WatchesARankThatHasPublishedSinceItsWordWasRead) {
  SubmitBarrier();
  OthersPublish(0);
  readiness_->read(submissions_, nullptr);
  OthersPublish(1);
  readiness_->watch(order());
  EXPECT_EQ(flags_->watched, 0b110u) << "the order has not read the new words: this rank must not sleep";
}

TEST_F(PublishedReadinessTest, GroupWithoutFlagsPublishesNothing) {
  PublishedReadiness none(*comms_[1]);
  EXPECT_FALSE(none.available());
  none.publish(&order());
  none.stop_watching();
  EXPECT_EQ(flags_->publications, 0);
}

}  // namespace
}  // namespace fdl::test
