// HierarchicalCollectives lets its two sides take turns: each side runs its own stages and waits for the other's.
#include "engine/host/hierarchical_collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/bytes.h"
#include "engine/host/layout.h"
#include "engine/host/part_transport.h"
#include "engine/host/scheduled_collectives.h"

namespace fdl {
namespace {

// The time that does not overlap is one segment inside the host plus the network's latency for each segment. The sum is
// least if the number of segments grows with the square root of the bytes.
constexpr std::size_t kLeastSegmentBytes = 1_MiB;
constexpr std::size_t kBytesOfRoot = 128_KiB;
constexpr std::size_t kMostSegments = 32;

// Splits `count` elements evenly between the local ranks.
void share_out(std::size_t count, std::vector<std::size_t>& shares) {
  for (std::size_t i = 0; i < shares.size(); ++i) shares[i] = even_share(count, shares.size(), i);
}

std::string_view place_name(bool inside) { return inside ? "inside the host" : "between hosts"; }

}  // namespace

Result<std::unique_ptr<Collectives>> HierarchicalCollectives::make(std::unique_ptr<Collectives> inside,
                                                                   std::unique_ptr<Collectives> between,
                                                                   const Place& place) {
  FDL_ASSIGN_OR_RETURN(Poller poller, Poller::make());
  // A group of one rank has no descriptor.
  if (inside->wake_fd() >= 0) FDL_RETURN_IF_ERROR(poller.add(inside->wake_fd(), 0));
  if (between->wake_fd() >= 0) FDL_RETURN_IF_ERROR(poller.add(between->wake_fd(), 1));
  return std::unique_ptr<Collectives>(
      new HierarchicalCollectives(std::move(inside), std::move(between), place, std::move(poller)));
}

Result<std::unique_ptr<Collectives>> HierarchicalCollectives::make(std::unique_ptr<Collectives> inside,
                                                                   Transport& transport, int rank,
                                                                   const GroupShape& shape, const Config& config) {
  const int locals = shape.ranks_per_host;
  const int position = shape.order.position(rank);
  const Place place{.local_rank = position % locals,
                    .local_size = locals,
                    .host = position / locals,
                    .hosts = shape.hosts,
                    .order = shape.order};
  std::vector<int> across;
  for (int i = 0; i < place.hosts; ++i) across.push_back(shape.order.rank(i * locals + place.local_rank));
  auto between = std::make_unique<ScheduledCollectives>(std::make_unique<PartTransport>(transport, std::move(across)),
                                                        place.host, shape_between_hosts(shape), config);
  return make(std::move(inside), std::move(between), place);
}

HierarchicalCollectives::HierarchicalCollectives(std::unique_ptr<Collectives> inside,
                                                 std::unique_ptr<Collectives> between, const Place& place,
                                                 Poller poller)
    : inside_(std::move(inside)),
      between_(std::move(between)),
      place_(place),
      poller_(std::move(poller)),
      name_(fmt::format("{} inside hosts, {} between", inside_->name(), between_->name())),
      shares_(static_cast<std::size_t>(place.local_size)),
      counts_(shares_.size()) {
  memory_.runner = inside_.get();
  network_.runner = between_.get();
}

// The result is computed host by host, so neither rank order nor an operation that requires it is supported.
bool HierarchicalCollectives::can(const CollectiveSpec& spec) const {
  if (!is_auto(spec.algorithm) && !is_whole(spec.algorithm)) return false;
  CollectiveSpec part = spec;  // as each side would get it
  part.root = 0;
  switch (spec.collective) {
    case Collective::allreduce: {
      if (spec.deterministic || !spec.reduction.commutative() || !between_->can(part)) return false;
      share_out(spec.count, counts_);
      part.collective = Collective::reduce_scatter;
      part.counts = counts_;
      if (!inside_->can(part)) return false;
      part.collective = Collective::allgather;
      return inside_->can(part);
    }
    case Collective::broadcast:
    case Collective::barrier:
      return inside_->can(part) && between_->can(part);
    default:
      return false;
  }
}

std::size_t HierarchicalCollectives::segments_of(std::size_t bytes) {
  if (bytes < 2 * kLeastSegmentBytes) return 1;
  const auto root = static_cast<std::size_t>(std::sqrt(static_cast<double>(bytes) / static_cast<double>(kBytesOfRoot)));
  return std::min({root, bytes / kLeastSegmentBytes, kMostSegments});
}

HierarchicalCollectives::Segment HierarchicalCollectives::segment(std::size_t index) const {
  Segment result;
  for (std::size_t i = 0; i < index; ++i) result.first += even_share(spec_.count, segment_count_, i);
  result.count = even_share(spec_.count, segment_count_, index);
  return result;
}

void HierarchicalCollectives::start(const CollectiveSpec& spec, Buffers buffers, Completion& completion) {
  FDL_CHECK(completion_ == nullptr);
  if (!ended_.ok()) return completion.finish(ended_);
  completion_ = &completion;
  spec_ = spec;
  spec_.algorithm = "auto";  // `whole` selects this class and means nothing to its sides
  buffers_ = buffers;
  memory_.done = network_.done = 0;
  memory_.begun = network_.begun = false;
  if (spec.collective == Collective::allreduce) {
    segment_count_ = segments_of(spec.count * size_of(spec.dtype));
    memory_.stages = 2 * segment_count_;
    network_.stages = segment_count_;
  } else if (spec.collective == Collective::broadcast) {
    // Between hosts only the ranks with the root's local rank take part, each on behalf of its host.
    memory_.stages = 1;
    network_.stages = place_.local_rank == place_.order.position(spec.root) % place_.local_size ? 1 : 0;
  } else {
    memory_.stages = 2;
    network_.stages = 1;
  }
  run();
}

HierarchicalCollectives::Stage HierarchicalCollectives::stage_inside(std::size_t index) {
  if (spec_.collective == Collective::allreduce) return allreduce_inside(index);
  if (spec_.collective == Collective::barrier) return {spec_, {}, index};
  CollectiveSpec part = spec_;
  part.root = place_.order.position(spec_.root) % place_.local_size;
  return {part, {buffers_.output, buffers_.output}, network_.stages};
}

HierarchicalCollectives::Stage HierarchicalCollectives::stage_between(std::size_t index) {
  if (spec_.collective == Collective::allreduce) return allreduce_between(index);
  if (spec_.collective == Collective::barrier) return {spec_, {}, 1};
  CollectiveSpec part = spec_;
  part.root = place_.order.position(spec_.root) / place_.local_size;
  return {part, buffers_, 0};
}

// Scatters one segment ahead:   memory    S0 S1 G0 S2 G1 S3 G2 G3      S: reduce_scatter   G: allgather
//                               network      A0 A1 A2 A3               A: allreduce
// The prescale is applied by S, the postscale by A.
HierarchicalCollectives::Stage HierarchicalCollectives::allreduce_inside(std::size_t index) {
  const std::size_t last = segment_count_ - 1;
  const bool scatters = index == 0 || (index % 2 == 1 && index / 2 < last);
  const std::size_t number = scatters ? (index + 1) / 2 : (index == 2 * last + 1 ? last : index / 2 - 1);
  const Segment part = segment(number);
  share_out(part.count, shares_);
  const std::size_t before = std::accumulate(shares_.begin(), shares_.begin() + place_.local_rank, std::size_t{0});
  const std::size_t element = size_of(spec_.dtype);
  const auto* input = static_cast<const std::byte*>(buffers_.input) + part.first * element;
  auto* output = static_cast<std::byte*>(buffers_.output) + part.first * element;
  CollectiveSpec stage = spec_;
  stage.counts = shares_;
  stage.count = 0;
  stage.postscale = 1;
  if (scatters) {
    stage.collective = Collective::reduce_scatter;
    return {stage, {input, output + before * element}, 0};
  }
  return {{.collective = Collective::allgather,
           .dtype = spec_.dtype,
           .counts = shares_,
           .device = spec_.device,
           .stream = spec_.stream},
          {output + before * element, output},
          number + 1};
}

HierarchicalCollectives::Stage HierarchicalCollectives::allreduce_between(std::size_t index) {
  const Segment part = segment(index);
  const auto locals = static_cast<std::size_t>(place_.local_size);
  std::size_t first = part.first;
  for (std::size_t i = 0; i < static_cast<std::size_t>(place_.local_rank); ++i) {
    first += even_share(part.count, locals, i);
  }
  auto* own = static_cast<std::byte*>(buffers_.output) + first * size_of(spec_.dtype);
  CollectiveSpec stage = spec_;
  stage.count = even_share(part.count, locals, static_cast<std::size_t>(place_.local_rank));
  stage.prescale = 1;
  // `after` counts the memory side's stages up to this segment's scatter: S0; S0 S1; S0 S1 G0 S2; and so on.
  return {stage, {own, own}, index == 0 ? 1 : 2 * index};
}

// Advances one side and returns whether anything moved. `side.done` grows when a stage ends.
bool HierarchicalCollectives::take_turn(Side& side, Side& other) {
  if (side.done == side.stages) return false;
  bool moved = false;
  if (!side.begun) {
    const Stage stage = &side == &memory_ ? stage_inside(side.done) : stage_between(side.done);
    if (other.done < stage.after) return false;
    side.begun = moved = true;
    side.outcome = {};
    side.running = stage.spec;
    side.runner->start(side.running, stage.buffers, side.outcome);
  } else {
    moved = side.runner->progress();
  }
  if (!side.outcome.done) return moved;
  side.begun = false;
  ++side.done;
  if (!side.outcome.status.ok()) {
    ended_ = side.outcome.status.while_doing(place_name(&side == &memory_));
    // The other side may be in flight. Interrupting it passes the reason on to its ranks.
    other.runner->interrupt(ended_);
  }
  return true;
}

// Alternates between the sides until neither ends a stage, and finishes the collective when all stages are done.
bool HierarchicalCollectives::run() {
  bool moved = false;
  std::size_t before = 0;
  do {
    before = memory_.done + network_.done;
    moved |= take_turn(memory_, network_);
    if (ended_.ok()) moved |= take_turn(network_, memory_);
  } while (ended_.ok() && memory_.done + network_.done > before);
  const bool all_done = memory_.done == memory_.stages && network_.done == network_.stages;
  if (ended_.ok() && !all_done) return moved;
  std::exchange(completion_, nullptr)->finish(ended_);
  return true;
}

bool HierarchicalCollectives::progress() {
  // Without a collective in flight both sides still serve their transports.
  if (completion_ != nullptr) return run();
  if (!ended_.ok()) return false;
  const bool inside = inside_->progress();
  return between_->progress() || inside;
}

void HierarchicalCollectives::interrupt(const Status& why) {
  if (!ended_.ok()) return;
  ended_ = why;
  inside_->interrupt(why);
  between_->interrupt(why);
  if (completion_ != nullptr) std::exchange(completion_, nullptr)->finish(why);
}

// Where both sides are at work, the network is reported, because it is the slower one.
std::string HierarchicalCollectives::phase() const {
  const Side& side = network_.begun || !memory_.begun ? network_ : memory_;
  if (!side.begun) return {};
  return fmt::format("{} {}: {}", name_of(side.running.collective), place_name(&side == &memory_),
                     side.runner->phase());
}

bool HierarchicalCollectives::prepare_to_sleep() {
  prepared_ = 1;
  if (!inside_->prepare_to_sleep()) return false;
  prepared_ = 2;
  return between_->prepare_to_sleep();
}

void HierarchicalCollectives::finish_sleep() {
  if (prepared_ > 0) inside_->finish_sleep();
  if (prepared_ > 1) between_->finish_sleep();
  prepared_ = 0;
}

}  // namespace fdl
