// CollectiveQueue: runs the collectives of one communicator in the order of submission.
#pragma once

#include "serving.h"

namespace farandole_python {

struct CollectiveJob : Job {
  std::string title() const override;

  fdl_call call;
  std::vector<std::size_t> counts, recv_counts;  // call.counts and call.recv_counts refer to these
  double prescale = 1;
};

class CollectiveQueue final : public Serving {
 public:
  using Serving::Serving;

 protected:
  void advance(Lock& lock) override;
  bool run_at_once(Job& job) override;
};

}  // namespace farandole_python
