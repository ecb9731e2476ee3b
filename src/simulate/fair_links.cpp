// FairLinks recomputes rates only on links whose number of messages has changed.
#include "simulate/fair_links.h"

#include <algorithm>
#include <limits>

namespace fdl {

FairLinks::FairLinks(const ClusterLinks& links, LinkPaths paths)
    : paths_(std::move(paths)),
      flows_(paths_.count()),
      places_(paths_.total()),
      links_(static_cast<std::size_t>(links.count())) {
  for (int32_t i = 0; i < links.count(); ++i) links_[static_cast<std::size_t>(i)].bytes_per_s = links.bytes_per_s(i);
}

void FairLinks::touch(int32_t index) {
  Link& link = links_[static_cast<std::size_t>(index)];
  if (link.is_touched) return;
  link.is_touched = true;
  touched_.push_back(index);
}

void FairLinks::start(int32_t lane, double bytes, double now_s) {
  Flow& flow = flows_[static_cast<std::size_t>(lane)];
  flow.left = bytes;
  flow.since_s = now_s;
  flow.rate = 0;
  flow.finish_s = std::numeric_limits<double>::infinity();
  const std::span<const int32_t> path = path_of(lane);
  const std::span<int32_t> places = places_of(lane);
  for (std::size_t i = 0; i < path.size(); ++i) {
    auto& lanes = links_[static_cast<std::size_t>(path[i])].lanes;
    places[i] = static_cast<int32_t>(lanes.size());
    lanes.push_back(lane);
    touch(path[i]);
  }
  started_.push_back(lane);
}

void FairLinks::finish(int32_t lane) {
  const std::span<const int32_t> path = path_of(lane);
  const std::span<int32_t> places = places_of(lane);
  for (std::size_t i = 0; i < path.size(); ++i) {
    auto& lanes = links_[static_cast<std::size_t>(path[i])].lanes;
    const int32_t at = places[i];
    const int32_t moved = lanes.back();
    lanes[static_cast<std::size_t>(at)] = moved;
    lanes.pop_back();
    const std::span<const int32_t> its_path = path_of(moved);
    const std::span<int32_t> its_places = places_of(moved);
    for (std::size_t j = 0; j < its_path.size(); ++j) {
      if (its_path[j] == path[i]) its_places[j] = at;
    }
    touch(path[i]);
  }
}

// Sets the rate of a message. Its end is computed from the bytes that are left, so it changes with the rate only.
void FairLinks::update(int32_t lane, double now_s) {
  Flow& flow = flows_[static_cast<std::size_t>(lane)];
  double rate = std::numeric_limits<double>::infinity();
  for (const int32_t index : path_of(lane)) {
    const Link& link = links_[static_cast<std::size_t>(index)];
    rate = std::min(rate, link.bytes_per_s / static_cast<double>(link.lanes.size()));
  }
  if (rate == flow.rate) return;
  flow.left = std::max(0.0, flow.left - flow.rate * (now_s - flow.since_s));
  flow.since_s = now_s;
  flow.rate = rate;
  const double before_s = flow.finish_s;
  flow.finish_s = now_s + flow.left / rate;
  if (flow.finish_s < before_s) earlier_.push_back(lane);
}

const std::vector<int32_t>& FairLinks::settle(double now_s) {
  earlier_.clear();
  for (const int32_t index : touched_) {
    Link& link = links_[static_cast<std::size_t>(index)];
    link.is_touched = false;
    if (link.lanes.size() == link.settled) continue;
    link.settled = link.lanes.size();
    for (const int32_t lane : link.lanes) update(lane, now_s);
  }
  touched_.clear();
  // Where one message replaced another on a link, the rates of the others have not changed.
  for (const int32_t lane : started_) update(lane, now_s);
  started_.clear();
  return earlier_;
}

}  // namespace fdl
