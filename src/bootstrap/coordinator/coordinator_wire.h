// CoordinatorMessage is a message between a rank and the coordinator. This header also encodes messages to bytes and
// seals them in authenticated frames.
//
//   frame      length (u32, little-endian, bounded), seal (16 bytes), payload
//   seal       HMAC(session key, direction, sequence, payload), cut to 16 bytes; of a payload from 16 KiB on:
//              HMAC(session key, direction | 128, sequence, SHA-256(payload)), so that a payload for many connections
//              is read once
//   payload    a Message of coordinator.fbs, verified before anything of it is read
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "bootstrap/coordinator/coordinator_client.h"
#include "bootstrap/rendezvous/member_table.h"
#include "system/handshake.h"

namespace fdl {

struct CoordinatorMessage {
  // Never renumbered: both ends of a connection may be of different builds.
  enum class Kind : uint8_t {
    // from a rank
    hello = 1,    // members[0]; number: kMessages of the rank, 0 in former versions
    wait = 2,     // id; number: the timeout in ns
    publish = 3,  // id, key, value; number: of reads, after which the fact is dropped; 0: it stays
    fetch = 4,    // id, key
    forget = 5,   // id of a fetch that is abandoned
    probe = 6,    // ranks; answered by `probed`
    report = 7,   // key: the communicator; why; ranks: the others of a set-up that was not complete in time
    leave = 8,
    pong = 9,  // id: of the ping
    // from a node of an elastic job, to the leading node (cli/elastic/elastic_member.h). With values, the node can take
    // over: values[0]: the address where it listens; number: the term it has belonged to, or 0; id: that term's latest
    // generation; ranks: its workers and what they hold (cli/elastic/succession.h)
    node_hello = 10,  // members[0]: rank: the node's number or -1, size: its capacity in ranks; key: pod; value: node
    // id: the worker; rank: the rank whose loss it detected, or -1; number: 1 if it lacks the state
    node_requests = 11,
    node_ended = 12,    // id: the worker; number: the exit code, or minus the signal
    node_leaving = 13,  // the node has been requested to end
    // from a rank, about an ordered communicator without progress
    progress_query = 14,  // key: the communicator; id: the query; ranks: the queried ones; number: its validity in ns
    progress_reply =
        15,  // key, id; rank: the querying one; number: collectives begun, or -1: unknown; value: empty, or kWaiting
    gives_up = 16,  // why: the coordinator has not answered; the rank closes the connection
    // key: the communicator; value: the text; number: its validity in ns; values: names of operations
    stall = 17,
    // from a client that is no rank, instead of a hello
    job_query = 18,  // answered by a rank_state for each rank and a job_reply; number: 1: with stacks
    // from a launcher, instead of a hello: the process of a rank has ended. Answered by a job_reply
    rank_ended = 28,  // rank; why: the text for all ranks, if it has not arrived
    // from a rank
    state_reply = 19,  // id: the query; state
    // from a rank to another one, without a coordinator (bootstrap/recovery). rank: the sender; number: the receiver;
    // id: the round; ranks: its members, and -1-rank for each that is gone
    shrink_here = 20,
    shrink_decided = 21,
    shrink_address = 22,  // key: the address of the new world's coordinator
    shrink_failed = 23,   // why
    // from a rank that waits, about slices that it may have to wait for in vain (contract/delivery_watch.h)
    sends_query = 24,  // key: the communicator; ranks: the queried ones
    sends_reply = 25,  // key; rank: the querying one; id, number: slices sent to it on channels 0 and 1
    // from a rank: the values of the keys that consist of `key` and one of `ranks`
    fetch_many = 26,    // id, key, ranks; number: the timeout in ns
    set_up_reply = 29,  // key: the communicator; number: 1 if this rank has begun to set it up, else 0
    // from a node, to a leading node that it has lost
    node_follows = 27,  // it follows another leader from now on
    // from the coordinator
    welcome = 32,  // key: the name of the serving process; number: its kMessages, 0 in former versions
    refused = 33,  // why
    // id; why, or the requested value, members or table; to fetch_many: values, and ranks: those without a value
    reply = 34,
    server = 35,  // members[0]: the rank whose process serves the coordinator
    ping = 36,    // id
    // These two, `departed` and `lost_together`: number: kAfterFailure, or 0
    lost = 37,         // rank, why
    left = 38,         // rank, why
    comm_failed = 39,  // key: the communicator; why
    coordinator_ends = 40,
    relayed_query = 48,        // key, id; rank: the querying one
    answer = 49,               // key, id, number, value; rank: the answering one
    probed = 50,               // answers a probe
    silent = 51,               // rank, why: a warning
    answers_again = 52,        // rank, why: the end of that silence
    stalled = 53,              // rank: the one that reported the stall; key, value, values: as in `stall`
    state_query = 54,          // id: answered by a state_reply; number: 1: with stacks
    relayed_sends_query = 57,  // key; rank: the querying one
    sends_answer = 58,         // key, id, number; rank: the answering one
    departed = 59,             // hosts: ranks that have left in good order, instead of a `left` for each
    lost_together = 63,        // ranks, hosts: the same ranks; values: why; instead of a `lost` for each, in this order
    set_up_query = 64,         // key: the communicator; answered by a set_up_reply
    // to a client that is no rank
    rank_state = 55,  // rank; number: a RankPresence; members[0]; why: how it left or was lost; state
    job_reply = 56,   // number: the ranks of the job; key: the name of the serving process; why: it is refused
    // to a node
    node_welcome = 41,  // rank: its number; key: the leading node
    node_waits = 42,    // key: the reason for the wait
    node_start = 43,    // id: the worker; rank: its current name; number: of restarts so far
    node_rename = 44,   // id: the worker; rank
    node_kill = 45,     // id: the worker; number: WorkerGroup::Action::When (cli/run/worker_group.h)
    node_input = 46,    // id: the worker; key: a line of input for it
    node_ends = 47,     // number: the exit code; key: why
    // to a node that can take over
    node_list = 60,     // number: the term; id: its latest generation; rank: the leading node's number; members: the
                        // present nodes; values: their addresses; ranks: counts (cli/elastic/succession.h)
    node_refers = 61,   // the sender does not lead. key: the address of the node that leads, or empty; number: its term
    node_resigns = 62,  // key: why the leading node leaves
  };

  // Counts the changes of the messages that one end must know of the other: 1: fetch_many and departed; 2: the table in
  // its present form; 3: lost_together; 4: set_up_query.
  static constexpr int64_t kMessages = 4;
  static constexpr int64_t kFirstLists = 1;
  static constexpr int64_t kFirstTable = 2;
  static constexpr int64_t kFirstLosses = 3;
  static constexpr int64_t kFirstSetUpQuery = 4;

  // Of news about ranks: they came shortly after the latest `comm_failed` (kShortlyAfter_ns).
  static constexpr int64_t kAfterFailure = 1;

  Kind kind = Kind::hello;
  uint64_t id = 0;
  int64_t number = 0;
  int rank = -1;
  std::vector<int> ranks;
  std::string key;
  std::string value;
  Status why;
  std::vector<CoordinatorClient::Hello> members;
  std::optional<RankState> state;
  std::optional<MemberTable> table;
  std::vector<HostRanks> hosts;
  std::vector<std::string> values;
};

std::string encode(const CoordinatorMessage& message);

// A message as bytes, which several connections may send. The digest of a long one is computed once.
class EncodedMessage {
 public:
  static constexpr std::size_t kLong = 16_KiB;

  explicit EncodedMessage(std::string bytes) : bytes_(std::move(bytes)) {
    if (is_long()) digest_ = sha256(bytes_);
  }
  const std::string& bytes() const { return bytes_; }
  bool is_long() const { return bytes_.size() >= kLong; }
  const Digest& digest() const { return digest_; }  // of a long one

 private:
  std::string bytes_;
  Digest digest_{};
};

using SharedMessage = std::shared_ptr<const EncodedMessage>;

// MessageEncoder encodes the messages of one round. One that goes to many peers is encoded once, in whatever order they
// come.
class MessageEncoder {
 public:
  SharedMessage encode(const std::shared_ptr<const CoordinatorMessage>& message);
  std::size_t encoded() const { return encoded_; }  // how many were

 private:
  std::unordered_map<std::shared_ptr<const CoordinatorMessage>, SharedMessage> shared_;
  std::size_t encoded_ = 0;
};

// Decodes a payload. The buffer is verified before any field is read; bytes that are not a message are an error.
Result<CoordinatorMessage> decode(std::string_view payload);

inline constexpr std::size_t kFrameHead = 4 + 16;

enum class Direction : uint8_t { to_coordinator = 1, from_coordinator = 2 };
// The limit of a payload. It is tight for ranks, since the coordinator serves many; its list of all members may be
// longer.
constexpr std::size_t most_payload(Direction direction) {
  return direction == Direction::to_coordinator ? 1_MiB : 64_MiB;
}
// The value of `progress_reply` if queued collectives have not run on the answering rank's device.
inline constexpr std::string_view kWaiting = "waiting";
// The limit of keys of facts and of communicators, in bytes.
inline constexpr std::size_t kMostKey = 4096;
// The limit of host names and boot ids, in bytes.
inline constexpr std::size_t kMostName = 255;
inline constexpr int kMostRanks = 65536;
// The limit of the text of a stall, in bytes.
inline constexpr std::size_t kMostStall = 8192;
// The limit of the names of a stall, each with a byte for its end.
inline constexpr std::size_t kMostStallNames = 8192;

// FrameSealer builds the frames of one direction. The sequence number in the seal detects replayed and lost frames.
class FrameSealer {
 public:
  FrameSealer(std::string session_key, Direction direction) : key_(std::move(session_key)), direction_(direction) {}
  std::string seal(std::string_view payload);
  // What precedes the payload in its frame.
  std::string head_of(const EncodedMessage& message);

 private:
  std::string head(std::size_t bytes, const Digest& seal);

  std::string key_;
  Direction direction_;
  uint64_t sequence_ = 0;
};

// FrameOpener assembles received bytes to frames and checks their seals. After an error it must not be used again.
class FrameOpener {
 public:
  FrameOpener(std::string session_key, Direction direction) : key_(std::move(session_key)), direction_(direction) {}

  void feed(std::string_view bytes);
  // Returns the next payload (valid until the next call of feed() or next()), or nothing while it is incomplete.
  Result<std::optional<std::string_view>> next();
  bool is_inside_a_frame() const { return taken_ < buffer_.size(); }

 private:
  std::string key_;
  Direction direction_;
  uint64_t sequence_ = 0;
  std::string buffer_;
  std::size_t taken_ = 0;  // bytes of buffer_ that were returned as payloads
};

}  // namespace fdl
