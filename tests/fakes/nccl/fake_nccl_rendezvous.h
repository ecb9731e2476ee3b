// Rendezvous is the shared memory in which the ranks of one communicator of the fake libnccl exchange bytes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace fake {

// A ring of bytes from one rank to another. The sender stores `written`, the receiver `read`.
struct Pipe {
  static constexpr std::size_t kBytes = 32 * 1024;
  std::atomic<uint64_t> written;
  std::atomic<uint64_t> read;
  std::byte data[kBytes];
};

// The state that all ranks share. Fresh shared memory is zero, which is its valid first state.
struct SharedState {
  static constexpr int kRanks = 16;
  std::atomic<int> arrived;
  std::atomic<int> size;  // as set by the first rank
  std::atomic<int> finalized;
  std::atomic<int> windows;
  std::atomic<uint32_t> notifiers[kRanks];
  std::atomic<int> connected[16];  // ranks that have begun a collective of each kind
  char devices[kRanks][16];
  std::atomic<uint64_t> window_bytes[2][kRanks];  // by parity of the window's number: no rank is further ahead
};

// One message of a group: sent from, or received into, `bytes`.
struct Message {
  bool outgoing;
  int peer;
  uint32_t kind;  // must be equal on both sides
  std::byte* data;
  std::size_t bytes;
  std::size_t moved = 0;
  bool begun = false;
  uint64_t end = 0;  // of a send: its end in the pipe
  bool done = false;
};

class Rendezvous {
 public:
  static std::string make_name();  // of a file in /dev/shm
  // Null on failure, for example if other ranks have joined with another size.
  static std::shared_ptr<Rendezvous> join(const std::string& name, int rank, int size, const char (&device)[16]);
  ~Rendezvous();

  SharedState& state() { return *state_; }
  bool complete() const { return state_->arrived.load() == size_; }
  // Moves all messages at once; within each direction of each pair, in the given order. Returns "" when all are done,
  // else "stopped" or the mismatch with a peer.
  std::string exchange(std::vector<Message>& messages, const std::atomic<bool>& stopped);
  const std::string& name() const { return name_; }

 private:
  Rendezvous() = default;
  Pipe& pipe(int from, int to);
  bool move(Message& message, std::string& trouble);
  bool push(Message& message);
  bool pull(Message& message, std::string& trouble);
  void ring(int peer);

  std::string name_;
  int rank_ = 0;
  int size_ = 0;
  std::size_t mapped_ = 0;
  SharedState* state_ = nullptr;
};

int rendezvous_files();  // existing files of this process's ids

}  // namespace fake
