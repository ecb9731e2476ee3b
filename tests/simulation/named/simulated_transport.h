// SimulatedTransport and SimulatedFlags connect the shipped Communicator of a simulated rank with others: slices are
// packets of simulated connections, and readiness flags are words that the ranks of a simulated host share.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "contract/membership.h"
#include "contract/readiness_flags.h"
#include "contract/transport.h"
#include "tests/simulation/network.h"

namespace fdl::simulation {

// Kinds of packets between ranks.
inline constexpr int kIntroduction = 1;
inline constexpr int kValue = 2;
inline constexpr int kGoodbye = 3;
inline constexpr int kSlice = 4;

// A descriptor that is never readable: simulated ranks do not sleep on descriptors.
int quiet_descriptor();

// A send is done when it fits into the buffer of the connection, as that of a socket. At most 16 wait for that.
class SimulatedTransport final : public Transport {
 public:
  struct Peer {
    End end;
    std::vector<Packet> early;  // slices that have come with the introduction
  };
  // `peers` has all members but this rank.
  SimulatedTransport(std::vector<Member> members, std::map<int, Peer> peers);
  ~SimulatedTransport() override;

  std::string_view name() const override { return "simulated"; }
  std::optional<Ticket> send(Channel channel, uint32_t tag, ConstBytes bytes) override;
  std::optional<Ticket> recv(Channel channel, uint32_t tag, Bytes bytes) override;
  bool done(Ticket ticket) const override;
  bool progress() override;
  Status peer_status(int peer) const override;
  Status channel_status(Channel channel) const override;
  Status status() const override;

  int wake_fd() const override { return quiet_descriptor(); }
  bool prepare_to_sleep() override;
  void finish_sleep() override {}

 private:
  struct Slice {
    uint32_t tag = 0;
    std::string bytes;
  };
  struct Posted {
    uint32_t tag = 0;
    Bytes bytes;
  };
  struct Stream {
    uint64_t sent = 0;
    std::deque<uint64_t> leaving;  // numbers in Line::sent of sends that may not fit into the connection yet
    uint64_t posted = 0;
    uint64_t received = 0;
    std::deque<Posted> expected;
    std::deque<Slice> arrived;
    Status ended;  // the peer has left in good order, and this rank waits for more
  };
  struct Line {
    End end;
    Stream streams[kChannelCount];
    uint64_t sent = 0;  // slices of all streams
    bool has_left = false;
    bool is_closed = false;
    Status failure;
  };
  static uint32_t number_of(Channel channel, bool outgoing);
  void take(Line& line, const std::vector<Packet>& packets);
  static bool note_sent(Line& line);
  bool match(int peer, Line& line);
  Status lost(int peer, const std::string& what) const;
  Status mismatch(int peer, const Slice& slice, const Posted& posted) const;

  const std::vector<Member> members_;
  std::map<int, Line> lines_;
};

// The words of a group whose ranks are all on one host, as their shared memory has them.
struct SharedWords {
  explicit SharedWords(std::size_t size) : words(size), awaited(size), readers(size) {}
  std::vector<uint64_t> words;
  std::vector<uint64_t> awaited;  // by rank that sleeps: the ranks whose words wake it; 0: it is awake
  std::vector<Actor*> readers;
};

// As ShmReadinessFlags: the same words wake the same ranks.
class SimulatedFlags final : public ReadinessFlags {
 public:
  SimulatedFlags(std::shared_ptr<SharedWords> shared, int rank);

  void publish(uint64_t word) override;
  uint64_t word_of(int rank) const override { return shared_->words[static_cast<std::size_t>(rank)]; }
  void watch(uint64_t ranks) override { watched_ = ranks; }
  int wake_fd() const override { return quiet_descriptor(); }
  bool prepare_to_sleep() override;
  void finish_sleep() override { shared_->awaited[rank_] = 0; }

 private:
  const std::shared_ptr<SharedWords> shared_;
  const std::size_t rank_;
  uint64_t watched_ = 0;
  std::vector<uint64_t> seen_;
};

}  // namespace fdl::simulation
