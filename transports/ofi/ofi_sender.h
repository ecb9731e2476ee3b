// OfiSender sends the slices of all channels: short ones as packets, long ones as writes to where the peer waits.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "transports/ofi/ofi_post.h"

namespace fdl {

class OfiSender {
 public:
  explicit OfiSender(OfiPost& post);
  OfiSender(const OfiSender&) = delete;
  OfiSender& operator=(const OfiSender&) = delete;

  // Puts a slice at the end of a stream; push() sends it.
  void append(std::size_t at, uint32_t tag, ConstBytes bytes);
  // Does what can be done for the unfinished slices of a stream. Returns whether anything was.
  bool push(std::size_t at);

  // A segment has been written.
  void on_written(std::size_t at, uint64_t position);
  // The counts of a packet. Packets may overtake each other: the greatest count is the newest.
  void note_taken(int peer, const OfiHead& head);
  // A peer waits for a long slice.
  void take_ready(std::size_t at, const OfiHead& head, ConstBytes payload);

  // From now on no slice begins to be written.
  void stop() { is_leaving_ = true; }

 private:
  struct Sending {
    enum class State : uint8_t { waiting, offered, writing, done };
    State state = State::done;
    uint32_t tag = 0;
    uint32_t landing = 0;
    std::size_t begun = 0;  // segments
    std::size_t written = 0;
    ConstBytes bytes;
    OfiMemory::Lease source;
  };
  // What a peer has announced: a receive of a long slice.
  struct Ready {
    bool valid = false;
    uint32_t tag = 0;
    uint32_t landing = 0;
    uint64_t bytes = 0;
  };
  struct Outgoing {
    std::array<Sending, kOfiDepth> slices;
    std::array<Ready, kOfiAhead> ready;
    std::vector<OfiTarget> targets;  // of `ready`, by rail
    uint64_t taken = 0;              // slices that the peer has received
  };

  Outgoing& outgoing(std::size_t at);
  bool send_eager(std::size_t at, uint64_t position, Sending& slice);
  bool send_long(std::size_t at, uint64_t position, Sending& slice);
  bool offer(std::size_t at, uint64_t position, Sending& slice);
  Status begin_writing(Sending& slice, uint32_t landing);
  bool write_segments(std::size_t at, uint64_t position, Sending& slice);

  OfiPost& post_;
  OfiLink& link_;
  SliceLedger& ledger_;
  bool is_leaving_ = false;
  std::vector<std::unique_ptr<Outgoing>> out_;  // by channel; made at the first slice
};

}  // namespace fdl
