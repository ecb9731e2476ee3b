// DeviceWatch schedules the queries, compares the answers, and words the report.
#include "runtime/device/device_watch.h"

#include <fmt/format.h>

#include <algorithm>

namespace fdl {
namespace {

// Texts name at most so many late ranks, and count the rest.
constexpr std::size_t kLateRanksNamed = 8;
// Queries within the shorter limit: with three, two complete sets of answers are there when the limit is reached.
constexpr int64_t kQueriesPerLimit = 3;

// 0 stands for "no limit".
int64_t shorter_of(int64_t a, int64_t b) { return a <= 0 ? b : b <= 0 ? a : std::min(a, b); }

}  // namespace

DeviceWatch::DeviceWatch(std::string id, const Members& members, int rank, const Limits& limits)
    : id_(std::move(id)),
      members_(members),
      me_(static_cast<std::size_t>(rank)),
      limits_(limits),
      query_interval_ns_(shorter_of(limits.warning_ns, limits.shutdown_ns) / kQueriesPerLimit) {}

void DeviceWatch::begin_again(const Communicator::DeviceWork& work, int64_t now_ns) {
  is_stuck_ = true;
  work_ = work;
  since_ns_ = now_ns;
  next_query_ns_ = now_ns + query_interval_ns_;
  next_warning_ns_ = now_ns + limits_.warning_ns;
  answers_.clear();
  before_.clear();
  confirmed_ = false;
}

DeviceWatch::Actions DeviceWatch::update(const Communicator::DeviceWork& work, const NameOf& name_of, int64_t now_ns) {
  Actions actions;
  if (!work.in_flight || query_interval_ns_ <= 0 || members_.size() == 1) {
    is_stuck_ = false;
    return actions;
  }
  if (!is_stuck_ || work.by_host != work_.by_host || work.passed != work_.passed) begin_again(work, now_ns);
  // A collective that the host runs may take long on a slow network, so it is reported only if a rank is late.
  if (confirmed_ && !(work_.by_host && late().empty())) {
    if (limits_.warning_ns > 0 && now_ns >= next_warning_ns_) {
      actions.warning = fmt::format("communicator '{}': {}", id_, describe(name_of, now_ns));
      next_warning_ns_ = now_ns + (now_ns - since_ns_);  // the interval doubles with each warning
    } else if (limits_.shutdown_ns > 0 && now_ns - since_ns_ >= limits_.shutdown_ns) {
      actions.failure = failure(name_of, now_ns);
      return actions;
    }
  }
  if (now_ns >= next_query_ns_) {
    actions.query = ++query_;
    next_query_ns_ = now_ns + query_interval_ns_;
    answers_.assign(members_.size(), std::nullopt);
    answers_[me_] = Answer{static_cast<int64_t>(work_.begun), true};
  }
  return actions;
}

Status DeviceWatch::failure(const NameOf& name_of, int64_t now_ns) const {
  const std::string text = describe(name_of, now_ns) + " (stall_shutdown_s)";
  const auto ranks = late();
  if (ranks.empty()) return Status(Code::timeout, text);
  const Member& culprit = members_[ranks.front()];
  return Status::blame(culprit.world_rank, culprit.host_name, Code::timeout, text);
}

// `begun` is cut to this rank's own number: a host that runs ahead would otherwise change its answer each time, and no
// two sets of answers would be equal.
void DeviceWatch::on_answer(int world_rank, uint64_t query, Answer answer) {
  if (!is_stuck_ || query != query_ || answers_.empty()) return;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].world_rank != world_rank || i == me_) continue;
    answer.begun = std::min(answer.begun, static_cast<int64_t>(work_.begun));
    answers_[i] = answer;
  }
  if (std::all_of(answers_.begin(), answers_.end(), [](const auto& one) { return one.has_value(); })) compare_answers();
}

void DeviceWatch::compare_answers() {
  confirmed_ = answers_ == before_;
  before_ = std::exchange(answers_, {});
}

std::vector<std::size_t> DeviceWatch::late() const {
  std::vector<std::size_t> ranks;
  for (std::size_t i = 0; i < before_.size(); ++i) {
    if (!before_[i]->waiting && before_[i]->begun < static_cast<int64_t>(work_.begun)) ranks.push_back(i);
  }
  return ranks;
}

// Names the first collective that some rank has not begun. If no rank is late, names the first one that may not have
// ended everywhere.
std::string DeviceWatch::describe(const NameOf& name_of, int64_t now_ns) const {
  const int64_t tenths = std::max<int64_t>(now_ns - since_ns_, 0) / 100'000'000;
  const double seconds = static_cast<double>(tenths) / 10;
  const auto ranks = late();
  auto begun = static_cast<int64_t>(work_.begun);
  if (ranks.empty()) {
    for (const auto& one : before_) begun = std::min(begun, one->begun);
    return fmt::format(
        "{}, or what its stream has before it, has not ended for {:g} s, and all ranks have begun it: a "
        "device computes for that long, or a device or the network between them is stuck; "
        "NCCL_DEBUG=WARN on all ranks shows more",
        name_of(static_cast<uint64_t>(begun)), seconds);
  }
  std::string names;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Answer& answer = *before_[ranks[i]];
    if (answer.begun >= 0) begun = std::min(begun, answer.begun + 1);
    if (i >= kLateRanksNamed) continue;
    const std::string has = answer.begun < 0 ? "which has no such communicator (any more)"
                                             : fmt::format("which has begun {} there", answer.begun);
    names += fmt::format("{}{}, {}", i == 0 ? "" : "; ", fdl::name_of(members_[ranks[i]]), has);
  }
  if (ranks.size() > kLateRanksNamed) names += fmt::format("; and {} more", ranks.size() - kLateRanksNamed);
  return fmt::format("{} has waited {:g} s for {}: see what {} there", name_of(static_cast<uint64_t>(begun)), seconds,
                     names, ranks.size() == 1 ? "it does" : "they do");
}

}  // namespace fdl
