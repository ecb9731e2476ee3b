// The memory of a history is a file, or anonymous. Both are mapped, and written by stores alone.
#include "system/history.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "system/fd.h"

namespace fdl {
namespace {

template <std::size_t N>
void copy_cut(std::array<char, N>& target, std::string_view text) {
  std::memcpy(target.data(), text.data(), std::min(text.size(), N));
}

// FNV-1a with 64 bits. 0 stands for an unused group.
uint64_t fingerprint(std::string_view text) {
  uint64_t state = 0xcbf29ce484222325;
  for (const char c : text) state = (state ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return state == 0 ? 1 : state;
}

// Replaces an older file, and follows no symbolic link that another user may have put there. Without reserved space a
// full disk would be a SIGBUS later.
Result<UniqueFd> make_file(const std::string& path, std::size_t bytes) {
  ::unlink(path.c_str());
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd) return Status::from_errno("making " + path);
  if (const int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes)); error != 0) {
    ::unlink(path.c_str());
    return Status::from_errno("reserving space for " + path, error);
  }
  return fd;
}

}  // namespace

std::string history_path(const std::string& folder, const std::string& job, int rank) {
  return folder + (folder.ends_with('/') ? "" : "/") + "farandole-history-" + job + "-" + std::to_string(rank) + ".bin";
}

Result<std::unique_ptr<History>> History::make(const HistoryFacts& facts, const std::string& path) {
  UniqueFd fd;
  if (!path.empty()) {
    FDL_ASSIGN_OR_RETURN(fd, make_file(path, kBytes));
  }
  const int flags = fd ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  void* mapped = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, flags, fd.get(), 0);
  if (mapped == MAP_FAILED) return Status::from_errno("mapping the history of operations");
  // The mapping stays when the descriptor is closed here.
  std::unique_ptr<History> history(new History(Bytes(static_cast<std::byte*>(mapped), kBytes), path));
  HistoryHead& head = *history->head_;
  head.groups = kGroups;
  head.records = kRecords;
  head.rank = facts.rank;
  head.size = facts.size;
  head.process_id = ::getpid();
  head.realtime_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  head.first_ns = now_ns();
  head.first_ticks = processor_ticks();
  copy_cut(head.job, facts.job);
  copy_cut(head.host, facts.host);
  history->sample();
  head.magic = kHistoryMagic;  // last: the head is complete
  return history;
}

// The memory is zeroed, which is the initial value of all members.
History::History(Bytes memory, std::string path)
    : memory_(memory),
      head_(new (memory.data()) HistoryHead{}),
      groups_(reinterpret_cast<HistoryGroup*>(memory.data() + sizeof(HistoryHead))),
      records_(reinterpret_cast<HistoryRecord*>(memory.data() + sizeof(HistoryHead) + kGroups * sizeof(HistoryGroup))),
      path_(std::move(path)) {}

History::~History() {
  sample();
  ::munmap(memory_.data(), memory_.size());
}

uint32_t History::add_group(std::string_view name) {
  MutexLock lock(mutex_);
  const uint32_t number = ++last_group_;
  HistoryGroup& group = groups_[number % kGroups];
  group.fingerprint.store(0, std::memory_order_relaxed);
  group.name.fill('\0');
  copy_cut(group.name, name);
  group.number.store(number, std::memory_order_relaxed);
  group.fingerprint.store(fingerprint(name), std::memory_order_release);
  return number;
}

int64_t History::age_ns(uint64_t serial) const {
  const HistoryRecord& record = at(serial);
  const uint64_t called = record.called.load(std::memory_order_relaxed);
  const bool is_open = record.ended.load(std::memory_order_relaxed) == 0;
  if (record.serial.load(std::memory_order_acquire) != serial || !is_open) return -1;
  const double ticks = static_cast<double>(processor_ticks() - head_->first_ticks);
  const double per_ns = ticks / std::max(1.0, static_cast<double>(now_ns() - head_->first_ns));
  return static_cast<int64_t>(static_cast<double>(processor_ticks() - called) / std::max(per_ns, 1e-9));
}

void History::sample() {
  head_->last_ns.store(now_ns(), std::memory_order_relaxed);
  head_->last_ticks.store(processor_ticks(), std::memory_order_relaxed);
}

}  // namespace fdl
