// Tests of rendezvous files: a coordinator replaces and removes only files that coordinators have written, and ranks do
// not wait for a file that cannot become one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "bootstrap/coordinator/coordinator_listener.h"
#include "bootstrap/coordinator/find_coordinator.h"

namespace fdl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class RendezvousFiles : public ::testing::Test {
 protected:
  RendezvousFiles() { EXPECT_NE(::mkdtemp(folder_.data()), nullptr); }
  ~RendezvousFiles() override { std::filesystem::remove_all(folder_); }

  std::string path() const { return folder_ + "/rendezvous"; }
  std::string content() const {
    std::ostringstream text;
    text << std::ifstream(path(), std::ios::binary).rdbuf();
    return text.str();
  }
  void write(const std::string& content) const { std::ofstream(path(), std::ios::binary) << content; }
  auto files() const {
    return std::distance(std::filesystem::directory_iterator(folder_), std::filesystem::directory_iterator());
  }

  // What both errors say: the path, the reason and the remedy.
  static auto is_refusal(const std::string& path, const std::string& why) {
    return AllOf(StartsWith("the rendezvous 'file://" + path + "' cannot be used: "), HasSubstr(why),
                 HasSubstr("; name a path at which there is no file, in a folder that all ranks share"));
  }
  static void expect_no_coordinator(const std::string& path, const std::string& why) {
    const auto listener = CoordinatorListener::open("file://" + path, "lo");
    ASSERT_FALSE(listener.ok());
    EXPECT_EQ(listener.status().code(), Code::invalid_argument);
    EXPECT_THAT(listener.status().text(), is_refusal(path, why));
  }
  // A rank returns long before its deadline.
  static void expect_no_search(const std::string& path, const std::string& why) {
    const auto found = find_coordinator("file://" + path, "a key", "rank 1", Deadline::after_seconds(600));
    ASSERT_FALSE(found.ok());
    EXPECT_EQ(found.status().code(), Code::invalid_argument);
    EXPECT_THAT(found.status().text(), is_refusal(path, why));
  }
  void expect_refused(const std::string& why) const {
    expect_no_coordinator(path(), why);
    expect_no_search(path(), why);
  }

 private:
  std::string folder_ = "/tmp/farandole-rendezvous-files-XXXXXX";
};

TEST_F(RendezvousFiles, AreWrittenWholeAndRemoved) {
  {
    auto listener = CoordinatorListener::open("file://" + path(), "lo");
    ASSERT_TRUE(listener.ok()) << listener.status().text();
    EXPECT_EQ((*listener)->address(), "file://" + path());
    EXPECT_THAT(content(), AllOf(StartsWith("tcp://"), ::testing::EndsWith("\nfarandole rendezvous\n")));
    EXPECT_EQ(files(), 1) << "no file remains beside it";
  }
  EXPECT_EQ(files(), 0);
}

TEST_F(RendezvousFiles, OfAnEarlierCoordinatorAreReplaced) {
  write("tcp://192.0.2.1:29501\nfarandole rendezvous\n");
  {
    auto listener = CoordinatorListener::open("file://" + path(), "lo");
    ASSERT_TRUE(listener.ok()) << listener.status().text();
    EXPECT_THAT(content(), Not(HasSubstr("192.0.2.1")));
    EXPECT_EQ(files(), 1);
  }
  EXPECT_EQ(files(), 0);
}

// mktemp makes one.
TEST_F(RendezvousFiles, ReplaceAnEmptyFile) {
  write("");
  {
    auto listener = CoordinatorListener::open("file://" + path(), "lo");
    ASSERT_TRUE(listener.ok()) << listener.status().text();
    EXPECT_THAT(content(), StartsWith("tcp://"));
  }
  EXPECT_EQ(files(), 0);
}

TEST_F(RendezvousFiles, OfALaterCoordinatorStay) {
  auto first = CoordinatorListener::open("file://" + path(), "lo");
  auto second = CoordinatorListener::open("file://" + path(), "lo");
  ASSERT_TRUE(first.ok() && second.ok());
  const std::string later = content();
  first->reset();
  EXPECT_EQ(content(), later);
  second->reset();
  EXPECT_EQ(files(), 0);
}

// ---- Files that no coordinator has written ----

TEST_F(RendezvousFiles, DoNotReplaceOtherFiles) {
  for (const std::string other : {"weights\n", "loss,step\n1.5,0\n", "tcp://192.0.2.1:29501\n"}) {
    SCOPED_TRACE(other);
    write(other);
    expect_no_coordinator(path(), "a file is there that no coordinator has written");
    EXPECT_EQ(content(), other);
    EXPECT_EQ(files(), 1);
  }
}

TEST_F(RendezvousFiles, AreNotAwaitedWhereAnotherFileIs) {
  write("weights\n");
  expect_no_search(path(), "a file is there that no coordinator has written");
}

TEST_F(RendezvousFiles, DoNotReplaceALinkAndWhatItNames) {
  const std::string target = path() + ".target";
  std::ofstream(target) << "weights\n";
  std::filesystem::create_symlink(target, path());
  const auto listener = CoordinatorListener::open("file://" + path(), "lo");
  ASSERT_FALSE(listener.ok());
  EXPECT_THAT(listener.status().text(), HasSubstr("it is a symbolic link"));
  EXPECT_TRUE(std::filesystem::is_symlink(path()));
  EXPECT_EQ(content(), "weights\n");
}

TEST_F(RendezvousFiles, LeaveAFileThatHasTakenTheirPlace) {
  auto listener = CoordinatorListener::open("file://" + path(), "lo");
  ASSERT_TRUE(listener.ok());
  std::filesystem::remove(path());
  write("weights\n");
  listener->reset();
  EXPECT_EQ(content(), "weights\n");
}

TEST_F(RendezvousFiles, LeaveAPipeThatHasTakenTheirPlace) {
  auto listener = CoordinatorListener::open("file://" + path(), "lo");
  ASSERT_TRUE(listener.ok());
  std::filesystem::remove(path());
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  listener->reset();  // does not wait for a writer
  EXPECT_TRUE(std::filesystem::is_fifo(path()));
}

TEST_F(RendezvousFiles, CannotBeAPipe) {
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  expect_refused("it is a pipe and no regular file");
  EXPECT_TRUE(std::filesystem::is_fifo(path()));
}

TEST_F(RendezvousFiles, CannotBeAFolder) {
  ASSERT_TRUE(std::filesystem::create_directory(path()));
  expect_refused("it is a folder and no regular file");
  EXPECT_TRUE(std::filesystem::is_directory(path()));
}

// Only as a rank: a coordinator with the rights of root could replace it.
TEST_F(RendezvousFiles, CannotBeADevice) { expect_no_search("/dev/null", "it is a device and no regular file"); }

TEST_F(RendezvousFiles, CannotBeALargeFile) {
  write(std::string(1 << 20, 'x'));
  expect_refused("it has more than 65536 bytes");
  EXPECT_EQ(std::filesystem::file_size(path()), 1u << 20);
}

TEST_F(RendezvousFiles, NeedTheirFolder) {
  const auto listener = CoordinatorListener::open("file://" + path() + "/no/such", "lo");
  ASSERT_FALSE(listener.ok());
  EXPECT_EQ(listener.status().code(), Code::invalid_argument);
  EXPECT_THAT(listener.status().text(), HasSubstr("it cannot be written: No such file or directory; name a path"));
}

TEST_F(RendezvousFiles, AreAwaitedWhileThereIsNone) {
  for (const bool empty : {false, true}) {
    if (empty) write("");
    const auto found = find_coordinator("file://" + path(), "a key", "rank 1", Deadline::after_ns(50'000'000));
    ASSERT_FALSE(found.ok());
    EXPECT_EQ(found.status().code(), Code::timeout);
    EXPECT_THAT(found.status().text(), HasSubstr("there is no address in " + path()));
  }
}

}  // namespace
}  // namespace fdl
