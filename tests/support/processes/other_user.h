// A process of another user, which connects to a socket of the tests or listens at a name that they connect to.
#pragma once

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>

#include "bootstrap/coordinator/coordinator_listener.h"
#include "system/socket.h"

namespace fdl::test {

// A forked process that runs `body` as another user and ends with its result. It is killed with this object.
class OtherUser {
 public:
  // Only root can become another user.
  static bool is_possible() {
    if (::geteuid() == 0) return true;
    std::puts("not tested: only root can become another user");
    return false;
  }

  explicit OtherUser(const std::function<int()>& body) : process_(::fork()) {
    if (process_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    constexpr uid_t kNobody = 65534;
    ::_exit(::setresuid(kNobody, kNobody, kNobody) == 0 ? body() : 100);
  }
  ~OtherUser() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  OtherUser(const OtherUser&) = delete;
  OtherUser& operator=(const OtherUser&) = delete;

  // Its result, once it has ended. Meanwhile calls `serve` again and again.
  int result(const std::function<void()>& serve) {
    int outcome = 0;
    while (::waitpid(process_, &outcome, WNOHANG) == 0) serve();
    process_ = 0;
    return WIFEXITED(outcome) ? WEXITSTATUS(outcome) : -1;
  }

 private:
  pid_t process_;
};

// Expects that a connection of another user, which sends `words`, ends within 1.5 s without an answer. The owner of the
// socket serves it in `serve`, or in a thread.
inline void expect_another_user_is_disconnected(
    const Address& address, const std::string& words = "",
    const std::function<void()>& serve = [] { ::usleep(1000); }) {
  OtherUser other([&] {
    auto fd = connect_any(std::span(&address, 1), Deadline::after_seconds(5));
    if (!fd.ok()) return 1;
    static_cast<void>(::send(fd->get(), words.data(), words.size(), MSG_NOSIGNAL));
    if (!wait_readable(fd->get(), Deadline::after_seconds(1.5))) return 2;
    char byte = 0;
    return ::recv(fd->get(), &byte, 1, 0) <= 0 ? 0 : 3;
  });
  EXPECT_EQ(other.result(serve), 0) << "1: not connected, 2: not disconnected, 3: answered";
}

// Another user listens at the address of an abstract name, as one that has guessed it would.
inline std::unique_ptr<OtherUser> listen_as_another_user(const std::string& address) {
  int ready[2];
  EXPECT_EQ(::pipe(ready), 0);
  auto listener = std::make_unique<OtherUser>([&] {
    const auto listening = CoordinatorListener::open(address);
    if (listening.ok() && ::write(ready[1], "x", 1) == 1) ::pause();
    return 1;
  });
  ::close(ready[1]);
  char byte = 0;
  EXPECT_EQ(::read(ready[0], &byte, 1), 1) << address;
  ::close(ready[0]);
  return listener;
}

}  // namespace fdl::test
