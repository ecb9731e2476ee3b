// HierarchicalCollectives: collectives made of two others: inside each host, then between hosts.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "contract/collectives.h"
#include "system/poller.h"

namespace fdl {

// Allreduce, broadcast and barrier, where all hosts hold equally many ranks in neighbouring blocks: rank = host *
// local_size + local rank. In an allreduce each local rank carries its share between the hosts:
//
//   host 0   a b     inside: reduce_scatter     between: allreduce of equal shares     inside: allgather
//   host 1   c d     0: a0+b0  1: a1+b1         0 with 2, 1 with 3                      all have both
class HierarchicalCollectives final : public Collectives {
 public:
  struct Place {
    int local_rank = 0;
    int local_size = 1;
    int host = 0;
    int hosts = 1;
  };
  // `inside` is of this host's ranks, by local rank; `between` of the ranks with this local rank, by host.
  static Result<std::unique_ptr<Collectives>> make(std::unique_ptr<Collectives> inside,
                                                   std::unique_ptr<Collectives> between, const Place& place);

  std::string_view name() const override { return name_; }
  bool can(const CollectiveSpec& spec) const override;
  void start(const CollectiveSpec& spec, Buffers buffers, Completion& completion) override;
  bool progress() override;
  void interrupt(const Status& why) override;
  std::string phase() const override;

  int wake_fd() const override { return poller_.fd(); }
  bool prepare_to_sleep() override;
  void finish_sleep() override;

 private:
  // One collective of the two, and how the whole one is made of them.
  struct Stage {
    Collectives* who = nullptr;
    CollectiveSpec spec;
    Buffers buffers;
  };
  HierarchicalCollectives(std::unique_ptr<Collectives> inside, std::unique_ptr<Collectives> between, const Place& place,
                          Poller poller);

  void plan_allreduce(const CollectiveSpec& spec, Buffers buffers);
  void plan_broadcast(const CollectiveSpec& spec, Buffers buffers);
  void plan_barrier();
  void add(Collectives& who, const CollectiveSpec& spec, Buffers buffers) {
    stages_[stage_count_] = {&who, spec, buffers};
    stages_[stage_count_++].spec.algorithm = "auto";  // `whole` is asked of this one, not of its parts
  }
  bool run_stages();

  std::unique_ptr<Collectives> inside_;
  std::unique_ptr<Collectives> between_;
  Place place_;
  Poller poller_;
  std::string name_;
  void share_out(std::size_t count) const;
  mutable std::vector<std::size_t> shares_;  // of the local ranks; written anew for each question and each collective

  std::array<Stage, 3> stages_;
  std::size_t stage_count_ = 0;
  std::size_t stage_ = 0;
  bool stage_begun_ = false;
  Completion stage_outcome_;
  Completion* completion_ = nullptr;
  std::size_t prepared_ = 0;
  Status ended_;
};

}  // namespace fdl
