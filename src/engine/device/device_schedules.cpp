// DeviceSchedules lowers each schedule to rounds once, and queues the rounds in order.
#include "engine/device/device_schedules.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"
#include "engine/call_facts.h"
#include "engine/device/device_failure.h"
#include "engine/host/aliasing.h"
#include "engine/host/bound_schedule.h"
#include "engine/host/proofs.h"
#include "schedule/lanes.h"
#include "schedule/print/describe.h"
#include "schedule/proof/verify.h"

namespace fdl {
namespace {

constexpr std::size_t kAlignment = 256;  // bytes; that of Device::allocate
// Lowering needs the schedules of all ranks. For larger groups that would take too long at the first collective.
constexpr int kMostRanks = 512;

bool is_named(std::string_view algorithm) { return !is_auto(algorithm) && !is_whole(algorithm); }

bool rooted(Collective collective) {
  return collective == Collective::reduce || collective == Collective::broadcast || collective == Collective::gather ||
         collective == Collective::scatter;
}

}  // namespace

DeviceSchedules::DeviceSchedules(std::unique_ptr<DeviceChannels> channels, Device& device, int rank,
                                 const GroupShape& shape, const Config& config)
    : channels_(std::move(channels)), device_(device), rank_(rank), shape_(shape), config_(config) {}

DeviceSchedules::~DeviceSchedules() {
  if (scratch_ != nullptr) device_.release(scratch_);
  if (scratch_used_ != nullptr) device_.end_event(scratch_used_);
}

// A barrier has no work for a device, and a user's reduction has no code for one.
bool DeviceSchedules::can(const CollectiveSpec& spec) const {
  if (spec.collective == Collective::barrier || spec.reduction.user != nullptr || shape_.ranks > kMostRanks)
    return false;
  if (!is_auto(spec.algorithm)) return is_named(spec.algorithm);
  return is_named(config_.algorithm) && find_algorithm(spec.collective, config_.algorithm).ok();
}

// An algorithm in the call is mandatory; one in the configuration is ignored where it is impossible.
Result<Choice> DeviceSchedules::choose_for(const CollectiveSpec& spec) const {
  const auto bytes = static_cast<int64_t>(known_bytes(spec, shape_.ranks));
  const Need need = need_of(spec, config_.deterministic);
  const auto try_it = [&](std::string_view requested) {
    return choose(spec.collective, shape_, bytes, requested, need.rank_order, true, !need.uneven);
  };
  if (!is_auto(spec.algorithm)) return try_it(spec.algorithm);
  auto configured = try_it(config_.algorithm);
  return configured.ok() ? configured : try_it("auto");
}

std::string_view DeviceSchedules::algorithm_of(const CollectiveSpec& spec) const {
  const auto choice = choose_for(spec);
  return choice.ok() ? choice->algorithm->name : std::string_view();
}

// Writes the schedules of all ranks, because the rounds of one rank depend on those of its peers.
Result<const DeviceSchedules::Lowered*> DeviceSchedules::lowered_for(const Algorithm& algorithm, int root,
                                                                     bool in_place) {
  auto& known = lowered_[{&algorithm, root, in_place}];
  if (known != nullptr) return known.get();
  std::vector<Schedule> all;
  for (int rank = 0; rank < shape_.ranks; ++rank) {
    all.push_back(write_schedule(algorithm, shape_, rank, root));
  }
  FDL_ASSIGN_OR_RETURN(auto rounds, lower_to_rounds(all, in_place));
  if (proves_schedules(config_, shape_.ranks)) {
    const Status proof = verify_rounds(all, rounds, in_place);
    if (!proof.ok()) return proof.while_doing("proving " + std::string(algorithm.name));
  }
  const auto mine = static_cast<std::size_t>(rank_);
  auto lowered = std::make_unique<Lowered>();
  lowered->rounds = std::move(rounds[mine]);
  // The host's analysis of carried copies holds for rounds as well.
  lowered->carries_out = OrderedSchedule(all[mine], in_place).carries_out;
  lowered->schedule = std::move(all[mine]);
  lowered->carried.resize(lowered->carries_out.size());
  for (const int32_t copy : lowered->carries_out) {
    if (copy >= 0) lowered->carried[static_cast<std::size_t>(copy)] = true;
  }
  known = std::move(lowered);
  return known.get();
}

void DeviceSchedules::start(const CollectiveSpec& spec, Buffers buffers, Completion& completion) {
  FDL_CHECK(completion_ == nullptr && spec.device == &device_);
  if (!ended_.ok()) return completion.finish(ended_);
  completion_ = &completion;
  spec_ = spec;
  if (Status refused = begin(spec, buffers); !refused.ok()) {
    return std::exchange(completion_, nullptr)->finish(std::move(refused));
  }
  progress();
}

// As on the host, scaling writes to output if output is as large as input, and otherwise to a copy of the input.
Status DeviceSchedules::begin(const CollectiveSpec& spec, Buffers buffers) {
  // Their rounds wait for events of earlier collectives, which are outside of the graph, and share scratch with them.
  // A device that cannot answer fails in a call that follows.
  if (const auto captured = device_.is_captured(spec.stream); captured.ok() && *captured) {
    return Status(
        Code::unsupported,
        fmt::format("{}: the stream is being captured into a graph, and an algorithm of farandole's own is not "
                    "captured; capture it with algorithm=nccl or auto",
                    name_of(spec.collective)));
  }
  const auto [alias, input] = aliasing_of(spec, buffers, rank_);
  const bool scales = reduces(spec.collective) && spec.prescale != 1;
  const bool into_output = scales && (spec.collective == Collective::allreduce ||
                                      (spec.collective == Collective::reduce && rank_ == spec.root));
  const bool in_place = alias == Alias::in_place || into_output;
  FDL_ASSIGN_OR_RETURN(const Choice choice, choose_for(spec));
  const Algorithm& algorithm = *choice.algorithm;
  FDL_ASSIGN_OR_RETURN(running_,
                       lowered_for(algorithm, rooted(spec.collective) ? spec.root : 0, in_place && algorithm.in_place));
  layout_.assign(running_->schedule, spec);
  const std::size_t bytes = layout_.bytes(Space::input);
  const bool copies = (in_place && !algorithm.in_place) || alias == Alias::copied || (scales && !into_output);
  FDL_RETURN_IF_ERROR(place(copies ? bytes : 0));
  spaces_.of[1] = static_cast<std::byte*>(buffers.output);
  // The input is read from the copy, from output after scaling into it, or from where the caller has it.
  auto* where = copies ? scratch_ : into_output ? spaces_.of[1] : const_cast<std::byte*>(input);
  spaces_.of[0] = where;
  round_ = 0;
  posted_ = false;
  return where == input && !scales ? Status() : scale(where, input, bytes, scales ? spec.prescale : 1);
}

// Lays out one block of device memory: the copy of the input, the schedule's scratch, and its slots. Waits on the
// stream for the previous collective, which may use the block on another stream.
Status DeviceSchedules::place(std::size_t input_copy_bytes) {
  const Rounds& rounds = running_->rounds;
  std::vector<std::size_t> slot_bytes(static_cast<std::size_t>(rounds.slot_count));
  for (std::size_t i = 0; i < rounds.slots.size(); ++i) {
    if (rounds.slots[i] < 0) continue;
    std::size_t& largest = slot_bytes[static_cast<std::size_t>(rounds.slots[i])];
    largest = std::max(largest, layout_.of(running_->schedule.steps[i].target).bytes);
  }
  std::size_t total = round_up(input_copy_bytes, kAlignment);
  const std::size_t scratch_at = total;
  total += round_up(layout_.bytes(Space::scratch), kAlignment);
  const std::size_t slots_at = total;
  for (const std::size_t bytes : slot_bytes) total += round_up(bytes, kAlignment);
  if (total > scratch_bytes_) {
    // The device releases the old block only after queued work that uses it has run.
    if (scratch_ != nullptr) device_.release(std::exchange(scratch_, nullptr));
    scratch_bytes_ = 0;
    FDL_ASSIGN_OR_RETURN(void* memory, device_.allocate(total));
    scratch_ = static_cast<std::byte*>(memory);
    scratch_bytes_ = total;
  }
  if (scratch_used_ == nullptr) {
    FDL_ASSIGN_OR_RETURN(scratch_used_, device_.make_event());
  }
  FDL_RETURN_IF_ERROR(device_.wait(spec_.stream, scratch_used_));
  spaces_.of[2] = scratch_ + scratch_at;
  spaces_.slots.clear();
  std::byte* next = scratch_ + slots_at;
  for (const std::size_t bytes : slot_bytes) {
    spaces_.slots.push_back(next);
    next += round_up(bytes, kAlignment);
  }
  return {};
}

std::byte* DeviceSchedules::address(ChunkRange range) const {
  return spaces_.of[static_cast<int>(range.space)] + layout_.of(range).offset;
}

// Device::reduce with a single source multiplies it by the factor.
Status DeviceSchedules::scale(void* target, const void* source, std::size_t bytes, double factor) {
  if (bytes == 0) return {};
  if (factor == 1) return device_.copy(spec_.stream, target, source, bytes);
  const void* const sources[] = {source};
  return device_.reduce(spec_.stream, spec_.dtype, Op::sum, target, sources, bytes / size_of(spec_.dtype), factor);
}

// Both ends of a message compute its size, and omit empty messages.
bool DeviceSchedules::sends_nothing(const Round& round) const {
  return std::all_of(round.messages.begin(), round.messages.end(), [&](int32_t index) {
    const Step& step = step_at(index);
    return layout_.of(step.kind == StepKind::send ? step.source : step.target).bytes == 0;
  });
}

// Hands the messages of a round to the library as one group.
Status DeviceSchedules::post(const Round& round) {
  FDL_RETURN_IF_ERROR(channels_->begin_group());
  for (const int32_t index : round.messages) {
    const Step& step = step_at(index);
    const ChunkRange range = step.kind == StepKind::send ? step.source : step.target;
    const std::size_t bytes = layout_.of(range).bytes;
    if (bytes == 0) continue;
    if (step.kind == StepKind::send) {
      FDL_RETURN_IF_ERROR(channels_->send(spec_.stream, step.peer, address(range), bytes));
    } else {
      const int32_t slot = running_->rounds.slots[static_cast<std::size_t>(index)];
      std::byte* target = slot < 0 ? address(range) : spaces_.slots[static_cast<std::size_t>(slot)];
      FDL_RETURN_IF_ERROR(channels_->recv(spec_.stream, step.peer, target, bytes));
    }
  }
  return channels_->end_group();
}

// Queues the local work of a round. Copies that a reduction carries out are skipped.
Status DeviceSchedules::work(const Round& round) {
  for (const int32_t index : round.work) {
    const Step& step = step_at(index);
    const auto at = static_cast<std::size_t>(index);
    const std::size_t bytes = layout_.of(step.target).bytes;
    if (bytes == 0 || running_->carried[at]) continue;
    if (step.kind != StepKind::copy) {
      FDL_RETURN_IF_ERROR(fold(step, at));
    } else if (address(step.target) != address(step.source)) {
      FDL_RETURN_IF_ERROR(device_.copy(spec_.stream, address(step.target), address(step.source), bytes));
    }
  }
  return {};
}

// Queues the reduction of a reduce step (consecutive chunks), or of a recv_reduce (its slot and the target).
Status DeviceSchedules::fold(const Step& step, std::size_t index) {
  const std::size_t bytes = layout_.of(step.target).bytes;
  std::byte* target = address(step.target);
  sources_.clear();
  if (step.kind == StepKind::reduce) {
    for (int32_t i = 0; i < step.source.count; ++i) {
      sources_.push_back(address(step.source) + static_cast<std::size_t>(i) * bytes);
    }
  } else {
    const int32_t copy = running_->carries_out[index];
    sources_.push_back(copy < 0 ? target : address(step_at(copy).source));
    sources_.push_back(spaces_.slots[static_cast<std::size_t>(running_->rounds.slots[index])]);
  }
  return device_.reduce(spec_.stream, spec_.dtype, spec_.reduction.op, target, sources_, bytes / size_of(spec_.dtype),
                        1);
}

// Queues rounds and returns whether anything moved. The work of a round is queued once the library has queued its
// messages, which keeps the order on the stream.
Result<bool> DeviceSchedules::advance() {
  const auto& rounds = running_->rounds.rounds;
  bool moved = false;
  for (; round_ < rounds.size(); ++round_, posted_ = false) {
    if (!sends_nothing(rounds[round_])) {
      FDL_ASSIGN_OR_RETURN(bool ready, channels_->ready());
      if (ready && !posted_) {
        FDL_RETURN_IF_ERROR(post(rounds[round_]));
        posted_ = moved = true;
        FDL_ASSIGN_OR_RETURN(ready, channels_->ready());
      }
      if (!ready) return moved;
    }
    FDL_RETURN_IF_ERROR(work(rounds[round_]));
    moved = true;
  }
  return moved;
}

bool DeviceSchedules::progress() {
  if (completion_ == nullptr) return false;
  const auto moved = advance();
  if (moved.ok() && round_ < running_->rounds.rounds.size()) return *moved;
  Status outcome = moved.ok() ? conclude() : moved.status();
  if (!outcome.ok()) ended_ = outcome = as_device_failure(outcome).while_doing(phase());
  std::exchange(completion_, nullptr)->finish(std::move(outcome));
  return true;
}

// Scales the result and marks the end of the use of the scratch block.
Status DeviceSchedules::conclude() {
  const bool scales = reduces(spec_.collective) && spec_.postscale != 1;
  if (scales) FDL_RETURN_IF_ERROR(scale(spaces_.of[1], spaces_.of[1], layout_.bytes(Space::output), spec_.postscale));
  return device_.set(scratch_used_, spec_.stream);
}

void DeviceSchedules::interrupt(const Status& why) {
  if (!ended_.ok()) return;
  ended_ = why;
  if (completion_ != nullptr) std::exchange(completion_, nullptr)->finish(why);
}

std::string DeviceSchedules::phase() const {
  if (running_ == nullptr || completion_ == nullptr) return {};
  const auto& rounds = running_->rounds.rounds;
  if (round_ == rounds.size()) return running_->schedule.name;
  const Round& round = rounds[round_];
  const int32_t first = round.messages.empty() ? round.work.front() : round.messages.front();
  return fmt::format("round {} of {}: {}", round_ + 1, rounds.size(),
                     describe(running_->schedule, static_cast<std::size_t>(first)));
}

// The thread may sleep only while the library is at work on a group.
bool DeviceSchedules::prepare_to_sleep() {
  if (completion_ == nullptr) return true;
  const auto ready = channels_->ready();
  return ready.ok() && !*ready;
}

}  // namespace fdl
