// OfiLink sends and receives packets, and writes into the memory of peers, over all rails of a communicator. It repeats
// what libfabric refuses for now (FI_EAGAIN), and has no notion of slices.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "transports/ofi/ofi_memory.h"
#include "transports/ofi/ofi_packet.h"
#include "transports/ofi/ofi_rail.h"

namespace fdl {

class OfiLink {
 public:
  class Events {
   public:
    // The view of the packet's bytes is valid during the call.
    virtual void on_packet(ConstBytes packet) = 0;
    // A peer has written a segment of this landing.
    virtual void on_landed(uint32_t landing) = 0;
    // A segment has left this rank; its bytes are not read any more.
    virtual void on_written(std::size_t stream, uint64_t position) = 0;
    // What was to go to `peer` failed. -1: this rank's own device has failed.
    virtual void on_failure(int peer, const Status& why) = 0;

   protected:
    ~Events() = default;
  };

  // The outcome of write(): `again` means that the provider takes no more now.
  enum class Outcome { begun, again, failed };

  // `size`: the number of ranks, all of which may send to this one at a time.
  static Result<std::unique_ptr<OfiLink>> make(const OfiLibrary& library, const std::vector<OfiLibrary::Infos>& devices,
                                               int size);
  ~OfiLink();
  OfiLink(const OfiLink&) = delete;
  OfiLink& operator=(const OfiLink&) = delete;

  std::size_t rails() const { return rails_.size(); }
  OfiRail& rail(std::size_t i) const { return *rails_[i]; }
  OfiMemory& memory() { return memory_; }
  // What all links of this process have given to libfabric.
  static uint64_t bytes_of_process() { return bytes_given().load(std::memory_order_relaxed); }
  // The longest segment that write() takes.
  std::size_t longest_write() const { return longest_write_; }

  // A packet to fill and to send to `peer`; null if none is free now.
  OfiPacket* take(int peer);
  void give_back(OfiPacket* packet) { pools_[packet->operation.rail].free.push_back(packet); }
  // Sends the first `length` bytes. The packet returns to the pool by itself. A packet that is sent to `flush` is in
  // flight until the provider reports its completion; the others may be the provider's own affair (fi_inject).
  void send(OfiPacket* packet, std::size_t length, int peer, bool flush);
  // The same, if the provider takes the packet now. Else the packet is free again, and it returns false.
  bool send_now(OfiPacket* packet, std::size_t length, int peer);
  // Writes bytes to where a peer waits for them. `data` reaches the peer's on_landed().
  Outcome write(std::size_t rail, int peer, ConstBytes bytes, void* descriptor, const OfiTarget& target,
                std::size_t offset, uint32_t data, std::size_t stream, uint64_t position);

  // Handles what has completed, and repeats what was refused. Returns whether there was anything.
  bool poll(Events& events);
  // Whether nothing of this rank is in flight.
  bool is_idle() const { return sends_ == 0 && writes_ == 0; }
  int writes_to(int peer) const { return writes_to_[static_cast<std::size_t>(peer)]; }
  int sends_to(int peer) const { return sends_to_[static_cast<std::size_t>(peer)]; }
  // Whether the provider ends an endpoint safely while operations are in flight. They are cancelled then.
  bool can_cancel() const;
  // Whether it does so while a peer is writing. ofi_rxm 1.17 reads a null pointer when it cancels half a write with
  // data.
  bool can_cancel_receives() const { return rails_.front()->provider().starts_with("efa"); }
  bool has_refused() const;
  // The descriptor to wait for completions; -1 if the provider has none, or there are several rails. A set of several
  // descriptors is not made: those of providers are sets themselves, and the kernel limits how deep sets nest.
  int wake_fd() const { return rails_.size() == 1 ? rails_.front()->wake_fd() : -1; }
  bool may_sleep();
  // Ends all endpoints: the provider uses no memory any more. Call it when nothing is in flight.
  void close();

 private:
  struct Pool {
    std::unique_ptr<std::byte[]> memory;  // of all packets
    OfiRegion region;
    std::unique_ptr<OfiPacket[]> packets;
    std::vector<OfiPacket*> free;      // to send
    std::deque<OfiPacket*> refused;    // to send again, in order
    std::vector<OfiPacket*> unposted;  // receives to post again
    bool is_lost = false;              // the device has failed
  };
  struct Failure {
    int peer;
    Status why;
  };

  OfiLink(const OfiLibrary& library) : library_(library) {}
  static std::atomic<uint64_t>& bytes_given() {
    static std::atomic<uint64_t> only{0};
    return only;
  }
  Status add(const fi_info* device, std::size_t receives);
  void post_receives(std::size_t rail);
  bool send_refused(std::size_t rail);
  bool try_send(OfiPacket* packet);
  void recycle(OfiPacket* packet);
  void end_write(OfiOperation* operation);
  void complete(std::size_t rail, const fi_cq_data_entry& entry, Events& events);
  void complete_error(std::size_t rail, Events& events);
  Status failure(std::size_t rail, const char* what, int64_t code, int detail = 0, std::string_view words = {}) const;
  void note_failure(int peer, std::size_t rail, const char* what, int64_t code);

  const OfiLibrary& library_;
  std::vector<std::unique_ptr<OfiRail>> rails_;
  OfiMemory memory_{rails_};
  std::vector<Pool> pools_;  // by rail
  std::unique_ptr<OfiOperation[]> operations_;
  std::vector<OfiOperation*> free_operations_;  // of writes
  std::vector<Failure> failures_;               // to report in poll()
  std::size_t longest_write_ = 0;
  int sends_ = 0;
  int writes_ = 0;
  std::vector<int> sends_to_;  // by peer
  std::vector<int> writes_to_;
};

}  // namespace fdl
