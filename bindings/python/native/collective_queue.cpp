// CollectiveQueue: a collective blocks the driving thread. The thread that calls run() executes it itself where
// possible.
#include "collective_queue.h"

#include <array>
#include <utility>

namespace farandole_python {
namespace {

constexpr std::array kNames = {"allreduce", "reduce", "broadcast", "allgather", "reduce_scatter",
                               "alltoall",  "gather", "scatter",   "barrier"};
static_assert(kNames.size() == FDL_BARRIER + 1);

fdl_result run_call(fdl_comm* comm, const CollectiveJob& job) {
  if (job.timeout_ns == 0 && job.prescale == 1) return fdl_call_ex(comm, &job.call, nullptr, nullptr);
  fdl_call_options options;
  fdl_call_options_init(&options);
  options.timeout_ns = job.timeout_ns;
  options.prescale = job.prescale;
  return fdl_call_ex(comm, &job.call, &options, nullptr);
}

}  // namespace

std::string CollectiveJob::title() const {
  std::string title = kNames.at(static_cast<std::size_t>(call.collective));
  if (call.collective == FDL_BARRIER || !counts.empty()) return title;
  return title + " of " + std::to_string(call.count) + " " + fdl_dtype_name(call.dtype);
}

bool CollectiveQueue::run_at_once(Job& job) {
  auto& one = static_cast<CollectiveJob&>(job);
  if (run_call(comm(), one) != FDL_OK) one.failure = Failure::last();
  one.done = true;
  return true;
}

void CollectiveQueue::advance(Lock& lock) {
  std::shared_ptr<Job> job = std::move(submitted_.front());
  submitted_.erase(submitted_.begin());
  lock.unlock();
  const bool ok = run_call(comm(), static_cast<const CollectiveJob&>(*job)) == FDL_OK;
  std::optional<Failure> failure;
  if (!ok) failure = Failure::last();
  lock.lock();
  job->failure = std::move(failure);
  finish(std::move(job));
}

}  // namespace farandole_python
