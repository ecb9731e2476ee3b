// Tests of the system module: sockets, handshake, shared memory, child processes and waiting.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "system/addresses.h"
#include "system/event.h"
#include "system/handshake.h"
#include "system/poller.h"
#include "system/process/descriptor_limit.h"
#include "system/process/process.h"
#include "system/shared_segment.h"
#include "system/socket.h"
#include "tests/support/ranks.h"

namespace fdl {
namespace {

using fdl::test::require;
using testing::AllOf;
using testing::HasSubstr;

Deadline soon() { return Deadline::after_seconds(0.05); }
Deadline late() { return Deadline::after_seconds(60); }

struct Ends {
  UniqueFd a;
  UniqueFd b;
};

Ends connected_pair() {
  int fds[2];
  FDL_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

UniqueFd accept_soon(int listening_fd) {
  require(wait_readable(listening_fd, late()), "a connection arrives");
  return require(accept_one(listening_fd));
}

// Runs `work` in a separate process, so that limits and signals stay there. Returns whether `work` returned true.
bool in_child(const std::function<bool()>& work) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(work() ? 0 : 1);
  int state = 0;
  ::waitpid(child, &state, 0);
  return WIFEXITED(state) && WEXITSTATUS(state) == 0;
}

// Limits the descriptors of this process to those that are open now and `more`.
void leave_descriptors(int more) {
  const UniqueFd next(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = static_cast<rlim_t>(next.get() + more);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

bool host_has_ipv6() {
  std::ifstream table("/proc/net/if_inet6");
  std::string line;
  return static_cast<bool>(std::getline(table, line));
}

// ---- Sockets ----

TEST(Socket, IsReachableUnderEveryAddressItOffers) {
  const Listening listening = require(listen_tcp(""));
  ASSERT_FALSE(listening.addresses.empty());
  for (const Address& address : listening.addresses) {
    const UniqueFd calling = require(connect_any(std::span(&address, 1), late()));
    const UniqueFd called = accept_soon(listening.fd.get());
    ASSERT_TRUE(called) << address.text;
    ASSERT_TRUE(write_all(calling.get(), bytes_of("hello"), late()).ok());
    std::array<std::byte, 5> text;
    ASSERT_TRUE(read_all(called.get(), text, late()).ok());
    EXPECT_EQ(text_of(text), "hello");
  }
}

TEST(Socket, OffersLoopbackLastAndOverBothFamilies) {
  const Listening listening = require(listen_tcp(""));
  std::vector<bool> is_loopback;
  bool with_ipv6 = false;
  for (const Address& address : listening.addresses) {
    is_loopback.push_back(address.text.starts_with("127.") || address.text.starts_with("[::1]"));
    with_ipv6 |= address.text.starts_with("[");
    EXPECT_THAT(address.text, testing::Not(HasSubstr("fe80"))) << "no link-local address if there are routable ones";
  }
  EXPECT_TRUE(std::is_sorted(is_loopback.begin(), is_loopback.end()));
  EXPECT_EQ(with_ipv6, host_has_ipv6());
  if (!host_has_ipv6()) std::puts("this machine has no IPv6: only IPv4 was tried");
}

TEST(Socket, ListensOnThePortItIsGiven) {
  const Listening any = require(listen_tcp("lo"));
  const std::string& text = any.addresses.front().text;
  const int port = std::stoi(text.substr(text.rfind(':') + 1));
  const auto taken = listen_tcp("lo", port);
  ASSERT_FALSE(taken.ok());
  EXPECT_THAT(taken.status().text(), AllOf(HasSubstr(std::to_string(port)), HasSubstr("choose another port")));
}

int port_in(const Listening& listening) {
  const std::string& text = listening.addresses.front().text;
  return std::stoi(text.substr(text.rfind(':') + 1));
}

TEST(Socket, TakesTheFirstFreePortOfARangeAndNoOther) {
  const int first = port_in(require(listen_tcp("lo")));
  const Listening one = require(listen_tcp("lo", Ports{first, std::min(65535, first + 40)}));
  const Listening other = require(listen_tcp("lo", Ports{first, std::min(65535, first + 40)}));
  EXPECT_LT(port_in(one), port_in(other));
  EXPECT_LE(port_in(other), first + 40);
  const auto none = listen_tcp("lo", Ports{port_in(one), port_in(one)});
  EXPECT_FALSE(none.ok());
}

TEST(Socket, NamesTheRangeOfPortsThatIsInUse) {
  // Find two consecutive free ports; other processes of this host may use some.
  for (int attempt = 0; attempt < 50; ++attempt) {
    const Listening one = require(listen_tcp("lo"));
    const int port = port_in(one);
    if (port == 65535) continue;
    const Result<Listening> second = listen_tcp("lo", port + 1);
    if (!second.ok()) continue;
    const auto none = listen_tcp("lo", Ports{port, port + 1});
    ASSERT_FALSE(none.ok());
    EXPECT_THAT(none.status().text(), AllOf(HasSubstr("none of the ports " + std::to_string(port) + " to "),
                                            HasSubstr("FARANDOLE_PORT_COUNT")));
    return;
  }
  FAIL() << "no two consecutive ports are free";
}

TEST(Socket, SendsKeepalivesWithinAMinute) {
  const Listening listening = require(listen_tcp("lo"));
  const UniqueFd calling = require(connect_any(listening.addresses, late()));
  const UniqueFd called = accept_soon(listening.fd.get());
  for (const int fd : {calling.get(), called.get()}) {
    int on = 0;
    int idle_s = 0;
    socklen_t length = sizeof on;
    ASSERT_EQ(::getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, &length), 0);
    ASSERT_EQ(::getsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, &length), 0);
    EXPECT_EQ(on, 1);
    EXPECT_LE(idle_s, 60);
  }
}

TEST(Socket, SurvivesOutagesUpToALimit) {
  const Listening listening = require(listen_tcp("lo"));
  const UniqueFd calling = require(connect_any(listening.addresses, late()));
  const auto option = [&](int name) {
    int value = 0;
    socklen_t length = sizeof value;
    EXPECT_EQ(::getsockopt(calling.get(), IPPROTO_TCP, name, &value, &length), 0);
    return value;
  };
  for (const double outage_s : {0.1, 1.0, 10.0, 60.0, 600.0, 1e9}) {
    survive_outages(calling.get(), outage_s);
    const double expected_s = std::min(outage_s, 86'400.0);
    EXPECT_GT(option(TCP_KEEPIDLE) + option(TCP_KEEPINTVL) * option(TCP_KEEPCNT), expected_s);
    EXPECT_GT(option(TCP_USER_TIMEOUT), 1000 * expected_s);
    EXPECT_LE(option(TCP_USER_TIMEOUT), 1000 * std::max(15.0, expected_s + 5));
    let_peer_pause(calling.get());
    EXPECT_EQ(option(TCP_USER_TIMEOUT), 0);
  }
}

TEST(Socket, ReportsNothingOverdueOnAConnectionThatIsAnswered) {
  const Listening listening = require(listen_tcp("lo"));
  const UniqueFd calling = require(connect_any(listening.addresses, late()));
  const UniqueFd called = accept_soon(listening.fd.get());
  const std::array<std::byte, 100> bytes{};
  require(write_all(calling.get(), bytes, late()));
  // The peer does not read; its kernel acknowledges.
  EXPECT_EQ(unacknowledged_of(calling.get()).retransmissions, 0);
}

TEST(Interfaces, HaveAReasonIfTheyAreNotOffered) {
  bool loopback = false;
  for (const InterfaceReport& one : describe_interfaces("")) {
    if (one.name == "lo") {
      loopback = true;
      EXPECT_FALSE(one.is_taken);
    }
    EXPECT_EQ(one.is_taken, one.why_not.empty()) << one.name;
  }
  EXPECT_TRUE(loopback);
  for (const InterfaceReport& one : describe_interfaces("^lo")) {
    if (one.name == "lo") {
      EXPECT_EQ(one.why_not, "it is excluded");
    }
  }
}

TEST(Interfaces, OfContainersAndOfTheNodeLeadToNoOtherHost) {
  for (const char* name : {"docker0", "cni0", "veth12ab34c", "eni0a1b2c3d4e5", "cali0123456789a", "nodelocaldns",
                           "pod-id-link0", "br-0123456789ab", "cilium_host", "virbr0"}) {
    EXPECT_TRUE(leads_to_no_other_host(name)) << name;
  }
  for (const char* name : {"eth0", "ens5", "eno1", "enp39s0", "bond0", "br-lan", "br-ex", "wlan0", "lo", "ib0"}) {
    EXPECT_FALSE(leads_to_no_other_host(name)) << name;
  }
}

TEST(Socket, OffersOnlyAddressesOfTheGivenInterfaces) {
  for (const Address& address : require(listen_tcp("lo")).addresses) {
    EXPECT_TRUE(address.text.starts_with("127.") || address.text.starts_with("[::1]")) << address.text;
  }
  for (const Address& address : require(listen_tcp("^no-such-interface, lo")).addresses) {
    EXPECT_FALSE(address.text.starts_with("127.") || address.text.starts_with("[::1]")) << address.text;
  }
}

TEST(Socket, UnknownInterfaceErrorListsTheExistingOnes) {
  const auto listening = listen_tcp("lo,eth77");
  ASSERT_FALSE(listening.ok());
  EXPECT_EQ(listening.status().code(), Code::invalid_argument);
  EXPECT_THAT(listening.status().text(), AllOf(HasSubstr("'eth77'"), HasSubstr("lo")));
}

TEST(Socket, TriesTheNextAddress) {
  const Listening listening = require(listen_tcp("lo"));
  // The socket of this address is closed again, so nothing listens there.
  const Address closed = require(listen_tcp("lo")).addresses.front();
  const std::vector<Address> addresses{closed, {"nonsense"}, listening.addresses.front()};
  EXPECT_TRUE(connect_any(addresses, late()).ok());
}

TEST(Socket, ListsTheFailureOfEachAddress) {
  const Address closed = require(listen_tcp("lo")).addresses.front();
  const std::vector<Address> addresses{closed, {"10.0.0.7"}, {"[::1:4"}, {"unix:@"}};
  const auto fd = connect_any(addresses, late());
  ASSERT_FALSE(fd.ok());
  EXPECT_EQ(fd.status().code(), Code::transport);
  EXPECT_THAT(fd.status().text(), AllOf(HasSubstr(closed.text), HasSubstr("refused"), HasSubstr("'10.0.0.7'"),
                                        HasSubstr("'[::1:4'"), HasSubstr("'unix:@'")));
  EXPECT_FALSE(connect_any({}, late()).ok());
}

TEST(Socket, ResolvesNamesAndNumbers) {
  EXPECT_FALSE(require(resolve("localhost", 80)).empty());
  EXPECT_EQ(require(resolve("127.0.0.1", 80)).front().text, "127.0.0.1:80");
  EXPECT_EQ(require(resolve("::1", 81)).front().text, "[::1]:81");
  const auto nowhere = resolve("no-such-host.invalid", 80);
  ASSERT_FALSE(nowhere.ok());
  EXPECT_THAT(nowhere.status().text(), HasSubstr("'no-such-host.invalid'"));
}

TEST(Socket, AcceptsNothingWithoutAPendingConnection) {
  const Listening listening = require(listen_tcp("lo"));
  EXPECT_FALSE(require(accept_one(listening.fd.get())));
}

TEST(Socket, TransfersMoreThanTheKernelBuffers) {
  Ends ends = connected_pair();
  const std::string text(3'000'000, 'x');
  std::string received(text.size(), '\0');
  std::thread writer([&] { EXPECT_TRUE(write_all(ends.a.get(), bytes_of(text), late()).ok()); });
  EXPECT_TRUE(read_all(ends.b.get(), std::as_writable_bytes(std::span(received)), late()).ok());
  writer.join();
  EXPECT_EQ(received, text);
}

TEST(Socket, StopsAtTheDeadline) {
  Ends ends = connected_pair();
  std::array<std::byte, 1> byte;
  EXPECT_EQ(read_all(ends.a.get(), byte, soon()).code(), Code::timeout);
  EXPECT_EQ(write_all(ends.a.get(), bytes_of(std::string(3'000'000, 'x')), soon()).code(), Code::timeout);
}

TEST(Socket, ReportsAClosedConnectionWithoutASignal) {
  Ends ends = connected_pair();
  ends.b.reset();
  std::array<std::byte, 1> byte;
  EXPECT_THAT(read_all(ends.a.get(), byte, late()).text(), HasSubstr("closed the connection"));
  EXPECT_FALSE(write_all(ends.a.get(), bytes_of("x"), late()).ok());
  EXPECT_FALSE(write_all(ends.a.get(), bytes_of("x"), late()).ok());
}

TEST(Socket, RetriesInterruptedCalls) {
  EXPECT_TRUE(in_child([] {
    struct sigaction action {};
    action.sa_handler = [](int) {};  // and no SA_RESTART: every call is interrupted
    ::sigaction(SIGALRM, &action, nullptr);
    const itimerval often{{0, 500}, {0, 500}};
    ::setitimer(ITIMER_REAL, &often, nullptr);

    Ends ends = connected_pair();
    const std::string text(20'000'000, 'x');
    std::string received(text.size(), '\0');
    bool written = false;
    std::thread writer([&] { written = write_all(ends.a.get(), bytes_of(text), late()).ok(); });
    const bool read = read_all(ends.b.get(), std::as_writable_bytes(std::span(received)), late()).ok();
    writer.join();
    const int64_t begin = now_ns();
    const bool waited = !wait_readable(ends.b.get(), soon()) && now_ns() - begin >= 50'000'000;
    const Listening listening = require(listen_unix());
    std::thread caller([&] { written &= connect_any(listening.addresses, late()).ok(); });
    const bool accepted = static_cast<bool>(accept_soon(listening.fd.get()));
    caller.join();
    return written && read && waited && accepted && received == text;
  }));
}

TEST(Socket, NamesTheRemedyWithoutDescriptors) {
  EXPECT_TRUE(in_child([] {
    leave_descriptors(0);
    const auto listening = listen_tcp("lo");
    const Address nowhere{"127.0.0.1:9"};
    const auto calling = connect_any(std::span(&nowhere, 1), late());
    return listening.status().code() == Code::resource &&
           listening.status().text().find("ulimit -n") != std::string::npos &&
           calling.status().code() == Code::resource;
  }));
  EXPECT_TRUE(in_child([] {
    const Listening listening = require(listen_tcp("lo"));
    const UniqueFd calling = require(connect_any(listening.addresses, late()));
    leave_descriptors(0);
    require(wait_readable(listening.fd.get(), late()), "the call arrives");
    return accept_one(listening.fd.get()).status().code() == Code::resource;
  }));
}

TEST(UnixSocket, PassesDescriptorsAndReturnsThePeersProcessId) {
  const Listening listening = require(listen_unix());
  EXPECT_TRUE(listening.addresses.front().text.starts_with("unix:@farandole-"));
  const UniqueFd calling = require(connect_any(listening.addresses, late()));
  const UniqueFd called = accept_soon(listening.fd.get());
  EXPECT_EQ(require(peer_process_id(called.get())), ::getpid());

  Ends passed = connected_pair();
  const std::array<int, 2> fds{passed.a.get(), passed.b.get()};
  ASSERT_TRUE(send_fds(calling.get(), fds, late()).ok());
  ASSERT_TRUE(send_fds(calling.get(), std::span(fds).first(1), late()).ok());
  // The two messages are received separately.
  const auto both = require(recv_fds(called.get(), 2, late()));
  const auto one = require(recv_fds(called.get(), 1, late()));
  ASSERT_TRUE(write_all(both[0].get(), bytes_of("x"), late()).ok());
  std::array<std::byte, 1> byte;
  EXPECT_TRUE(read_all(both[1].get(), byte, late()).ok());
  EXPECT_NE(::fcntl(one[0].get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(UnixSocket, RejectsAnUnexpectedNumberOfDescriptors) {
  Ends ends = connected_pair();
  const int some = ends.a.get();
  EXPECT_EQ(recv_fds(ends.b.get(), 1, soon()).status().code(), Code::timeout);
  ASSERT_TRUE(send_fds(ends.a.get(), std::span(&some, 1), late()).ok());
  EXPECT_THAT(recv_fds(ends.b.get(), 2, late()).status().text(), HasSubstr("1 arrived where 2"));
  ASSERT_TRUE(write_all(ends.a.get(), bytes_of("x"), late()).ok());
  EXPECT_THAT(recv_fds(ends.b.get(), 1, late()).status().text(), HasSubstr("0 arrived where 1"));
  ends.a.reset();
  EXPECT_THAT(recv_fds(ends.b.get(), 1, late()).status().text(), HasSubstr("closed the connection"));
  EXPECT_TRUE(in_child([] {
    Ends pair = connected_pair();
    const int fd = pair.a.get();
    require(send_fds(pair.a.get(), std::span(&fd, 1), late()));
    leave_descriptors(0);
    return recv_fds(pair.b.get(), 1, late()).status().code() == Code::resource;
  }));
}

// ---- Handshake ----

constexpr std::string_view kKey = "a key of the job, long enough";

struct Outcome {
  Result<Introduced> client;
  Result<Introduced> server;
};

Outcome introduce(std::string_view client_key, std::string_view client_purpose, std::string_view server_key,
                  std::string_view server_purpose) {
  Ends ends = connected_pair();
  Result<Introduced> client = Status(Code::internal, "not run");
  std::thread caller([&] {
    client = introduce_as_client(ends.a.get(), client_key, client_purpose, "rank 3", late());
    ends.a.reset();
  });
  Result<Introduced> server = introduce_as_server(ends.b.get(), server_key, server_purpose, "rank 0", late());
  ends.b.reset();
  caller.join();
  return {std::move(client), std::move(server)};
}

TEST(Handshake, ComputesTheHmacOfTheStandard) {
  const Digest digest = hmac_sha256("Jefe", "what do ya want for nothing?");  // RFC 4231, case 2
  const Digest expected{0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e, 0x6a, 0x04, 0x24, 0x26, 0x08, 0x95, 0x75, 0xc7,
                        0x5a, 0x00, 0x3f, 0x08, 0x9d, 0x27, 0x39, 0x83, 0x9d, 0xec, 0x58, 0xb9, 0x64, 0xec, 0x38, 0x43};
  EXPECT_TRUE(equal_in_constant_time(digest, expected));
  EXPECT_FALSE(equal_in_constant_time(digest, hmac_sha256("Jefe", "what do ya want for nothing!")));
  EXPECT_EQ(random_hex(16).size(), 32u);
  EXPECT_NE(random_hex(16), random_hex(16));
}

TEST(Handshake, AuthenticatesBothEndsAndAgreesOnAFreshKey) {
  const Outcome first = introduce(kKey, "tcp a", kKey, "tcp a");
  EXPECT_EQ(require(first.server).peer, "rank 3");
  EXPECT_EQ(require(first.client).peer, "rank 0");
  EXPECT_EQ(first.client->session_key, first.server->session_key);
  EXPECT_EQ(first.client->session_key.size(), 32u);
  EXPECT_NE(require(introduce(kKey, "tcp a", kKey, "tcp a").client).session_key, first.client->session_key);
}

TEST(Handshake, RejectsAnotherKeyAndAnotherPurpose) {
  const Outcome outcomes[] = {introduce(kKey, "tcp a", "another key", "tcp a"), introduce(kKey, "tcp a", kKey, "tcp b"),
                              introduce(kKey, "", kKey, "tcp b"), introduce("", "tcp a", kKey, "tcp a")};
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.client.status().code(), Code::authentication);
    EXPECT_EQ(outcome.server.status().code(), Code::authentication);
    EXPECT_THAT(outcome.server.status().text(), HasSubstr("does not have the job key"));
    EXPECT_THAT(outcome.client.status().text(), HasSubstr("wrong job key"));
  }
}

TEST(Handshake, ConsumesNoBytesAfterItsEnd) {
  Ends ends = connected_pair();
  std::thread server([&] {
    EXPECT_TRUE(introduce_as_server(ends.b.get(), kKey, "p", std::string(256, 's'), late()).ok());
    EXPECT_TRUE(write_all(ends.b.get(), bytes_of("data"), late()).ok());
  });
  EXPECT_EQ(require(introduce_as_client(ends.a.get(), kKey, "p", "", late())).peer, std::string(256, 's'));
  std::array<std::byte, 4> text;
  EXPECT_TRUE(read_all(ends.a.get(), text, late()).ok());
  EXPECT_EQ(text_of(text), "data");
  server.join();
}

// The other end sends `data`, and then hangs up or waits.
void expect_stranger_refused(std::string_view data, bool hangs_up, const char* reason) {
  for (const bool as_server : {true, false}) {
    Ends ends = connected_pair();
    ASSERT_TRUE(write_all(ends.a.get(), bytes_of(data), late()).ok());
    if (hangs_up) ::shutdown(ends.a.get(), SHUT_WR);
    const auto outcome = as_server ? introduce_as_server(ends.b.get(), kKey, "p", "me", soon())
                                   : introduce_as_client(ends.b.get(), kKey, "p", "me", soon());
    ASSERT_FALSE(outcome.ok());
    EXPECT_EQ(outcome.status().code(), Code::authentication);
    EXPECT_THAT(outcome.status().text(), testing::ContainsRegex(reason)) << (as_server ? "server" : "client");
  }
}

TEST(Handshake, RejectsASilentPeerAndAClosedConnection) {
  expect_stranger_refused("", false, "sent nothing in time");
  expect_stranger_refused("", true, "hung up");
  expect_stranger_refused("FADL", true, "hung up");
  expect_stranger_refused("FADL", false, "stopped in the middle");
}

TEST(Handshake, RejectsGarbage) {
  const std::string request = "GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: some program that is lost here\r\n\r\n";
  expect_stranger_refused(request, false, "not a farandole connection");
  expect_stranger_refused(std::string(200, '\0'), true, "not a farandole connection");
}

TEST(Handshake, NamesBothVersionsWhenTheyDiffer) {
  std::string hello("FADL\x07\0\0\0", 8);
  hello.resize(100, 'n');
  expect_stranger_refused(hello, false, "version 7.*version 2");
}

TEST(Handshake, RejectsATextThatIsTooLong) {
  std::string proof("FADL\x02\0\0\0", 8);
  proof.resize(8 + 32 + 32, 'n');
  proof += std::string("\x01\x01\0\0", 4) + std::string(257, 't');
  Ends ends = connected_pair();
  ASSERT_TRUE(write_all(ends.a.get(), bytes_of(proof), late()).ok());
  const auto outcome = introduce_as_server(ends.b.get(), kKey, "p", "me", late());
  EXPECT_THAT(outcome.status().text(), HasSubstr("too long"));
}

TEST(Handshake, SendsAStrangerOnlyANonce) {
  Ends ends = connected_pair();
  const std::string proof = std::string("FADL\x02\0\0\0", 8) + std::string(64, 'n') + std::string(4, '\0');
  ASSERT_TRUE(write_all(ends.a.get(), bytes_of(proof), late()).ok());
  EXPECT_EQ(introduce_as_server(ends.b.get(), kKey, "p", "me", late()).status().code(), Code::authentication);
  ends.b.reset();
  std::array<std::byte, 100> received;
  EXPECT_EQ(::recv(ends.a.get(), received.data(), received.size(), 0), 8 + 32);
}

// Two ends of a handshake with a relay between them that may change one byte.
struct Tapped {
  Introduction client{Introduction::Role::client, kKey, "p", "c"};
  Introduction server{Introduction::Role::server, kKey, "p", "s"};
  Ends left = connected_pair();
  Ends right = connected_pair();
  std::size_t passed = 0;
  std::size_t changed_at = ~std::size_t{0};
  bool client_done = false, server_done = false, failed = false;

  void pass(int from, int to) {
    std::array<std::byte, 512> bytes;
    const ssize_t count = ::recv(from, bytes.data(), bytes.size(), 0);
    for (ssize_t i = 0; i < count; ++i, ++passed) {
      if (passed == changed_at) bytes[static_cast<std::size_t>(i)] ^= std::byte{1};
    }
    if (count > 0) require(write_all(to, std::span(bytes).first(static_cast<std::size_t>(count)), late()));
  }
  void advance(Introduction& end, int fd, bool& done) {
    const auto outcome = end.advance(fd);
    failed |= !outcome.ok();
    done = outcome.ok() && *outcome;
  }
  void run() {
    for (int round = 0; round < 4 && !failed; ++round) {
      if (!server_done) advance(server, right.b.get(), server_done);
      pass(right.a.get(), left.b.get());
      if (!client_done) advance(client, left.a.get(), client_done);
      pass(left.b.get(), right.a.get());
    }
  }
};

TEST(Handshake, DetectsEveryChangedByte) {
  Tapped honest;
  honest.run();
  ASSERT_TRUE(honest.client_done && honest.server_done);
  ASSERT_EQ(honest.passed, 8u + 32 + (8 + 32 + 32 + 4 + 1) + (32 + 4 + 1));
  for (std::size_t at = 0; at < honest.passed; ++at) {
    Tapped tapped;
    tapped.changed_at = at;
    tapped.run();
    EXPECT_FALSE(tapped.client_done) << "byte " << at;
    // The server has answered before the last message can be changed.
    const bool server_can_tell = at < 8 + 32 + (8 + 32 + 32 + 4 + 1);
    EXPECT_EQ(tapped.server_done, !server_can_tell) << "byte " << at;
  }
}

TEST(Handshake, RejectsItsOwnReflectedMessages) {
  Ends ends = connected_pair();
  std::thread mirror([&] {
    std::array<std::byte, 512> bytes;
    while (wait_readable(ends.b.get(), late())) {
      const ssize_t count = ::recv(ends.b.get(), bytes.data(), bytes.size(), 0);
      if (count <= 0) return;
      [[maybe_unused]] const auto sent =
          ::send(ends.b.get(), bytes.data(), static_cast<std::size_t>(count), MSG_NOSIGNAL);
    }
  });
  EXPECT_FALSE(introduce_as_server(ends.a.get(), kKey, "p", "me", soon()).ok());
  ends.a.reset();
  mirror.join();
}

// ---- Shared memory ----

TEST(SharedSegment, IsZeroAndSharedWithOtherMappings) {
  SharedSegment mine = require(SharedSegment::create(1_MiB + 5));
  ASSERT_EQ(mine.bytes().size(), 1_MiB + 5);
  for (const std::byte byte : mine.bytes()) ASSERT_EQ(byte, std::byte{0});
  SharedSegment theirs = require(SharedSegment::map(UniqueFd(::dup(mine.fd()))));
  ASSERT_EQ(theirs.bytes().size(), mine.bytes().size());
  mine.bytes()[1_MiB] = std::byte{7};
  EXPECT_EQ(theirs.bytes()[1_MiB], std::byte{7});
  SharedSegment moved = std::move(theirs);
  mine = std::move(moved);
  EXPECT_EQ(mine.bytes()[1_MiB], std::byte{7});
}

// Returns how many bytes of address space this process has mapped or reserved.
std::size_t address_space() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * SharedSegment::page_bytes();
}

TEST(SharedSegment, ReturnsAllItsAddressSpace) {
  const std::size_t before = address_space();
  for (int i = 0; i < 32; ++i) require(SharedSegment::create(3_MiB + 5));
  EXPECT_LT(address_space(), before + 4_MiB);
}

TEST(SharedSegment, CannotShrinkOrGrow) {
  const SharedSegment segment = require(SharedSegment::create(8192));
  EXPECT_NE(::ftruncate(segment.fd(), 4096), 0);
  EXPECT_NE(::ftruncate(segment.fd(), 16384), 0);
}

TEST(SharedSegment, RejectsDescriptorsThatAreNotSealed) {
  UniqueFd loose(::memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(loose.get(), 4096), 0);
  EXPECT_EQ(SharedSegment::map(std::move(loose)).status().code(), Code::transport);
  EXPECT_FALSE(SharedSegment::map(UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC))).ok());
  EXPECT_FALSE(SharedSegment::map(UniqueFd()).ok());
}

// Returns the bytes in mapped huge pages of the shared mapping that begins at `start`.
std::size_t huge_bytes_at(const void* start) {
  std::ifstream maps("/proc/self/smaps");
  const std::string begin = fmt::format("{:x}-", reinterpret_cast<uintptr_t>(start));
  bool here = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('-') != std::string::npos && line.find(':') > line.find('-')) here = line.starts_with(begin);
    std::size_t kib = 0;
    if (here && std::sscanf(line.c_str(), "ShmemPmdMapped: %zu kB", &kib) == 1) return kib << 10;
  }
  return 0;
}

// Returns whether the kernel can collapse huge pages, tested without SharedSegment.
bool kernel_collapses_huge_pages(std::size_t bytes) {
  constexpr int kCollapse = 25;  // MADV_COLLAPSE
  const UniqueFd file(::memfd_create("probe", MFD_CLOEXEC));
  FDL_CHECK(::ftruncate(file.get(), static_cast<off_t>(bytes)) == 0);
  void* range = ::mmap(nullptr, 2 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  auto* place = reinterpret_cast<std::byte*>(round_up(reinterpret_cast<uintptr_t>(range), bytes));
  FDL_CHECK(::mmap(place, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file.get(), 0) == place);
  *place = std::byte{1};
  const bool collapsed = ::madvise(place, bytes, kCollapse) == 0;
  ::munmap(range, 2 * bytes);
  return collapsed;
}

TEST(SharedSegment, UsesHugePagesIfTheKernelHasThem) {
  const std::size_t expected = kernel_collapses_huge_pages(2_MiB) ? 6_MiB : 0;
  SharedSegment whole = require(SharedSegment::create(6_MiB + 4096));
  SharedSegment sparse = require(SharedSegment::create_sparse(64_MiB));
  ASSERT_TRUE(sparse.commit(8_MiB - 4096, 6_MiB + 8192).ok());
  const SharedSegment theirs = require(SharedSegment::map(UniqueFd(::dup(sparse.fd()))));
  for (const Bytes memory : {whole.bytes(), sparse.bytes().subspan(8_MiB - 4096), theirs.bytes().subspan(8_MiB - 4096)})
    for (std::size_t i = 0; i < 6_MiB + 4096; i += 4096) ASSERT_EQ(memory[i], std::byte{0});
  EXPECT_EQ(huge_bytes_at(whole.bytes().data()), expected);
  EXPECT_EQ(huge_bytes_at(sparse.bytes().data()), expected);
  EXPECT_EQ(huge_bytes_at(theirs.bytes().data()), expected);

  // Memory that was discarded and committed again is zero; memory next to it keeps its bytes.
  sparse.bytes()[8_MiB] = sparse.bytes()[12_MiB] = std::byte{7};
  sparse.discard(8_MiB, 65536);
  ASSERT_TRUE(sparse.commit(8_MiB, 65536).ok());
  EXPECT_EQ(theirs.bytes()[8_MiB], std::byte{0});
  EXPECT_EQ(theirs.bytes()[12_MiB], std::byte{7});
}

TEST(SharedSegment, RejectsSizesAboveTheMachinesMemory) {
  EXPECT_EQ(SharedSegment::create(0).status().code(), Code::invalid_argument);
  for (const std::size_t bytes : {std::size_t{1} << 50, ~std::size_t{0}}) {
    const auto segment = SharedSegment::create(bytes);
    EXPECT_EQ(segment.status().code(), Code::resource);
    EXPECT_THAT(segment.status().text(), AllOf(HasSubstr(std::to_string(bytes)), HasSubstr("memory limit")));
  }
  EXPECT_TRUE(in_child([] {
    leave_descriptors(0);
    return SharedSegment::create(4096).status().code() == Code::resource;
  }));
}

// ---- Child processes ----

using Variables = std::map<std::string, std::string>;

ChildProcess shell(const std::string& script, const Variables& variables = {},
                   const ChildProcess::Options& options = {}) {
  return require(ChildProcess::start({"sh", "-c", script}, variables, options));
}

std::string read_to_end(int fd) {
  std::string text;
  std::array<char, 4096> buffer;
  while (wait_readable(fd, late())) {
    const ssize_t count = ::read(fd, buffer.data(), buffer.size());
    if (count <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
  return text;
}

TEST(ChildProcess, HasOnlyTheGivenEnvironment) {
  ::setenv("FDL_TEST_INHERITED", "yes", 1);
  ChildProcess child = shell("echo \"$A|$FDL_TEST_INHERITED\"; echo wrong >&2; cat; exit 3", {{"A", "b c"}});
  EXPECT_EQ(read_to_end(child.output_fd()), "b c|\n");
  EXPECT_EQ(read_to_end(child.error_fd()), "wrong\n");
  const auto ending = child.wait(late());
  ASSERT_TRUE(ending.has_value());
  EXPECT_EQ(ending->text(), "exit code 3");
  EXPECT_EQ(ending->exit_code(), 3);
  EXPECT_FALSE(ending->success());
  EXPECT_EQ(child.ending()->number, 3) << "the ending stays the same";
}

TEST(ChildProcess, IsFoundInPathOfItsEnvironment) {
  const std::string directory = testing::TempDir() + "farandole-path-" + std::to_string(::getpid());
  ASSERT_EQ(::mkdir(directory.c_str(), 0700), 0);
  std::ofstream(directory + "/greet") << "#!/bin/sh\necho greetings\n";
  ASSERT_EQ(::chmod((directory + "/greet").c_str(), 0700), 0);
  ChildProcess child = require(ChildProcess::start({"greet"}, {{"PATH", "/nowhere:" + directory}}));
  EXPECT_EQ(read_to_end(child.output_fd()), "greetings\n");
  ::unlink((directory + "/greet").c_str());
  ::rmdir(directory.c_str());
}

TEST(ChildProcess, ReportsWhyItCannotStart) {
  const auto unknown = ChildProcess::start({"no-such-program"}, {});
  EXPECT_THAT(unknown.status().text(), AllOf(HasSubstr("'no-such-program'"), HasSubstr("PATH")));
  EXPECT_THAT(ChildProcess::start({"/no/such/program"}, {}).status().text(), HasSubstr("No such file"));
  EXPECT_THAT(ChildProcess::start({"/dev/null"}, {}).status().text(), HasSubstr("Permission denied"));
  EXPECT_THAT(ChildProcess::start({"sh"}, {}, {.directory = "/no/such/place"}).status().text(),
              HasSubstr("/no/such/place"));
  EXPECT_EQ(ChildProcess::start({}, {}).status().code(), Code::invalid_argument);
  EXPECT_TRUE(in_child([] {
    leave_descriptors(4);
    return ChildProcess::start({"sh"}, {}).status().code() == Code::resource;
  }));
}

TEST(ChildProcess, RunsInItsDirectory) {
  ChildProcess child = shell("pwd", {}, {.directory = "/"});
  EXPECT_EQ(read_to_end(child.output_fd()), "/\n");
}

TEST(ChildProcess, RunsOnItsProcessors) {
  const std::string own = "grep Cpus_allowed_list /proc/self/status";
  cpu_set_t set;
  CPU_ZERO(&set);
  ASSERT_EQ(::sched_getaffinity(0, sizeof set, &set), 0);
  int last = CPU_SETSIZE - 1;
  while (!CPU_ISSET(static_cast<std::size_t>(last), &set)) --last;
  ChildProcess child = shell(own, {}, {.processors = {last}});
  EXPECT_EQ(read_to_end(child.output_fd()), "Cpus_allowed_list:\t" + std::to_string(last) + "\n");
  const auto elsewhere = ChildProcess::start({"sh"}, {}, {.processors = {CPU_SETSIZE + 100'000}});
  EXPECT_THAT(elsewhere.status().text(), HasSubstr("Invalid argument")) << "the machine has no such processor";
}

TEST(ChildProcess, SignalsReachItsWholeGroup) {
  ChildProcess child = shell("sleep 1000 & echo started; wait");
  std::array<char, 8> text;
  ASSERT_TRUE(wait_readable(child.output_fd(), late()));
  ASSERT_GT(::read(child.output_fd(), text.data(), text.size()), 0);
  EXPECT_EQ(::getpgid(child.id()), child.id());
  EXPECT_FALSE(child.ending().has_value());
  EXPECT_FALSE(child.wait(soon()).has_value());
  child.signal_group(SIGTERM);
  const auto ending = child.wait(late());
  ASSERT_TRUE(ending.has_value());
  EXPECT_EQ(ending->exit_code(), 128 + SIGTERM);
  EXPECT_THAT(ending->text(), HasSubstr("signal 15"));
  // The pipe ends only when the last of the group has ended.
  EXPECT_EQ(read_to_end(child.output_fd()), "");
}

TEST(ChildProcess, StartsWithAnEmptySignalMask) {
  sigset_t terminate;
  sigemptyset(&terminate);
  sigaddset(&terminate, SIGTERM);
  sigset_t before;
  ::pthread_sigmask(SIG_BLOCK, &terminate, &before);
  ChildProcess child = shell("kill -TERM $$; echo survived");
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(read_to_end(child.output_fd()), "");
  EXPECT_EQ(
      require(child.wait(late()).has_value() ? Result<Ending>(*child.ending()) : Status(Code::timeout, "hangs")).number,
      SIGTERM);
}

TEST(ChildProcess, DoesNotOutliveItsOwner) {
  UniqueFd output;
  {
    ChildProcess child = shell("sleep 1000 & wait");
    output = UniqueFd(::dup(child.output_fd()));
  }
  EXPECT_EQ(read_to_end(output.get()), "");
}

TEST(ChildProcess, DiesWithItsParentIfRequested) {
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    auto child = ChildProcess::start({"sleep", "1000"}, {}, {.die_with_parent = true});
    const pid_t id = child.ok() ? child->id() : -1;
    [[maybe_unused]] const auto written = ::write(fds[1], &id, sizeof id);
    while (true) ::pause();
  }
  pid_t grandchild = -1;
  ASSERT_EQ(::read(fds[0], &grandchild, sizeof grandchild), static_cast<ssize_t>(sizeof grandchild));
  const UniqueFd watched = require(open_process(grandchild));
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  EXPECT_TRUE(wait_readable(watched.get(), late()));
  EXPECT_FALSE(open_process(-1).ok());
}

// ---- Waiting ----

TEST(Event, IsReadableFromRingToClear) {
  const Event event = require(Event::make());
  EXPECT_FALSE(wait_readable(event.fd(), Deadline::at_ns(0)));
  event.ring();
  event.ring();
  EXPECT_TRUE(wait_readable(event.fd(), Deadline::at_ns(0)));
  event.clear();
  EXPECT_FALSE(wait_readable(event.fd(), Deadline::at_ns(0)));
}

TEST(Poller, ReportsReadyDescriptors) {
  Poller poller = require(Poller::make());
  Ends ends = connected_pair();
  std::array<Poller::Ready, 4> ready;
  ASSERT_TRUE(poller.add(ends.a.get(), 5).ok());
  EXPECT_EQ(poller.wait(ready, soon()), 0u);
  ASSERT_TRUE(write_all(ends.b.get(), bytes_of("x"), late()).ok());
  ASSERT_EQ(poller.wait(ready, late()), 1u);
  EXPECT_EQ(ready[0].token, 5u);
  EXPECT_TRUE(ready[0].readable && !ready[0].writable && !ready[0].hung_up);
  ASSERT_TRUE(poller.change(ends.a.get(), 6, false, true).ok());
  ASSERT_EQ(poller.wait(ready, late()), 1u);
  EXPECT_EQ(ready[0].token, 6u);
  EXPECT_TRUE(!ready[0].readable && ready[0].writable);
  EXPECT_FALSE(poller.add(-1, 1).ok());
  EXPECT_FALSE(poller.change(-1, 1, true, true).ok());
}

TEST(Poller, CanWaitForAHangUpAlone) {
  Poller poller = require(Poller::make());
  Ends ends = connected_pair();
  std::array<Poller::Ready, 4> ready;
  ASSERT_TRUE(poller.add(ends.a.get(), 5, false, false).ok());
  ASSERT_TRUE(poller.change(ends.a.get(), 5, false, false, true).ok());
  ASSERT_TRUE(write_all(ends.b.get(), bytes_of("x"), late()).ok());
  EXPECT_EQ(poller.wait(ready, soon()), 0u) << "data does not wake it";
  ::shutdown(ends.b.get(), SHUT_WR);
  ASSERT_EQ(poller.wait(ready, late()), 1u);
  EXPECT_TRUE(ready[0].hung_up);
}

// ---- Limits ----

TEST(DescriptorLimit, IsRaisedAsFarAsTheHardLimitAllows) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const auto soft = [] {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    return limit.rlim_cur;
  };
  const rlimit low{.rlim_cur = 100, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  raise_limit_of_descriptors(99);
  EXPECT_EQ(soft(), 100u);
  raise_limit_of_descriptors(101);
  EXPECT_EQ(soft(), 101u);
  raise_limit_of_descriptors(RLIM_INFINITY);
  EXPECT_EQ(soft(), before.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace
}  // namespace fdl
