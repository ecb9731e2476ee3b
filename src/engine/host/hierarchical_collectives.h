// HierarchicalCollectives: collectives made of two others: inside each host, then between hosts.
#pragma once

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
//
// A long one goes in segments, which overlap: the first is between the hosts while the second is inside.
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
  // One collective of one side; it begins when so many of the other side are done.
  struct Stage {
    CollectiveSpec spec;
    Buffers buffers;
    std::size_t after = 0;
  };
  // Each side runs its stages one after the other; the two sides run beside each other.
  struct Side {
    Collectives* who = nullptr;
    std::size_t stages = 0;
    std::size_t done = 0;
    bool begun = false;  // the next one is in flight
    CollectiveSpec running;
    Completion outcome;
  };
  // A long allreduce goes in segments, so that the link between the hosts is busy while memory works on the next.
  struct Segment {
    std::size_t first = 0;  // element
    std::size_t count = 0;
  };

  HierarchicalCollectives(std::unique_ptr<Collectives> inside, std::unique_ptr<Collectives> between, const Place& place,
                          Poller poller);

  std::size_t segments_of(const CollectiveSpec& spec) const;
  Segment segment(std::size_t index) const;
  Stage stage_inside(std::size_t index);
  Stage stage_between(std::size_t index);
  Stage allreduce_inside(std::size_t index);
  Stage allreduce_between(std::size_t index);
  bool take_turn(Side& side, Side& other);
  bool run();

  std::unique_ptr<Collectives> inside_;
  std::unique_ptr<Collectives> between_;
  Place place_;
  Poller poller_;
  std::string name_;
  // Of the local ranks: of the stage inside that is in flight; and of what can() is asked, perhaps meanwhile.
  std::vector<std::size_t> shares_;
  mutable std::vector<std::size_t> asked_;

  CollectiveSpec spec_;  // in flight
  Buffers buffers_;
  std::size_t segment_count_ = 1;
  Side memory_;   // inside the host
  Side network_;  // between hosts
  Completion* completion_ = nullptr;
  std::size_t prepared_ = 0;
  Status ended_;
};

}  // namespace fdl
