// Tests of the ring of the last operations, and of the file that survives its process.
#include "system/history.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace fdl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::unique_ptr<History> make_history(const std::string& path = {}) {
  auto made = History::make({.rank = 1, .size = 4, .job = "job", .host = "host-a"}, path);
  EXPECT_TRUE(made.ok()) << made.status().text();
  return made.take();
}

// The sequence numbers of the operations of a group that have not ended.
std::vector<uint64_t> unfinished(const History& history, uint32_t group) {
  std::vector<uint64_t> numbers;
  history.visit_unfinished(group, [&](const HistoryCall& call, int64_t age_ns) {
    EXPECT_GE(age_ns, 0);
    numbers.push_back(call.sequence);
  });
  std::ranges::sort(numbers);
  return numbers;
}

const HistoryRecord& record_at(const History& history, uint64_t serial) {
  const std::byte* records = history.bytes().data() + sizeof(HistoryHead) + History::kGroups * sizeof(HistoryGroup);
  return *reinterpret_cast<const HistoryRecord*>(records + serial % History::kRecords * sizeof(HistoryRecord));
}

class HistoryFiles : public ::testing::Test {
 protected:
  HistoryFiles() : folder_(std::filesystem::temp_directory_path() / ("history_test." + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~HistoryFiles() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static std::string content_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::filesystem::path folder_;
};

TEST(HistoryRing, KeepsWhatWasCalledBegunAndEnded) {
  const auto history = make_history();
  const uint32_t group = history->add_group("all comm 0");
  const uint64_t first = history->called(
      {.group = group, .sequence = 7, .count = 1000, .root = 2, .kind = 3, .dtype = 10, .op = 1, .flags = 0}, true);
  const uint64_t second = history->called({.group = group, .sequence = 8}, false);
  EXPECT_EQ(second, first + 1);
  EXPECT_THAT(unfinished(*history, group), ElementsAre(7, 8));
  EXPECT_THAT(unfinished(*history, group + 1), IsEmpty());
  history->ended(first, 0);
  EXPECT_THAT(unfinished(*history, group), ElementsAre(8));
  EXPECT_GE(history->age_ns(second), 0);
  EXPECT_EQ(history->age_ns(first), -1);
  const HistoryRecord& record = record_at(*history, first);
  EXPECT_EQ(record.count, 1000u);
  EXPECT_EQ(record.root, 2);
  EXPECT_EQ(record.what, 3u | 10u << 8 | 1u << 16);
  EXPECT_EQ(record.begun, record.called);
  EXPECT_GE(record.ended, record.called);
  EXPECT_EQ(record_at(*history, second).begun, 0u);
  history->begun(second);
  EXPECT_NE(record_at(*history, second).begun, 0u);
}

TEST(HistoryRing, ReplacesTheOldestRecord) {
  const auto history = make_history();
  const uint32_t group = history->add_group("all comm 0");
  const uint64_t first = history->called({.group = group, .sequence = 1}, true);
  for (uint64_t i = 2; i <= History::kRecords; ++i)
    history->ended(history->called({.group = group, .sequence = i}, true), 0);
  EXPECT_THAT(unfinished(*history, group), ElementsAre(1));
  const uint64_t newest = history->called({.group = group, .sequence = History::kRecords + 1}, true);
  EXPECT_THAT(unfinished(*history, group), ElementsAre(History::kRecords + 1));
  history->ended(first, 3);  // its record belongs to another operation by now
  EXPECT_EQ(record_at(*history, newest).ended, 0u);
  EXPECT_EQ(history->head().count, History::kRecords + 1);
}

TEST(HistoryRing, CutsLongNamesAndClearsOldOnes) {
  const auto history = make_history();
  const std::string name(200, 'x');
  const uint64_t serial = history->called({.sequence = 1}, name);
  const auto text = [&](uint64_t of) {
    const auto& bytes = record_at(*history, of).name;
    return std::string(bytes.data(), ::strnlen(bytes.data(), bytes.size()));
  };
  EXPECT_EQ(text(serial), std::string(64, 'x'));
  for (uint64_t i = 1; i < History::kRecords; ++i) history->called({}, false);
  EXPECT_EQ(text(history->called({}, std::string_view("short"))), "short");
}

TEST(HistoryRing, TakesRecordsOfSeveralThreads) {
  const auto history = make_history();
  constexpr uint64_t kThreads = 4;
  constexpr uint64_t kEach = History::kRecords / kThreads - 1;  // all records stay
  std::vector<std::thread> threads;
  for (uint32_t thread = 1; thread <= kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (uint64_t i = 1; i <= kEach; ++i) {
        history->ended(history->called({.group = thread, .sequence = i, .count = i * thread}, true), 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(history->head().count, kThreads * kEach);
  std::set<std::pair<uint32_t, uint64_t>> found;
  for (uint64_t serial = 1; serial <= kThreads * kEach; ++serial) {
    const HistoryRecord& record = record_at(*history, serial);
    ASSERT_EQ(record.serial, serial);
    ASSERT_EQ(record.count, record.sequence * record.group);
    ASSERT_NE(record.ended, 0u);
    found.emplace(record.group, record.sequence);
  }
  EXPECT_EQ(found.size(), kThreads * kEach);
}

TEST_F(HistoryFiles, SurviveAProcessThatIsKilled) {
  const std::string file = path("killed.bin");
  const pid_t child = ::fork();
  if (child == 0) {
    const auto history = History::make({.rank = 0, .size = 1, .job = "job", .host = "h"}, file).take();
    history->called({.group = history->add_group("all comm 0"), .sequence = 42}, true);
    ::kill(::getpid(), SIGKILL);
  }
  int how = 0;
  ASSERT_EQ(::waitpid(child, &how, 0), child);
  ASSERT_TRUE(WIFSIGNALED(how));
  const std::string content = content_of(file);
  ASSERT_EQ(content.size(), std::size_t{History::kBytes});
  EXPECT_TRUE(content.starts_with("FDLHIST1"));
  uint64_t sequence = 0;
  std::memcpy(&sequence,
              content.data() + sizeof(HistoryHead) + History::kGroups * sizeof(HistoryGroup) + sizeof(HistoryRecord) +
                  offsetof(HistoryRecord, sequence),
              sizeof sequence);
  EXPECT_EQ(sequence, 42u);
  EXPECT_THAT(content, HasSubstr("all comm 0"));
}

TEST_F(HistoryFiles, BelongToTheirUserAlone) {
  make_history(path("own.bin"));
  struct stat facts {};
  ASSERT_EQ(::stat(path("own.bin").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
}

TEST_F(HistoryFiles, ReplaceALinkAndNotTheFileBehindIt) {
  std::ofstream(path("other")) << "untouched";
  std::filesystem::create_symlink(path("other"), path("link.bin"));
  make_history(path("link.bin"));
  EXPECT_EQ(content_of(path("other")), "untouched");
  EXPECT_EQ(content_of(path("link.bin")).size(), std::size_t{History::kBytes});
}

TEST_F(HistoryFiles, AreAnErrorWhereTheFolderIsMissing) {
  const auto made = History::make({}, path("missing/file.bin"));
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.status().text(), HasSubstr("missing/file.bin: No such file or directory"));
}

TEST(HistoryPath, NamesJobAndRank) {
  EXPECT_EQ(history_path("/tmp", "a1b2", 3), "/tmp/farandole-history-a1b2-3.bin");
  EXPECT_EQ(history_path("/tmp/", "a1b2", 3), "/tmp/farandole-history-a1b2-3.bin");
}

}  // namespace
}  // namespace fdl
