// What must hold at the end of a simulated job, whatever has happened to it.
#include <algorithm>
#include <set>

#include "tests/simulation/job.h"

namespace fdl::simulation {
namespace {

// A fault of a shorter time has no consequence. Near the limit it depends on the moment.
constexpr int64_t kSurely = 9 * kSecond;

}  // namespace

void Job::check() {
  check_end();
  check_one_outcome();
  check_set_ups();
  check_times();
  if (elastic_) {
    check_elastic();
  } else {
    check_recovery();
  }
  check_nothing_left();
  check_named();
}

// ---- The end ----

void Job::check_end() {
  for (const Process& process : network_.processes()) {
    if (process.is_alive) simulation_.violated(process.name + " hangs");
  }
  // A clock that jumps takes the time that such a wait has.
  const bool has_jumped = std::ranges::any_of(
      done_, [](const Fault& fault) { return fault.kind == Fault::Kind::jump && fault.how_long >= kSurely; });
  if (simulation_.counts().contains("decisions that never came") && !has_jumped) {
    simulation_.violated("a rank waited for a decision in vain");
  }
  if (!is_harmless()) return;
  for (const auto& rank : ranks_) {
    if (rank->has_unconfirmed_end()) simulation_.violated(rank->process().name + ": its end is not confirmed");
    if (!rank->has_finished()) simulation_.violated(rank->process().name + " fails without a reason");
  }
}

// Whether nothing has happened that shows as more than a delay.
bool Job::is_harmless() const {
  int64_t all = 0;
  for (const Fault& fault : done_) {
    if (fault.kind == Fault::Kind::kill || fault.kind == Fault::Kind::reset) return false;
    all += fault.how_long;
  }
  // Operations by name may have a limit of 12 s, and a rank may be late by 7 s without a fault.
  return all < (program_ == Program::named ? 4 * kSecond : kSurely);
}

// Whether the clock of a host has jumped so far that a wait for a decision may have ended too early there.
bool Job::has_jumped(int host) const {
  return std::ranges::any_of(done_, [&](const Fault& fault) {
    return fault.kind == Fault::Kind::jump && fault.how_long >= kSurely &&
           victims_[static_cast<std::size_t>(fault.victim)]->host == host;
  });
}

// ---- Which ranks errors may name ----

// A rank whose connection to the coordinator is reset is lost for the others, and they are for it.
bool Job::is_unhurt(const Process& process) const {
  const auto is_of_process = [&](const std::pair<int, int>& pair) {
    const int number = std::max(pair.first, pair.second);
    return std::min(pair.first, pair.second) < 0 && number >= 0 &&
           &ranks_[static_cast<std::size_t>(number)]->process() == &process;
  };
  return !process.was_killed && process.longest_pause < kSurely && std::ranges::none_of(reset_pairs_, is_of_process);
}

bool Job::was_cut_off(int host) const {
  for (int other = 0; other < network_.options().hosts; ++other) {
    if (other != host && network_.was_cut_for(host, other, kSurely)) return true;
  }
  return false;
}

// A rank may be named that was killed or stopped, that has ended by itself, or that was cut off from another one. What
// has happened to the process that serves the coordinator, or to a clock, may look like that.
bool Job::may_be_lost(const Rank& named, const Rank& speaker, const World& world) const {
  const Process& process = named.process();
  if (!is_unhurt(process) || !process.is_alive || named.has_ended_calls()) return true;
  if (was_cut_off(process.host) || was_cut_off(speaker.process().host)) return true;
  const Process* server = world.coordinator == nullptr ? nullptr : &world.coordinator->process();
  if (server != nullptr && was_cut_off(server->host)) return true;
  // Short faults one after the other may be as long as one that loses a rank.
  int64_t short_ones = 0;
  for (const Fault& fault : done_) {
    if (fault.how_long < kSurely) short_ones += fault.how_long;
  }
  if (short_ones >= kSurely || (server != nullptr && !is_unhurt(*server))) return true;
  // The time limits of a third rank, whose report is decided, pass with its clock.
  for (int host = 0; host < network_.options().hosts; ++host) {
    if (has_jumped(host)) return true;
  }
  // The end of a connection to a coordinator (-1) that was reset looks like the end of the rank that serves it.
  return std::ranges::any_of(reset_pairs_, [&](const auto& pair) {
    return pair.first == named.number() || pair.second == named.number() ||
           (std::min(pair.first, pair.second) == -1 && std::max(pair.first, pair.second) == speaker.number());
  });
}

void Job::check_blame(const Rank& speaker, const World& world, const std::string& where, const Status& outcome) {
  const int culprit = outcome.error().culprit_rank;
  if (culprit < 0) return;
  const Rank& named = *world.members[static_cast<std::size_t>(culprit)];
  if (speaker.process().was_killed || may_be_lost(named, speaker, world)) return;
  if (says_late(outcome)) return;  // Rank::check_late() has checked that
  // A rank that comes just before the time limit of the others leaves too little time to connect. All have begun then,
  // and the decision names the end of some connection that is missing.
  const auto has_just_begun = [&](const Rank* one) { return one->has_just_begun(where); };
  if (outcome.code() == Code::timeout && std::ranges::any_of(world.members, has_just_begun)) return;
  simulation_.violated(fmt::format("{}: {} names {}, which is well: {}", speaker.process().name, where,
                                   named.process().name, outcome.text()));
}

// ---- One outcome ----

// All ranks that nothing has happened to have one text. A coordinator that dies while it sends may have told it to some
// of them only; if that is all that has happened, they all have the text about its end.
void Job::check_one_outcome() {
  std::map<std::string, std::map<std::string, std::vector<int>>> texts;  // by place and host, then by text
  const bool is_cut = std::ranges::any_of(done_, [](const Fault& fault) {
    return fault.kind == Fault::Kind::cut || fault.kind == Fault::Kind::cut_one_way || fault.kind == Fault::Kind::reset;
  });
  // A process that was stopped reads the same as the others when it continues, if nothing else has happened and the
  // last words of the others fit into a buffer that it does not read: the reason why a rank leaves a stopped
  // coordinator too.
  const bool is_pause = done_.size() == 1 && done_.front().kind == Fault::Kind::pause;
  const bool last_words_fit = network_.options().buffer >= 64;
  const bool is_one_stop = is_pause && last_words_fit;
  for (const auto& rank : ranks_) {
    if ((!is_unhurt(rank->process()) && !is_one_stop) || has_jumped(rank->process().host)) continue;
    if (rank->process().has_missed) continue;
    const std::string side = is_cut ? fmt::format(" on host {}", rank->process().host) : "";
    for (const auto& [where, outcome] : rank->outcomes()) {
      const World& world = *worlds_.at(where.substr(0, where.find(" / ")));
      const CoordinatorActor* coordinator = world.coordinator;
      const bool is_unhurt_there = coordinator != nullptr && is_unhurt(coordinator->process());
      // It has ended by itself: its process has failed like others, perhaps while it sent news of one of those, or its
      // launcher begins another generation. In ordered jobs the news always arrives first, unless the network drops it
      // in an elastic job, or the process has failed because of a rank that left, and ends with its own report of that,
      // or several ranks wait for a late one and end together.
      const auto server = std::ranges::find_if(ranks_, [&](const auto& one) {
        return coordinator != nullptr && &one->process() == &coordinator->process();
      });
      const bool leaves_too = server != ranks_.end() && (*server)->outcomes().contains(where) &&
                              (*server)->outcomes().at(where).why.code() == Code::shut_down;
      const bool may_end_first =
          is_unhurt_there && (program_ != Program::ordered || (elastic_ && is_cut) || leaves_too);
      if (may_end_first && outcome.ended > coordinator->served_until()) continue;
      const bool is_served_well = is_unhurt_there && !was_cut_off(coordinator->process().host);
      // A late rank does not wait, so it does not look at a coordinator that does not answer.
      const bool has_one_cause = done_.size() == 1 && (!is_pause || last_words_fit) && program_ != Program::late;
      if (!is_served_well && !has_one_cause) continue;
      // A late rank reads the decision, which may add what had failed before. The others had the news of a rank that
      // left.
      std::string text(outcome.why.text());
      if (program_ == Program::late) text.resize(std::min(text.size(), text.find("; shortly before")));
      texts[where + side][text].push_back(rank->number());
    }
  }
  for (const auto& [where, by_text] : texts) {
    if (by_text.size() < 2) continue;
    std::string all;
    for (const auto& [text, numbers] : by_text) all += fmt::format("\n    rank {}: {}", numbers.front(), text);
    simulation_.violated(where + " has several outcomes:" + all);
  }
}

// A communicator that a rank has made is made on all its ranks, unless a fault has divided them.
void Job::check_set_ups() {
  if (!is_harmless()) return;
  for (const auto& rank : ranks_) {
    for (const auto& [where, outcome] : rank->outcomes()) {
      for (const auto& other : ranks_) {
        if (outcome.why.code() != Code::timeout || !other->made().contains(where)) continue;
        simulation_.violated(fmt::format("{} has made {}, and {} has not: {}", other->process().name, where,
                                         rank->process().name, outcome.why.text()));
      }
    }
  }
}

// ---- How soon ----

// After one fault, a call that waits fails soon: at once if a process has ended, and after lost_after_s if it is
// stopped.
void Job::check_times() {
  if (done_.size() != 1) return;
  const Fault& fault = done_.front();
  const auto is_about_late = [this](const Status& why) {
    return program_ == Program::late && why.code() == Code::timeout;
  };
  const bool is_kill = fault.kind == Fault::Kind::kill;
  if (!is_kill && (fault.kind != Fault::Kind::pause || fault.how_long < kLostAfter + 5 * kSecond)) return;
  const int64_t limit = is_kill ? 2 * kSecond : kLostAfter + 3 * kSecond;
  for (const auto& rank : ranks_) {
    if (!is_unhurt(rank->process())) continue;
    for (const auto& [where, outcome] : rank->outcomes()) {
      const World& world = *worlds_.at(where.substr(0, where.find(" / ")));
      const int culprit = outcome.why.error().culprit_rank;
      const int64_t took = outcome.ended - std::max(outcome.began, fault_at_);
      if (took <= limit || culprit < 0 || is_about_late(outcome.why)) continue;
      // The rank that is named may also have ended later, because of the fault.
      if (is_unhurt(world.members[static_cast<std::size_t>(culprit)]->process())) continue;
      simulation_.violated(fmt::format("{}: {} fails only after {:.1f} s", rank->process().name, where,
                                       static_cast<double>(took) / 1e9));
    }
  }
}

// ---- Recovery ----

// The survivors of kills make one world, unless some come too late. So do those of each side of a cut, if it lasts
// until both have.
void Job::check_recovery() {
  if (after_failure_ != Rank::AfterFailure::recover || program_ == Program::late) return;
  const bool only_kills =
      std::ranges::all_of(done_, [](const Fault& fault) { return fault.kind == Fault::Kind::kill; });
  const bool is_one_cut = done_.size() == 1 && done_.front().kind == Fault::Kind::cut &&
                          network_.options().hosts == 2 && done_.front().how_long >= 50 * kSecond;
  if (!only_kills && !is_one_cut) return;
  for (const auto& rank : ranks_) {
    if (rank->process().was_killed) continue;
    const bool began = !rank->start_failures().contains("the first world");
    if (began && !rank->has_finished())
      simulation_.violated(rank->process().name + " was not killed, and did not recover");
  }
}

// While only workers are killed, the job ends as planned, or with a reason of Generations.
void Job::check_elastic() {
  const bool only_kills =
      std::ranges::all_of(done_, [](const Fault& fault) { return fault.kind == Fault::Kind::kill; });
  if (!only_kills || elastic_->process().was_killed || elastic_->has_finished() || elastic_->give_up()) return;
  simulation_.violated("the elastic job ends without a reason");
}

// ---- What is left ----

void Job::check_nothing_left() {
  for (const auto& coordinator : coordinators_) {
    const JobMembership& membership = coordinator->membership();
    if (!coordinator->process().was_killed && membership.is_empty() && membership.open_entries() > 0) {
      simulation_.violated(fmt::format("the coordinator of {} keeps {} entries after all ranks have gone",
                                       coordinator->process().name, membership.open_entries()));
    }
  }
  for (const auto& connection : network_.open_connections()) {
    simulation_.violated(fmt::format("the connection of {} and {} is left", connection->actor(0).process().name,
                                     connection->actor(1).process().name));
  }
}

}  // namespace fdl::simulation
