// Participant holds the members of one communicator in a test. The functions below it run one member's transport.
#pragma once

#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "contract/membership.h"
#include "contract/transport.h"
#include "tests/support/exchange.h"
#include "tests/support/ranks.h"

namespace fdl::test {

using Connect = std::function<Result<std::unique_ptr<Transport>>(const Membership&)>;

inline constexpr double kTimeoutSeconds = 60;

// World ranks differ from ranks, and every member has its own host name, so that errors that mix them up are noticed.
inline int world_rank_of(int rank) { return 10 + rank; }
inline std::string host_of(int rank) { return std::string("host-") + static_cast<char>('a' + rank); }

class Participant {
 public:
  explicit Participant(int size) : size_(size), config_(require(Config::read(Environment({})))) {
    static std::atomic<int> count{0};  // tests make some in several threads
    id_ = "participant/" + std::to_string(::getpid()) + "/" + std::to_string(++count);
  }

  int size() const { return size_; }
  Config& config() { return config_; }
  const std::string& id() const { return id_; }

  Membership membership(int rank, Deadline deadline = Deadline::after_seconds(kTimeoutSeconds)) {
    Membership membership;
    membership.id = id_;
    membership.rank = rank;
    for (int member = 0; member < size_; ++member) {
      membership.members.edit().push_back(
          {world_rank_of(member), "one host", host_of(member), static_cast<int>(::getpid())});
    }
    membership.job_key = "a key for tests, long enough";
    membership.config = &config_;
    membership.exchange = &exchange_;
    membership.deadline = deadline;
    return membership;
  }

  SharedExchange& exchange() { return exchange_; }

  // Runs all members in threads: connect, then work. A transport ends with its rank's work.
  void run(const Connect& connect, const std::function<void(int, std::unique_ptr<Transport>)>& work) {
    run_ranks(size_, [&](int rank) { work(rank, require(connect(membership(rank)))); });
  }

 private:
  int size_;
  std::string id_;
  Config config_;
  SharedExchange exchange_;
};

// ---- Actions of one rank on its transport; all of them sleep, so that a missing wake-up fails the test ----

inline void wait_until(Transport& transport, const std::function<bool()>& holds, const std::string& what) {
  const Deadline deadline = Deadline::after_seconds(kTimeoutSeconds);
  while (!holds()) {
    if (transport.progress()) continue;
    require(!deadline.passed(), "timed out waiting until " + what);
    transport.sleep_until_ready(deadline);
  }
}

inline void wait_done(Transport& transport, int peer, Ticket ticket) {
  wait_until(
      transport, [&] { return transport.done(ticket) || !transport.peer_status(peer).ok(); }, "a slice is done");
  if (!transport.done(ticket)) require(transport.peer_status(peer));
}

inline void wait_done(Transport& transport, Channel channel, Ticket ticket) {
  wait_until(
      transport, [&] { return transport.done(ticket) || !transport.channel_status(channel).ok(); }, "a slice is done");
  if (!transport.done(ticket)) require(transport.channel_status(channel));
}

// Waits for the error of a peer.
inline Status wait_lost(Transport& transport, int peer) {
  wait_until(
      transport, [&] { return !transport.peer_status(peer).ok(); }, "a peer is lost");
  return transport.peer_status(peer);
}

inline Ticket begin_send(Transport& transport, Channel channel, uint32_t tag, ConstBytes bytes) {
  std::optional<Ticket> ticket;
  wait_until(
      transport,
      [&] {
        require(transport.channel_status(channel));
        ticket = transport.send(channel, tag, bytes);
        return ticket.has_value();
      },
      "a send is accepted");
  return *ticket;
}

inline Ticket begin_recv(Transport& transport, Channel channel, uint32_t tag, Bytes bytes) {
  std::optional<Ticket> ticket;
  wait_until(
      transport,
      [&] {
        require(transport.channel_status(channel));
        ticket = transport.recv(channel, tag, bytes);
        return ticket.has_value();
      },
      "a receive is accepted");
  return *ticket;
}

inline void send(Transport& transport, Channel channel, uint32_t tag, ConstBytes bytes) {
  wait_done(transport, channel, begin_send(transport, channel, tag, bytes));
}
inline void recv(Transport& transport, Channel channel, uint32_t tag, Bytes bytes) {
  wait_done(transport, channel, begin_recv(transport, channel, tag, bytes));
}

inline void send_number(Transport& transport, Channel channel, uint32_t tag, uint64_t number) {
  send(transport, channel, tag, std::as_bytes(std::span(&number, 1)));
}
inline uint64_t recv_number(Transport& transport, Channel channel, uint32_t tag) {
  uint64_t number = 0;
  recv(transport, channel, tag, std::as_writable_bytes(std::span(&number, 1)));
  return number;
}

// Bytes that depend on their position. They are made and compared by words, because sanitizers check every access.
inline std::vector<std::byte> pattern(std::size_t bytes, uint64_t seed) {
  std::vector<uint64_t> words(bytes / sizeof(uint64_t) + 1);
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (uint64_t& word : words) word = state = state * 6364136223846793005u + 1442695040888963407u;
  std::vector<std::byte> result(bytes);
  if (bytes > 0) std::memcpy(result.data(), words.data(), bytes);
  return result;
}
inline bool same_bytes(ConstBytes a, ConstBytes b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

}  // namespace fdl::test
