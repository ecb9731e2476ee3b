// HierarchicalCollectives: writes down up to three stages and runs them one after the other.
#include "engine/hierarchical_collectives.h"

#include <fmt/format.h>

#include <numeric>

#include "algorithms/choose.h"
#include "engine/layout.h"

namespace fdl {
namespace {

std::string_view place_name(bool inside) { return inside ? "inside the host" : "between hosts"; }

}  // namespace

Result<std::unique_ptr<Collectives>> HierarchicalCollectives::make(std::unique_ptr<Collectives> inside,
                                                                   std::unique_ptr<Collectives> between,
                                                                   const Place& place) {
  FDL_ASSIGN_OR_RETURN(Poller poller, Poller::make());
  // A group of one has nothing to wait for.
  if (inside->wake_fd() >= 0) FDL_RETURN_IF_ERROR(poller.add(inside->wake_fd(), 0));
  if (between->wake_fd() >= 0) FDL_RETURN_IF_ERROR(poller.add(between->wake_fd(), 1));
  return std::unique_ptr<Collectives>(
      new HierarchicalCollectives(std::move(inside), std::move(between), place, std::move(poller)));
}

HierarchicalCollectives::HierarchicalCollectives(std::unique_ptr<Collectives> inside,
                                                 std::unique_ptr<Collectives> between, const Place& place,
                                                 Poller poller)
    : inside_(std::move(inside)),
      between_(std::move(between)),
      place_(place),
      poller_(std::move(poller)),
      name_(fmt::format("{} inside hosts, {} between", inside_->name(), between_->name())),
      shares_(static_cast<std::size_t>(place.local_size)) {}

// Sums are made host by host, so neither rank order nor an operation that needs it can be kept.
bool HierarchicalCollectives::can(const CollectiveSpec& spec) const {
  if (!is_auto(spec.algorithm) && spec.algorithm != kWhole) return false;
  CollectiveSpec part = spec;
  part.root = 0;
  switch (spec.collective) {
    case Collective::allreduce: {
      if (spec.deterministic || !spec.reduction.commutative() || !between_->can(part)) return false;
      share_out(spec.count);
      part.collective = Collective::reduce_scatter;
      part.counts = shares_;
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

void HierarchicalCollectives::share_out(std::size_t count) const {
  for (std::size_t i = 0; i < shares_.size(); ++i) shares_[i] = even_share(count, shares_.size(), i);
}

void HierarchicalCollectives::start(const CollectiveSpec& spec, Buffers buffers, Completion& completion) {
  FDL_CHECK(completion_ == nullptr);
  if (!ended_.ok()) return completion.finish(ended_);
  completion_ = &completion;
  stage_count_ = stage_ = 0;
  stage_begun_ = false;
  if (spec.collective == Collective::allreduce) plan_allreduce(spec, buffers);
  if (spec.collective == Collective::broadcast) plan_broadcast(spec, buffers);
  if (spec.collective == Collective::barrier) plan_barrier();
  run_stages();
}

void HierarchicalCollectives::plan_allreduce(const CollectiveSpec& spec, Buffers buffers) {
  share_out(spec.count);
  const std::size_t before = std::accumulate(shares_.begin(), shares_.begin() + place_.local_rank, std::size_t{0});
  auto* own = static_cast<std::byte*>(buffers.output) + before * size_of(spec.dtype);

  CollectiveSpec part = spec;
  part.collective = Collective::reduce_scatter;
  part.counts = shares_;
  part.postscale = 1;
  add(*inside_, part, {buffers.input, own});
  part = spec;
  part.count = shares_[static_cast<std::size_t>(place_.local_rank)];
  part.prescale = 1;
  add(*between_, part, {own, own});
  part = {.collective = Collective::allgather, .dtype = spec.dtype, .counts = shares_};
  add(*inside_, part, {own, buffers.output});
}

// Between hosts only the ranks with the root's local rank take part, each for its host.
void HierarchicalCollectives::plan_broadcast(const CollectiveSpec& spec, Buffers buffers) {
  const int root_host = spec.root / place_.local_size;
  const int root_local = spec.root % place_.local_size;
  CollectiveSpec part = spec;
  if (place_.local_rank == root_local) {
    part.root = root_host;
    add(*between_, part, buffers);
  }
  part.root = root_local;
  add(*inside_, part, {buffers.output, buffers.output});
}

void HierarchicalCollectives::plan_barrier() {
  const CollectiveSpec part{.collective = Collective::barrier};
  add(*inside_, part, {});
  add(*between_, part, {});
  add(*inside_, part, {});
}

bool HierarchicalCollectives::run_stages() {
  bool moved = false;
  while (stage_ < stage_count_) {
    Stage& stage = stages_[stage_];
    if (!stage_begun_) {
      stage_begun_ = true;
      stage_outcome_ = {};
      stage.who->start(stage.spec, stage.buffers, stage_outcome_);
      moved = true;
    } else if (!stage_outcome_.done) {
      moved |= stage.who->progress();
    }
    if (!stage_outcome_.done) return moved;
    if (!stage_outcome_.status.ok()) {
      ended_ = stage_outcome_.status.while_doing(place_name(stage.who == inside_.get()));
      break;
    }
    ++stage_;
    stage_begun_ = false;
  }
  std::exchange(completion_, nullptr)->finish(ended_);
  return true;
}

bool HierarchicalCollectives::progress() {
  if (completion_ != nullptr) return run_stages();
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

std::string HierarchicalCollectives::phase() const {
  if (stage_ >= stage_count_) return {};
  const Stage& stage = stages_[stage_];
  return fmt::format("{} {}: {}", name_of(stage.spec.collective), place_name(stage.who == inside_.get()),
                     stage.who->phase());
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
