// Tests of the wire format: positions, messages as bytes, rejection of damaged bytes, and the request cache.
#include "agree/wire/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <random>

#include "agree/wire/compact_plan.h"
#include "agree/wire/positions.h"
#include "agree/wire/request_cache.h"
#include "agree/wire/root_request_cache.h"
#include "tests/support/wire_messages.h"

namespace fdl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr uint64_t kSeed = 20240611;

bool equal(const RequestMessage& a, const RequestMessage& b) {
  return a.acknowledged == b.acknowledged && a.cached == b.cached && a.requests == b.requests && a.frozen == b.frozen &&
         a.shares_device == b.shares_device;
}
bool equal(const RelayMessage& a, const RelayMessage& b) { return a.entries == b.entries; }
bool equal(const PlanMessage& a, const PlanMessage& b) {
  return a.number == b.number && a.plan.buckets == b.plan.buckets && a.cached == b.cached &&
         a.cache_positions == b.cache_positions && a.cache_requests == b.cache_requests &&
         a.plan.freeze == b.plan.freeze && a.plan.frozen == b.plan.frozen && a.plan.rounds == b.plan.rounds &&
         a.plan.cut == b.plan.cut && a.plan.order_ended == b.plan.order_ended &&
         a.plan.takes_turns == b.plan.takes_turns;
}

// ---- Positions ----

TEST(Positions, AreBitsIfTheyAscendClosely) {
  const auto bits = as_bits({1000, 1001, 1009});
  ASSERT_TRUE(bits.has_value());
  EXPECT_EQ(bits->first, 1000u);
  EXPECT_THAT(bits->bits, ElementsAre(0b11, 0b10));
  EXPECT_THAT(positions_in(*bits), ElementsAre(1000, 1001, 1009));
}

TEST(Positions, AreAListIfBitsWouldLoseTheOrderOrNeedMoreBytes) {
  EXPECT_FALSE(as_bits({2, 1}).has_value());
  EXPECT_FALSE(as_bits({1, 1}).has_value());
  EXPECT_FALSE(as_bits({0, 60000}).has_value());
  EXPECT_TRUE(as_bits({5}).has_value());
}

// ---- Round trips ----

TEST(Wire, RequestsSurviveARoundTrip) {
  const auto back = decode_requests(encode(some_requests()));
  ASSERT_TRUE(back.ok()) << back.status().text();
  EXPECT_TRUE(equal(*back, some_requests()));
}

TEST(Wire, RelayedMessagesSurviveARoundTrip) {
  const auto back = decode_relayed(encode(some_relayed()));
  ASSERT_TRUE(back.ok()) << back.status().text();
  EXPECT_EQ(back->entries, some_relayed().entries);
  EXPECT_TRUE(decode_relayed(encode(RelayMessage{}))->entries.empty());
}

TEST(Wire, RejectsRelayedMessagesWithRanksOutOfOrder) {
  for (const std::vector<RankRange>& ranks : std::vector<std::vector<RankRange>>{
           {}, {{-1, 1}}, {{0, 0}}, {{0, -1}}, {{1 << 20, 1}}, {{1, 1 << 20}}, {{2, 2}, {3, 1}}, {{5, 1}, {2, 1}}}) {
    const auto back = decode_relayed(encode(RelayMessage{.entries = {{ranks, encode(some_requests())}}}));
    ASSERT_FALSE(back.ok());
    EXPECT_THAT(back.status().text(), HasSubstr("relayed message"));
  }
}

TEST(Wire, PlansSurviveARoundTrip) {
  const auto back = decode_plan(encode(some_plan()));
  ASSERT_TRUE(back.ok()) << back.status().text();
  EXPECT_TRUE(equal(*back, some_plan()));
}

TEST(Wire, EmptyMessagesSurviveARoundTrip) {
  EXPECT_TRUE(equal(*decode_requests(encode(RequestMessage{})), RequestMessage{}));
  EXPECT_TRUE(equal(*decode_plan(encode(PlanMessage{})), PlanMessage{}));
}

TEST(Wire, ReadsBytesAtAnyAddress) {
  const auto bytes = encode(some_requests());
  std::vector<std::byte> shifted(bytes.size() + 8);
  for (std::size_t shift = 0; shift < 8; ++shift) {
    std::copy(bytes.begin(), bytes.end(), shifted.begin() + static_cast<std::ptrdiff_t>(shift));
    EXPECT_TRUE(decode_requests(ConstBytes(shifted).subspan(shift, bytes.size())).ok());
  }
}

TEST(Wire, RepeatedStepOf161TensorsTakesFewBytes) {
  RequestMessage ordered, shuffled, whole;
  RequestCache cache(1024);
  PlanMessage plan;
  plan.plan.buckets.emplace_back();
  for (uint32_t i = 0; i < 161; ++i) {
    const Request request = allreduce("model.layers." + std::to_string(i) + ".weight", Dtype::float32, {512, 512});
    ordered.cached.push_back(i);
    whole.requests.push_back(request);
    cache.put(i, request);
    plan.plan.buckets[0].names.push_back(request.name);
    plan.plan.buckets[0].element_counts.push_back(request.element_count());
  }
  shuffled.cached = ordered.cached;
  std::shuffle(shuffled.cached.begin(), shuffled.cached.end(), std::mt19937_64(kSeed));
  const std::size_t long_plan = encode(plan).size();
  shorten(plan, cache);
  std::printf(
      "161 cached requests: %zu bytes in order, %zu in any order, %zu whole; their plan: %zu bytes, %zu whole\n",
      encode(ordered).size(), encode(shuffled).size(), encode(whole).size(), encode(plan).size(), long_plan);
  EXPECT_LE(encode(ordered).size(), 100u);
  EXPECT_LE(encode(shuffled).size(), 400u);
  EXPECT_LE(encode(plan).size(), 150u);
  EXPECT_TRUE(equal(*decode_requests(encode(shuffled)), shuffled));
}

// ---- Requests that cannot be sent ----

struct BadRequest {
  const char* what;
  std::function<void(Request&)> spoil;
  const char* text;
};

const BadRequest kBadRequests[] = {
    {"no name", [](Request& r) { r.name = ""; }, "an operation needs a name"},
    {"long name", [](Request& r) { r.name.assign(65537, 'n'); }, "a name may have at most"},
    {"long group", [](Request& r) { r.group.assign(65537, 'n'), r.group_size = 1; }, "the name of a group may have"},
    {"op", [](Request& r) { r.op = 13; }, "13 is no reduce op"},
    {"dimensions", [](Request& r) { r.shape.assign(65, 1); }, "at most 64 dimensions"},
    {"negative dimension",
     [](Request& r) {
       r.shape = {2, -1};
     },
     "a dimension is negative"},
    {"too large",
     [](Request& r) {
       r.shape = {1 << 30, 1 << 30};
     },
     "too many elements"},
    {"too large beside a zero",
     [](Request& r) {
       r.shape = {0, 1 << 30, 1 << 30};
     },
     "too many elements"},
    {"largest", [](Request& r) { r.shape = {std::numeric_limits<int64_t>::max()}; }, "too many elements"},
    {"prescale", [](Request& r) { r.prescale = std::numeric_limits<double>::quiet_NaN(); }, "a scale is not finite"},
    {"postscale", [](Request& r) { r.postscale = std::numeric_limits<double>::infinity(); }, "a scale is not finite"},
    {"root", [](Request& r) { r.root = -2; }, "the root is negative"},
    {"device", [](Request& r) { r.device = 256; }, "no such kind of device"},
    {"negative place", [](Request& r) { r.place = -2; }, "no such place"},
    {"negative device", [](Request& r) { r.device = -2; }, "no such kind of device"},
    {"group without size", [](Request& r) { r.group = "g"; }, "the size of its group does not fit"},
    {"size without group", [](Request& r) { r.group_size = 2; }, "the size of its group does not fit"},
    {"group size", [](Request& r) { r.group = "g", r.group_size = 1 << 21; }, "the size of its group does not fit"},
    {"negative group size", [](Request& r) { r.group = "g", r.group_size = -1; }, "the size of its group does not fit"},
};

TEST(Wire, RejectsInvalidRequests) {
  for (const BadRequest& bad : kBadRequests) {
    Request request = allreduce("x");
    bad.spoil(request);
    EXPECT_THAT(check_request(request).text(), HasSubstr(bad.text)) << bad.what;
    EXPECT_EQ(check_request(request).code(), Code::invalid_argument);
    const auto back = decode_requests(encode(RequestMessage{.requests = {allreduce("fine"), request}}));
    ASSERT_FALSE(back.ok()) << bad.what;
    EXPECT_THAT(back.status().text(), HasSubstr("malformed control message: ")) << bad.what;
    EXPECT_THAT(back.status().text(), HasSubstr(bad.text)) << bad.what;
  }
  EXPECT_TRUE(check_request(some_request()).ok());
}

TEST(Wire, LimitsWhatIsSubmittedTogether) {
  EXPECT_TRUE(check_group(1, 0).ok());
  EXPECT_TRUE(check_group(MessageRoom::kRequests, MessageRoom::kBytes).ok());
  const Status many = check_group(MessageRoom::kRequests + 1, 3 * 1024 * 1024);
  EXPECT_EQ(many.code(), Code::invalid_argument);
  EXPECT_THAT(many.text(),
              HasSubstr("65537 operations in one call, whose names, shapes and splits take 3.0 MiB: a call "
                        "may have at most 65536 operations and 16 MiB of these"));
  EXPECT_EQ(check_group(1, MessageRoom::kBytes + 1).code(), Code::invalid_argument);
}

TEST(Wire, ARequestTakesNoMoreThanItsMessageBytes) {
  Request request = some_request();
  for (int i = 0; i < 50; ++i) {
    request.name += 'n';
    request.group += "gg";
    if (i % 5 == 0) request.shape.push_back(1);
    if (i % 3 == 0) request.splits.push_back(i);
    RequestMessage message;
    message.requests.assign(64, request);
    EXPECT_LE(encode(message).size(), 64 * request.message_bytes());
  }
}

TEST(Wire, RejectsUnknownKindsAndDtypes) {
  Request kind = allreduce("x"), dtype = allreduce("x");
  kind.kind = static_cast<RequestKind>(7);
  dtype.dtype = static_cast<Dtype>(15);
  EXPECT_THAT(decode_requests(encode(RequestMessage{.requests = {kind}})).status().text(),
              HasSubstr("7 is no kind of operation"));
  EXPECT_THAT(decode_requests(encode(RequestMessage{.requests = {dtype}})).status().text(),
              HasSubstr("15 is no dtype"));
}

TEST(Wire, CarriesCompressionsOfWhatCanBeCompressed) {
  Request request = allreduce("x");
  request.compression = Compression::float8_e5m2;
  const auto back = decode_requests(encode(RequestMessage{.requests = {request}}));
  ASSERT_TRUE(back.ok()) << back.status().text();
  EXPECT_EQ(back->requests.front(), request);
  PlanMessage plan;
  plan.plan.buckets.resize(1);
  plan.plan.buckets[0].names = {"x"};
  plan.plan.buckets[0].element_counts = {4};
  plan.plan.buckets[0].compression = Compression::int4;
  EXPECT_EQ(decode_plan(encode(plan)).take().plan.buckets, plan.plan.buckets);
  for (const std::function<void(Request&)>& spoil : std::vector<std::function<void(Request&)>>{
           [](Request& r) { r.dtype = Dtype::float64; }, [](Request& r) { r.op = 2; }, [](Request& r) { r.device = 1; },
           [](Request& r) { r.kind = RequestKind::broadcast; },
           [](Request& r) { r.compression = static_cast<Compression>(6); }}) {
    Request bad = request;
    spoil(bad);
    EXPECT_THAT(decode_requests(encode(RequestMessage{.requests = {bad}})).status().text(), HasSubstr("compress"));
  }
  plan.plan.buckets[0].dtype = Dtype::int32;
  EXPECT_THAT(decode_plan(encode(plan)).status().text(), HasSubstr("cannot be compressed"));
}

struct BadPlan {
  const char* what;
  std::function<void(PlanMessage&)> spoil;
  const char* text;
};

const BadPlan kBadPlans[] = {
    {"no names", [](PlanMessage& m) { m.plan.buckets[0].names.clear(); }, "a bucket without names"},
    {"names twice", [](PlanMessage& m) { m.cached[0] = {1}; }, "a bucket without names, or with two sorts"},
    {"counts", [](PlanMessage& m) { m.plan.buckets[0].element_counts = {1}; }, "fewer element counts"},
    {"negative count", [](PlanMessage& m) { m.plan.buckets[0].element_counts[0] = -1; }, "element count is out of"},
    {"large count", [](PlanMessage& m) { m.plan.buckets[0].element_counts[0] = INT64_MAX; }, "element count is out of"},
    {"rows", [](PlanMessage& m) { m.plan.buckets[1].rows[0] = -1; }, "a number of rows is out of range"},
    {"scale", [](PlanMessage& m) { m.plan.buckets[0].prescale = -INFINITY; }, "a scale is not finite"},
    {"error", [](PlanMessage& m) { m.plan.buckets[0].error = "?"; }, "an error without text, or the reverse"},
    {"code alone", [](PlanMessage& m) { m.plan.buckets[0].code = Code::timeout; }, "an error without text"},
    {"code", [](PlanMessage& m) { m.plan.buckets[2].code = static_cast<Code>(13); }, "a code is out of range"},
    {"culprit", [](PlanMessage& m) { m.plan.buckets[2].culprit = -2; }, "a rank is out of range"},
    {"root", [](PlanMessage& m) { m.plan.buckets[2].root = -2; }, "a rank is out of range"},
    {"last joined", [](PlanMessage& m) { m.plan.buckets[3].last_joined = -2; }, "a rank is out of range"},
    {"device", [](PlanMessage& m) { m.plan.buckets[3].device = 256; }, "a device is out of range"},
    {"the last with next", [](PlanMessage& m) { m.plan.buckets[4].launch_with_next = true; }, "cannot join it"},
    {"with another device's", [](PlanMessage& m) { m.plan.buckets[1].device = 3; }, "cannot join it"},
    {"with a failure", [](PlanMessage& m) { m.plan.buckets[1].launch_with_next = true; }, "cannot join it"},
    {"kind", [](PlanMessage& m) { m.plan.buckets[0].kind = static_cast<RequestKind>(9); }, "9 is no kind of operation"},
    {"dtype", [](PlanMessage& m) { m.plan.buckets[0].dtype = static_cast<Dtype>(99); }, "99 is no dtype"},
    {"op", [](PlanMessage& m) { m.plan.buckets[0].op = 13; }, "13 is no reduce op"},
    {"rounds", [](PlanMessage& m) { m.plan.rounds = (1 << 20) + 1; }, "a locked order has too many rounds"},
    {"cache", [](PlanMessage& m) { m.cache_positions.pop_back(); }, "cache positions and requests differ in number"},
    {"cached request", [](PlanMessage& m) { m.cache_requests[0].name = ""; }, "an operation needs a name"},
};

TEST(Wire, RejectsInvalidPlans) {
  for (const BadPlan& bad : kBadPlans) {
    PlanMessage message = some_plan();
    bad.spoil(message);
    const auto back = decode_plan(encode(message));
    ASSERT_FALSE(back.ok()) << bad.what;
    EXPECT_EQ(back.status().code(), Code::transport) << bad.what;
    EXPECT_THAT(back.status().text(), HasSubstr(bad.text)) << bad.what;
  }
}

// ---- Damaged bytes ----

TEST(Wire, RejectsBytesThatAreNotItsKindOfMessage) {
  EXPECT_FALSE(decode_requests({}).ok());
  EXPECT_FALSE(decode_plan({}).ok());
  EXPECT_FALSE(decode_requests(bytes_of("hello, root: here are my requests")).ok());
  EXPECT_FALSE(decode_requests(encode(some_plan())).ok()) << "a plan is not a request message";
  EXPECT_FALSE(decode_plan(encode(some_requests())).ok());
  EXPECT_FALSE(decode_relayed(encode(some_requests())).ok());
  EXPECT_FALSE(decode_requests(encode(some_relayed())).ok());
  const std::vector<std::byte> large(kMaxControlBytes + 1);
  EXPECT_THAT(decode_plan(large).status().text(), HasSubstr("bytes are too many"));
}

template <typename Message, typename Decode>
void expect_rejected_when_cut(const Message& message, Decode decode) {
  const auto whole = encode(message);
  int rejected = 0;
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const auto result = decode(ConstBytes(whole).first(size));
    if (!result.ok()) {
      ++rejected;
    } else {
      ASSERT_TRUE(equal(*result, message)) << "only padding may be missing, but " << size << " bytes are accepted";
    }
  }
  EXPECT_GT(rejected, 100);
}

TEST(Wire, RejectsMessagesThatAreCut) {
  expect_rejected_when_cut(some_requests(), decode_requests);
  expect_rejected_when_cut(some_relayed(), decode_relayed);
  expect_rejected_when_cut(some_plan(), decode_plan);
}

// ---- Cache ----

TEST(Cache, FindsARequestOnlyIfAllFieldsAreEqual) {
  RequestCache cache(4);
  const Request request = some_request();
  cache.put(2, request);
  EXPECT_EQ(cache.find(request), 2u);
  EXPECT_EQ(cache.find(std::string_view(request.name)), 2u);
  const std::function<void(Request&)> changes[] = {
      [](Request& r) { r.kind = RequestKind::allgather; },
      [](Request& r) { r.name += "x"; },
      [](Request& r) { r.dtype = Dtype::int8; },
      [](Request& r) { r.shape.back() = 9; },
      [](Request& r) { r.op = 1; },
      [](Request& r) { r.root = 0; },
      [](Request& r) { r.prescale = 1; },
      [](Request& r) { r.postscale = 1; },
      [](Request& r) { r.splits.back() = 0; },
      [](Request& r) { r.group = "h"; },
      [](Request& r) { r.group_size = 8; },
      [](Request& r) { r.priority = 0; },
      [](Request& r) { r.device = -1; },
      [](Request& r) { r.place = -1; },
      [](Request& r) { r.compression = Compression::int8; },
  };
  for (const auto& change : changes) {
    Request other = request;
    change(other);
    EXPECT_FALSE(cache.find(other).has_value());
  }
}

TEST(Cache, ReplacesTheLeastRecentlyUsedUnlessPinned) {
  RequestCache cache(3);
  const std::vector<bool> free(3, false);
  for (const char* name : {"a", "b", "c"}) cache.put(*cache.choose_position(free), allreduce(name));
  EXPECT_EQ(cache.size(), 3u);
  cache.touch(0);
  EXPECT_EQ(cache.choose_position(free), 1u);
  EXPECT_EQ(cache.choose_position({false, true, false}), 2u);
  EXPECT_EQ(cache.choose_position({true, true, true}), std::nullopt);
  cache.put(1, allreduce("d"));
  EXPECT_FALSE(cache.find(allreduce("b")).has_value());
  EXPECT_FALSE(cache.find(std::string_view("b")).has_value());
  EXPECT_EQ(cache.at(1)->name, "d");
  EXPECT_EQ(cache.choose_position(free), 2u);
}

TEST(Cache, WithoutCapacityStoresNothing) {
  RequestCache cache(0);
  EXPECT_EQ(cache.choose_position({}), std::nullopt);
  EXPECT_EQ(cache.at(0), nullptr);
  EXPECT_FALSE(cache.find(allreduce("a")).has_value());
}

TEST(Cache, StoresEveryKindExceptJoin) {
  for (int kind = 0; kind < kRequestKindCount; ++kind) {
    const Request request = of_kind(static_cast<RequestKind>(kind), "x");
    EXPECT_EQ(RequestCache::is_cacheable(request), request.kind != RequestKind::join);
    RootRequestCache known(1, 4);
    known.add(request);
    EXPECT_EQ(known.cache().size(), request.kind == RequestKind::join ? 0u : 1u);
  }
}

TEST(Cache, AllCopiesAreEqualAfterEveryPlan) {
  std::mt19937_64 random(kSeed);
  const auto below = [&](std::size_t limit) {
    return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random);
  };
  int plans = 0;
  for (int history = 0; history < 300; ++history) {
    const std::size_t capacity = below(6);
    const int size = 1 + static_cast<int>(below(3));
    RootRequestCache root(size, capacity);
    std::vector<RequestCache> copies(static_cast<std::size_t>(size), RequestCache(capacity));
    for (int round = 0; round < 40; ++round, ++plans) {
      for (std::size_t asked = below(5); asked > 0; --asked) {
        root.add(allreduce("t" + std::to_string(below(4)), Dtype::float32, {static_cast<int64_t>(below(3))}));
      }
      PlanMessage message;
      root.announce(message);
      const auto received = decode_plan(encode(message));
      ASSERT_TRUE(received.ok());
      for (RequestCache& copy : copies) {
        for (std::size_t i = 0; i < received->cache_positions.size(); ++i) {
          copy.put(received->cache_positions[i], received->cache_requests[i]);
        }
        ASSERT_TRUE(copy == root.cache()) << "history " << history << ", seed " << kSeed;
      }
      for (int rank = 0; rank < size; ++rank) {
        if (below(2) == 0) root.acknowledge(rank, root.plans());
      }
    }
  }
  std::printf("cache: %d plans, all copies equal (seed %lu)\n", plans, kSeed);
}

TEST(Cache, PositionKeepsItsFormerMeaningUntilAllRanksHaveHandledThePlan) {
  RootRequestCache root(2, 1);
  PlanMessage first, second, third;
  root.add(allreduce("a"));
  EXPECT_EQ(root.meaning(0, 0), nullptr) << "no rank can use it yet";
  root.announce(first);
  root.add(allreduce("b"));
  root.announce(second);
  EXPECT_EQ(root.meaning(0, 0), nullptr);
  EXPECT_EQ(root.meaning(0, 1)->name, "a");
  EXPECT_EQ(root.meaning(0, 2)->name, "b");
  EXPECT_EQ(root.meaning(1, 2), nullptr);
  root.acknowledge(0, 2);
  root.add(allreduce("c"));
  EXPECT_EQ(root.meaning(0, 1)->name, "a") << "rank 1 may still refer to it, so c gets no position";
  EXPECT_FALSE(root.cache().find(allreduce("c")).has_value());
  root.acknowledge(1, 2);
  root.add(allreduce("c"));
  root.announce(third);
  EXPECT_EQ(root.meaning(0, 2)->name, "b");
  EXPECT_EQ(root.meaning(0, 3)->name, "c");
}

// ---- CompactPlan ----

TEST(CompactPlan, NamesAndCountsSurviveARoundTrip) {
  RequestCache cache(4);
  cache.put(0, allreduce("a", Dtype::float32, {2, 3}));
  cache.put(3, allreduce("b", Dtype::float32, {5}));
  cache.put(1, allgather("g", {7}));
  PlanMessage message = some_plan();
  message.plan.buckets[0].names = {"b", "a"};
  message.plan.buckets[0].element_counts = {5, 6};
  message.plan.buckets[2].names = {"a"};
  message.plan.buckets.pop_back();
  message.cached.clear();
  PlanMessage shortened = message;
  shorten(shortened, cache);
  EXPECT_THAT(shortened.cached, ElementsAre(ElementsAre(3, 0), ElementsAre(1), ElementsAre(0), IsEmpty()));
  EXPECT_THAT(shortened.plan.buckets[0].names, IsEmpty());
  ASSERT_TRUE(lengthen(shortened, cache).ok());
  EXPECT_TRUE(equal(shortened, message));
}

TEST(CompactPlan, KeepsNamesIfTheCachedShapeDiffers) {
  RequestCache cache(1);
  cache.put(0, allreduce("a", Dtype::float32, {2, 3}));
  PlanMessage message;
  message.plan.buckets = {Bucket{.names = {"a"}, .element_counts = {7}}};
  shorten(message, cache);
  EXPECT_THAT(message.cached, ElementsAre(IsEmpty()));
  EXPECT_THAT(message.plan.buckets[0].element_counts, ElementsAre(7));
}

TEST(CompactPlan, RejectsAnEmptyPosition) {
  PlanMessage message;
  message.number = 4;
  message.plan.buckets = {Bucket{}};
  message.cached = {{0}};
  EXPECT_THAT(lengthen(message, RequestCache(1)).text(),
              HasSubstr("plan 4 refers to a request that this rank has not cached"));
}

}  // namespace
}  // namespace fdl
