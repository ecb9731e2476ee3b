// NcclCallThread's thread sleeps between the calls: they are the first ones of their kind, and so they are few.
#include "transports/nccl/nccl_call_thread.h"

#include <utility>

#include "base/thread_role.h"

namespace fdl {
namespace {

thread_local bool is_call_thread = false;

}  // namespace

bool NcclCallThread::is_current() { return is_call_thread; }

NcclCallThread::NcclCallThread() : thread_([this] { run(); }) {}

NcclCallThread::~NcclCallThread() {
  {
    const MutexLock lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void NcclCallThread::begin(std::function<nccl::Outcome()> call) {
  const MutexLock lock(mutex_);
  call_ = std::move(call);
  runs_.store(true, std::memory_order_relaxed);
  changed_.notify_all();
}

bool NcclCallThread::end_within(Deadline deadline) {
  const MutexLock lock(mutex_);
  if (std::exchange(call_, nullptr) != nullptr) runs_.store(false, std::memory_order_relaxed);
  return changed_.wait(mutex_, deadline, [&] { return has_ended(); });
}

void NcclCallThread::run() {
  is_library_thread = true;
  is_call_thread = true;
  for (;;) {
    std::function<nccl::Outcome()> call;
    {
      const MutexLock lock(mutex_);
      changed_.wait(mutex_, Deadline::never(), [&] { return ends_.load() || !has_ended(); });
      if (has_ended()) return;
      call = std::exchange(call_, nullptr);
    }
    outcome_ = call();
    const MutexLock lock(mutex_);
    runs_.store(false, std::memory_order_release);
    changed_.notify_all();
  }
}

}  // namespace fdl
