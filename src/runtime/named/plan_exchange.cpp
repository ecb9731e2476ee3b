// PlanExchange connects the sessions of src/agree with the messages of a communicator.
#include "runtime/named/plan_exchange.h"

#include <algorithm>
#include <array>
#include <limits>
#include <unordered_map>

#include "base/log.h"

namespace fdl {
namespace {

// The last message of a root that has left in good order. An empty message ends the plans in all other cases.
constexpr std::array<std::byte, 1> kAllCame{std::byte{1}};

// Locking is disabled in a group of one rank, which sends no messages to save.
NegotiatorOptions negotiator_options(Communicator& comm, const Config& config, const OrderTuning& tuning) {
  std::vector<WorldRank> ranks;
  for (const Member& member : comm.members()) ranks.push_back({.number = member.world_rank, .host = member.host_name});
  return {.size = comm.size(),
          .fusion_bytes = config.fusion_bytes,
          .stall_warning_ns = seconds_to_ns(config.stall_warning_s),
          .stall_shutdown_ns = seconds_to_ns(config.stall_shutdown_s),
          .lock_after = comm.size() == 1 ? 0 : static_cast<int>(std::min<int64_t>(config.lock_after, 1 << 20)),
          .optimistic = comm.readiness_flags() == nullptr,
          .tune = tuning.tune,
          .cut = tuning.cut,
          .world_ranks = std::move(ranks)};
}

AgreementTree tree_of(Communicator& comm, const Config& config) {
  std::unordered_map<std::string, int> numbers;
  std::vector<int> hosts;
  for (const Member& member : comm.members()) {
    hosts.push_back(numbers.emplace(member.host_id, static_cast<int>(numbers.size())).first->second);
  }
  return AgreementTree(comm.rank(), hosts, static_cast<int>(std::min<int64_t>(config.agreement_width, comm.size())));
}

std::vector<int> neighbours_in(const AgreementTree& tree) {
  std::vector<int> neighbours = tree.children();
  if (!tree.is_root()) neighbours.push_back(tree.parent());
  return neighbours;
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

PlanExchange::PlanExchange(Communicator& comm, const Config& config, OrderTuning tuning, NamedTelemetry& telemetry,
                           Receiver& receiver)
    : comm_(comm),
      telemetry_(telemetry),
      receiver_(receiver),
      tree_(tree_of(comm, config)),
      channel_(comm, neighbours_in(tree_)),
      member_(static_cast<std::size_t>(config.cache_capacity)) {
  if (tree_.is_relay()) relay_.emplace(tree_);
  if (tree_.is_root()) {
    root_ = std::make_unique<RootSession>(negotiator_options(comm, config, tuning),
                                          static_cast<std::size_t>(config.cache_capacity));
    tuning_report_.begin(std::move(tuning));
  }
}

bool PlanExchange::progress(Submissions<Entry>& submissions, std::size_t backlog_bytes) {
  bool moved = send(submissions);
  moved |= receive();
  if (relay_) pass_on_requests();
  if (root_has_input_ || (root_ && root_->continues_at(backlog_bytes))) moved |= decide(backlog_bytes);
  if (root_ && now_ns() >= root_->next_alarm_ns()) {
    warn_of_stalls();
    decide(backlog_bytes);  // a stall may have become a failure
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

// One message carries the new requests that fit, the frozen count, the announcement of a shared device and the
// acknowledgement of plans; nothing is sent if there is none of them. The root takes its own message directly.
bool PlanExchange::send(Submissions<Entry>& submissions) {
  const bool unsent = submissions.has_unsent();
  const std::optional<uint64_t> frozen = submissions.take_frozen_count();
  const bool shares = std::exchange(announces_shared_device_, false);
  if (!unsent && !frozen && !shares && !member_.owes_acknowledgement()) return false;
  std::vector<const Request*> requests;
  if (unsent) requests = submissions.take_unsent();
  std::vector<std::byte> bytes = member_.encode_borrowed(requests, frozen, shares);
  if (root_) {
    const Status taken = root_->receive(0, bytes, now_ns());
    FDL_CHECK(taken.ok());
    root_has_input_ = true;
  } else if (relay_) {
    relay_->add(std::move(bytes));
  } else {
    channel_.send(tree_.parent(), std::move(bytes));
  }
  return true;
}

bool PlanExchange::receive() {
  return channel_.progress([this](int peer, ConstBytes bytes) { take_message(peer, bytes); },
                           [this](int peer, const Status& why) {
                             log_debug("messages from rank {} of the group ended: {}", peer, why.text());
                             receiver_.end_peer(peer, why);
                             if (peer == tree_.parent()) end_plans(false);
                           });
}

void PlanExchange::take_message(int peer, ConstBytes bytes) {
  if (peer != tree_.parent()) return take_requests(peer, bytes);
  if (bytes.size() <= kAllCame.size()) return end_plans(!bytes.empty());
  pass_on_plan(bytes);
  take_plan(bytes);
}

void PlanExchange::take_requests(int child, ConstBytes bytes) {
  if (relay_) return reject(child, relay_->receive(child, bytes));
  root_has_input_ = true;
  if (!tree_.relays(child)) return reject(child, root_->receive(child, bytes, now_ns()));
  const auto rejected = root_->receive_relayed(tree_, child, bytes, now_ns());
  if (rejected) reject(rejected->rank, rejected->why);
}

// A rejected message ends the group and names the rank that sent it.
void PlanExchange::reject(int sender, const Status& why) {
  if (why.ok()) return;
  const Member& member = comm_.members()[static_cast<std::size_t>(sender)];
  receiver_.fail_exchange(Status::blame(member.world_rank, member.host_name, why.code(), why.text()));
}

// Sends what has arrived since the last call in one message, unless it is large.
void PlanExchange::pass_on_requests() {
  while (auto bytes = relay_->take()) channel_.send(tree_.parent(), std::move(*bytes));
}

void PlanExchange::pass_on_plan(ConstBytes bytes) {
  for (const int child : tree_.children()) channel_.send(child, {bytes.begin(), bytes.end()});
}

void PlanExchange::leave() { pass_on_plan(root_ ? ConstBytes(kAllCame) : ConstBytes()); }

void PlanExchange::end_plans(bool all_came) {
  pass_on_plan(all_came ? ConstBytes(kAllCame) : ConstBytes());
  receiver_.end_plans(all_came);
}

// Makes the next plan, sends it down the tree and applies it on the root itself.
bool PlanExchange::decide(std::size_t backlog_bytes) {
  root_has_input_ = false;
  const auto bytes = root_->decide(now_ns(), backlog_bytes);
  if (!bytes) return false;
  pass_on_plan(*bytes);
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
    receiver_.report_stall(stall);
    telemetry_.stalled(stall.names.size());
  }
}

}  // namespace fdl
