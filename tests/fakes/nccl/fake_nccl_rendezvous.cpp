// Meeting: a file in /dev/shm with a pipe for each ordered pair of ranks; who waits sleeps on its own bell (futex).
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

namespace standin {
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
  const timespec timeout{0, 20'000'000};  // a stop is noticed no later than that
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
  std::string name = "/dev/shm/standin-nccl-" + std::to_string(::getpid()) + "-" + std::to_string(++count) + "-" +
                     std::to_string(now.tv_nsec);
  std::lock_guard lock(files_mutex);
  files().insert(name);
  return name;
}

std::shared_ptr<Rendezvous> Rendezvous::join(const std::string& name, int rank, int size, const char (&device)[16]) {
  if (size > Board::kRanks) return nullptr;
  const int fd = ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return nullptr;
  auto made = std::shared_ptr<Rendezvous>(new Rendezvous);
  made->name_ = name;
  made->rank_ = rank;
  made->size_ = size;
  made->mapped_ = sizeof(Board) + static_cast<std::size_t>(size * size) * sizeof(Pipe);
  const bool sized = ::ftruncate(fd, static_cast<off_t>(made->mapped_)) == 0;
  void* memory = sized ? ::mmap(nullptr, made->mapped_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
  ::close(fd);
  if (memory == MAP_FAILED) return nullptr;
  made->board_ = static_cast<Board*>(memory);
  int expected = 0;
  if (!made->board_->size.compare_exchange_strong(expected, size) && expected != size) return nullptr;
  std::memcpy(made->board_->devices[rank], device, sizeof device);
  if (made->board_->arrived.fetch_add(1) + 1 == size) {
    ::unlink(name.c_str());
    std::lock_guard lock(files_mutex);
    files().erase(name);
  }
  return made;
}

Rendezvous::~Rendezvous() {
  if (board_ != nullptr) ::munmap(board_, mapped_);
  // Complete meetings have no file any more; of others, who made the id takes it away.
  std::lock_guard lock(files_mutex);
  if (files().erase(name_) > 0) ::unlink(name_.c_str());
}

Pipe& Rendezvous::pipe(int from, int to) {
  auto* pipes = reinterpret_cast<Pipe*>(reinterpret_cast<std::byte*>(board_) + sizeof(Board));
  return pipes[from * size_ + to];
}

void Rendezvous::ring(int peer) {
  board_->notifiers[peer].fetch_add(1);
  ::syscall(SYS_futex, &board_->notifiers[peer], FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

bool Rendezvous::push(Message& message) {
  Pipe& to = pipe(rank_, message.peer);
  const auto room = [&] { return Pipe::kBytes - static_cast<std::size_t>(to.written.load() - to.read.load()); };
  bool moved = false;
  if (!message.begun && room() >= sizeof(Header)) {
    const Header header{message.kind, kMagic, message.bytes};
    put(to, &header, sizeof header);
    message.begun = moved = true;
  }
  const std::size_t segment = message.begun ? std::min(room(), message.bytes - message.moved) : 0;
  if (segment > 0) {
    put(to, message.data + message.moved, segment);
    message.moved += segment;
    moved = true;
  }
  if (moved) ring(message.peer);
  // As a rendezvous: it is through when it has been taken.
  if (message.begun && message.moved == message.bytes && to.read.load() == to.written.load()) {
    message.done = moved = true;
  }
  return moved;
}

bool Rendezvous::pull(Message& message, std::string& trouble) {
  Pipe& from = pipe(message.peer, rank_);
  const auto there = [&] { return static_cast<std::size_t>(from.written.load() - from.read.load()); };
  bool moved = false;
  if (!message.begun && there() >= sizeof(Header)) {
    Header header{};
    take(from, &header, sizeof header);
    if (header.magic != kMagic || header.kind != message.kind || header.bytes != message.bytes) {
      trouble = "rank " + std::to_string(message.peer) + " sent " + std::to_string(header.bytes) + " bytes of kind " +
                std::to_string(header.kind) + ", rank " + std::to_string(rank_) + " expected " +
                std::to_string(message.bytes) + " of kind " + std::to_string(message.kind);
      return true;
    }
    message.begun = moved = true;
  }
  const std::size_t segment = message.begun ? std::min(there(), message.bytes - message.moved) : 0;
  if (segment > 0) {
    take(from, message.data + message.moved, segment);
    message.moved += segment;
    moved = true;
  }
  if (moved) ring(message.peer);
  if (message.begun && message.moved == message.bytes) message.done = moved = true;
  return moved;
}

bool Rendezvous::move(Message& message, std::string& trouble) {
  return message.outgoing ? push(message) : pull(message, trouble);
}

std::string Rendezvous::exchange(std::vector<Message>& messages, const std::atomic<bool>& stopped) {
  std::string trouble;
  for (;;) {
    const uint32_t seen = board_->notifiers[rank_].load();
    bool moved = false;
    bool all = true;
    std::set<std::pair<bool, int>> taken;  // pairs whose turn another message has
    for (Message& message : messages) {
      if (message.done || !taken.insert({message.outgoing, message.peer}).second) continue;
      moved |= move(message, trouble);
      if (!trouble.empty()) return trouble;
    }
    for (const Message& message : messages) all &= message.done;
    if (all) return {};
    if (stopped.load()) return "stopped";
    if (!moved) sleep_on(board_->notifiers[rank_], seen);
  }
}

}  // namespace standin
