// Rendezvous is a file in /dev/shm with a pipe for each ordered pair of ranks. A waiting rank sleeps on its own futex.
#include "tests/fakes/nccl/fake_nccl_rendezvous.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <mutex>
#include <set>

namespace fake {
namespace {

struct Header {
  uint32_t kind;
  uint32_t magic;
  uint64_t bytes;
};
constexpr uint32_t kMagic = 0x6e63636c;

std::mutex files_mutex;
std::set<std::string>& files() {
  static std::set<std::string>* made = new std::set<std::string>;
  return *made;
}
struct Cleaner {
  ~Cleaner() {
    std::lock_guard lock(files_mutex);
    for (const std::string& name : files()) ::unlink(name.c_str());
  }
} cleaner;

void put(Pipe& pipe, const void* from, std::size_t bytes) {
  const uint64_t at = pipe.written.load();
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t place = (at + done) % Pipe::kBytes;
    const std::size_t segment = std::min(bytes - done, Pipe::kBytes - place);
    std::memcpy(pipe.data + place, static_cast<const std::byte*>(from) + done, segment);
    done += segment;
  }
  pipe.written.store(at + bytes);
}

void take(Pipe& pipe, void* to, std::size_t bytes) {
  const uint64_t at = pipe.read.load();
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t place = (at + done) % Pipe::kBytes;
    const std::size_t segment = std::min(bytes - done, Pipe::kBytes - place);
    std::memcpy(static_cast<std::byte*>(to) + done, pipe.data + place, segment);
    done += segment;
  }
  pipe.read.store(at + bytes);
}

void sleep_on(std::atomic<uint32_t>& notifier, uint32_t seen) {
  const timespec timeout{0, 20'000'000};  // a stop is noticed within this time
  ::syscall(SYS_futex, &notifier, FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

}  // namespace

int rendezvous_files() {
  std::lock_guard lock(files_mutex);
  return static_cast<int>(std::count_if(files().begin(), files().end(),
                                        [](const std::string& name) { return ::access(name.c_str(), F_OK) == 0; }));
}

std::string Rendezvous::make_name() {
  static std::atomic<int> count{0};
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  std::string name = "/dev/shm/fake-nccl-" + std::to_string(::getpid()) + "-" + std::to_string(++count) + "-" +
                     std::to_string(now.tv_nsec);
  std::lock_guard lock(files_mutex);
  files().insert(name);
  return name;
}

std::shared_ptr<Rendezvous> Rendezvous::join(const std::string& name, int rank, int size, const char (&device)[16]) {
  if (size > SharedState::kRanks) return nullptr;
  const int fd = ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return nullptr;
  auto made = std::shared_ptr<Rendezvous>(new Rendezvous);
  made->name_ = name;
  made->rank_ = rank;
  made->size_ = size;
  made->mapped_ = sizeof(SharedState) + static_cast<std::size_t>(size * size) * sizeof(Pipe);
  const bool sized = ::ftruncate(fd, static_cast<off_t>(made->mapped_)) == 0;
  void* memory = sized ? ::mmap(nullptr, made->mapped_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
  ::close(fd);
  if (memory == MAP_FAILED) return nullptr;
  made->state_ = static_cast<SharedState*>(memory);
  int expected = 0;
  if (!made->state_->size.compare_exchange_strong(expected, size) && expected != size) return nullptr;
  std::memcpy(made->state_->devices[rank], device, sizeof device);
  if (made->state_->arrived.fetch_add(1) + 1 == size) {
    ::unlink(name.c_str());
    std::lock_guard lock(files_mutex);
    files().erase(name);
  }
  return made;
}

Rendezvous::~Rendezvous() {
  if (state_ != nullptr) ::munmap(state_, mapped_);
  // The file of a complete group is already unlinked. The file of any other is unlinked by the process that made its
  // id.
  std::lock_guard lock(files_mutex);
  if (files().erase(name_) > 0) ::unlink(name_.c_str());
}

Pipe& Rendezvous::pipe(int from, int to) {
  auto* pipes = reinterpret_cast<Pipe*>(reinterpret_cast<std::byte*>(state_) + sizeof(SharedState));
  return pipes[from * size_ + to];
}

void Rendezvous::ring(int peer) {
  state_->notifiers[peer].fetch_add(1);
  ::syscall(SYS_futex, &state_->notifiers[peer], FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

bool Rendezvous::push(Message& message) {
  Pipe& to = pipe(rank_, message.peer);
  const auto space = [&] { return Pipe::kBytes - static_cast<std::size_t>(to.written.load() - to.read.load()); };
  bool moved = false;
  if (!message.begun && space() >= sizeof(Header)) {
    const Header header{message.kind, kMagic, message.bytes};
    put(to, &header, sizeof header);
    message.begun = moved = true;
  }
  const std::size_t segment = message.begun ? std::min(space(), message.bytes - message.moved) : 0;
  if (segment > 0) {
    put(to, message.data + message.moved, segment);
    message.moved += segment;
    moved = true;
  }
  if (moved) ring(message.peer);
  // Like a rendezvous send: it is done when the receiver has occupied it.
  if (message.begun && message.moved == message.bytes && to.read.load() == to.written.load()) {
    message.done = moved = true;
  }
  return moved;
}

bool Rendezvous::pull(Message& message, std::string& mismatch) {
  Pipe& from = pipe(message.peer, rank_);
  const auto available = [&] { return static_cast<std::size_t>(from.written.load() - from.read.load()); };
  bool moved = false;
  if (!message.begun && available() >= sizeof(Header)) {
    Header header{};
    take(from, &header, sizeof header);
    if (header.magic != kMagic || header.kind != message.kind || header.bytes != message.bytes) {
      mismatch = "rank " + std::to_string(message.peer) + " sent " + std::to_string(header.bytes) + " bytes of kind " +
                 std::to_string(header.kind) + ", rank " + std::to_string(rank_) + " expected " +
                 std::to_string(message.bytes) + " of kind " + std::to_string(message.kind);
      return true;
    }
    message.begun = moved = true;
  }
  const std::size_t segment = message.begun ? std::min(available(), message.bytes - message.moved) : 0;
  if (segment > 0) {
    take(from, message.data + message.moved, segment);
    message.moved += segment;
    moved = true;
  }
  if (moved) ring(message.peer);
  if (message.begun && message.moved == message.bytes) message.done = moved = true;
  return moved;
}

bool Rendezvous::move(Message& message, std::string& mismatch) {
  return message.outgoing ? push(message) : pull(message, mismatch);
}

std::string Rendezvous::exchange(std::vector<Message>& messages, const std::atomic<bool>& stopped) {
  std::string mismatch;
  for (;;) {
    const uint32_t seen = state_->notifiers[rank_].load();
    bool moved = false;
    bool all = true;
    std::set<std::pair<bool, int>> occupied;  // pairs whose earlier message is not done
    for (Message& message : messages) {
      if (message.done || !occupied.insert({message.outgoing, message.peer}).second) continue;
      moved |= move(message, mismatch);
      if (!mismatch.empty()) return mismatch;
    }
    for (const Message& message : messages) all &= message.done;
    if (all) return {};
    if (stopped.load()) return "stopped";
    if (!moved) sleep_on(state_->notifiers[rank_], seen);
  }
}

}  // namespace fake
