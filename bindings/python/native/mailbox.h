// Mailbox: messages with tags, from a given rank or from any, over the plain ordered messages of one communicator.
//
// A message travels as an envelope of fixed size, which carries its tag, its length and short contents, and then its
// contents if they are long. A receiver asks for a peer's next envelope only when somebody waits for a message from it:
//
//   envelope arrived, and its message is wanted       -> the contents go straight to where they are wanted
//   envelope arrived, and a later message is wanted   -> the contents are kept aside, so that the later can come
//   envelope arrived, and nobody waits for that peer  -> it stays, and its sender's long contents wait
//
// Contents may lie on a device, at either end.
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
  uint32_t apart = 0;  // short contents follow it too: their sender has them on a device
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
  int source = kAnySource;                       // who sent it, once done
  fdl_device_kind device_kind = FDL_DEVICE_CPU;  // where the data are, and in the order of which stream
  int device_index = 0;
  void* stream = nullptr;
  std::vector<std::byte> kept;  // what came ahead of its place on a device, once done: the caller copies it there
  // The driving thread's:
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
  // What was asked for and never came (a receive from anybody asks all) ends with the communicator: destroy that first.
  ~Mailbox() override;

 protected:
  void advance(Lock& lock) override;
  void call_driver() override { static_cast<void>(fdl_comm_wake(comm())); }

 private:
  // A message that came before the one that was waited for.
  struct Aside {
    Envelope envelope;
    std::vector<std::byte> contents;
    bool whole = false;
    std::shared_ptr<Message> taker;  // who waits for the rest of it
  };
  struct Peer {
    Envelope envelope;
    bool asked = false;    // a request for the next envelope is in flight
    bool arrived = false;  // `envelope` is to be dealt with
    std::deque<std::shared_ptr<Aside>> aside;
  };
  // What a request in flight is for; runs parallel to requests_.
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
  // The message that must end first; null: none has a limit.
  const Message* most_urgent() const;

  int rank_;
  std::vector<Peer> peers_;
  std::vector<fdl_request*> requests_;
  std::vector<Flight> flights_;
  std::vector<std::shared_ptr<Message>> live_;      // started and not ended
  std::deque<std::shared_ptr<Message>> wanted_;     // receives for which no envelope has come, in order
  std::vector<std::shared_ptr<Message>> finished_;  // ended, and not yet told to those who wait
  std::optional<Failure> broken_;
};

}  // namespace farandole_python
