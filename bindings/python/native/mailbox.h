// Mailbox: messages with tags, from a given rank or from any, over the plain ordered messages of one communicator.
//
// A message is sent as an envelope of fixed size, which contains its tag, its length and short contents. Long contents
// follow it. A receiver requests a peer's next envelope only while a receive waits for a message from that peer:
//
//   envelope arrived, a receive matches it             -> the contents are received directly into its buffer
//   envelope arrived, receives match later messages    -> the contents are kept aside, so that later ones can arrive
//   envelope arrived, no receive waits for that peer   -> it stays, and the sender's long contents wait
//
// The contents may be on a device, at either end.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <vector>

#include "serving.h"

namespace farandole_python {

inline constexpr int kAnySource = -1;

struct Envelope {
  static constexpr std::size_t kInline = 48;
  uint64_t bytes = 0;
  int32_t tag = 0;
  uint32_t apart = 0;  // 1: short contents follow too, because the sender has them on a device
  std::array<std::byte, kInline> contents{};

  bool is_short() const { return bytes <= kInline && apart == 0; }
};
static_assert(sizeof(Envelope) == 64);

struct Message : Job {
  std::string title() const override;

  bool outgoing = false;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  int peer = 0;  // or kAnySource
  int32_t tag = 0;
  int source = kAnySource;                       // the sender, once done
  fdl_device_kind device_kind = FDL_DEVICE_CPU;  // of the data; `stream` orders their use
  int device_index = 0;
  void* stream = nullptr;
  std::vector<std::byte> kept;  // once done: contents that the caller must copy to the device
  // Used by the driving thread only:
  int64_t last_moment_ns = 0;  // 0: none
  Envelope envelope;
  int parts = 0;  // requests in flight

  bool on_device() const { return device_kind != FDL_DEVICE_CPU; }
  void take(const std::byte* contents);
  bool accepts(int from, int32_t with) const { return tag == with && (peer == kAnySource || peer == from); }
};

class Mailbox final : public Serving {
 public:
  Mailbox(fdl_comm* comm, int rank, int size) : Serving(comm), rank_(rank), peers_(static_cast<std::size_t>(size)) {}
  // Requests may be in flight (a receive from any rank requests envelopes of all). Destroy the communicator first.
  ~Mailbox() override;

 protected:
  void advance(Lock& lock) override;
  void call_driver() override { static_cast<void>(fdl_comm_wake(comm())); }

 private:
  // A message that arrived before the one that a receive waits for.
  struct Aside {
    Envelope envelope;
    std::vector<std::byte> contents;
    bool whole = false;
    std::shared_ptr<Message> taker;  // the receive that waits for the rest of it
  };
  struct Peer {
    Envelope envelope;
    bool asked = false;    // a request for the next envelope is in flight
    bool arrived = false;  // `envelope` has not been handled yet
    std::deque<std::shared_ptr<Aside>> aside;
  };
  // The purpose of a request in flight; parallel to requests_.
  struct Flight {
    enum class Kind { part, envelope, aside };
    Kind kind;
    int peer;
    std::shared_ptr<Message> message;
    std::shared_ptr<Aside> aside;
  };

  void start(const std::shared_ptr<Message>& message);
  void send(const std::shared_ptr<Message>& message);
  void receive(const std::shared_ptr<Message>& message);
  bool take_from_aside(const std::shared_ptr<Message>& message, int from);
  void ask(int peer);
  void sort(int peer);
  void keep_aside(int peer);
  void deliver(const std::shared_ptr<Message>& message, int from);
  bool fits(const std::shared_ptr<Message>& message, int from, const Envelope& envelope);
  bool post(bool outgoing, void* data, std::size_t bytes, Flight flight);
  void serve_once();
  void arrived(const Flight& flight);
  void end(const std::shared_ptr<Message>& message);
  void fail_all(const Failure& why);
  void time_out(Failure why);
  void end_all(const Failure& why, const Message* culprit);
  // The message with the earliest deadline; null: none has one.
  const Message* most_urgent() const;

  int rank_;
  std::vector<Peer> peers_;
  std::vector<fdl_request*> requests_;
  std::vector<Flight> flights_;
  std::vector<std::shared_ptr<Message>> live_;      // started and not ended
  std::deque<std::shared_ptr<Message>> wanted_;     // receives without an envelope, in order
  std::vector<std::shared_ptr<Message>> finished_;  // ended, but not yet reported to waiting threads
  std::optional<Failure> broken_;
};

}  // namespace farandole_python
