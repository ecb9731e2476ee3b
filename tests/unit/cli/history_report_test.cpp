// Tests of `farandole inspect`: reading histories, merging them, and the report.
#include "cli/inspect/history_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "tests/support/recorded_histories.h"

namespace fdl {
namespace {

using test::Recorded;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

RankHistory read(Recorded& recorded) {
  auto read = read_history(bytes_of(recorded.bytes()));
  EXPECT_TRUE(read.ok()) << read.status().text();
  return read.take();
}

std::string refusal_of(const std::string& bytes) {
  const auto read = read_history(bytes_of(bytes));
  return read.ok() ? "accepted" : read.status().text();
}

// The offset of a member of the record with this serial number.
std::size_t in_record(uint64_t serial, std::size_t member) {
  return sizeof(HistoryHead) + History::kGroups * sizeof(HistoryGroup) +
         serial % History::kRecords * sizeof(HistoryRecord) + member;
}

// ---- Reading ----

TEST(HistoryFile, HasTheOperationsInTheirOrder) {
  Recorded rank(1);
  rank.end(rank.call(Collective::broadcast, 5, Dtype::int64));
  rank.end(rank.submit("grad"), static_cast<int>(Code::peer_lost));
  rank.send(2);
  const RankHistory history = read(rank);
  EXPECT_EQ(history.rank, 1);
  EXPECT_EQ(history.size, 3);
  EXPECT_EQ(history.job, "job");
  EXPECT_EQ(history.host, "host-a");
  EXPECT_EQ(history.count, 3u);
  ASSERT_THAT(history.operations, SizeIs(3));
  EXPECT_EQ(history.operations[0].signature(), "broadcast of 5 int64 with root 0");
  EXPECT_TRUE(history.operations[0].is_finished());
  EXPECT_LE(history.operations[0].called_ns, history.operations[0].ended_ns);
  EXPECT_EQ(history.operations[1].signature(), "allreduce 'grad' of 10 float32 (sum)");
  EXPECT_EQ(history.operations[1].outcome, Code::peer_lost);
  EXPECT_FALSE(history.operations[1].is_finished());
  EXPECT_EQ(history.operations[2].signature(), "send of 8 bytes to 2");
  EXPECT_EQ(history.operations[2].ended_ns, -1);
}

TEST(HistoryFile, HasTheLastOperationsOfALongRun) {
  Recorded rank(0);
  rank.run(5000);
  const RankHistory history = read(rank);
  ASSERT_THAT(history.operations, SizeIs(History::kRecords));
  EXPECT_EQ(history.operations.front().sequence, 5000 - History::kRecords + 1);
  EXPECT_EQ(history.operations.back().sequence, 5000u);
}

// The times are those of the wall clock: they lie between two readings of it.
TEST(HistoryFile, HasTimesSince1970) {
  const auto now = [] {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  };
  const int64_t before = now();
  Recorded rank(0);
  rank.run(1);
  const RankHistory history = read(rank);
  constexpr int64_t kSlack_ns = 1'000'000'000;  // the machine's clock may be set meanwhile by a little
  EXPECT_GT(history.operations[0].called_ns, before - kSlack_ns);
  EXPECT_LT(history.operations[0].called_ns, now() + kSlack_ns);
}

TEST(HistoryFile, IsRefusedWithAReasonIfItIsNone) {
  Recorded rank(1);
  rank.run(3);
  const std::string good = rank.bytes();
  EXPECT_EQ(refusal_of(good), "accepted");
  EXPECT_THAT(refusal_of(""), HasSubstr("it is no history of operations"));
  EXPECT_THAT(refusal_of(std::string(good.size(), 'x')), HasSubstr("it is no history of operations"));
  EXPECT_THAT(refusal_of(good.substr(0, 1000)), HasSubstr("it has 1000 bytes; expected"));
  EXPECT_THAT(refusal_of(good + "x"), HasSubstr("bytes; expected"));
  const auto changed = [&](std::size_t at, char byte) {
    std::string bytes = good;
    bytes[at] = byte;
    return refusal_of(bytes);
  };
  EXPECT_THAT(changed(offsetof(HistoryHead, groups), 1), HasSubstr("it has 1 groups and 1024 records"));
  EXPECT_THAT(changed(offsetof(HistoryHead, rank), 3), HasSubstr("it is of rank 3 of 3"));
  EXPECT_THAT(changed(offsetof(HistoryHead, size) + 3, 0x7f), HasSubstr("it is of rank 1 of"));
  EXPECT_THAT(changed(offsetof(HistoryHead, last_ns) + 7, 0x7f), HasSubstr("its times make no sense"));
  EXPECT_THAT(changed(in_record(2, offsetof(HistoryRecord, what)), 77), HasSubstr("operation 2 has kind 77"));
  EXPECT_THAT(changed(in_record(2, offsetof(HistoryRecord, what)) + 1, 77), HasSubstr("operation 2 has dtype 77"));
  EXPECT_THAT(changed(in_record(2, offsetof(HistoryRecord, what)) + 2, 77), HasSubstr("operation 2 has reduction 77"));
  EXPECT_THAT(changed(in_record(2, offsetof(HistoryRecord, outcome)), 77), HasSubstr("operation 2 has outcome 77"));
  EXPECT_THAT(changed(in_record(2, 0), 9), HasSubstr("operation 9 is in a wrong place"));
}

TEST(HistoryFile, WithoutACompleteRecordOfAKilledThreadIsAccepted) {
  Recorded rank(0);
  rank.run(3);
  std::string bytes = rank.bytes();
  bytes[in_record(2, 0)] = 0;  // the serial number
  const auto history = read_history(bytes_of(bytes));
  ASSERT_TRUE(history.ok()) << history.status().text();
  EXPECT_THAT(history->operations, SizeIs(2));
}

TEST(HistoryFile, ThatDoesNotExistIsNamed) {
  const auto history = read_history_file("/no/such/file.bin");
  ASSERT_FALSE(history.ok());
  EXPECT_THAT(history.status().text(), HasSubstr("opening /no/such/file.bin: No such file or directory"));
}

TEST(HistoryFile, ThatIsNoRegularFileIsRefusedAtOnce) {
  const std::string path = testing::TempDir() + "history-pipe-" + std::to_string(::getpid());
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const auto history = read_history_file(path);
  ::unlink(path.c_str());
  ASSERT_FALSE(history.ok());
  EXPECT_EQ(history.status().text(), "'" + path + "' cannot be read: it is a pipe and no regular file");
}

// ---- The report ----

// Longer than the error of a history's clock, which the tests give little time to be measured.
void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }

std::vector<RankHistory> read_all(std::vector<Recorded*> ranks) {
  std::vector<RankHistory> histories;
  for (Recorded* rank : ranks) histories.push_back(read(*rank));
  return histories;
}

TEST(HistoryReports, NameTheRankThatDidNotCallWhatOthersWaitFor) {
  Recorded zero(0), one(1), two(2);
  zero.run(41);
  one.run(41);
  two.run(41);
  two.call(Collective::allreduce, 1000);
  pause();
  zero.call(Collective::allreduce, 1000);
  pause();
  const auto histories = read_all({&zero, &one, &two});
  const HistoryReport report = report_of(histories);
  const GroupReport* first = report.first_behind();
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->name, "all comm 0");
  EXPECT_THAT(first->behind->ranks, ElementsAre(1));
  EXPECT_EQ(first->behind->sequence, 42u);
  EXPECT_EQ(first->behind->first_caller, 2);
  EXPECT_FALSE(first->mismatch.has_value());
  const auto lines = history_lines(histories, report, 2);
  EXPECT_EQ(lines[0], "job job: 3 of 3 ranks");
  EXPECT_THAT(lines[1],
              AllOf(HasSubstr("first behind: rank 1 in 'all comm 0': it has not called number 42, allreduce of "
                              "1000 float32 (sum), which rank 2 called at "),
                    HasSubstr(" UTC")));
  EXPECT_THAT(lines, Contains("  rank 1: called 41, 0 unfinished"));
  EXPECT_THAT(lines, Contains("  ranks 0 and 2: called 42, 1 unfinished"));
  EXPECT_THAT(lines, Contains(AllOf(HasSubstr("  42 "), HasSubstr("not ended after"), HasSubstr("  -  "))));
  EXPECT_THAT(lines, Not(Contains(HasSubstr("  40 "))));
  EXPECT_THAT(history_json(histories, report).str(), HasSubstr("\"first_behind\": [1]"));
}

TEST(HistoryReports, NameTheRankThatDidNotSubmitAName) {
  Recorded zero(0), one(1), two(2);
  for (Recorded* rank : {&zero, &one, &two}) rank->end(rank->submit("warm"));
  zero.submit("grad");
  two.submit("grad");
  const auto histories = read_all({&zero, &one, &two});
  const HistoryReport report = report_of(histories);
  const GroupReport* first = report.first_behind();
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->name, "all");
  EXPECT_THAT(first->behind->ranks, ElementsAre(1));
  EXPECT_THAT(history_lines(histories, report, 5)[1], HasSubstr("it has not submitted allreduce 'grad' of 10 float32"));
}

TEST(HistoryReports, ChooseTheRankThatWasBehindFirst) {
  Recorded zero(0, 2), one(1, 2);
  one.call(Collective::barrier, 0);
  pause();
  zero.submit("later");
  const auto histories = read_all({&zero, &one});
  const HistoryReport report = report_of(histories);
  ASSERT_NE(report.first_behind(), nullptr);
  EXPECT_THAT(report.first_behind()->behind->ranks, ElementsAre(0));
  EXPECT_EQ(report.first_behind()->name, "all comm 0");
}

TEST(HistoryReports, ShowTheFirstCallInWhichRanksDiffer) {
  Recorded zero(0), one(1), two(2);
  for (Recorded* rank : {&zero, &one, &two}) rank->run(3);
  zero.call(Collective::allreduce, 1000);
  one.call(Collective::allreduce, 999);
  two.call(Collective::allreduce, 1000);
  const auto histories = read_all({&zero, &one, &two});
  const HistoryReport report = report_of(histories);
  ASSERT_TRUE(report.groups[0].mismatch.has_value());
  EXPECT_EQ(report.groups[0].mismatch->sequence, 4u);
  EXPECT_THAT(report.groups[0].mismatch->ranks_by_signature, SizeIs(2));
  EXPECT_EQ(report.first_behind(), nullptr);
  const auto lines = history_lines(histories, report, 1);
  EXPECT_THAT(lines, Contains("no rank is behind"));
  EXPECT_THAT(lines, Contains("  number 4 differs:"));
  EXPECT_THAT(lines, Contains("    rank 1: allreduce of 999 float32 (sum)"));
  EXPECT_THAT(lines, Contains("    ranks 0 and 2: allreduce of 1000 float32 (sum)"));
}

TEST(HistoryReports, AllowOtherCountsWhereRanksContributeDifferently) {
  Recorded zero(0, 2), one(1, 2);
  zero.call(Collective::allgather, 3);
  one.call(Collective::allgather, 4);
  EXPECT_FALSE(report_of(read_all({&zero, &one})).groups[0].mismatch.has_value());
}

TEST(HistoryReports, SayWhichRanksHaveNoFile) {
  Recorded one(1);
  one.run(1);
  const auto histories = read_all({&one});
  EXPECT_THAT(report_of(histories).missing_ranks, ElementsAre(0, 2));
  EXPECT_THAT(history_lines(histories, report_of(histories), 1), Contains("without a file: ranks 0 and 2"));
}

TEST(HistoryReports, AreOfOneJobAndOneFileForEachRank) {
  Recorded zero(0), again(0), one(1), other(2, 3, "other");
  EXPECT_TRUE(check_one_job(read_all({&zero, &one})).ok());
  EXPECT_THAT(check_one_job(read_all({&zero, &again})).text(), HasSubstr("two files are of rank 0"));
  EXPECT_THAT(check_one_job(read_all({&zero, &other})).text(), HasSubstr("the files are of different jobs"));
}

// A name of the program must not change the state of a terminal.
TEST(HistoryReports, PrintNoControlCharacters) {
  Recorded zero(0, 1);
  zero.submit("a\x1b[2Jb\n");
  const auto histories = read_all({&zero});
  for (const std::string& line : history_lines(histories, report_of(histories), 5)) {
    EXPECT_THAT(line, Not(AnyOf(HasSubstr("\x1b"), HasSubstr("\n"))));
  }
}

}  // namespace
}  // namespace fdl
