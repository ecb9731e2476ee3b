// OfiReceiver receives the slices of all channels. It keeps packets that come before their receives.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "transports/ofi/ofi_landings.h"
#include "transports/ofi/ofi_post.h"

namespace fdl {

class OfiReceiver {
 public:
  explicit OfiReceiver(OfiPost& post);
  OfiReceiver(const OfiReceiver&) = delete;
  OfiReceiver& operator=(const OfiReceiver&) = delete;

  // Puts a receive at the end of a stream; accept() matches it.
  void append(std::size_t at, uint32_t tag, Bytes bytes);
  // Matches a posted receive with what has come before it, or announces it.
  void accept(std::size_t at, uint64_t position);

  // An eager slice or an offer has come.
  void take_slice(std::size_t at, const OfiHead& head, ConstBytes payload);
  // A segment of a long slice has come.
  void on_landed(uint32_t number);
  // Sends what had to wait for a free packet. Returns whether anything was sent.
  bool settle(std::size_t at);
  // Whether the peer must be told how many of its slices have been received.
  bool owes(std::size_t at) const;
  // Takes back the memory that a peer, or any peer, could write into.
  void close_landings(std::size_t at);
  void close_all() { landings_ = {}; }
  // Whether a peer may have begun a write that will not be completed.
  bool may_have_unfinished() const { return has_given_up_ || landings_.any_open(); }

 private:
  struct Receiving {
    bool done = true;
    bool announced = false;  // or it needs no announcement
    uint32_t tag = 0;
    uint32_t landing = 0;
    Bytes bytes;
  };
  // A packet that has come before its receive.
  struct Early {
    enum class Kind : uint8_t { none, eager, offer };
    Kind kind = Kind::none;
    uint32_t tag = 0;
    uint64_t bytes = 0;
  };
  struct Incoming {
    std::array<Receiving, kOfiDepth> slices;
    std::array<Early, kOfiAhead> early;
    std::unique_ptr<std::byte[]> payloads;  // of early eager slices, by position
  };

  Incoming& incoming(std::size_t at);
  bool fits(std::size_t at, uint64_t position, uint64_t bytes, uint32_t tag);
  void arrive(std::size_t at, uint64_t position, ConstBytes bytes);
  void finish_receives(std::size_t at);
  // Tells the peer where to write a long slice. Returns false if that must wait for a packet.
  bool announce(std::size_t at, uint64_t position);

  OfiPost& post_;
  OfiLink& link_;
  SliceLedger& ledger_;
  OfiLandings landings_;
  bool has_given_up_ = false;                  // a landing has been closed before all of it had come
  std::vector<std::unique_ptr<Incoming>> in_;  // by channel; made at the first slice
};

}  // namespace fdl
