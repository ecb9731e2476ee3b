// The thread takes the oldest item and writes it while the lock is free.
#include "cli/run/output/output_queue.h"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "system/poller.h"
#include "system/thread.h"

namespace fdl {
namespace {

constexpr std::size_t kFull = 1 << 20;       // bytes
constexpr std::size_t kItemBytes = 1 << 16;  // lines for one target are joined up to this size

// The kernel writes at most PIPE_BUF bytes to a pipe in one piece. Whole lines of that size stay whole where another
// process, such as a second launcher, writes to the same pipe.
std::size_t next_part(std::string_view lines) {
  if (lines.size() <= PIPE_BUF) return lines.size();
  const std::size_t last_end = lines.rfind('\n', PIPE_BUF - 1);
  if (last_end != std::string_view::npos) return last_end + 1;
  return std::min(lines.find('\n'), lines.size() - 1) + 1;
}

// Returns 0, or the errno of the write after which the rest of the lines was dropped.
int write_all(int fd, std::string_view lines) {
  while (!lines.empty()) {
    const ssize_t count = ::write(fd, lines.data(), next_part(lines));
    if (count >= 0) {
      lines.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno == EAGAIN) {  // the process that made the descriptor has made it non-blocking
      wait_writable(fd, Deadline::never());
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace

Result<std::unique_ptr<OutputQueue>> OutputQueue::start(Notice notice) {
  auto state = std::make_shared<State>();
  try {
    // Without signals: a write to a pipe without a reader then fails with EPIPE, and SIGPIPE ends nothing.
    start_thread_without_signals([state, notice = std::move(notice)] { run(*state, notice); }).detach();
  } catch (const std::exception& error) {
    return status_of_exception(error).while_doing("starting the thread that writes output");
  }
  return std::unique_ptr<OutputQueue>(new OutputQueue(std::move(state)));
}

OutputQueue::~OutputQueue() {
  MutexLock lock(state_->mutex);
  state_->ends = true;
  state_->changed.notify_all();
}

void OutputQueue::put(const std::shared_ptr<const OutputTarget>& target, std::string_view lines) {
  if (!target->fd || lines.empty()) return;
  MutexLock lock(state_->mutex);
  std::deque<Item>& items = state_->items;
  if (!items.empty() && items.back().target == target && items.back().lines.size() < kItemBytes) {
    items.back().lines += lines;
  } else {
    items.push_back({target, std::string(lines)});
  }
  state_->bytes += lines.size();
  state_->was_full = state_->was_full || state_->bytes >= kFull;
  state_->changed.notify_all();
}

bool OutputQueue::is_full() const {
  MutexLock lock(state_->mutex);
  return state_->was_full;
}

bool OutputQueue::wait_until_written(Deadline deadline) {
  MutexLock lock(state_->mutex);
  return state_->changed.wait(state_->mutex, deadline,
                              [this]() FDL_REQUIRES(state_->mutex) { return state_->bytes == 0; });
}

void OutputQueue::run(State& state, const Notice& notice) {
  while (true) {
    Item item;
    {
      MutexLock lock(state.mutex);
      state.changed.wait(state.mutex, Deadline::never(),
                         [&]() FDL_REQUIRES(state.mutex) { return !state.items.empty() || state.ends; });
      if (state.items.empty()) return;
      item = std::move(state.items.front());
      state.items.pop_front();
    }
    const int error = write_all(item.target->fd.get(), item.lines);
    if (error != 0) notice(*item.target, error);
    bool has_space_again = false;
    {
      MutexLock lock(state.mutex);
      state.bytes -= item.lines.size();
      has_space_again = state.was_full && state.bytes <= kFull / 2;
      if (has_space_again) state.was_full = false;
      state.changed.notify_all();
    }
    if (has_space_again) notice(*item.target, 0);
  }
}

}  // namespace fdl
