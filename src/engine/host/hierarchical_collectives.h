// HierarchicalCollectives composes a collective of two others: one inside each host and one between hosts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "algorithms/choice/choose.h"
#include "base/config.h"
#include "contract/collectives.h"
#include "contract/transport.h"
#include "system/poller.h"

namespace fdl {

// It supports allreduce, broadcast and barrier where all hosts have equally many ranks. In the order of the ranks,
// hosts are blocks: position = host * local_size + local rank. In an allreduce each local rank carries its share
// between the hosts:
//   host 0   a b     inside: reduce_scatter     between: allreduce of equal shares     inside: allgather
//   host 1   c d     0: a0+b0  1: a1+b1         0 with 2, 1 with 3                      all have both
//
// A long allreduce is cut into segments that overlap: the first is between the hosts while the second is inside.
class HierarchicalCollectives final : public Collectives {
 public:
  struct Place {
    int local_rank = 0;
    int local_size = 1;
    int host = 0;
    int hosts = 1;
    RankOrder order = {};
  };
  // `inside` connects this host's ranks, by local rank; `between` connects the ranks with this local rank, by host.
  static Result<std::unique_ptr<Collectives>> make(std::unique_ptr<Collectives> inside,
                                                   std::unique_ptr<Collectives> between, const Place& place);

  // `between` are schedules over `transport`, which connects all ranks; rank is one of them. The shape is that of all
  // ranks, with the transport between the hosts. Local ranks are in the order of the ranks.
  static Result<std::unique_ptr<Collectives>> make(std::unique_ptr<Collectives> inside, Transport& transport, int rank,
                                                   const GroupShape& shape, const Config& config);

  // The number of segments into which an allreduce of so many bytes is cut.
  static std::size_t segments_of(std::size_t bytes);

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
  // One collective of one side. It begins when the other side has finished `after` stages.
  struct Stage {
    CollectiveSpec spec;
    Buffers buffers;
    std::size_t after = 0;
  };
  // Each side runs its stages in sequence; the two sides run concurrently.
  struct Side {
    Collectives* runner = nullptr;
    std::size_t stages = 0;
    std::size_t done = 0;
    bool begun = false;  // the next stage is in flight
    CollectiveSpec running;
    Completion outcome;
  };
  // A part of a long allreduce. Segments keep the network busy while memory works on the next one.
  struct Segment {
    std::size_t first = 0;  // index of its first element
    std::size_t count = 0;
  };

  HierarchicalCollectives(std::unique_ptr<Collectives> inside, std::unique_ptr<Collectives> between, const Place& place,
                          Poller poller);

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
  // Counts by local rank: those of the inside stage in flight, and separate ones for can(), which may be called
  // meanwhile.
  std::vector<std::size_t> shares_;
  mutable std::vector<std::size_t> counts_;

  CollectiveSpec spec_;  // the collective in flight
  Buffers buffers_;
  std::size_t segment_count_ = 1;
  Side memory_;   // the stages inside the host
  Side network_;  // the stages between hosts
  Completion* completion_ = nullptr;
  std::size_t prepared_ = 0;  // how many sides prepare_to_sleep() has prepared
  Status ended_;              // not OK once a side has failed or interrupt() was called
};

}  // namespace fdl
