// DeviceMessages runs the point-to-point messages whose two sides lie on devices: by the device library where both
// ranks can use it, else through the host's memory.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "contract/device_library.h"
#include "engine/device/device_link.h"
#include "engine/host/messages.h"
#include "system/poller.h"

namespace fdl {

// The two ranks of a message agree on it through records, small messages on the host, before the library is touched:
//
//   announce   each rank, when its side is called: the direction, the size, and what its device is
//   order      the lower rank, for messages that both sides have announced: which of them form the next group, and
//              whether the library moves them
//   data       a sender whose message goes through the host: its bytes follow
//
// All messages of a pair of ranks are of this kind, so their records are the only traffic of the pair and may be read
// in any state. The k-th message in one direction meets the k-th receive. A message whose sizes differ ends the
// communicator on both sides, with both sizes. A message never waits inside the library for a rank that has not called.
//
// The thread that drives the communicator calls this class.
class DeviceMessages final : public Waitable {
 public:
  struct Parts {
    Messages* messages = nullptr;  // carries the records
    int rank = 0;
    const Members* members = nullptr;
    const Config* config = nullptr;
    std::function<Result<DeviceLibrary*>()> library;  // as in Communicator::Parts
    // Starts a message through the host. An error ends the communicator.
    std::function<Status(Message&)> stage;
  };
  // Everything that `parts` refers to, and the devices, outlive this object.
  static Result<std::unique_ptr<DeviceMessages>> make(Parts parts);
  ~DeviceMessages() override;

  // A call that is invalid completes with an error before it affects the peer.
  void start(Message& message);
  bool progress();
  bool idle() const;
  // OK, or the failure of this rank that prevents it from continuing.
  const Status& status() const { return ended_; }
  // Ends the work on devices. The messages in flight stay until fail().
  void interrupt(const Status& why);
  // Ends all messages in flight. The records must have ended before.
  void fail(const Status& why);

  DeviceLibrary::Work poll_work();
  // The rank that the oldest message waits for, or -1, and the message: "send of 4096 bytes to rank 2".
  int waiting_for() const;
  std::string phase() const;

  int wake_fd() const override { return poller_.fd(); }
  bool prepare_to_sleep() override;
  void finish_sleep() override;

 private:
  enum class Kind : uint32_t { announce = 1, order = 2, data = 3 };
  struct Record {
    Kind kind{};
    uint32_t outgoing = 0;   // announce: 1 for a send
    uint64_t bytes = 0;      // announce
    uint32_t batch = 0;      // announce; see Message
    uint32_t on_device = 0;  // announce
    DeviceFacts facts;       // announce, on a device
    uint32_t sends = 0;      // order: messages of the lower rank
    uint32_t receives = 0;   // order: messages to the lower rank
    uint32_t by_library = 0;
    uint32_t has_id = 0;
    DeviceLibrary::Id id{};
  };
  static_assert(std::is_trivially_copyable_v<Record>);
  // A record on its way.
  struct Outgoing {
    Record record;
    Message message;
  };
  struct Own {
    Message* message = nullptr;
    DeviceEvent after = nullptr;  // behind the work that its stream had before; null: on the host
  };
  struct Announced {
    uint64_t bytes = 0;
    uint32_t batch = 0;
    bool on_device = false;
  };
  // Messages in one direction that have no group yet, of this rank and as the peer has announced them.
  struct Line {
    std::deque<Own> own;
    std::deque<Announced> peers;
    std::size_t matched() const { return std::min(own.size(), peers.size()); }
  };
  // The caller may stop to drive once its messages are queued, so a group starts only when the peer can read its order.
  struct Ordered {
    uint64_t record = 0;  // the number of the order
    std::vector<DeviceLink::Part> group;
  };
  struct Pair {
    int peer = 0;
    Line lines[2];              // by Message::outgoing
    std::deque<Outgoing> sent;  // in the order of their numbers, without the first `sent_before`
    uint64_t sent_before = 0;
    std::deque<Ordered> ordered;  // groups of the library that wait until their order has been sent
    bool receiving = false;
    Record record;
    Message incoming;
    std::deque<Message*> staged_receives;  // wait for a data record
    Device* device = nullptr;              // of this rank's side, from its first message on a device on
    DeviceFacts own_facts;
    DeviceFacts facts;  // of the peer
    bool has_facts = false;
    Status no_library;  // why the library cannot be used, once that is known
    bool is_decided = false;
    std::unique_ptr<DeviceLink> link;
    int64_t held_since_ns = 0;  // 0: not held back
    Status broken;              // the peer cannot be reached
  };

  DeviceMessages(Parts parts, Poller poller) : parts_(std::move(parts)), poller_(std::move(poller)) {}
  Pair& pair_with(int peer);
  bool is_lower(const Pair& pair) const { return parts_.rank < pair.peer; }
  Status begin(Pair& pair, Message& message);
  DeviceFacts facts_of(Device& device);
  Status conflict_with(const Pair& pair) const;
  bool may_use_library(const Pair& pair) const;
  bool by_library(Pair& pair, bool outgoing, std::size_t index);

  bool advance(Pair& pair);
  void receive_record(Pair& pair);
  bool wants_record(const Pair& pair) const;
  uint64_t send_record(Pair& pair, const Record& record);
  static bool is_sent(const Pair& pair, uint64_t record);
  static bool is_idle(const Pair& pair);
  Status handle(Pair& pair, const Record& record);
  Status compare_sizes(const Pair& pair, bool outgoing) const;
  bool is_held(Pair& pair);
  Result<bool> give_order(Pair& pair);
  std::size_t prefix_of(Pair& pair, bool outgoing, bool library);
  Status join(Pair& pair, const DeviceLibrary::Id& id);
  Status carry_out(Pair& pair, std::size_t sends, std::size_t receives, bool library, uint64_t record);
  Status stage(Pair& pair, const Own& own);
  void end_pair(Pair& pair, const Status& why);
  void drop(Own& own);

  Parts parts_;
  Poller poller_;
  DeviceLibrary* library_ = nullptr;
  std::vector<std::unique_ptr<Pair>> pairs_;  // in the order of their first messages
  std::size_t slept_links_ = 0;
  Status ended_;
};

}  // namespace fdl
