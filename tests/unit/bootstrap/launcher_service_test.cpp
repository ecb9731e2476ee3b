// Tests of PMI-1's wire protocol against a launcher of our own, which plays hydra's part and its faults.
#include "bootstrap/launcher_service/launcher_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <latch>
#include <map>
#include <thread>

#include "bootstrap/launcher_service/pmi_service.h"
#include "bootstrap/launcher_service/pmix_service.h"
#include "system/fd.h"
#include "tests/support/variables.h"

namespace fdl {
namespace {

using namespace fdl::test;
using ::testing::HasSubstr;

// Launcher answers the requests of `size` ranks, each on a thread of its own. `faults` replaces answers by the
// request's command; an answer without a newline at its end is sent as it is, and an empty one closes the connection.
class Launcher {
 public:
  using Faults = std::map<std::string, std::string>;

  explicit Launcher(int size, Faults faults = {}) : faults_(std::move(faults)), all_(size) {
    for (int rank = 0; rank < size; ++rank) {
      int pair[2];
      EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
      ranks_.emplace_back(pair[0]);
      threads_.emplace_back([this, fd = pair[1]] { serve(UniqueFd(fd)); });
    }
  }
  ~Launcher() {
    for (UniqueFd& fd : ranks_) ::shutdown(fd.get(), SHUT_RDWR);
    for (std::thread& thread : threads_) thread.join();
  }

  Result<std::unique_ptr<LauncherService>> open(int rank) {
    const Environment environment(Vars{{"PMI_FD", std::to_string(ranks_[static_cast<std::size_t>(rank)].get())}});
    return open_pmi(Variables(environment));
  }

 private:
  void serve(UniqueFd fd) {
    std::string line;
    for (char byte = 0; ::recv(fd.get(), &byte, 1, 0) == 1;) {
      if (byte != '\n') {
        line += byte;
        continue;
      }
      const std::string reply = answer(line);
      line.clear();
      if (reply.empty()) return;
      // In two parts, as a network may deliver it.
      const std::size_t half = reply.size() / 2;
      ::send(fd.get(), reply.data(), half, MSG_NOSIGNAL);
      ::send(fd.get(), reply.data() + half, reply.size() - half, MSG_NOSIGNAL);
    }
  }

  std::string answer(const std::string& line) {
    const std::string command(word_of(line, "cmd"));
    if (const auto fault = faults_.find(command); fault != faults_.end()) return fault->second;
    if (command == "init") return "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n";
    if (command == "get_my_kvsname") return "cmd=my_kvsname kvsname=space_17\n";
    if (command == "put") {
      pairs_[std::string(word_of(line, "key"))] = word_of(line, "value");
      return "cmd=put_result rc=0 msg=success\n";
    }
    if (command == "barrier_in") {
      all_.arrive_and_wait();
      return "cmd=barrier_out\n";
    }
    if (command == "get") {
      return "cmd=get_result rc=0 msg=success value=" + pairs_[std::string(word_of(line, "key"))] + "\n";
    }
    return "cmd=finalize_ack\n";
  }

  Faults faults_;
  std::map<std::string, std::string> pairs_;  // written before the barrier, read after it
  std::latch all_;
  std::vector<UniqueFd> ranks_;
  std::vector<std::thread> threads_;
};

Deadline soon() { return Deadline::after_seconds(20); }

TEST(PmiTest, EveryRankGetsTheValueOfRankZero) {
  Launcher launcher(3);
  std::vector<std::thread> ranks;
  std::vector<std::string> got(3);
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      auto service = launcher.open(rank);
      ASSERT_TRUE(service.ok()) << service.status().text();
      auto value = (*service)->share(rank, "tcp://[fd00::2]:1,10.0.0.1:2#k=" + std::to_string(rank), soon());
      ASSERT_TRUE(value.ok()) << value.status().text();
      got[static_cast<std::size_t>(rank)] = *value;
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_THAT(got, testing::Each("tcp://[fd00::2]:1,10.0.0.1:2#k=0"));
}

TEST(PmiTest, ARankThatNeverComesEndsTheWaitWithTheRemedy) {
  Launcher launcher(2, {{"barrier_in", "cmd="}});  // an answer that never becomes whole
  auto service = launcher.open(0);
  ASSERT_TRUE(service.ok());
  const Status status = (*service)->share(0, "x", Deadline::after_seconds(0.1)).status();
  EXPECT_EQ(status.code(), Code::timeout);
  EXPECT_THAT(status.text(), HasSubstr("not all ranks that the launcher started have reached the start of farandole"));
}

TEST(PmiTest, ARefusalOfTheLauncherIsQuoted) {
  Launcher launcher(1, {{"get", "cmd=get_result rc=-1 msg=key_not_found value=unknown\n"}});
  auto service = launcher.open(0);
  ASSERT_TRUE(service.ok());
  const Status status = (*service)->share(0, "x", soon()).status();
  EXPECT_EQ(status.code(), Code::unsupported);
  EXPECT_THAT(status.text(), HasSubstr("rc=-1 msg=key_not_found"));
  EXPECT_THAT(status.text(), HasSubstr("set FARANDOLE_RENDEZVOUS=tcp://"));
}

TEST(PmiTest, AnotherProtocolIsAnErrorAtTheStart) {
  Launcher launcher(1, {{"init", "cmd=response_to_init rc=-1 pmi_version=2\n"}});
  EXPECT_THAT(launcher.open(0).status().text(), HasSubstr("answered 'cmd=response_to_init rc=-1 pmi_version=2'"));
}

TEST(PmiTest, AClosedConnectionIsAnError) {
  Launcher launcher(1, {{"put", ""}});
  auto service = launcher.open(0);
  ASSERT_TRUE(service.ok());
  EXPECT_EQ((*service)->share(0, "x", soon()).status().code(), Code::peer_lost);
}

TEST(PmiTest, ALineWithoutEndIsBounded) {
  Launcher launcher(1, {{"put", std::string(5000, 'x')}});
  auto service = launcher.open(0);
  ASSERT_TRUE(service.ok());
  EXPECT_THAT((*service)->share(0, "x", soon()).status().text(), HasSubstr("sent a line of more than 4096 bytes"));
}

TEST(PmiTest, ADescriptorThatIsNoSocketIsRefused) {
  const Environment environment(Vars{{"PMI_FD", "999"}});
  EXPECT_FALSE(has_pmi(Variables(environment)));
  EXPECT_THAT(open_pmi(Variables(environment)).status().text(), HasSubstr("PMI_FD = '999' is no open socket"));
}

TEST(PmiTest, WordsAreFoundByTheirWholeKey) {
  EXPECT_EQ(word_of("cmd=get_result rc=0 value=a=b", "value"), "a=b");
  EXPECT_EQ(word_of("rcx=1 rc=0", "rc"), "0");
  EXPECT_EQ(word_of("cmd=x", "c"), "");
  EXPECT_EQ(word_of("", "cmd"), "");
}

TEST(PmixTest, TheErrorListsWhatWasTried) {
  const Status status = open_pmix({"/nowhere/libpmix.so.2"}).status();
  EXPECT_EQ(status.code(), Code::unsupported);
  EXPECT_THAT(status.text(), HasSubstr("/nowhere/libpmix.so.2"));
  EXPECT_THAT(status.text(), HasSubstr("FARANDOLE_PMIX_LIBRARY"));
}

TEST(PmixTest, ALibraryWithoutPmixIsRefused) {
  EXPECT_THAT(open_pmix({"libm.so.6"}).status().text(), HasSubstr("libm.so.6 is too old"));
}

TEST(PmixTest, TheLaunchersOwnLibraryComesFirst) {
  const Environment environment(Vars{{"PMIX_PREFIX", "/nowhere"}});
  auto config = Config::read(environment);
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(find_pmix(Variables(environment), *config).back(), "libpmix.so.2");
  config->pmix_library = "/opt/mine.so";
  EXPECT_THAT(find_pmix(Variables(environment), *config), testing::ElementsAre("/opt/mine.so"));
  EXPECT_FALSE(has_pmix(Variables(environment), *config)) << "without PMIX_NAMESPACE no launcher serves it";
}

TEST(LauncherServiceTest, AnUnknownServiceIsNamed) {
  const Environment environment(Vars{});
  const auto config = Config::read(environment);
  ASSERT_TRUE(config.ok());
  EXPECT_THAT(launcher_service("pmi9", Variables(environment), *config).status().text(), HasSubstr("launcher://pmi9"));
}

}  // namespace
}  // namespace fdl
