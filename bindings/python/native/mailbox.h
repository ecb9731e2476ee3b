// Mailbox: messages with tags, from a given rank or from any, over the plain ordered messages of one communicator.
//
// A message is sent as an envelope of fixed size, which contains its tag, its length and short contents. Long contents
// follow it. A receiver requests a peer's next envelope only while a receive waits for a message from that peer. A
// receive from any rank requests the envelopes of all peers, and the requests of those that sent nothing remain. They
// may never be answered, and fail without consequences when their peer leaves.
//
//   envelope arrived, a receive matches it             -> the contents are received directly into its buffer
//   envelope arrived, receives match later messages    -> the contents are kept aside, so that later ones can arrive
//   envelope arrived, no receive waits for that peer   -> it stays, and the sender's long contents wait
//
// Contents that the sender has on a device go over a second communicator, whose messages are all between devices: there
// NCCL moves them where both sides can use it. Either side may lie on the host. A finished message then has the handle
// of that call, behind which streams of the device can be ordered.
//
// The mailbox is a state machine: a submitted message and a completed call are events, and one thread at a time handles
// them. A thread that adds an event while another one handles events leaves it to that thread. So the events come
// from any thread, and handling one may add the next.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <vector>

#include "jobs.h"

namespace farandole_python {

inline constexpr int kAnySource = -1;

struct Envelope {
  static constexpr std::size_t kInline = 48;
  uint64_t bytes = 0;
  int32_t tag = 0;
  uint32_t apart = 0;  // 1: the sender has the contents on a device; short ones follow too, over `device_comm`
  std::array<std::byte, kInline> contents{};

  bool is_short() const { return bytes <= kInline && apart == 0; }
};
static_assert(sizeof(Envelope) == 64);

struct Message : Job {
  std::string title() const override;
  fdl_handle* device_handle() const override { return on_stream; }

  bool outgoing = false;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  int peer = 0;  // or kAnySource
  int32_t tag = 0;
  int source = kAnySource;                       // the sender, once done
  fdl_device_kind device_kind = FDL_DEVICE_CPU;  // of the data; `stream` orders their use
  int device_index = 0;
  void* stream = nullptr;
  std::vector<std::byte> kept;      // once done: contents that the caller must copy to the device
  fdl_handle* on_stream = nullptr;  // once done: of the call that moved the contents on a device, or null

  ~Message() override { fdl_handle_free(on_stream); }
  // Used by the mailbox only:
  int64_t last_moment_ns = 0;  // 0: none
  Envelope envelope;
  int parts = 0;  // calls in flight
  int batch = 0;  // messages on devices that the caller starts with this peer at once; 0: not said

  bool on_device() const { return device_kind != FDL_DEVICE_CPU; }
  void take(const std::byte* contents);
  bool accepts(int from, int32_t with) const { return tag == with && (peer == kAnySource || peer == from); }
};

class Mailbox final : public Jobs {
 public:
  // `device_comm` has no other messages.
  Mailbox(fdl_comm* comm, fdl_comm* device_comm, CallbackThread& callbacks)
      : Jobs(comm, callbacks),
        device_comm_(device_comm),
        rank_(fdl_comm_rank(comm)),
        peers_(static_cast<std::size_t>(fdl_comm_size(comm))) {}
  // Calls may be in flight after close(): a receive from any rank requests envelopes of all. Their ends come with the
  // end of the communicator, which must be destroyed first.
  ~Mailbox() override;

  // `world` is that of the communicator. The message progresses whether or not a thread waits for it.
  void submit(fdl_world* world, std::shared_ptr<Message> message);

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
    bool requested = false;  // the receive of the next envelope is in flight
    bool arrived = false;    // `envelope` has not been handled yet
    bool left = false;       // no envelope comes any more
    std::deque<std::shared_ptr<Aside>> aside;
  };
  // A call in flight, and its purpose.
  struct Flight {
    enum class Kind { part, envelope, aside };
    Kind kind;
    int peer;
    std::shared_ptr<Message> message;
    std::shared_ptr<Aside> aside;
    bool between_devices = false;
    bool on_device = false;
    bool may_never_come = false;
    Mailbox* mailbox = nullptr;
    fdl_handle* handle = nullptr;
  };
  // A submitted message, or a completed call with its failure.
  struct Event {
    std::shared_ptr<Message> submitted;
    std::unique_ptr<Flight> completed;
    std::optional<Failure> failure;
  };

  static void complete(void* flight);
  void add_event(Event event);
  void handle(Event event);
  void report_finished();
  void set_limit();
  void start(const std::shared_ptr<Message>& message);
  void send(const std::shared_ptr<Message>& message);
  void receive(const std::shared_ptr<Message>& message);
  bool take_from_aside(const std::shared_ptr<Message>& message, int from);
  void request(int peer);
  bool is_needed(int peer) const;
  void peer_left(int peer);
  void sort(int peer);
  void keep_aside(int peer);
  void deliver(const std::shared_ptr<Message>& message, int from);
  bool fits(const std::shared_ptr<Message>& message, int from, const Envelope& envelope);
  bool post(bool outgoing, void* data, std::size_t bytes, Flight flight);
  void arrived(const Flight& flight);
  void end(const std::shared_ptr<Message>& message);
  void fail_all(const Failure& why);
  void time_out(Failure why);
  void end_all(const Failure& why, const Message* culprit);
  void end_broken();
  // The receive, or the message, with the earliest deadline; null: none has one.
  const Message* most_urgent(bool with_sends) const;

  std::mutex events_mutex_;
  std::condition_variable handled_;  // no thread handles events
  std::deque<Event> events_;
  bool handling_ = false;

  // ---- used by the thread that handles events ----
  fdl_comm* const device_comm_;
  int rank_;
  std::vector<Peer> peers_;
  std::vector<std::shared_ptr<Message>> live_;      // started and not ended
  std::deque<std::shared_ptr<Message>> wanted_;     // receives without an envelope, in order
  std::vector<std::shared_ptr<Message>> finished_;  // ended, but not yet reported to waiting threads
  std::optional<Failure> broken_;
  int flights_ = 0;
  int64_t limit_ns_ = 0;  // the moment of the communicator's limit; 0: none
};

}  // namespace farandole_python
