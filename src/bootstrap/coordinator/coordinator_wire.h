// Coordinator wire: messages between ranks and the coordinator as values and as bytes, and the authenticated frames
// they travel in.
//
//   frame      length (u32, little-endian, bounded), seal (16 bytes), payload
//   seal       HMAC(session key, direction, sequence, payload), cut to 16 bytes
//   payload    a Message of coordinator.fbs, verified before anything of it is read
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "bootstrap/coordinator/coordinator_client.h"

namespace fdl {

struct CoordinatorMessage {
  // Never renumbered: both ends of a connection may be of different builds.
  enum class Kind : uint8_t {
    // from a rank
    hello = 1,    // members[0]
    wait = 2,     // id; number: how long, in ns
    publish = 3,  // id, key, value
    fetch = 4,    // id, key
    forget = 5,   // id of a fetch whose time is over
    probe = 6,    // ranks
    report = 7,   // key: the communicator; why
    leave = 8,
    pong = 9,  // id: of the ping
    // from a node of an elastic job, to the one that leads (program/elastic_member.h)
    node_hello = 10,    // members[0]: rank: the node's number or -1, size: its room for ranks; key: pod; value: node
    node_asked = 11,    // id: the worker; rank: whom it saw lost, or -1
    node_ended = 12,    // id: the worker; number: how (the exit code, or minus the signal)
    node_leaving = 13,  // it was told to end
    // from a rank, of an ordered communicator that stands still
    ask = 14,  // key: the communicator; id: the question; ranks: whom; number: for how long nobody else need ask, in ns
    told = 15,  // key, id; rank: who asked; number: collectives begun there, or -1: unknown; value: empty, or kWaiting
    // from the coordinator
    welcome = 32,      // key: who serves
    refused = 33,      // why
    reply = 34,        // id; why, or what was asked for: value or members
    server = 35,       // members[0]: the rank whose process serves the coordinator
    ping = 36,         // id
    lost = 37,         // rank, why
    left = 38,         // rank, why
    comm_failed = 39,  // key: the communicator; why
    coordinator_ends = 40,
    asked = 48,   // key, id; rank: who asks
    answer = 49,  // key, id, number, value; rank: who told
    // to a node
    node_welcome = 41,  // rank: its number; key: who leads
    node_waits = 42,    // key: for what
    node_start = 43,    // id: the worker; rank: its name for now; number: how many restarts there were
    node_rename = 44,   // id: the worker; rank
    node_kill = 45,     // id: the worker
    node_says = 46,     // id: the worker; key: a line for it
    node_ends = 47,     // number: the exit code; key: why
  };

  Kind kind = Kind::hello;
  uint64_t id = 0;
  int64_t number = 0;
  int rank = -1;
  std::vector<int> ranks;
  std::string key;
  std::string value;
  Status why;
  std::vector<CoordinatorClient::Hello> members;
};

std::string encode(const CoordinatorMessage& message);
// Bytes that are no message are an error; nothing in them is trusted before it is checked.
Result<CoordinatorMessage> decode(std::string_view payload);

inline constexpr std::size_t kFrameHead = 4 + 16;

enum class Direction : uint8_t { to_coordinator = 1, from_coordinator = 2 };
// What ranks send is bounded tightly, for the coordinator serves many; its list of all members may be longer.
constexpr std::size_t most_payload(Direction direction) {
  return direction == Direction::to_coordinator ? 1_MiB : 64_MiB;
}
// In the value of `told`: what is on the device there has not run.
inline constexpr std::string_view kWaiting = "waiting";
// Of facts and of communicators.
inline constexpr std::size_t kMostKey = 4096;
// Names of hosts and boots; longer ones are no names.
inline constexpr std::size_t kMostName = 255;
inline constexpr int kMostRanks = 65536;

class FrameSealer {
 public:
  FrameSealer(std::string session_key, Direction direction) : key_(std::move(session_key)), direction_(direction) {}
  std::string seal(std::string_view payload);

 private:
  std::string key_;
  Direction direction_;
  uint64_t sequence_ = 0;
};

// Takes bytes as they come and gives whole frames. After an error it must not be used again.
class FrameOpener {
 public:
  FrameOpener(std::string session_key, Direction direction) : key_(std::move(session_key)), direction_(direction) {}

  void feed(std::string_view bytes);
  // The next payload (valid until the next call), or nothing while it is incomplete.
  Result<std::optional<std::string_view>> next();
  bool is_inside_a_frame() const { return taken_ < buffer_.size(); }

 private:
  std::string key_;
  Direction direction_;
  uint64_t sequence_ = 0;
  std::string buffer_;
  std::size_t taken_ = 0;  // bytes of buffer_ that were given out
};

}  // namespace fdl
