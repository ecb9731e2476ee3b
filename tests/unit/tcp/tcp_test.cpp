// These tests cover what TCP adds to the contract: foreign connections, keys, missing addresses and members,
// descriptors, leaving in order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <latch>
#include <mutex>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "system/poller.h"
#include "system/socket.h"
#include "tests/contract/processors.h"
#include "tests/support/participant.h"
#include "tests/unit/tcp/all_pairs.h"
#include "transports/tcp/stripes.h"
#include "transports/tcp/tcp_transport.h"

namespace fdl {
namespace {

using namespace fdl::test;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr Channel channel(int peer, int index = 0) { return Channel{peer, index}; }

Result<std::unique_ptr<Transport>> connect_all(const Membership& membership) {
  return connect_tcp(membership, std::vector<bool>(static_cast<std::size_t>(membership.size()), true));
}

Result<std::unique_ptr<Transport>> connect_all_striped(const Membership& membership) {
  return connect_tcp_streams(membership, std::vector<int>(static_cast<std::size_t>(membership.size()), 3));
}

std::vector<Address> addresses_of(Participant& participant, int rank) {
  const Membership membership = participant.membership(rank);
  std::string text =
      require(membership.exchange->fetch(participant.id() + "/tcp/" + std::to_string(rank), membership.deadline));
  std::vector<Address> addresses;
  for (std::size_t space = 0; (space = text.find(' ')) != std::string::npos; text.erase(0, space + 1)) {
    addresses.push_back({text.substr(0, space)});
  }
  addresses.push_back({text});
  return addresses;
}

// An exchange that edits values when they are fetched.
class EditedExchange final : public Exchange {
 public:
  using Edit = std::function<std::string(std::string_view key, std::string value)>;
  EditedExchange(Exchange& exchange, Edit edit) : exchange_(exchange), edit_(std::move(edit)) {}
  Status publish(std::string_view key, std::string_view value) override { return exchange_.publish(key, value); }
  Result<std::string> fetch(std::string_view key, Deadline deadline) override {
    FDL_ASSIGN_OR_RETURN(std::string value, exchange_.fetch(key, deadline));
    return edit_(key, std::move(value));
  }

 private:
  Exchange& exchange_;
  Edit edit_;
};

std::string joined(const std::vector<Address>& addresses) {
  std::string text;
  for (const Address& address : addresses) text += (text.empty() ? "" : " ") + address.text;
  return text;
}

// ---- Pacing ----

std::string congestion_control_of(int fd) {
  std::array<char, 64> name{};
  socklen_t length = name.size();
  EXPECT_EQ(::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), &length), 0);
  return name.data();
}

TEST(TcpPacing, IsOffWithinOneHostAndCanBeTurnedOn) {
  const UniqueFd fresh(::socket(AF_INET, SOCK_STREAM, 0));
  for (const char* interfaces : {"lo", ""}) {
    const Listening listening = require(listen_tcp(interfaces));
    const UniqueFd caller = require(connect_any(listening.addresses, Deadline::after_seconds(5)));
    ASSERT_TRUE(wait_readable(listening.fd.get(), Deadline::after_seconds(5)));
    const UniqueFd called = require(accept_one(listening.fd.get()));
    for (const int fd : {caller.get(), called.get()}) {
      EXPECT_TRUE(stays_on_host(fd)) << "of interfaces '" << interfaces << "'";
      EXPECT_EQ(congestion_control_of(fd), "reno");
      use_usual_congestion_control(fd);
      EXPECT_EQ(congestion_control_of(fd), congestion_control_of(fresh.get()));
    }
  }
}

// ---- Foreign connections ----

// Rank 0 listens alone while `visit` connects to it. Then the others connect, and all must work as usual. The deadline
// is shorter than the timeout of a handshake, so a rank that waited for a foreign connection would miss it.
void expect_undisturbed(const std::function<void(const std::vector<Address>&)>& visit) {
  Participant participant(3);
  std::latch visited(3);
  run_ranks(4, [&](int rank) {
    if (rank == 3) {
      visit(addresses_of(participant, 0));
      visited.count_down();
      return;
    }
    if (rank > 0) visited.arrive_and_wait();
    auto transport = require(connect_all(participant.membership(rank, Deadline::after_seconds(8))));
    exchange_with_all(*transport, rank, 3);
  });
}

TEST(TcpForeignConnections, DelayNoRankIfTheyAreSilent) {
  std::vector<UniqueFd> silent;
  expect_undisturbed([&](const auto& addresses) {
    for (int i = 0; i < 20; ++i) silent.push_back(require(connect_any(addresses, Deadline::after_seconds(5))));
  });
}

TEST(TcpForeignConnections, AreDroppedIfThereAreTooMany) {
  std::vector<UniqueFd> silent;
  expect_undisturbed([&](const auto& addresses) {
    for (int i = 0; i < 400; ++i) silent.push_back(require(connect_any(addresses, Deadline::after_seconds(5))));
  });
}

TEST(TcpForeignConnections, AreDroppedIfTheySendNonsense) {
  expect_undisturbed([](const auto& addresses) {
    const std::string nonsense(300, '\n');
    for (const std::string& text : {std::string("GET / HTTP/1.0\r\n\r\n"), nonsense, std::string("FADL")}) {
      const UniqueFd fd = require(connect_any(addresses, Deadline::after_seconds(5)));
      require(write_all(fd.get(), bytes_of(text), Deadline::after_seconds(5)));
    }
  });
}

TEST(TcpForeignConnections, AreDroppedIfTheyClose) {
  expect_undisturbed([](const auto& addresses) {
    for (int i = 0; i < 100; ++i) {
      const UniqueFd fd = require(connect_any(addresses, Deadline::after_seconds(5)));
      const linger reset{1, 0};
      if (i % 2 == 0) ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    }
  });
}

TEST(TcpForeignConnections, AreRefusedOnceAllAreConnected) {
  Participant participant(2);
  std::latch tried(2);
  participant.run(connect_all, [&](int rank, std::unique_ptr<Transport> transport) {
    if (rank == 0) {
      EXPECT_THAT(connect_any(addresses_of(participant, 0), Deadline::after_seconds(5)).status().text(),
                  HasSubstr("refused"));
    }
    tried.arrive_and_wait();
    exchange_with_all(*transport, rank, 2);
  });
}

// ---- Errors of the set-up ----

TEST(TcpSetUp, NamesTheRankWithAnotherKey) {
  Participant participant(2);
  run_ranks(2, [&](int rank) {
    Membership membership = participant.membership(rank, Deadline::after_seconds(1.5));
    if (rank == 1) membership.job_key = "the key of another job";
    const auto transport = connect_all(membership);
    ASSERT_FALSE(transport.ok());
    const Error& error = transport.status().error();
    if (rank == 1) {
      EXPECT_EQ(error.code, Code::authentication);
      EXPECT_EQ(error.culprit_rank, 10);
      EXPECT_THAT(error.text, AllOf(HasSubstr("rank 10 (host-a)"), HasSubstr("same job key")));
    } else {
      EXPECT_EQ(error.code, Code::timeout);
      EXPECT_THAT(error.text,
                  AllOf(HasSubstr("rank 11 (host-b) did not connect"), HasSubstr("does not have the job key")));
    }
  });
}

// The other members connect within the limit on a busy machine too.
void expect_only_the_name_of(int absent) {
  Participant participant(3);
  run_ranks(3, [&](int rank) {
    if (rank == absent) return;
    const auto transport = connect_all(participant.membership(rank, Deadline::after_seconds(5)));
    ASSERT_FALSE(transport.ok());
    const Error& error = transport.status().error();
    EXPECT_EQ(error.code, Code::timeout);
    EXPECT_EQ(error.culprit_rank, world_rank_of(absent));
    EXPECT_EQ(error.culprit_host, host_of(absent));
    for (int other = 0; other < 3; ++other) {
      EXPECT_EQ(error.text.find(host_of(other)) != std::string::npos, other == absent) << error.text;
    }
  });
}

TEST(TcpSetUp, NamesOnlyTheMissingMember) {
  std::thread first([] { expect_only_the_name_of(0); });
  std::thread second([] { expect_only_the_name_of(1); });
  expect_only_the_name_of(2);
  first.join();
  second.join();
}

// Rank 0 has not come, and is named without another rank.
void expect_rank_0_named(const Status& status, int not_named) {
  EXPECT_EQ(status.code(), Code::timeout);
  EXPECT_EQ(status.error().culprit_rank, world_rank_of(0));
  EXPECT_THAT(status.text(), AllOf(HasSubstr(host_of(0)), Not(HasSubstr(host_of(not_named)))));
}

// Rank 2 waits for rank 0 too, and has more time left: it has not called rank 1 when the time of rank 1 has passed.
TEST(TcpSetUp, NamesNoMemberThatWaitsForTheMissingOne) {
  Participant participant(3);
  run_ranks(3, [&](int rank) {
    if (rank == 0) return;
    const auto transport = connect_all(participant.membership(rank, Deadline::after_seconds(rank == 1 ? 1 : 5)));
    ASSERT_FALSE(transport.ok());
    if (rank == 1) expect_rank_0_named(transport.status(), 2);
  });
}

// Rank 0 does not know whether rank 2 has not come, or waits for the address of rank 1 before it calls here.
TEST(TcpSetUp, SaysWhichMembersMayWaitForTheMissingOne) {
  Participant participant(3);
  const auto transport = connect_all(participant.membership(0, Deadline::after_seconds(0.5)));
  ASSERT_FALSE(transport.ok());
  const Error& error = transport.status().error();
  EXPECT_EQ(error.code, Code::timeout);
  EXPECT_EQ(error.culprit_rank, world_rank_of(1));
  EXPECT_THAT(error.text, HasSubstr("in time: rank 11 (host-b) did not connect (not connected either, and perhaps "
                                    "waiting for rank 11 (host-b): rank 12 (host-c));"));
}

// Rank 1 has published its address and gave up before rank 2 came. Rank 0 is the one that has not come.
TEST(TcpSetUp, NamesNoMemberThatHasGivenUp) {
  Participant participant(3);
  const auto early = connect_all(participant.membership(1, Deadline::after_seconds(0.2)));
  ASSERT_FALSE(early.ok());
  const auto late = connect_all(participant.membership(2, Deadline::after_seconds(1)));
  ASSERT_FALSE(late.ok());
  expect_rank_0_named(late.status(), 1);
}

TEST(TcpSetUp, GivesTheReasonWhyAMemberCannotBeReached) {
  Participant participant(2);
  const std::string closed = joined(require(listen_tcp("lo")).addresses);
  Membership membership = participant.membership(1, Deadline::after_seconds(0.5));
  require(membership.exchange->publish(participant.id() + "/tcp/0", closed));
  const auto transport = connect_all(membership);
  ASSERT_FALSE(transport.ok());
  EXPECT_THAT(transport.status().text(),
              AllOf(HasSubstr("rank 10 (host-a) cannot be reached: 127.0.0.1:"), HasSubstr("refused")));
}

TEST(TcpSetUp, RefusesInterfacesThatDoNotExist) {
  Participant participant(2);
  participant.config().interfaces = "eth77";
  const auto transport = connect_all(participant.membership(0));
  ASSERT_FALSE(transport.ok());
  EXPECT_THAT(transport.status().text(), HasSubstr("'eth77'"));
}

// Runs both ranks in a process that may open `more` more descriptors. True if at least one rank reports the limit and
// none hangs.
bool runs_out_of_descriptors(int more) {
  const pid_t child = ::fork();
  if (child == 0) {
    Participant participant(2);
    const UniqueFd next(::dup(0));
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = static_cast<rlim_t>(next.get() + 1 + more);
    ::setrlimit(RLIMIT_NOFILE, &limit);
    std::atomic<int> reported{0};
    run_ranks(2, [&](int rank) {
      const auto transport = connect_all(participant.membership(rank, Deadline::after_seconds(1)));
      const Status& status = transport.status();
      if (!status.ok() && status.code() == Code::resource && status.text().find("ulimit -n") != std::string::npos)
        ++reported;
    });
    ::_exit(reported > 0 ? 0 : 1);
  }
  int state = 0;
  ::waitpid(child, &state, 0);
  return WIFEXITED(state) && WEXITSTATUS(state) == 0;
}

TEST(TcpSetUp, ReportsThatNoDescriptorIsLeft) {
  for (int more = 0; more <= 6; ++more) EXPECT_TRUE(runs_out_of_descriptors(more)) << more << " descriptors";
}

// ---- Addresses ----

// Each rank fetches the others' addresses as edited by `edit`.
void expect_connected_through(int size, const EditedExchange::Edit& edit, const std::string& interfaces = "") {
  Participant participant(size);
  participant.config().interfaces = interfaces;
  EditedExchange exchange(*participant.membership(0).exchange, edit);
  run_ranks(size, [&](int rank) {
    Membership membership = participant.membership(rank);
    membership.exchange = &exchange;
    auto transport = require(connect_all(membership));
    exchange_with_all(*transport, rank, size);
  });
}

std::string only_with(std::string_view part, std::string value) {
  std::string kept;
  for (std::size_t space = 0; space != std::string::npos; value.erase(0, space + 1)) {
    space = value.find(' ');
    const std::string address = value.substr(0, space);
    if (address.find(part) != std::string::npos) kept += (kept.empty() ? "" : " ") + address;
    if (space == std::string::npos) break;
  }
  return kept;
}

TEST(TcpAddresses, MayBeIPv6) {
  std::ifstream table("/proc/net/if_inet6");
  std::string line;
  if (!std::getline(table, line)) {
    std::puts("this machine has no IPv6: connecting over it was not tried");
    return;
  }
  expect_connected_through(3, [](std::string_view, const std::string& value) { return only_with("[::1]", value); });
}

TEST(TcpAddresses, MayBeIPv4OnADualStackSocket) {
  expect_connected_through(3, [](std::string_view, const std::string& value) { return only_with("127.0.0.1", value); });
}

TEST(TcpAddresses, MayBelongToSeveralInterfaces) {
  std::string all;
  struct if_nameindex* names = ::if_nameindex();
  for (auto* entry = names; entry->if_index != 0; ++entry) all += std::string(all.empty() ? "" : ",") + entry->if_name;
  ::if_freenameindex(names);
  const auto same = [](std::string_view, std::string value) { return value; };
  for (const std::string& interfaces : {all, std::string("lo"), std::string("^no-such-interface"), all + "," + all}) {
    expect_connected_through(2, same, interfaces);
  }
}

TEST(TcpAddresses, UseTheFixedPortsExceptTheCoordinators) {
  constexpr int kSize = 3;
  Participant participant(kSize);
  participant.config().port_base = 29000 + ::getpid() % 500 * 64;  // other tests on this host use others
  participant.config().port_count = 64;
  std::mutex mutex;
  std::set<int> ports;
  EditedExchange exchange(*participant.membership(0).exchange, [&](std::string_view, std::string value) {
    const std::lock_guard<std::mutex> lock(mutex);
    std::istringstream addresses(value);
    for (std::string one; addresses >> one;) ports.insert(std::stoi(one.substr(one.rfind(':') + 1)));
    return value;
  });
  run_ranks(kSize, [&](int rank) {
    Membership membership = participant.membership(rank);
    membership.exchange = &exchange;
    auto transport = require(connect_all(membership));
    exchange_with_all(*transport, rank, kSize);
  });
  EXPECT_FALSE(ports.empty());
  for (const int port : ports) {
    EXPECT_GT(port, participant.config().port_base) << "the first port is the coordinator's";
    EXPECT_LT(port, participant.config().port_base + 64);
  }
}

TEST(TcpAddresses, AreTriedUntilOneReachesThePeer) {
  // Three misleading addresses precede those of rank 1: a closed port, nonsense, and one where rank 0 listens. The
  // handshake of rank 2 there, after its own call to rank 0, must not replace that call.
  const std::string closed = require(listen_tcp("lo")).addresses.front().text;
  Participant participant(3);
  EditedExchange exchange(*participant.membership(0).exchange, [&](std::string_view key, std::string value) {
    if (!key.ends_with("/1")) return value;
    const std::string misleading = addresses_of(participant, 0).front().text;
    return closed + " nonsense " + misleading + " " + misleading + " " + value;
  });
  run_ranks(3, [&](int rank) {
    Membership membership = participant.membership(rank);
    if (rank == 2) membership.exchange = &exchange;
    auto transport = require(connect_all(membership));
    exchange_with_all(*transport, rank, 3);
  });
}

// ---- Peers ----

TEST(TcpPeers, MayBeSomeOfTheMembers) {
  Participant participant(4);
  run_ranks(4, [&](int rank) {
    std::vector<bool> peers(4);
    const int peer = rank ^ 1;
    peers[static_cast<std::size_t>(peer)] = true;
    auto transport = require(connect_tcp(participant.membership(rank), peers));
    if (rank < peer) {
      send_number(*transport, channel(peer), 1, 5);
    } else {
      EXPECT_EQ(recv_number(*transport, channel(peer), 1), 5u);
    }
  });
}

TEST(TcpPeers, MayBeNone) {
  Participant participant(2);
  auto transport = require(connect_tcp(participant.membership(0), {true, false}));
  EXPECT_FALSE(transport->progress());
  EXPECT_TRUE(transport->status().ok());
  transport->sleep_until_ready(Deadline::after_seconds(0.01));
}

// ---- Leaving in order ----

int wakes_within(Transport& transport, double seconds) {
  const Deadline deadline = Deadline::after_seconds(seconds);
  int wakes = 0;
  while (!deadline.passed()) {
    if (transport.progress()) continue;
    transport.sleep_until_ready(deadline);
    ++wakes;
  }
  return wakes;
}

TEST(TcpLeaving, DoesNotAffectRanksThatNeedNoMore) {
  Participant participant(3);
  std::latch left(3);
  participant.run(connect_all, [&](int rank, std::unique_ptr<Transport> transport) {
    if (rank == 0) transport.reset();
    left.arrive_and_wait();
    if (rank == 0) return;
    EXPECT_LT(wakes_within(*transport, 0.05), 20);
    EXPECT_TRUE(transport->status().ok()) << transport->status().text();
    if (rank == 1) {
      send_number(*transport, channel(2), 1, 5);
    } else {
      EXPECT_EQ(recv_number(*transport, channel(1), 1), 5u);
    }
    // A rank that needs the departed rank now gets the error.
    EXPECT_FALSE(transport->send(channel(0), 1, {}).has_value());
    EXPECT_EQ(transport->peer_status(0).code(), Code::peer_lost);
    EXPECT_THAT(transport->peer_status(0).text(), HasSubstr("rank 10 (host-a) closed the connection"));
  });
}

void expect_nothing_lost(const Connect& connect) {
  Participant participant(2);
  std::latch left(2);
  const auto slice = pattern(100'000, 1);
  std::atomic<uint32_t> count{0};
  participant.run(connect, [&](int rank, std::unique_ptr<Transport> transport) {
    if (rank == 0) {
      // Sends as much as the kernel accepts while no rank reads.
      while (true) {
        const auto ticket = transport->send(channel(1), count, slice);
        for (int i = 0; i < 10; ++i) transport->progress();
        if (!ticket || !transport->done(*ticket)) break;
        ++count;
      }
      require(count > 0, "the kernel takes a slice");
      transport.reset();
      left.arrive_and_wait();
      return;
    }
    left.arrive_and_wait();
    EXPECT_LT(wakes_within(*transport, 0.05), 20) << "unread data and a hang-up do not keep it awake";
    EXPECT_TRUE(transport->status().ok()) << transport->status().text();
    std::vector<std::byte> received(slice.size());
    for (uint32_t i = 0; i < count; ++i) {
      std::memset(received.data(), 0, received.size());
      recv(*transport, channel(0), i, received);
      require(same_bytes(received, slice), "what was sent arrives whole");
    }
    [[maybe_unused]] const auto beyond = transport->recv(channel(0), count, received);
    EXPECT_EQ(wait_lost(*transport, 0).code(), Code::peer_lost);
  });
}

TEST(TcpLeaving, LosesNothingThatWasSent) { expect_nothing_lost(connect_all); }

TEST(TcpLeaving, LosesNothingThatWasSentOverSeveralConnections) { expect_nothing_lost(connect_all_striped); }

// Rank 0 sends a long slice and short ones, as many as the kernel accepts, and leaves. Rank 1 receives them and expects
// one more.
void expect_all_but_the_last(const Connect& connect) {
  Participant participant(2);
  std::latch left(2);
  const auto long_slice = pattern(99'000, 1);
  const auto short_slice = pattern(30'000, 2);
  std::atomic<uint32_t> count{0};
  participant.run(connect, [&](int rank, std::unique_ptr<Transport> transport) {
    if (rank == 0) {
      for (bool taken = true; taken && count < 40;) {
        const auto ticket = transport->send(channel(1), count, count == 0 ? long_slice : short_slice);
        for (int i = 0; i < 10; ++i) transport->progress();
        taken = ticket && transport->done(*ticket);
        if (taken) ++count;
      }
      require(count > 1, "the kernel takes a long slice and a short one");
      transport.reset();
      left.arrive_and_wait();
      return;
    }
    left.arrive_and_wait();
    std::vector<std::vector<std::byte>> received;
    std::vector<Ticket> tickets;
    for (uint32_t i = 0; i <= count; ++i) {
      received.emplace_back(i == 0 || i == count ? long_slice.size() : short_slice.size());
      tickets.push_back(begin_recv(*transport, channel(0), i, received.back()));
    }
    for (uint32_t i = 0; i < count; ++i) {
      wait_done(*transport, 0, tickets[i]);
      require(same_bytes(received[i], i == 0 ? long_slice : short_slice), "what was sent arrives whole");
    }
    EXPECT_EQ(wait_lost(*transport, 0).code(), Code::peer_lost);
    EXPECT_FALSE(transport->done(tickets[count]));
  });
}

TEST(TcpLeaving, EndsAChannelWithTheFirstMissingSlice) { expect_all_but_the_last(connect_all); }

TEST(TcpLeaving, EndsAChannelOfSeveralConnectionsWithTheFirstMissingSlice) {
  expect_all_but_the_last(connect_all_striped);
}

// ---- Stripes ----

TEST(TcpStripes, CutSlicesIntoPartsThatCoverThem) {
  for (std::size_t bytes = 0; bytes < 600'000; bytes += bytes < 300 ? 1 : 997) {
    const std::vector<std::byte> slice(bytes);
    for (int streams = 1; streams <= kMostStreams; ++streams) {
      const int parts = parts_of(bytes, streams);
      ASSERT_TRUE(parts >= 1 && parts <= streams);
      const std::byte* end = slice.data();
      for (int i = 0; i < parts; ++i) {
        const ConstBytes part = part_at(ConstBytes(slice), parts, i);
        ASSERT_EQ(part.data(), end) << bytes << " bytes in " << parts << " parts";
        ASSERT_TRUE(bytes == 0 || !part.empty()) << bytes << " bytes in " << parts << " parts";
        end += part.size();
      }
      ASSERT_EQ(end, slice.data() + bytes);
    }
  }
}

// The parts that each of three connections has done, and whether it failed.
struct Progress {
  std::array<uint64_t, 3> done{};
  std::array<bool, 3> failed{};
  void advance(Line& line) const {
    line.advance([this](int i) { return done[static_cast<std::size_t>(i)]; });
  }
  bool goes_on(const Line& line) const {
    return line.goes_on([this](int i) { return done[static_cast<std::size_t>(i)]; },
                        [this](int i) { return failed[static_cast<std::size_t>(i)]; });
  }
};

TEST(TcpStripes, FinishASliceAfterAllItsPartsAndAllEarlierSlices) {
  Line line;
  for (const int parts : {3, 1, 2}) line.begin(parts);
  Progress progress;
  progress.done = {2, 1, 0};  // the short slice is done, and a part of the last but not the whole first
  progress.advance(line);
  EXPECT_FALSE(line.is_finished(0));
  EXPECT_FALSE(line.is_finished(1));
  progress.done = {2, 1, 1};
  progress.advance(line);
  EXPECT_TRUE(line.is_finished(0));
  EXPECT_TRUE(line.is_finished(1));
  EXPECT_FALSE(line.is_finished(2));
  progress.done = {3, 2, 1};
  progress.advance(line);
  EXPECT_TRUE(line.is_finished(2));
}

TEST(TcpStripes, ContinueUntilAMissingPartIsOnAFailedConnection) {
  Line line;
  Progress progress;
  progress.failed[2] = true;
  EXPECT_FALSE(progress.goes_on(line)) << "nothing is begun";
  for (const int parts : {2, 3}) line.begin(parts);
  EXPECT_TRUE(progress.goes_on(line));
  progress.done = {1, 1, 0};
  progress.advance(line);
  EXPECT_FALSE(progress.goes_on(line));
  progress.done[2] = 1;  // it failed after that
  EXPECT_TRUE(progress.goes_on(line));
}

TEST(TcpStripes, HoldSixtyFourSlices) {
  Line line;
  for (uint64_t i = 0; i < 64; ++i) {
    ASSERT_TRUE(line.has_space());
    EXPECT_EQ(line.begin(1), i);
  }
  EXPECT_FALSE(line.has_space());
  Progress{.done = {1, 0, 0}}.advance(line);
  EXPECT_TRUE(line.has_space());
}

// Members on three hosts: 0 and 1 on one, 2 and 3 alone.
Membership spread(Participant& participant, int rank) {
  Membership membership = participant.membership(rank);
  for (std::size_t member = 2; member < membership.members.size(); ++member) {
    membership.members.edit()[member].host_id = "host of " + std::to_string(member);
  }
  return membership;
}

TEST(TcpStripes, AreUsedBetweenHostsOnly) {
  Participant participant(4);
  EXPECT_EQ(streams_with(spread(participant, 0), {false, true, true, true}), (std::vector<int>{0, 1, 1, 1}))
      << "unasked";
  participant.config().tcp_streams = 4;
  EXPECT_EQ(streams_with(spread(participant, 0), {false, true, true, false}), (std::vector<int>{0, 1, 4, 0}));
  EXPECT_EQ(streams_with(spread(participant, 3), {true, true, true, false}), (std::vector<int>{4, 4, 4, 0}));
  participant.config().tcp_streams = 1000;
  EXPECT_EQ(streams_with(spread(participant, 0), {false, true, true, false}), (std::vector<int>{0, 1, 8, 0}));
  participant.config().tcp_streams = 0;
  EXPECT_EQ(streams_with(spread(participant, 0), {false, true, true, false}), (std::vector<int>{0, 1, 1, 0}));
}

std::ptrdiff_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::distance(begin(all), end(all));
}

TEST(TcpStripes, OpenAsManyConnectionsAsConfigured) {
  Participant participant(4);
  participant.config().tcp_streams = 3;
  const std::ptrdiff_t before = open_descriptors();
  std::latch connected(4);
  std::latch counted(4);
  run_ranks(4, [&](int rank) {
    auto transport = require(connect_tcp(spread(participant, rank), std::vector<bool>(4, true)));
    connected.arrive_and_wait();
    // Both ends of 1 connection for the pair on one host and of 3 for the five other pairs, on each channel; one poller
    // per rank.
    if (rank == 0) {
      EXPECT_EQ(open_descriptors() - before, 2 * kChannelCount * (1 + 5 * 3) + 4);
    }
    counted.arrive_and_wait();
    exchange_with_all(*transport, rank, 4);
  });
}

TEST(TcpStripes, MustBeEqualOnAllRanks) {
  Participant participant(2);
  run_ranks(2, [&](int rank) {
    Membership membership = participant.membership(rank, Deadline::after_seconds(1));
    const auto transport = connect_tcp_streams(membership, {rank == 0 ? 2 : 4, rank == 0 ? 2 : 4});
    ASSERT_FALSE(transport.ok());
    if (rank != 0) return;
    EXPECT_EQ(transport.status().code(), Code::invalid_argument);
    EXPECT_THAT(transport.status().text(), AllOf(HasSubstr("rank 11 (host-b) carries a channel over 4 connections"),
                                                 HasSubstr("rank 10 (host-a) over 2"), HasSubstr("tcp_streams")));
  });
}

// Long and short slices alternate at random. When a slice is done, all slices before it on its channel must be done.
TEST(TcpStripes, KeepSlicesWholeAndInOrder) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Participant participant(2);
  participant.run(connect_all_striped, [&](int rank, std::unique_ptr<Transport> transport) {
    const int peer = 1 - rank;
    std::mt19937_64 random(seed);  // the same numbers on both ranks
    for (uint32_t round = 0; round < 5; ++round) {
      std::vector<std::vector<std::byte>> outgoing, incoming;
      for (uint64_t i = 0; i < 16; ++i) {
        const std::size_t bytes = random() % (random() % 2 == 0 ? 2'000'000 : 100);
        outgoing.push_back(pattern(bytes, i * 2 + static_cast<uint64_t>(rank)));
        incoming.emplace_back(bytes);
      }
      std::vector<Ticket> in, out;
      // Sends come first: more than the kernel accepts before the peer reads.
      for (uint32_t i = 0; i < 16; ++i) out.push_back(begin_send(*transport, channel(peer), i, outgoing[i]));
      for (uint32_t i = 0; i < 16; ++i) in.push_back(begin_recv(*transport, channel(peer), i, incoming[i]));
      const auto is_done = [&](const Ticket& ticket) { return transport->done(ticket); };
      const auto all_done = [&](const std::vector<Ticket>& tickets) {
        require(transport->peer_status(peer));
        require(std::is_partitioned(tickets.begin(), tickets.end(), is_done), "slices are done in order");
        return is_done(tickets.back());
      };
      std::size_t whole = 0;
      const auto all_arrived = [&] {
        for (; whole < in.size() && is_done(in[whole]); ++whole) {
          const auto sent = pattern(incoming[whole].size(), whole * 2 + static_cast<uint64_t>(peer));
          require(same_bytes(incoming[whole], sent), "finished slices are complete");
        }
        return all_done(in);
      };
      wait_until(*transport, all_arrived, "all slices have arrived");
      wait_until(
          *transport, [&] { return all_done(out); }, "all slices are sent");
    }
  });
}

TEST(TcpProcessors, RanksKnowWhoRunsOnTheSameOne) { expect_processors_are_known(connect_all); }

}  // namespace
}  // namespace fdl
