// DeviceWatch: questions, answers that are compared, and the words for what they mean.
#include "runtime/device/device_watch.h"

#include <fmt/format.h>

#include <algorithm>

namespace fdl {
namespace {

constexpr std::size_t kLateRanksNamed = 8;
// In as long as a stall may last: so that two answers are there when it is over.
constexpr int64_t kQuestions = 3;

int64_t shorter_of(int64_t a, int64_t b) { return a <= 0 ? b : b <= 0 ? a : std::min(a, b); }

std::string name_of_member(const Member& who) {
  if (who.host_name.empty()) return fmt::format("rank {}", who.world_rank);
  return fmt::format("rank {} ({})", who.world_rank, who.host_name);
}

}  // namespace

DeviceWatch::DeviceWatch(std::string id, std::vector<Member> members, int rank, const Terms& terms)
    : id_(std::move(id)),
      members_(std::move(members)),
      me_(static_cast<std::size_t>(rank)),
      terms_(terms),
      timeout_ns_(shorter_of(terms.warning_ns, terms.shutdown_ns) / kQuestions) {}

void DeviceWatch::begin_again(const Communicator::DeviceWork& work, int64_t now_ns) {
  stands_still_ = true;
  work_ = work;
  since_ns_ = now_ns;
  next_question_ns_ = now_ns + timeout_ns_;
  next_warning_ns_ = now_ns + terms_.warning_ns;
  answers_.clear();
  before_.clear();
  confirmed_ = false;
}

DeviceWatch::Wish DeviceWatch::look(const Communicator::DeviceWork& work, const NameOf& name_of, int64_t now_ns) {
  Wish wish;
  if (!work.in_flight || timeout_ns_ <= 0 || members_.size() == 1) {
    stands_still_ = false;
    return wish;
  }
  if (!stands_still_ || work.by_host != work_.by_host || work.passed != work_.passed) begin_again(work, now_ns);
  // What the host has in hand may take its time where nobody is late: a long collective on a slow network does.
  if (confirmed_ && !(work_.by_host && late().empty())) {
    if (terms_.warning_ns > 0 && now_ns >= next_warning_ns_) {
      wish.warning = fmt::format("communicator '{}': {}", id_, tell(name_of, now_ns));
      next_warning_ns_ = now_ns + (now_ns - since_ns_);  // ever more rarely
    } else if (terms_.shutdown_ns > 0 && now_ns - since_ns_ >= terms_.shutdown_ns) {
      wish.failure = failure(name_of, now_ns);
      return wish;
    }
  }
  if (now_ns >= next_question_ns_) {
    wish.question = ++question_;
    next_question_ns_ = now_ns + timeout_ns_;
    answers_.assign(members_.size(), std::nullopt);
    answers_[me_] = Answer{static_cast<int64_t>(work_.begun), true};
  }
  return wish;
}

Status DeviceWatch::failure(const NameOf& name_of, int64_t now_ns) const {
  const std::string text = tell(name_of, now_ns) + " (stall_shutdown_s)";
  const auto ranks = late();
  if (ranks.empty()) return Status(Code::timeout, text);
  const Member& culprit = members_[ranks.front()];
  return Status::blame(culprit.world_rank, culprit.host_name, Code::timeout, text);
}

// More than this one had called when things came to a stand does not matter: only a host that runs ahead.
void DeviceWatch::told(int world_rank, uint64_t question, Answer answer) {
  if (!stands_still_ || question != question_ || answers_.empty()) return;
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

// The first that not all have begun; or, where no rank is late, the first that need not have ended everywhere.
std::string DeviceWatch::tell(const NameOf& name_of, int64_t now_ns) const {
  const double seconds = static_cast<double>(std::max<int64_t>(now_ns - since_ns_, 0) / 100'000'000) / 10;
  const auto ranks = late();
  auto begun = static_cast<int64_t>(work_.begun);
  if (ranks.empty()) {
    for (const auto& one : before_) begun = std::min(begun, one->begun);
    return fmt::format(
        "{}, or what its stream has before it, has not ended for {:g} s, and all ranks have begun it: a "
        "device is at work for so long, or one of them or the network between them stands still; "
        "NCCL_DEBUG=WARN on all ranks tells more",
        name_of(static_cast<uint64_t>(begun)), seconds);
  }
  std::string names;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Answer& answer = *before_[ranks[i]];
    if (answer.begun >= 0) begun = std::min(begun, answer.begun + 1);
    if (i >= kLateRanksNamed) continue;
    const std::string has = answer.begun < 0 ? "which has no such communicator (any more)"
                                             : fmt::format("which has begun {} there", answer.begun);
    names += fmt::format("{}{}, {}", i == 0 ? "" : "; ", name_of_member(members_[ranks[i]]), has);
  }
  if (ranks.size() > kLateRanksNamed) names += fmt::format("; and {} more", ranks.size() - kLateRanksNamed);
  return fmt::format("{} has waited {:g} s for {}: see what {} there", name_of(static_cast<uint64_t>(begun)), seconds,
                     names, ranks.size() == 1 ? "it does" : "they do");
}

}  // namespace fdl
