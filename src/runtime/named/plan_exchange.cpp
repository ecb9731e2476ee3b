// PlanExchange connects the sessions of src/agree with the messages of a communicator.
#include "runtime/named/plan_exchange.h"

#include <algorithm>
#include <limits>

#include "base/log.h"

namespace fdl {
namespace {

// Locking is disabled in a group of one rank, which sends no messages to save.
NegotiatorOptions negotiator_options(Communicator& comm, const Config& config, const OrderTuning& tuning,
                                     const std::vector<std::string>& rank_names) {
  return {.size = comm.size(),
          .fusion_bytes = config.fusion_bytes,
          .stall_warning_ns = seconds_to_ns(config.stall_warning_s),
          .stall_shutdown_ns = seconds_to_ns(config.stall_shutdown_s),
          .lock_after = comm.size() == 1 ? 0 : static_cast<int>(std::min<int64_t>(config.lock_after, 1 << 20)),
          .optimistic = comm.readiness_flags() == nullptr,
          .tune = tuning.tune,
          .cut = tuning.cut,
          .rank_names = rank_names};
}

bool has_counts(RequestKind kind) {
  return kind == RequestKind::allreduce || kind == RequestKind::broadcast || kind == RequestKind::reduce_scatter;
}

// Checks a bucket against the size of the group. The decoder checks only what a message itself shows.
bool fits_group(const Bucket& bucket, int ranks) {
  const auto size = static_cast<std::size_t>(ranks);
  return !bucket.error.empty() ||
         ((bucket.kind != RequestKind::allgather || bucket.rows.size() == size) &&
          (bucket.kind != RequestKind::alltoall || bucket.rows.size() == size * size) &&
          (!has_counts(bucket.kind) || bucket.element_counts.size() == bucket.names.size()) &&
          (bucket.kind != RequestKind::broadcast || (bucket.root >= 0 && bucket.root < ranks)));
}

}  // namespace

PlanExchange::PlanExchange(Communicator& comm, const Config& config, const std::vector<std::string>& rank_names,
                           OrderTuning tuning, NamedTelemetry& telemetry, Receiver& receiver)
    : comm_(comm),
      telemetry_(telemetry),
      receiver_(receiver),
      channel_(comm),
      member_(static_cast<std::size_t>(config.cache_capacity)) {
  if (comm.rank() == 0) {
    root_ = std::make_unique<RootSession>(negotiator_options(comm, config, tuning, rank_names),
                                          static_cast<std::size_t>(config.cache_capacity));
    tuning_report_.begin(std::move(tuning));
  }
}

bool PlanExchange::progress(Submissions<Entry>& submissions) {
  bool moved = send(submissions);
  moved |= receive();
  if (root_has_input_) moved |= decide();
  if (root_ && now_ns() >= root_->next_alarm_ns()) {
    warn_of_stalls();
    decide();  // a stall may have become a failure
  }
  return moved;
}

int64_t PlanExchange::next_alarm_ns() const {
  return root_ ? root_->next_alarm_ns() : std::numeric_limits<int64_t>::max();
}

void PlanExchange::depart(int rank) {
  if (!root_) return;
  root_->leave(rank);
  root_has_input_ = true;
}

void PlanExchange::left_order(uint64_t rounds, bool completed) {
  if (!root_) return;
  root_->left_order(rounds, completed);
  root_has_input_ = true;
}

void PlanExchange::finish_round() {
  StepTuner* tuner = root_ ? root_->tuner() : nullptr;
  if (tuner == nullptr || tuner->done()) return;
  root_->finish_round(now_ns());
  root_has_input_ |= tuner->block_is_over();
}

std::vector<Stall> PlanExchange::waiting(std::size_t most) const {
  return root_ ? root_->waiting(most, now_ns()) : std::vector<Stall>();
}

void PlanExchange::update_trace() {
  if (!root_) return;
  if (telemetry_.trace() != nullptr) {
    root_->watch([this](int from, const Request& request) { telemetry_.trace()->ready(from, request); });
  } else {
    root_->watch({});
  }
}

// One message carries all new requests, the frozen count and the acknowledgement of plans; nothing is sent if there is
// none of them. The root takes its own message directly.
bool PlanExchange::send(Submissions<Entry>& submissions) {
  const bool unsent = submissions.has_unsent();
  const std::optional<uint64_t> frozen = submissions.take_frozen_count();
  if (!unsent && !frozen && !member_.owes_acknowledgement()) return false;
  std::vector<const Request*> requests;
  if (unsent) requests = submissions.take_unsent();
  std::vector<std::byte> bytes = member_.encode_borrowed(requests, frozen);
  if (root_) {
    const Status taken = root_->receive(0, bytes, now_ns());
    FDL_CHECK(taken.ok());
    root_has_input_ = true;
  } else {
    channel_.send(0, std::move(bytes));
  }
  return true;
}

// Other ranks than the root receive plans only.
bool PlanExchange::receive() {
  return channel_.progress(
      [this](int peer, ConstBytes bytes) { root_ ? take_requests(peer, bytes) : take_plan(bytes); },
      [this](int peer, const Status& why) {
        log_debug("messages from rank {} of the group ended: {}", peer, why.text());
        receiver_.end_peer(why);
      });
}

// A rejected message ends the group and names the rank that sent it.
void PlanExchange::take_requests(int peer, ConstBytes bytes) {
  const Status taken = root_->receive(peer, bytes, now_ns());
  root_has_input_ |= taken.ok();
  if (taken.ok()) return;
  const Member& sender = comm_.members()[static_cast<std::size_t>(peer)];
  receiver_.fail_exchange(Status::blame(sender.world_rank, sender.host_name, taken.code(), taken.text()));
}

// Makes the next plan, sends it to all members and applies it on the root itself.
bool PlanExchange::decide() {
  root_has_input_ = false;
  const auto bytes = root_->decide(now_ns());
  if (!bytes) return false;
  for (int peer = 1; peer < comm_.size(); ++peer) channel_.send(peer, *bytes);
  take_plan(*bytes);
  if (StepTuner* tuner = root_->tuner(); tuner != nullptr) tuning_report_.update(*tuner);
  return true;
}

void PlanExchange::take_plan(ConstBytes bytes) {
  auto plan = member_.decode_plan(bytes);
  if (!plan.ok()) return receiver_.fail_exchange(plan.status());
  const auto fits = [this](const Bucket& bucket) { return fits_group(bucket, comm_.size()); };
  if (!std::ranges::all_of(plan->buckets, fits) || !std::ranges::all_of(plan->locked, fits)) {
    return receiver_.fail_exchange(Status(Code::internal, "the group's root sent a plan that does not fit a group of " +
                                                              std::to_string(comm_.size()) +
                                                              " ranks; please report it"));
  }
  receiver_.take_plan(plan.take());
}

// Reports the tensors that wait for some ranks, with the names of these ranks. Only the root has this information.
void PlanExchange::warn_of_stalls() {
  for (const Stall& stall : root_->stalls(now_ns())) {
    receiver_.report_stall(stall.text);
    telemetry_.stalled(stall.names.size());
  }
}

}  // namespace fdl
