// CollectiveQueue: the handle of each call has the outcome; its callback only keeps the queue's books.
#include "collective_queue.h"

#include <array>
#include <utility>

namespace farandole_python {
namespace {

constexpr std::array kNames = {"allreduce", "reduce", "broadcast", "allgather", "reduce_scatter",
                               "alltoall",  "gather", "scatter",   "barrier"};
static_assert(kNames.size() == FDL_BARRIER + 1);

// The options of a job; null: it needs none.
const fdl_call_options* options_of(CollectiveJob& job, fdl_call_options& options) {
  const bool compresses = job.compression != FDL_COMPRESSION_NONE;
  if (job.timeout_ns == 0 && job.prescale == 1 && !compresses) return nullptr;
  fdl_call_options_init(&options);
  options.timeout_ns = job.timeout_ns;
  options.prescale = job.prescale;
  options.compression = job.compression;
  if (compresses) options.error_bound = &job.error_bound;
  return &options;
}

}  // namespace

std::string CollectiveJob::title() const {
  std::string title = kNames.at(static_cast<std::size_t>(call.collective));
  if (call.collective == FDL_BARRIER || !counts.empty()) return title;
  return title + " of " + std::to_string(call.count) + " " + fdl_dtype_name(call.dtype);
}

std::optional<Failure> CollectiveJob::outcome() const {
  if (handle == nullptr) return failure;
  if (fdl_wait_handle(handle, 0) == FDL_OK) return std::nullopt;
  return Failure::last();
}

void CollectiveQueue::submit(std::shared_ptr<CollectiveJob> job) {
  if (!open(*job)) return;
  fdl_call_options options;
  if (fdl_call_submit(comm(), &job->call, options_of(*job, options), &job->handle) != FDL_OK) {
    refuse(*job, Failure::last());
    return leave();
  }
  fdl_handle* const handle = job->handle;
  static_cast<void>(fdl_handle_notify(handle, &arrived, new Flight{this, std::move(job)}));
}

void CollectiveQueue::submit_group(const std::vector<std::shared_ptr<CollectiveJob>>& jobs) {
  std::vector<fdl_call_options> options(jobs.size());
  std::vector<const fdl_call_options*> given;
  std::vector<const fdl_call*> calls;
  std::vector<std::shared_ptr<CollectiveJob>> opened;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (!open(*jobs[i])) continue;
    given.push_back(options_of(*jobs[i], options[i]));
    calls.push_back(&jobs[i]->call);
    opened.push_back(jobs[i]);
  }
  std::vector<fdl_handle*> handles(opened.size());
  if (fdl_call_submit_group(comm(), calls.data(), given.data(), calls.size(), handles.data()) != FDL_OK) {
    for (const auto& job : opened) {
      refuse(*job, Failure::last());
      leave();
    }
    return;
  }
  for (std::size_t i = 0; i < opened.size(); ++i) opened[i]->handle = handles[i];
  for (std::size_t i = 0; i < opened.size(); ++i) {
    static_cast<void>(fdl_handle_notify(handles[i], &arrived, new Flight{this, std::move(opened[i])}));
  }
}

void CollectiveQueue::arrived(void* flight) {
  const std::unique_ptr<Flight> arrived(static_cast<Flight*>(flight));
  arrived->queue->finish(*arrived->job);
  arrived->queue->leave(std::move(arrived->job));
}

void CollectiveQueue::run(CollectiveJob& job) {
  if (!open(job)) return;
  fdl_call_options options;
  if (fdl_call_ex(comm(), &job.call, options_of(job, options), nullptr) != FDL_OK) job.failure = Failure::last();
  leave();
}

}  // namespace farandole_python
