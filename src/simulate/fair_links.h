// FairLinks shares each link equally between the messages that are on it.
//
// A message moves at the smallest of its links' shares, where a link's share is its bandwidth divided by the number of
// messages on it. This is how connections share a card and a switch port: they are served in turn, packet by packet. A
// queue in order of arrival would let one long message delay all others, and would depend on the numbers of ranks where
// messages arrive at once; shares do not. A share that a message cannot use, because another of its links is slower, is
// not given to the others, so asymmetric traffic is simulated slightly too slow.
#pragma once

#include <cstdint>
#include <vector>

#include "simulate/cluster.h"

namespace fdl {

class FairLinks {
 public:
  // `paths`: by lane, the links that its messages occupy. At most one message of a lane is on its links.
  FairLinks(const ClusterLinks& links, LinkPaths paths);

  void start(int32_t lane, double bytes, double now_s);
  void finish(int32_t lane);
  // Computes the rates after all starts and finishes of one moment. Returns the lanes whose messages will now end
  // earlier than finish_s() was before, and those that have started. Valid until the next call.
  const std::vector<int32_t>& settle(double now_s);
  // When the message on this lane ends, if nothing starts or finishes until then.
  double finish_s(int32_t lane) const { return flows_[static_cast<std::size_t>(lane)].finish_s; }

 private:
  struct Flow {
    double left = 0;  // bytes, at `since_s`
    double since_s = 0;
    double rate = 0;  // bytes per second; 0: started, and not yet settled
    double finish_s = 0;
  };
  struct Link {
    double bytes_per_s = 1;
    std::vector<int32_t> lanes;  // with a message on it
    std::size_t settled = 0;     // number of messages at the last settle()
    bool is_touched = false;
  };

  void touch(int32_t link);
  void update(int32_t lane, double now_s);

  std::span<const int32_t> path_of(int32_t lane) const { return paths_[static_cast<std::size_t>(lane)]; }
  // Where a message stands in the lists of its links, by the links of its path.
  std::span<int32_t> places_of(int32_t lane) {
    return std::span(places_).subspan(paths_.begin(static_cast<std::size_t>(lane)));
  }

  LinkPaths paths_;
  std::vector<Flow> flows_;      // by lane
  std::vector<int32_t> places_;  // of all paths
  std::vector<Link> links_;
  std::vector<int32_t> touched_;
  std::vector<int32_t> started_;
  std::vector<int32_t> earlier_;
};

}  // namespace fdl
