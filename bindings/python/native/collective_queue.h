// CollectiveQueue submits the collectives of one communicator, which run in the order of submission.
#pragma once

#include "jobs.h"

namespace farandole_python {

struct CollectiveJob : Job {
  std::string title() const override;
  std::optional<Failure> outcome() const override;

  fdl_call call;
  std::vector<std::size_t> counts, recv_counts;  // call.counts and call.recv_counts refer to these
  double prescale = 1;
  fdl_compression compression = FDL_COMPRESSION_NONE;
  double error_bound = 0;  // of a compressed call that is done
};

class CollectiveQueue final : public Jobs {
 public:
  using Jobs::Jobs;

  // The operation progresses whether or not a thread waits for it.
  void submit(std::shared_ptr<CollectiveJob> job);
  // The collectives are launched together. At least one.
  void submit_group(const std::vector<std::shared_ptr<CollectiveJob>>& jobs);
  // Runs the collective behind those that were submitted before, in the calling thread if possible.
  void run(CollectiveJob& job);

 private:
  struct Flight {
    CollectiveQueue* queue;
    std::shared_ptr<CollectiveJob> job;
  };
  static void arrived(void* flight);
};

}  // namespace farandole_python
