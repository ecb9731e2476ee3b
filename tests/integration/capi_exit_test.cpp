// Programs that call exit() while their world is alive: the threads of the library run until the very end of the
// process.
#include <gmock/gmock.h>
#include <malloc.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>

#include "tests/support/sanitized.h"
#include "tests/support/worlds.h"

namespace world_test {
namespace {

using namespace std::chrono_literals;

constexpr int kSize = 3;
constexpr int kExitCode = 3;
constexpr unsigned kDeadline_s = 60;  // a process that lasts longer ends by SIGALRM
constexpr auto kLinger = 50ms;

// How one trial goes.
struct Trial {
  std::string address;
  Knobs knobs;
  int victim = 0;  // the rank that exits
  int delay_ms = 0;
  int calls = 10;  // of its other thread, before it may exit
};

// Exit handlers run in the reverse order, so all objects of the library that are destroyed at exit are destroyed before
// this handler, and its threads still run meanwhile.
void linger() { std::this_thread::sleep_for(kLinger); }

// A named sum. A thread that does not return from here at the exit keeps the memory until the end of the process.
fdl_result sum_all(World& me, int round) {
  std::vector<float> values(static_cast<std::size_t>(1 + round % 40 * 37), 1.0F);
  const auto shape = static_cast<int64_t>(values.size());
  fdl_operation operation;
  fdl_operation_init(&operation);
  const std::string name = "sum " + std::to_string(round);
  operation.kind = FDL_NAMED_ALLREDUCE;
  operation.name = name.c_str();
  operation.input.data = operation.output = values.data();
  operation.input.shape = &shape;
  operation.input.ndim = 1;
  operation.op = FDL_SUM;
  fdl_handle* handle = nullptr;
  if (const fdl_result result = fdl_submit(me.all, &operation, 1, &handle); result != FDL_OK) return result;
  const fdl_result result = fdl_wait_handle(handle, -1);
  fdl_handle_free(handle);
  if (result == FDL_OK && values != std::vector<float>(values.size(), static_cast<float>(me.size))) ::_exit(10);
  return result;
}

// Keeps operations going in a second thread, and calls exit() in this one.
[[noreturn]] void be_victim(World& me, const Trial& trial) {
  static std::atomic<int> done{0};
  std::thread([&me] {
    for (int round = 0; sum_all(me, round) == FDL_OK; ++round) ++done;
    ::_exit(11);  // no other rank has failed
  }).detach();
  while (done < trial.calls) std::this_thread::sleep_for(1ms);
  std::this_thread::sleep_for(std::chrono::milliseconds(trial.delay_ms));
  std::exit(kExitCode);
}

// Returns the exit code of a rank that runs operations until the victim is lost.
int be_survivor(World& me, const Trial& trial) {
  fdl_result result = FDL_OK;
  for (int round = 0; result == FDL_OK; ++round) result = sum_all(me, round);
  const fdl_error& error = *fdl_last_error();
  const std::string text = error.text;
  if (result == FDL_PEER_LOST && error.culprit_rank == trial.victim &&
      text.find("rank " + std::to_string(trial.victim)) != std::string::npos) {
    return 0;
  }
  std::fprintf(stderr, "rank %d: result %d, culprit %d: %s\n", me.rank, result, error.culprit_rank, error.text);
  return 1;
}

[[noreturn]] void be_rank(int rank, const Trial& trial) {
  ::alarm(kDeadline_s);
  ::mallopt(M_PERTURB, 0xA5);  // freed memory gets other contents
  if (rank == trial.victim) std::atexit(linger);
  auto& me = *new World;  // not ended: exit() comes first
  if (open_world(trial.address, rank, kSize, trial.knobs, me) != FDL_OK) {
    std::fprintf(stderr, "rank %d: %s\n", rank, fdl_last_error()->text);
    ::_exit(12);
  }
  if (rank == trial.victim) be_victim(me, trial);
  ::_exit(be_survivor(me, trial));
}

// Connects to the coordinator again and again, with proofs that are well-formed and wrong, until it is killed.
[[noreturn]] void knock(const std::string& abstract_name) {
  ::alarm(kDeadline_s);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, abstract_name.data(), abstract_name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + abstract_name.size());
  constexpr std::size_t kGreeting = 40, kProof = 76;  // magic, version, nonce; the proof also has a digest and a size
  while (true) {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char bytes[kProof] = {};
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
        ::recv(fd, bytes, kGreeting, MSG_WAITALL) == static_cast<ssize_t>(kGreeting)) {
      std::memset(bytes + 8, 1, kProof - 12);
      [[maybe_unused]] const auto sent = ::send(fd, bytes, kProof, MSG_NOSIGNAL);
      while (::recv(fd, bytes, sizeof bytes, 0) > 0) continue;
    } else {
      std::this_thread::sleep_for(1ms);
    }
    ::close(fd);
  }
}

template <typename Body>
pid_t start(const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) body();
  return child;
}

std::string ending_of(pid_t child) {
  int state = 0;
  ::waitpid(child, &state, 0);
  return WIFEXITED(state) ? "exit " + std::to_string(WEXITSTATUS(state)) : "signal " + std::to_string(WTERMSIG(state));
}

void run_trial(Trial trial) {
  static int number = 0;
  const std::string name = "farandole-exit-" + std::to_string(::getpid()) + "-" + std::to_string(number++);
  trial.address = "unix:@" + name;
  const pid_t knocker = start([&] { knock(name); });
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < kSize; ++rank) ranks.push_back(start([&] { be_rank(rank, trial); }));
  for (int rank = 0; rank < kSize; ++rank) {
    EXPECT_EQ(ending_of(ranks[static_cast<std::size_t>(rank)]), rank == trial.victim ? "exit 3" : "exit 0")
        << "rank " << rank << " of a job whose rank " << trial.victim << " exits after " << trial.delay_ms << " ms";
  }
  ::kill(knocker, SIGKILL);
  EXPECT_EQ(ending_of(knocker), "signal 9");
}

class Exit : public testing::TestWithParam<const char*> {};

// Rank 0, whose coordinator the strangers connect to, exits in every second trial.
TEST_P(Exit, HasTheCodeOfTheProgramWhileOperationsRun) {
  constexpr int kTrials = fdl::test::unless_sanitized(20, 6);
  for (int i = 0; i < kTrials; ++i) {
    run_trial({.address = {},
               .knobs = {{"transport", GetParam()}, {"log_level", "error"}},
               .victim = i % 2 == 0 ? 0 : 1 + i / 2 % (kSize - 1),
               .delay_ms = i * 7 % 40});
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, Exit, testing::Values("shm", "tcp"),
                         [](const auto& one) { return std::string(one.param); });

// ---- Calls of exit handlers ----

// Objects of the thread are destroyed before exit handlers run. A failed call must still report its error. The second
// text is longer, so that memory of the first one that was freed already is freed again.
TEST(ExitHandlers, GetTheErrorOfAFailedCall) {
  const pid_t child = start([] {
    ::alarm(kDeadline_s);
    ::mallopt(M_PERTURB, 0xA5);
    std::atexit([] {
      const std::string longer(1000, 'b');
      const bool failed = fdl_fail(FDL_TIMEOUT, longer.c_str()) == FDL_TIMEOUT;
      if (!failed || longer != fdl_last_error()->text) ::_exit(13);
    });
    (void)fdl_fail(FDL_ABORTED, std::string(100, 'a').c_str());
    std::exit(kExitCode);
  });
  EXPECT_EQ(ending_of(child), "exit 3");
}

}  // namespace
}  // namespace world_test
