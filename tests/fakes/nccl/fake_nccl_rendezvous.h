// Meeting: the shared memory in which the ranks of one communicator of the stand-in for libnccl exchange bytes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace standin {

// Bytes from one rank to another. `written` is the sender's, `read` the receiver's.
struct Pipe {
  static constexpr std::size_t kBytes = 32 * 1024;
  std::atomic<uint64_t> written;
  std::atomic<uint64_t> read;
  std::byte data[kBytes];
};

// What ranks know of each other. Fresh shared memory is zero.
struct Board {
  static constexpr int kRanks = 16;
  std::atomic<int> arrived;
  std::atomic<int> size;  // as the first one said
  std::atomic<int> finalized;
  std::atomic<int> windows;
  std::atomic<uint32_t> notifiers[kRanks];
  char devices[kRanks][16];
  std::atomic<uint64_t> window_bytes[2][kRanks];  // of windows with even and odd numbers: nobody is further ahead
};

// One message of a group: sent from, or received into, `bytes`.
struct Message {
  bool outgoing;
  int peer;
  uint32_t kind;  // both sides must mean the same
  std::byte* data;
  std::size_t bytes;
  std::size_t moved = 0;
  bool begun = false;
  uint64_t end = 0;  // of a send, in the pipe
  bool done = false;
};

class Rendezvous {
 public:
  static std::string make_name();  // and its file
  // Null if it cannot be, for example because others said another size.
  static std::shared_ptr<Rendezvous> join(const std::string& name, int rank, int size, const char (&device)[16]);
  ~Rendezvous();

  Board& board() { return *board_; }
  bool complete() const { return board_->arrived.load() == size_; }
  // Moves all messages, each direction of each pair in the order given, at once. Empty when all are through; else why
  // not: "stopped", or what the peers disagree about.
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
  Board* board_ = nullptr;
};

int rendezvous_files();  // of ids of this process, that are still there

}  // namespace standin
