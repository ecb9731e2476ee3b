// ScheduledCollectives chooses and caches schedules, scales before and after, and lets the Executor move the data.
#include "engine/host/scheduled_collectives.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/log.h"
#include "contract/tags.h"
#include "engine/call_facts.h"
#include "engine/host/aliasing.h"
#include "engine/host/proofs.h"
#include "schedule/proof/verify.h"

namespace fdl {
namespace {

// FNV-1a over 64-bit words, with the high bits folded down.
class Hash {
 public:
  Hash& add(uint64_t word) {
    state_ = (state_ ^ word) * 0x100000001b3;
    state_ ^= state_ >> 29;
    return *this;
  }
  Hash& add(std::string_view text) {
    for (const char c : text) add(static_cast<uint64_t>(c));
    return add(text.size());
  }
  Hash& add(std::span<const std::size_t> numbers) {
    for (const std::size_t number : numbers) add(number);
    return add(numbers.size());
  }
  uint64_t value() const { return state_; }
  uint32_t folded() const { return static_cast<uint32_t>(state_ ^ (state_ >> 32)); }

 private:
  uint64_t state_ = 0xcbf29ce484222325;
};

// A part of a compressed collective has the tag of the whole: other arguments of that may lead to the same bytes.
uint32_t final_tag(uint32_t tag, const CollectiveSpec& spec) {
  if (spec.part_of == nullptr) [[likely]]
    return make_tag(tag, Compression::none);
  const CollectiveSpec& whole = *spec.part_of;
  const uint32_t hash = Hash()
                            .add(tag)
                            .add(static_cast<uint64_t>(whole.collective))
                            .add(whole.count)
                            .add(whole.counts)
                            .add(std::bit_cast<uint64_t>(whole.prescale))
                            .add(std::bit_cast<uint64_t>(whole.postscale))
                            .folded();
  return make_tag(hash, whole.compression);
}

bool equal(std::span<const std::size_t> a, std::span<const std::size_t> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

// The tag of every slice is a hash of the arguments that all ranks must give alike. An alltoall's counts differ between
// ranks, so they are left out; the transport compares its sizes message by message.
uint32_t tag_of(const CollectiveSpec& spec, std::string_view algorithm) {
  Hash hash;
  hash.add(static_cast<uint64_t>(spec.collective)).add(algorithm).add(static_cast<uint64_t>(spec.root));
  if (spec.collective == Collective::barrier) return hash.folded();
  hash.add(static_cast<uint64_t>(spec.dtype));
  if (spec.collective != Collective::alltoall) hash.add(spec.count).add(spec.counts);
  return hash.folded();
}

}  // namespace

bool ScheduledCollectives::PlanKey::matches(const CollectiveSpec& spec, bool in_place_call, bool rank_order) const {
  return collective == spec.collective && dtype == spec.dtype && commutative == spec.reduction.commutative() &&
         deterministic == rank_order && in_place == in_place_call && root == spec.root && count == spec.count &&
         algorithm == spec.algorithm && equal(counts, spec.counts) && equal(recv_counts, spec.recv_counts);
}

void ScheduledCollectives::PlanKey::assign(const CollectiveSpec& spec, bool in_place_call, bool rank_order) {
  collective = spec.collective;
  dtype = spec.dtype;
  commutative = spec.reduction.commutative();
  deterministic = rank_order;
  in_place = in_place_call;
  root = spec.root;
  count = spec.count;
  algorithm = spec.algorithm;
  counts.assign(spec.counts.begin(), spec.counts.end());
  recv_counts.assign(spec.recv_counts.begin(), spec.recv_counts.end());
}

ScheduledCollectives::ScheduledCollectives(Transport* transport, int rank, const GroupShape& shape,
                                           const Config& config)
    : transport_(transport),
      rank_(rank),
      shape_(shape),
      config_(config),
      limits_{.slice_bytes = std::max(config.slice_bytes, std::size_t{1}), .staging_bytes = config.staging_bytes} {
  FDL_CHECK((transport == nullptr) == (shape.ranks == 1));
  if (transport != nullptr) executor_ = std::make_unique<Executor>(*transport);
}

ScheduledCollectives::ScheduledCollectives(std::unique_ptr<Transport> transport, int rank, const GroupShape& shape,
                                           const Config& config)
    : ScheduledCollectives(transport.get(), rank, shape, config) {
  own_transport_ = std::move(transport);
}

void ScheduledCollectives::start(const CollectiveSpec& spec, Buffers buffers, Completion& completion) {
  FDL_CHECK(completion_ == nullptr);
  if (!ended_.ok()) return completion.finish(ended_);
  if (transport_ == nullptr) return run_alone(spec, buffers, completion);
  if (Status refused = launch(spec, buffers); !refused.ok()) return completion.finish(std::move(refused));
  completion_ = &completion;
  progress();
}

// Moves nothing: an invalid call fails before it affects any peer.
Status ScheduledCollectives::launch(const CollectiveSpec& spec, Buffers buffers) {
  auto [alias, input] = aliasing_of(spec, buffers, rank_);
  auto* output = static_cast<std::byte*>(buffers.output);
  const bool root = rank_ == spec.root;
  // Scaling may write to output if output is as large as input; otherwise it needs a copy of the input.
  const bool scales = reduces(spec.collective) && spec.prescale != 1;
  const bool scales_into_output =
      scales && (spec.collective == Collective::allreduce || (spec.collective == Collective::reduce && root));

  FDL_ASSIGN_OR_RETURN(Plan * plan, plan_for(spec, alias == Alias::in_place || scales_into_output));
  const std::size_t input_bytes = plan->bound.layout.bytes(Space::input);
  const std::size_t elements = input_bytes / size_of(spec.dtype);
  const double prescale = scales ? spec.prescale : 1;
  if (plan->copies_input || alias == Alias::copied || (scales && !scales_into_output)) {
    std::byte* copy = input_copy_.at_least(input_bytes);
    if (elements > 0) scale(spec.dtype, copy, input, elements, prescale);
    input = copy;
  } else if (scales) {
    if (elements > 0) scale(spec.dtype, output, input, elements, prescale);
    input = output;
  }

  running_ = plan;
  output_ = output;
  postscale_ = reduces(spec.collective) ? spec.postscale : 1;
  std::byte* scratch = scratch_.at_least(plan->bound.layout.bytes(Space::scratch));
  // The tag also covers the operation, which the cached plan does not. Multiplying spreads it over all bits.
  const uint32_t operation = reduces(spec.collective) ? static_cast<uint32_t>(spec.reduction.op) + 1 : 0;
  executor_->start(plan->bound, {.input = input, .output = output, .scratch = scratch}, spec.reduction,
                   final_tag(plan->tag + operation * 0x9e3779b1u, spec));
  return {};
}

bool ScheduledCollectives::progress() {
  if (transport_ == nullptr || !ended_.ok()) return false;
  // Without a collective in flight the transport still serves messages and other users.
  if (completion_ == nullptr) return transport_->progress();
  const bool moved = executor_->progress();
  if (executor_->done()) {
    const std::size_t elements = running_->bound.layout.bytes(Space::output) / size_of(running_->bound.dtype);
    if (postscale_ != 1 && elements > 0) scale(running_->bound.dtype, output_, output_, elements, postscale_);
    finish({});
    return true;
  }
  if (moved) return true;
  Status failure = executor_->failure();
  if (failure.ok()) return false;
  // The peer may have finished its part and left between the two calls. What it sent before it left still counts.
  if (executor_->progress()) return true;
  last_phase_ = executor_->phase();
  ended_ = failure.during(name_of(running_->key.collective), last_phase_).while_doing(last_phase_);
  finish(ended_);
  return true;
}

void ScheduledCollectives::finish(Status outcome) {
  Completion* completion = std::exchange(completion_, nullptr);
  if (completion != nullptr) completion->finish(std::move(outcome));
}

void ScheduledCollectives::interrupt(const Status& why) {
  if (!ended_.ok()) return;
  last_phase_ = phase();
  ended_ = why;
  finish(why);
}

// The phase in flight, otherwise the phase at the failure, otherwise the last schedule's name.
std::string ScheduledCollectives::phase() const {
  if (completion_ != nullptr) return executor_->phase();
  if (!last_phase_.empty()) return last_phase_;
  return running_ == nullptr ? std::string() : running_->bound.ordered->schedule.name;
}

std::string_view ScheduledCollectives::algorithm_of(const CollectiveSpec& spec) const {
  if (transport_ == nullptr) return {};
  const auto choice = choose_for(spec);
  return choice.ok() ? choice->algorithm->name : std::string_view();
}

// Only the direct peer is known; that peer may itself wait for another rank.
std::vector<int> ScheduledCollectives::late_ranks() {
  const int peer = completion_ == nullptr ? -1 : executor_->waiting_for();
  return peer < 0 ? std::vector<int>() : std::vector<int>{peer};
}

// A group of one rank copies unless input and output are the same. It scales twice, as larger groups do.
void ScheduledCollectives::run_alone(const CollectiveSpec& spec, Buffers buffers, Completion& completion) {
  if (!is_auto(spec.algorithm)) {
    if (auto known = find_algorithm(spec.collective, spec.algorithm); !known.ok()) {
      return completion.finish(known.status());
    }
  }
  const bool vector = spec.collective == Collective::allreduce || spec.collective == Collective::reduce ||
                      spec.collective == Collective::broadcast;
  const std::size_t elements = spec.collective == Collective::barrier ? 0 : (vector ? spec.count : spec.counts[0]);
  if (elements > 0) {
    const bool scales = reduces(spec.collective);
    scale(spec.dtype, buffers.output, buffers.input, elements, scales ? spec.prescale : 1);
    if (scales && spec.postscale != 1) scale(spec.dtype, buffers.output, buffers.output, elements, spec.postscale);
  }
  completion.finish();
}

Result<ScheduledCollectives::Plan*> ScheduledCollectives::plan_for(const CollectiveSpec& spec, bool in_place) {
  const bool rank_order = spec.deterministic || config_.deterministic;
  Hash hash;
  hash.add(static_cast<uint64_t>(spec.collective) << 32 | static_cast<uint64_t>(spec.dtype) << 16 |
           (in_place ? 1u : 0u));
  hash.add(static_cast<uint64_t>(spec.root)).add(spec.count).add(spec.counts);
  // Probes a few neighbours, so that two shapes that alternate do not evict each other.
  std::unique_ptr<Plan>* free_place = nullptr;
  for (std::size_t i = 0; i < 4; ++i) {
    std::unique_ptr<Plan>& candidate = plans_[(hash.value() + i) % plans_.size()];
    if (candidate != nullptr && candidate->key.matches(spec, in_place, rank_order)) return candidate.get();
    if (candidate == nullptr && free_place == nullptr) free_place = &candidate;
  }
  std::unique_ptr<Plan>& place = free_place != nullptr ? *free_place : plans_[hash.value() % plans_.size()];

  FDL_ASSIGN_OR_RETURN(const Choice choice, choose_for(spec));
  const Algorithm& algorithm = *choice.algorithm;
  const bool rooted = spec.collective == Collective::reduce || spec.collective == Collective::broadcast ||
                      spec.collective == Collective::gather || spec.collective == Collective::scatter;
  FDL_ASSIGN_OR_RETURN(const OrderedSchedule* ordered,
                       schedule_for(algorithm, rooted ? spec.root : 0, in_place && algorithm.in_place, choice));
  if (place == nullptr || place->bound.ordered != ordered) place = std::make_unique<Plan>(*ordered);
  // Rebinding a plan of the same schedule reuses its memory.
  place->key.assign(spec, in_place, rank_order);
  place->bound.bind(spec, limits_);
  place->copies_input = in_place && !algorithm.in_place;
  place->tag = tag_of(spec, algorithm.name);
  return place.get();
}

// An algorithm in the call is mandatory. One in the configuration applies only to the collectives that have it.
Result<Choice> ScheduledCollectives::choose_for(const CollectiveSpec& spec) const {
  const auto bytes = static_cast<int64_t>(known_bytes(spec, shape_.ranks));
  const Need need = need_of(spec, config_.deterministic);
  const auto try_it = [&](std::string_view requested) {
    return choose(spec.collective, shape_, bytes, requested, need.rank_order, true, !need.uneven);
  };
  if (!is_auto(spec.algorithm)) return try_it(spec.algorithm);
  if (!is_auto(config_.algorithm)) {
    if (auto configured = try_it(config_.algorithm); configured.ok()) return configured;
  }
  return try_it("auto");
}

// Returns the cached schedule, or writes it. Schedules do not depend on counts, so there are few of them.
Result<const OrderedSchedule*> ScheduledCollectives::schedule_for(const Algorithm& algorithm, int root, bool in_place,
                                                                  const Choice& choice) {
  auto& known = schedules_[{&algorithm, root, in_place}];
  if (known == nullptr) {
    FDL_RETURN_IF_ERROR(prove(algorithm, root, in_place));
    known = std::make_unique<OrderedSchedule>(write_schedule(algorithm, shape_, rank_, root), in_place);
    log_debug("{} of {} ranks by {}: {}", name_of(algorithm.collective), shape_.ranks, algorithm.name, choice.why);
  }
  return known.get();
}

// Writes the schedules of all ranks and verifies that together they compute the collective.
Status ScheduledCollectives::prove(const Algorithm& algorithm, int root, bool in_place) const {
  if (!proves_schedules(config_, shape_.ranks)) return {};
  std::vector<Schedule> all;
  for (int rank = 0; rank < shape_.ranks; ++rank) all.push_back(write_schedule(algorithm, shape_, rank, root));
  const auto proof = verify(all, in_place);
  if (proof.ok()) return {};
  return proof.status().while_doing("proving " + std::string(algorithm.name));
}

}  // namespace fdl
