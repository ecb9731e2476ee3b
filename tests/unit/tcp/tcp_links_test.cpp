// These tests cover the limits of calls and of accepted connections where one of the two ends is late: a process may
// get no processor for longer than any limit.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/support/participant.h"
#include "transports/tcp/links.h"

namespace fdl {
namespace {

using namespace fdl::test;

constexpr const char* kKey = "the key of the job";
constexpr const char* kPurpose = "test";
constexpr std::chrono::milliseconds kLimit(200);

// Counts what becomes of the connections, in the thread of the test.
class Links final : private TcpLinks {
 public:
  Links()
      : TcpLinks(kKey, kPurpose, "0", 1, require(listen_tcp("lo")), require(Poller::make()),
                 std::chrono::nanoseconds(kLimit).count()) {
    require(TcpLinks::begin());
  }

  void call(const std::vector<Address>& addresses, Deadline answer_deadline = Deadline::never()) {
    answer_deadline_ = answer_deadline;
    auto link = std::make_unique<Link>();
    link->calling = true;
    link->caller = {1, 0, 0, 1};
    link->callee = "0";
    link->addresses = addresses;
    require(try_address(place(std::move(link))));
  }
  const std::vector<Address>& addresses() const { return listening().addresses; }
  void poll_for(std::chrono::nanoseconds time) {
    const Deadline deadline = Deadline::after_ns(time.count());
    do require(poll_once(deadline));
    while (!deadline.passed());
  }
  void poll() { require(poll_once(Deadline::at_ns(0))); }

  int accepted = 0;
  int established = 0;
  int failed_rounds = 0;
  int refused_rounds = 0;

 private:
  Status on_accepted(std::size_t place) override {
    ++accepted;
    made_.push_back(take(place));
    return {};
  }
  Status on_established(std::size_t place) override {
    ++established;
    made_.push_back(take(place));
    return {};
  }
  Status on_round_failed(std::size_t place) override {
    ++failed_rounds;
    refused_rounds = link(place).refused_rounds;
    return {};
  }
  Status on_out_of_resources(std::size_t /*place*/, const Status& why) override { return why; }
  Deadline answer_deadline(std::size_t /*place*/) override { return answer_deadline_; }

  Deadline answer_deadline_ = Deadline::never();
  std::vector<TcpConnection> made_;
};

// One end of a connection that another thread of a late process would drive.
struct End {
  UniqueFd fd;
  Introduction introduction;

  bool advance() { return require(introduction.advance(fd.get())); }
  ssize_t peek() const {
    char byte = 0;
    return ::recv(fd.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK);
  }
};

End accept_end(const Listening& listening) {
  EXPECT_TRUE(wait_readable(listening.fd.get(), Deadline::after_seconds(10)));
  return {require(accept_one(listening.fd.get())), {Introduction::Role::server, kKey, kPurpose, "0"}};
}

// Accepts and greets the caller, whose proof is then waiting to be read. A loaded machine may need several calls.
End greeted_end(Links& caller, const Listening& listening) {
  while (true) {
    caller.poll();
    if (!wait_readable(listening.fd.get(), Deadline::at_ns(0))) continue;
    End callee = accept_end(listening);
    if (callee.peek() == 0) continue;
    EXPECT_FALSE(callee.advance());
    caller.poll();
    if (callee.peek() > 0) return callee;
  }
}

End call_end(const Links& links) {
  return {require(connect_any(links.addresses(), Deadline::after_seconds(10))),
          {Introduction::Role::client, kKey, kPurpose, TcpCaller{1, 0, 0, 1}.text()}};
}

// A callee that has read the proof regards the connection as made, and refuses a second call. If the caller closed the
// first connection, the callee would report that the caller has left.
TEST(TcpLinks, ACallWhoseProofWasSentIsNotRepeated) {
  const Listening listening = require(listen_tcp("lo"));
  Links caller;
  caller.call(listening.addresses);
  End callee = greeted_end(caller, listening);
  const int failed_before = caller.failed_rounds;
  caller.poll_for(3 * kLimit);  // the callee gets no processor
  ASSERT_EQ(caller.failed_rounds, failed_before);
  EXPECT_TRUE(callee.advance());
  while (caller.established == 0) caller.poll();
  EXPECT_FALSE(require(accept_one(listening.fd.get()))) << "it has called again";
}

TEST(TcpLinks, ACallEndsWhenItsAnswerIsOverdue) {
  const Listening listening = require(listen_tcp("lo"));
  Links caller;
  caller.call(listening.addresses, Deadline::after_ns(std::chrono::nanoseconds(2 * kLimit).count()));
  const End callee = greeted_end(caller, listening);
  const int failed_before = caller.failed_rounds;
  while (caller.failed_rounds == failed_before) caller.poll();
  EXPECT_EQ(caller.established, 0);
}

TEST(TcpLinks, ACallThatIsNotGreetedIsRepeated) {
  const Listening listening = require(listen_tcp("lo"));
  Links caller;
  caller.call(listening.addresses);
  caller.poll();
  const End silent = accept_end(listening);
  while (caller.failed_rounds == 0) caller.poll();
  End callee = greeted_end(caller, listening);
  EXPECT_TRUE(callee.advance());
  while (caller.established == 0) caller.poll();
}

// The callee greets the caller and closes the connection; the caller finds out at once or late.
int refused_rounds_of(bool late) {
  const Listening listening = require(listen_tcp("lo"));
  Links caller;
  caller.call(listening.addresses);
  caller.poll();
  {
    End callee = accept_end(listening);
    EXPECT_FALSE(callee.advance());
  }
  if (late) std::this_thread::sleep_for(2 * kLimit);
  while (caller.failed_rounds == 0) caller.poll();
  return caller.refused_rounds;
}

// Three refusals in a row mean that the keys differ. The end of a handshake whose caller was late is none.
TEST(TcpLinks, ALateCallerIsNotRefused) {
  EXPECT_EQ(refused_rounds_of(true), 0);
  bool was_refused = false;
  for (int i = 0; i < 20 && !was_refused; ++i) was_refused = refused_rounds_of(false) == 1;  // this machine may be slow
  EXPECT_TRUE(was_refused);
}

// There are more proofs than one batch of events has.
TEST(TcpLinks, ALateCalleeReadsAllProofsThatHaveArrived) {
  constexpr int kCallers = 150;
  Links callee;
  std::vector<End> callers;
  const auto was_dropped = [](const End& caller) { return caller.peek() == 0; };
  do {  // a loaded machine may be too slow even for the greetings
    callers.clear();
    for (int i = 0; i < kCallers; ++i) callers.push_back(call_end(callee));
    callee.poll();  // sends the greetings
    for (End& caller : callers) {
      ASSERT_TRUE(wait_readable(caller.fd.get(), Deadline::after_seconds(10)));
      EXPECT_TRUE(was_dropped(caller) || !caller.advance());
    }
  } while (std::any_of(callers.begin(), callers.end(), was_dropped));
  std::this_thread::sleep_for(2 * kLimit);
  callee.poll();
  EXPECT_EQ(callee.accepted, kCallers);
  for (End& caller : callers) EXPECT_TRUE(caller.advance());
}

TEST(TcpLinks, ACallerThatSendsNoProofIsDropped) {
  Links callee;
  End silent = call_end(callee);
  callee.poll();
  ASSERT_TRUE(wait_readable(silent.fd.get(), Deadline::after_seconds(10)));
  callee.poll_for(2 * kLimit);
  EXPECT_EQ(callee.accepted, 0);
  std::string greeting(40, '\0');
  require(read_all(silent.fd.get(), std::as_writable_bytes(std::span(greeting)), Deadline::after_seconds(10)));
  EXPECT_TRUE(silent.peek() == 0);
}

}  // namespace
}  // namespace fdl
