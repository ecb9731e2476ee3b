// What must hold of the named operations of a simulated job, whatever has happened to it.
#include <algorithm>
#include <set>

#include "tests/simulation/job.h"

namespace fdl::simulation {

void Job::check_named() {
  for (const auto& [key, record] : records_) {
    check_endings(*record);
    check_order(*record);
  }
  check_stall_texts();
}

// No operation is half done: if it has succeeded on a rank, it fails on another one only because the whole group does.
// Ranks that get an error of the operation get the same one.
void Job::check_endings(const GroupRecord& record) {
  for (const auto& [title, by_rank] : record.endings) {
    const bool has_result = std::ranges::any_of(by_rank, [](const auto& one) { return one.second.status.ok(); });
    std::map<std::string, int> texts;
    for (const auto& [rank, ending] : by_rank) {
      if (ending.status.ok() || ending.is_of_group) continue;
      texts.emplace(ending.status.text(), rank);
      if (has_result) {
        simulation_.violated(fmt::format("{} / {} has succeeded on a rank, and fails on rank {}: {}", record.world,
                                         title, record.members[static_cast<std::size_t>(rank)], ending.status.text()));
      }
    }
    if (texts.size() > 1) {
      std::string all;
      for (const auto& [text, rank] : texts) all += fmt::format("\n    rank {}: {}", rank, text);
      simulation_.violated(fmt::format("{} / {} has several errors:{}", record.world, title, all));
    }
  }
}

// All ranks run the operations of a group in one order.
void Job::check_order(const GroupRecord& record) {
  for (std::size_t rank = 1; rank < record.ended.size(); ++rank) {
    const auto common = [&](const std::vector<std::string>& of, const std::vector<std::string>& other) {
      const std::set<std::string> there(other.begin(), other.end());
      std::vector<std::string> both;
      std::ranges::copy_if(of, std::back_inserter(both), [&](const auto& title) { return there.contains(title); });
      return both;
    };
    const auto first = common(record.ended[0], record.ended[rank]);
    const auto second = common(record.ended[rank], record.ended[0]);
    const auto at = std::ranges::mismatch(first, second);
    if (at.in1 == first.end()) continue;
    simulation_.violated(fmt::format("{}: rank {} runs {} where rank {} runs {}", record.world, record.members[0],
                                     *at.in1, record.members[rank], *at.in2));
  }
}

// A rank that a stall names as missing has not submitted the name, or so short before that the root cannot know.
void Job::check_stall(const GroupRecord& record, const std::string& text) {
  const std::size_t missing = text.find("missing: ");
  const std::string names = text.substr(0, text.find(" ("));
  const std::string ranks = text.substr(missing, text.find(';', missing) - missing);
  if (!done_.empty()) return;  // what a rank has submitted may be on its way for long
  for (std::size_t rank = 0; rank < record.members.size(); ++rank) {
    if (ranks.find(fmt::format("rank {} (", record.members[rank])) == std::string::npos) continue;
    for (const auto& [key, since] : record.submitted) {
      const bool is_named = names.find("'" + key.second + "'") != std::string::npos;
      if (key.first != static_cast<int>(rank) || !is_named) continue;
      if (record.pending.contains(key) && simulation_.now() - since > kSecond) {
        simulation_.violated(fmt::format("rank {} has submitted '{}', and the stall report is: {}",
                                         record.members[rank], key.second, text));
      }
    }
  }
}

// All ranks read what a root has reported, if nothing has happened to them.
void Job::check_stall_texts() {
  if (!done_.empty() || elastic_) return;
  for (const auto& [key, record] : records_) {
    // A locked order is left after half a second, and a name is reported 2 s after that.
    if (record->longest_wait > 4 * kSecond && record->stalls.empty()) {
      simulation_.violated(fmt::format("{}: an operation has waited for {:.1f} s, and no stall is reported", key,
                                       static_cast<double>(record->longest_wait) / 1e9));
    }
    for (const auto& [text, moment] : record->stalls) {
      for (const Rank* member : worlds_.at(record->world)->members) {
        const bool has_time = member->has_finished() && member->finished_at() - moment > kSecond;
        if (has_time && std::ranges::count(member->stalls(), text) == 0) {
          simulation_.violated(fmt::format("{} does not read of a stall: {}", member->process().name, text));
        }
      }
    }
  }
}

}  // namespace fdl::simulation
