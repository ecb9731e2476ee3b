// Tests of WatchedFile: a file that is written, replaced, or reached through links that are replaced.
#include "system/files/watched_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "system/poller.h"
#include "tests/support/ranks.h"

namespace fdl {
namespace {

using fdl::test::require;
using testing::HasSubstr;

Deadline soon() { return Deadline::after_seconds(0.05); }
Deadline late() { return Deadline::after_seconds(60); }

class FreshFolder {
 public:
  FreshFolder() { FDL_CHECK(::mkdtemp(path_.data()) != nullptr); }
  ~FreshFolder() { std::filesystem::remove_all(path_); }
  FreshFolder(const FreshFolder&) = delete;
  FreshFolder& operator=(const FreshFolder&) = delete;
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_ = testing::TempDir() + "farandole-XXXXXX";
};

TEST(WatchedFile, WakesWhenItIsWrittenOrReplaced) {
  const FreshFolder folder;
  const std::string path = folder.file("wanted");
  WatchedFile file = require(WatchedFile::open(path));
  EXPECT_FALSE(wait_readable(file.fd(), soon()));
  EXPECT_EQ(file.read().status().code(), Code::resource);  // it does not exist yet
  std::ofstream(path) << "3\n";
  EXPECT_TRUE(wait_readable(file.fd(), late()));
  EXPECT_TRUE(file.changed());
  EXPECT_FALSE(file.changed());
  EXPECT_EQ(*file.read(), "3\n");
  std::ofstream(path + ".new") << "4";
  EXPECT_TRUE(wait_readable(file.fd(), late()));
  EXPECT_FALSE(file.changed());  // another file was written
  ASSERT_EQ(std::rename((path + ".new").c_str(), path.c_str()), 0);
  EXPECT_TRUE(file.changed());
  EXPECT_EQ(*file.read(), "4");
}

TEST(WatchedFile, ReportsWhyItCannotWatch) {
  EXPECT_THAT(WatchedFile::open("/no/such/folder/file").status().text(), HasSubstr("/no/such/folder"));
  EXPECT_EQ(WatchedFile::open("folder/").status().code(), Code::invalid_argument);
}

TEST(WatchedFile, ReadsNoMoreThanItsLimit) {
  const FreshFolder folder;
  const std::string path = folder.file("long");
  std::ofstream(path) << std::string(4096, 'x');
  EXPECT_EQ(require(WatchedFile::open(path)).read()->size(), 4096u);
  std::ofstream(path) << std::string(4097, 'x');
  EXPECT_EQ(require(WatchedFile::open(path)).read().status().text(),
            "'" + path + "' cannot be read: it has more than 4096 bytes");
}

TEST(WatchedFile, DoesNotWaitForTheWriterOfAPipe) {
  const FreshFolder folder;
  const std::string path = folder.file("pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(require(WatchedFile::open(path)).read().status().text(),
            "'" + path + "' cannot be read: it is a pipe and no regular file");
}

// A volume of a ConfigMap, written as the kubelet does.
class ConfigMap {
 public:
  explicit ConfigMap(const FreshFolder& folder) : folder_(folder.file("config")) {
    std::filesystem::create_directory(folder_);
  }
  std::string file(const std::string& name) const { return folder_ / name; }

  // All files get their new contents in one moment; new ones appear after it.
  void write(const std::map<std::string, std::string>& files) {
    const std::string version = "..version_" + std::to_string(++version_);
    std::filesystem::create_directory(folder_ / version);
    for (const auto& [name, text] : files) std::ofstream(folder_ / version / name) << text;
    std::filesystem::create_directory_symlink(version, folder_ / "..data_tmp");
    std::filesystem::rename(folder_ / "..data_tmp", folder_ / "..data");
    for (const auto& [name, text] : files) {
      if (!std::filesystem::is_symlink(folder_ / name))
        std::filesystem::create_symlink("..data/" + name, folder_ / name);
    }
    std::filesystem::remove_all(folder_ / ("..version_" + std::to_string(version_ - 1)));
  }

 private:
  std::filesystem::path folder_;
  int version_ = 0;
};

TEST(WatchedFile, SeesEachChangeOfAMountedConfigMap) {
  const FreshFolder folder;
  ConfigMap map(folder);
  map.write({{"wanted", "2"}, {"other", "x"}});
  WatchedFile file = require(WatchedFile::open(map.file("wanted")));
  EXPECT_EQ(*file.read(), "2");
  for (const std::string number : {"3", "4", "5"}) {
    map.write({{"wanted", number}, {"other", "x"}});
    EXPECT_TRUE(wait_readable(file.fd(), late()));
    EXPECT_TRUE(file.changed());
    EXPECT_EQ(*file.read(), number);
    EXPECT_FALSE(file.changed());
  }
}

TEST(WatchedFile, SeesAFileThatAConfigMapGetsLater) {
  const FreshFolder folder;
  ConfigMap map(folder);
  map.write({{"other", "x"}});
  WatchedFile file = require(WatchedFile::open(map.file("wanted")));
  EXPECT_FALSE(file.changed());
  map.write({{"wanted", "2"}, {"other", "x"}});
  EXPECT_TRUE(wait_readable(file.fd(), late()));
  EXPECT_TRUE(file.changed());
  EXPECT_EQ(*file.read(), "2");
  map.write({{"wanted", "3"}, {"other", "x"}});
  EXPECT_TRUE(file.changed());
  EXPECT_EQ(*file.read(), "3");
}

TEST(WatchedFile, FollowsALinkIntoAnotherFolder) {
  const FreshFolder folder;
  std::filesystem::create_directory(folder.file("a"));
  std::filesystem::create_directory(folder.file("b"));
  std::filesystem::create_symlink(folder.file("a") + "/number", folder.file("wanted"));
  WatchedFile file = require(WatchedFile::open(folder.file("wanted")));
  const auto write = [&](const std::string& where, const std::string& text) {
    std::ofstream(folder.file(where + "/number")) << text;
  };
  write("a", "2");
  EXPECT_TRUE(file.changed());
  EXPECT_EQ(*file.read(), "2");
  write("b", "3");
  EXPECT_FALSE(file.changed());
  std::filesystem::create_symlink(folder.file("b") + "/number", folder.file("next"));
  std::filesystem::rename(folder.file("next"), folder.file("wanted"));
  EXPECT_TRUE(file.changed());
  EXPECT_EQ(*file.read(), "3");
  write("a", "4");
  EXPECT_FALSE(file.changed()) << "the link does not lead there any more";
  write("b", "5");
  EXPECT_TRUE(file.changed());
  EXPECT_EQ(*file.read(), "5");
}

TEST(WatchedFile, EndsWhereLinksFormACircle) {
  const FreshFolder folder;
  std::filesystem::create_symlink(folder.file("b"), folder.file("a"));
  std::filesystem::create_symlink(folder.file("a"), folder.file("b"));
  WatchedFile file = require(WatchedFile::open(folder.file("a")));
  EXPECT_FALSE(file.read().ok());
  std::filesystem::remove(folder.file("b"));
  std::ofstream(folder.file("b")) << "2";
  EXPECT_TRUE(file.changed());
  EXPECT_EQ(*file.read(), "2");
}

}  // namespace
}  // namespace fdl
