// Tests of the timeline's parts: the ring drops records and never waits, events always nest, and the file is always
// complete.
#include "runtime/telemetry/timeline.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <random>
#include <thread>

#include "data/dtype.h"
#include "tests/support/sanitized.h"
#include "tests/support/trace_events.h"

namespace fdl {
namespace {

using trace_test::events_of;
using trace_test::expect_sound;
using trace_test::summary_of;

std::string fresh_path(const std::string& name) {
  return (std::filesystem::path(testing::TempDir()) / (name + "-" + std::to_string(::getpid()) + ".json")).string();
}

// ---- the ring ----

TEST(TraceRing, CarriesTextsOfAnyLengthWithTheirDimensions) {
  TraceRing ring(1024);
  const std::vector<int64_t> shape{3, 5, -7};
  for (std::size_t bytes = 0; bytes < 700; ++bytes) {
    std::string text(bytes, 'x');
    for (std::size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>('a' + i % 26);
    ring.push({.time_ns = 7, .subject = bytes, .kind = TraceKind::submitted}, text, std::as_bytes(std::span(shape)));
    TraceRecord record;
    std::string read;
    ASSERT_TRUE(ring.pop(record, read));
    EXPECT_EQ(record.subject, bytes);
    ASSERT_EQ(read.substr(0, record.text_bytes), text);
    std::vector<int64_t> behind(record.extra);
    ASSERT_EQ(read.size(), bytes + sizeof(int64_t) * shape.size());
    std::memcpy(behind.data(), read.data() + bytes, sizeof(int64_t) * behind.size());
    ASSERT_EQ(behind, shape);
    EXPECT_FALSE(ring.pop(record, read));
  }
  EXPECT_EQ(ring.dropped(), 0u);
}

TEST(TraceRing, CutsTextsThatAreTooLong) {
  TraceRing ring(128);
  const std::vector<int64_t> shape{1};
  ring.push({.kind = TraceKind::ready}, std::string(100'000, 'n'), std::as_bytes(std::span(shape)));
  TraceRecord record;
  std::string read;
  ASSERT_TRUE(ring.pop(record, read));
  EXPECT_EQ(read, std::string(TraceRing::kMaxText, 'n'));
}

TEST(TraceRing, DropsWholeRecordsWhenFullAndCountsThem) {
  TraceRing ring(8);
  for (uint64_t i = 0; i < 20; ++i) ring.push({.subject = i, .kind = TraceKind::ready}, std::string(100, 'x'));
  TraceRecord record;
  std::string text;
  uint64_t read = 0;
  while (ring.pop(record, text)) {
    EXPECT_EQ(record.subject, read++);
    EXPECT_EQ(text, std::string(100, 'x'));
  }
  EXPECT_EQ(read, 2u);  // three records each
  EXPECT_EQ(ring.dropped(), 18u);
  ring.push({.subject = 99, .kind = TraceKind::ready}, "again");
  ASSERT_TRUE(ring.pop(record, text));
  EXPECT_EQ(text, "again");
}

TEST(TraceRing, CountsEveryRecordLostBetweenThreads) {
  TraceRing ring(64);
  constexpr uint64_t kRecords = 50'000;
  std::thread producer([&] {
    for (uint64_t i = 1; i <= kRecords; ++i) {
      ring.push({.subject = i, .kind = TraceKind::ready}, std::string(i % 90, static_cast<char>('a' + i % 26)));
    }
    while (!ring.empty()) std::this_thread::yield();
    ring.push({.subject = kRecords + 1, .kind = TraceKind::cycle});
  });
  TraceRecord record;
  std::string text;
  uint64_t last = 0;
  uint64_t read = 0;
  while (last <= kRecords) {
    if (!ring.pop(record, text)) {
      std::this_thread::yield();
      continue;
    }
    ASSERT_GT(record.subject, last);
    last = record.subject;
    ++read;
    if (last > kRecords) break;
    ASSERT_EQ(text, std::string(last % 90, static_cast<char>('a' + last % 26)));
  }
  producer.join();
  EXPECT_EQ(read + ring.dropped(), kRecords + 1);
}

// ---- the events ----

// Adds records as a rank's trace does. Time is a number that grows with each record.
class Recorder {
 public:
  explicit Recorder(int rank, int size = 2) {
    put({.subject = static_cast<uint64_t>(size), .value = static_cast<uint32_t>(rank), .kind = TraceKind::group},
        "all");
  }
  int64_t time = 1000;
  void put(TraceRecord record, std::string_view text = {}) {
    if (record.time_ns == 0) record.time_ns = time += 1000;
    record.text_bytes = static_cast<uint16_t>(text.size());
    timeline_events_.add(record, text, out_);
  }
  void submit(uint64_t serial, std::string_view name) {
    put({.subject = serial, .value = static_cast<uint32_t>(Dtype::float32), .kind = TraceKind::submitted}, name);
  }
  void ready(uint32_t rank, std::string_view name) { put({.value = rank, .kind = TraceKind::ready}, name); }
  void decide(uint64_t serial) { put({.subject = serial, .kind = TraceKind::decided}); }
  void run(std::vector<uint64_t> serials) {
    put({.kind = TraceKind::bucket});
    for (const uint64_t serial : serials) put({.subject = serial, .kind = TraceKind::runs});
    const auto activity = [](Activity one) { return static_cast<uint32_t>(one); };
    if (serials.size() > 1) put({.value = activity(Activity::pack), .kind = TraceKind::activity});
    put({.value = activity(Activity::collective), .kind = TraceKind::activity}, std::string_view("tcp\0ring", 8));
    if (serials.size() > 1) put({.value = activity(Activity::unpack), .kind = TraceKind::activity});
  }
  void complete(uint64_t serial, Code code = Code::ok) {
    put({.subject = serial, .value = static_cast<uint32_t>(code), .kind = TraceKind::completed});
  }
  std::vector<trace_test::Event> end() {
    timeline_events_.end(time + 1000, out_);
    const auto events = events_of("[\n" + out_ + "\n]\n");
    expect_sound(events);
    return events;
  }

 private:
  TimelineEvents timeline_events_{0, "rank 0 of 2 on here"};
  std::string out_;
};

const std::string kAlone = "ALLREDUCE( QUEUE( ) TCP_RING_ALLREDUCE( ) )";
const std::string kFused =
    "ALLREDUCE( QUEUE( ) MEMCPY_IN_FUSION_BUFFER( ) TCP_RING_ALLREDUCE( ) MEMCPY_OUT_FUSION_BUFFER( ) )";

TEST(TimelineEvents, ShowsATensorWithHorovodsStates) {
  Recorder root(0);
  root.submit(1, "grad");
  root.ready(0, "grad");
  root.ready(1, "grad");
  root.decide(1);
  root.run({1});
  root.complete(1);
  const auto events = root.end();
  EXPECT_EQ(summary_of(events, "grad"), "NEGOTIATE_ALLREDUCE( 0 1 ) " + kAlone);
  EXPECT_NE(events.back().line.find(R"("args":{"dtype":"float32","shape":"[]"})"), std::string::npos);
}

TEST(TimelineEvents, ShowsPackingForAllTensorsOfABucket) {
  Recorder root(0);
  for (const std::string name : {"a", "b"}) root.submit(name == "a" ? 1 : 2, name);
  for (const std::string name : {"a", "b"}) root.ready(1, name);
  root.decide(1);
  root.decide(2);
  root.run({1, 2});
  root.complete(1);
  root.complete(2);
  const auto events = root.end();
  EXPECT_EQ(summary_of(events, "a"), "NEGOTIATE_ALLREDUCE( 1 ) " + kFused);
  EXPECT_EQ(summary_of(events, "b"), "NEGOTIATE_ALLREDUCE( 1 ) " + kFused);
}

TEST(TimelineEvents, NegotiationBeginsWithTheFirstRank) {
  Recorder root(0, 3);
  root.ready(2, "grad");
  root.submit(1, "grad");
  root.ready(0, "grad");
  root.ready(1, "grad");
  root.decide(1);
  root.complete(1);
  EXPECT_EQ(summary_of(root.end(), "grad"), "NEGOTIATE_ALLREDUCE( 2 0 1 ) ALLREDUCE( QUEUE( ) )");
}

TEST(TimelineEvents, MemberShowsOnlyItsOwnTick) {
  Recorder member(1);
  member.submit(1, "grad");
  member.decide(1);
  member.complete(1);
  EXPECT_EQ(summary_of(member.end(), "grad"), "NEGOTIATE_ALLREDUCE( 1 ) ALLREDUCE( QUEUE( ) )");
}

TEST(TimelineEvents, EarlyTicksAppearInTheNextNegotiation) {
  Recorder root(0);
  root.submit(1, "grad");
  root.ready(0, "grad");
  root.ready(1, "grad");
  root.decide(1);
  root.run({1});
  root.ready(1, "grad");  // on rank 1 the operation has ended already
  root.complete(1);
  root.submit(2, "grad");
  root.ready(0, "grad");
  root.decide(2);
  root.complete(2);
  EXPECT_EQ(summary_of(root.end(), "grad"),
            "NEGOTIATE_ALLREDUCE( 0 1 ) " + kAlone + " NEGOTIATE_ALLREDUCE( 1 0 ) ALLREDUCE( QUEUE( ) )");
}

TEST(TimelineEvents, TicksOfALockedOrderComeFromTheReadinessFlags) {
  Recorder root(0);
  const auto flag = [&](uint32_t rank, uint64_t count) {
    root.put({.subject = count, .value = rank, .kind = TraceKind::readiness_flags});
  };
  root.put({.subject = 3, .value = 2, .kind = TraceKind::locked});
  flag(1, 2);  // rank 1 is ahead: ready for both positions
  root.submit(1, "a");
  root.submit(2, "b");
  flag(0, 2);
  root.put({.subject = 0, .kind = TraceKind::begun});
  root.decide(1);
  root.put({.subject = 1, .kind = TraceKind::begun});
  root.decide(2);
  root.run({1});
  root.complete(1);
  root.run({2});
  root.complete(2);
  root.submit(3, "a");  // waits when the order is left
  root.put({.subject = 1, .kind = TraceKind::left}, "c was not expected");
  root.ready(0, "a");
  const auto events = root.end();
  EXPECT_EQ(summary_of(events, "a"), "NEGOTIATE_ALLREDUCE( 1 0 ) " + kAlone + " NEGOTIATE_ALLREDUCE( 0 )");
  EXPECT_EQ(summary_of(events, "b"), "NEGOTIATE_ALLREDUCE( 1 0 ) " + kAlone);
  EXPECT_EQ(summary_of(events, "agreement, rank 0 of 2 on here"), "LOCKED_ORDER( )");
  EXPECT_NE(std::find_if(events.begin(), events.end(),
                         [](const auto& event) {
                           return event.line.find(R"("args":{"rounds":1,"left because":"c was not expected"})") !=
                                  std::string::npos;
                         }),
            events.end());
}

TEST(TimelineEvents, WritesAFailureAtTheEndOfTheBar) {
  Recorder root(0);
  root.submit(1, "grad");
  root.complete(1, Code::mismatch);
  const auto events = root.end();
  EXPECT_EQ(summary_of(events, "grad"), "NEGOTIATE_ALLREDUCE( )");
  EXPECT_NE(events.back().line.find(R"("error":"MISMATCH")"), std::string::npos) << events.back().line;
}

TEST(TimelineEvents, UnsubmittedTensorEndsWithItsNegotiation) {
  Recorder root(0);
  root.ready(1, "grad");
  root.put({.kind = TraceKind::absent}, "grad");
  EXPECT_EQ(summary_of(root.end(), "grad"), "NEGOTIATE_ALLREDUCE( 1 )");
}

TEST(TimelineEvents, EscapesAnyBytesInNames) {
  Recorder root(0);
  root.submit(1, "a\"b\n");
  EXPECT_EQ(summary_of(root.end(), "a\\\"b\\u000a").substr(0, 9), "NEGOTIATE");
}

// Drops each record with a probability of one in five.
TEST(TimelineEvents, EventsStayNestedIfRecordsAreDropped) {
  for (uint64_t seed = 0; seed < static_cast<uint64_t>(test::unless_sanitized(300, 20)); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    Recorder recorder(static_cast<int>(seed % 2));
    const auto maybe = [&](auto&& put) {
      if (random() % 5 != 0) put();
    };
    uint64_t serial = 0;
    for (int step = 0; step < 30; ++step) {
      const uint64_t first = serial + 1;
      if (random() % 8 == 0) maybe([&] { recorder.put({.subject = 1, .value = 1, .kind = TraceKind::locked}); });
      if (random() % 8 == 0) maybe([&] { recorder.put({.subject = 1, .kind = TraceKind::left}, "why"); });
      for (const std::string name : {"a", "b", "c"}) {
        maybe([&] { recorder.ready(static_cast<uint32_t>(random() % 2), name); });
        ++serial;
        maybe([&] { recorder.submit(serial, name); });
        maybe([&] {
          recorder.put({.subject = random() % 9,
                        .value = static_cast<uint32_t>(random() % 2),
                        .kind = TraceKind::readiness_flags});
        });
      }
      recorder.put({.subject = random() % 9, .kind = TraceKind::begun});
      for (uint64_t one = first; one <= serial; ++one) maybe([&] { recorder.decide(one); });
      maybe([&] { recorder.run({first, first + 1, first + 2}); });
      for (uint64_t one = first; one <= serial; ++one) maybe([&] { recorder.complete(one); });
      maybe([&] { recorder.put({.kind = TraceKind::absent}, "b"); });
    }
    recorder.end();
  }
}

// ---- the file ----

TEST(TimelineFile, IsCompleteAfterEachAppend) {
  const std::string path = fresh_path("whole");
  auto file = TimelineFile::open(path);
  ASSERT_TRUE(file.ok()) << file.status().text();
  EXPECT_EQ(trace_test::text_of_file(path), "[\n\n]\n");
  ASSERT_TRUE(file->append("{}").ok());
  EXPECT_EQ(trace_test::text_of_file(path), "[\n{}\n]\n");
  ASSERT_TRUE(file->append(",\n{}").ok());
  EXPECT_EQ(trace_test::text_of_file(path), "[\n{},\n{}\n]\n");
  std::filesystem::remove(path);
}

TEST(TimelineFile, EmptiesAnExistingFile) {
  const std::string path = fresh_path("emptied");
  std::ofstream(path) << std::string(1000, 'x');
  ASSERT_TRUE(TimelineFile::open(path).ok());
  EXPECT_EQ(trace_test::text_of_file(path), "[\n\n]\n");
  std::filesystem::remove(path);
}

TEST(TimelineFile, ErrorsSayWhyItCannotBeOpened) {
  const auto nowhere = TimelineFile::open("/nowhere/at all/t.json");
  ASSERT_FALSE(nowhere.ok());
  EXPECT_EQ(nowhere.status().code(), Code::resource);
  EXPECT_NE(nowhere.status().text().find("cannot open '/nowhere/at all/t.json': No such file"), std::string::npos)
      << nowhere.status().text();
  EXPECT_FALSE(TimelineFile::open(testing::TempDir()).ok());  // a folder
  const std::string path = fresh_path("taken");
  auto first = TimelineFile::open(path);
  ASSERT_TRUE(first.ok());
  const auto second = TimelineFile::open(path);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().text().find("is being written by another"), std::string::npos) << second.status().text();
  std::filesystem::remove(path);
}

TEST(TimelineFile, DoesNotWaitForTheReaderOfAPipe) {
  const std::string path = fresh_path("pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const auto pipe = TimelineFile::open(path);
  ASSERT_FALSE(pipe.ok());
  EXPECT_NE(pipe.status().text().find("cannot open '" + path), std::string::npos) << pipe.status().text();
  std::filesystem::remove(path);
}

TEST(TimelineFile, ReportsAFullDisk) {
  auto timeline = Timeline::start("/dev/full", "rank 0", false);
  // Its first bytes do not fit.
  ASSERT_FALSE(timeline.ok());
  EXPECT_NE(timeline.status().text().find("No space left"), std::string::npos) << timeline.status().text();
}

// ---- ring, events and file together ----

TEST(Timeline, WritesTheRecordsOfTracesAndCountsDroppedOnes) {
  const std::string path = fresh_path("dropping");
  auto timeline = Timeline::start(path, "rank 0 of 1 on here", true, 64);
  ASSERT_TRUE(timeline.ok()) << timeline.status().text();
  const std::unique_ptr<Trace> trace = (*timeline)->trace("all", 0, 1);
  const Request request{.name = "grad", .shape = {2, 3}};
  constexpr uint64_t kOperations = 20'000;
  for (uint64_t serial = 1; serial <= kOperations; ++serial) {  // far faster than the thread can write
    trace->submitted(serial, request, 0);
    trace->ready(0, request);
    trace->decided(serial);
    trace->bucket();
    trace->runs(serial);
    trace->activity(Activity::pack);
    trace->completed(serial, Code::ok);
  }
  ASSERT_TRUE((*timeline)->stop().ok());
  const auto events = events_of(trace_test::text_of_file(path));
  expect_sound(events);
  int dropped = 0;
  int shown = 0;
  for (const auto& event : events) {
    if (event.name == "DROPPED") dropped += std::stoi(trace_test::field(event.line, "records").value_or("0"));
    if (event.name == "NEGOTIATE_ALLREDUCE") ++shown;
  }
  EXPECT_GT(dropped, 0);
  EXPECT_GT(shown, 0);
  EXPECT_LT(static_cast<uint64_t>(shown), kOperations);
  std::filesystem::remove(path);
}

TEST(Timeline, WritesToDiskWhileItRuns) {
  const std::string path = fresh_path("soon");
  auto timeline = Timeline::start(path, "rank 0 of 1 on here", false);
  ASSERT_TRUE(timeline.ok()) << timeline.status().text();
  const std::unique_ptr<Trace> trace = (*timeline)->trace("all", 0, 1);
  for (uint64_t serial = 1; serial <= 3; ++serial) {  // also after it has fallen asleep
    trace->submitted(serial, {.name = "grad" + std::to_string(serial)}, 0);
    const std::string wanted = "\"grad" + std::to_string(serial) + "\"";
    const Deadline deadline = Deadline::after_seconds(20);
    while (trace_test::text_of_file(path).find(wanted) == std::string::npos && !deadline.passed()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_FALSE(deadline.passed()) << wanted << " was not written";
    events_of(trace_test::text_of_file(path));
    std::this_thread::sleep_for(std::chrono::milliseconds(120));
  }
  ASSERT_TRUE((*timeline)->stop().ok());
  expect_sound(events_of(trace_test::text_of_file(path)));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace fdl
