// CollectiveQueue: a collective blocks whoever drives; the thread that asked for it runs it itself where it can.
#include "collective_queue.h"

#include <algorithm>
#include <utility>

namespace farandole_python {
namespace {

int64_t time_left_ns(const Job& job) {
  const int64_t deadline_ns = job.deadline_ns;
  if (deadline_ns == 0) return job.timeout_ns;
  const int64_t left = std::max<int64_t>(deadline_ns - clock_ns(), 1);
  return job.timeout_ns == 0 ? left : std::min(left, job.timeout_ns);
}

fdl_result run_call(fdl_comm* comm, const CollectiveJob& job, int64_t timeout_ns) {
  if (timeout_ns == 0 && job.prescale == 1) return fdl_call_ex(comm, &job.call, nullptr, nullptr);
  fdl_call_options options;
  fdl_call_options_init(&options);
  options.timeout_ns = timeout_ns;
  options.prescale = job.prescale;
  return fdl_call_ex(comm, &job.call, &options, nullptr);
}

}  // namespace

bool CollectiveQueue::run_at_once(Job& job) {
  auto& one = static_cast<CollectiveJob&>(job);
  if (run_call(comm(), one, one.timeout_ns) != FDL_OK) one.failure = Failure::last();
  one.done = true;
  return true;
}

void CollectiveQueue::advance(Lock& lock) {
  std::shared_ptr<Job> job = std::move(submitted_.front());
  submitted_.erase(submitted_.begin());
  const int64_t timeout_ns = time_left_ns(*job);
  lock.unlock();
  const bool ok = run_call(comm(), static_cast<const CollectiveJob&>(*job), timeout_ns) == FDL_OK;
  std::optional<Failure> failure;
  if (!ok) failure = Failure::last();
  lock.lock();
  job->failure = std::move(failure);
  finish(std::move(job));
}

}  // namespace farandole_python
