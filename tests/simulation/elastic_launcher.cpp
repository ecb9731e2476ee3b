// Each turn reads what workers send, finds those that have ended, and carries out what Generations decides.
#include "tests/simulation/elastic_launcher.h"

#include <algorithm>
#include <charconv>

#include "tests/simulation/job.h"

namespace fdl::simulation {
namespace {

constexpr int64_t kLostMember = 5 * kSecond;        // for a member that others have lost to come
constexpr int64_t kCoordinatorGrace = 1 * kSecond;  // for a coordinator after the loss of a member
constexpr int64_t kLook = 20 * kMs;

}  // namespace

ElasticLauncher::ElasticLauncher(Network& network, Process& process, Job& job, const Generations::Limits& limits)
    : Actor(network, process), job_(job), generations_(limits) {}

bool ElasticLauncher::accept(const End& end) {
  unknown_.push_back(end);
  wake();
  return true;
}

void ElasticLauncher::died() {
  unknown_.clear();
  lines_.clear();
}

void ElasticLauncher::turn() {
  read_lines();
  note_ends();
  end_overdue();
  if (!is_over_ && generations_.give_up()) end_job(generations_.give_up()->text);
  if (!is_over_) {
    start_workers();
    begin_generation();
  }
  const bool is_over = generations_.has_finished() || is_over_;
  if (is_over && workers_.empty()) {
    if (world_ != nullptr && world_->coordinator->is_serving()) {
      world_->coordinator->stop(kSecond);
    } else {
      return network().end(process());
    }
  }
  wake_at(simulation().now() + kLook);
}

// ---- Workers ----

void ElasticLauncher::read_lines() {
  const auto read = [this](const End& end) {
    std::vector<Packet> packets;
    static_cast<void>(end.receive(packets));
    for (const Packet& packet : packets) {
      int worker = -1;
      int lost = -1;
      int has_state = 0;
      const char* last = packet.bytes.data() + packet.bytes.size();
      const auto number = std::from_chars(packet.bytes.data(), last, worker);
      const auto other = std::from_chars(number.ptr + 1, last, lost);
      std::from_chars(other.ptr + 1, last, has_state);
      lines_[worker] = end;
      request(worker, lost, has_state == 0);
    }
    return !packets.empty();
  };
  std::erase_if(unknown_, read);
  for (const auto& [worker, end] : std::map<int, End>(lines_)) read(end);
}

// As ElasticJob::join().
void ElasticLauncher::request(int worker, int lost_rank, bool lacks_state) {
  if (!generations_.runs(worker)) return;
  if (generations_.is_member(worker)) {
    const auto lost = generations_.worker_at(lost_rank);
    if (lost && !generations_.has_requested(*lost) && *lost != worker) {
      overdue_.emplace(*lost, clock() + kLostMember);
    }
  }
  overdue_.erase(worker);
  generations_.requested(worker, lacks_state);
  if (is_over_ || generations_.has_finished()) send(worker, LauncherLine::kEnd, "the job has ended");
}

// As ElasticJob::note_end().
void ElasticLauncher::note_ends() {
  for (const auto& [worker, rank] : std::map<int, Rank*>(workers_)) {
    if (rank->process().is_alive) continue;
    workers_.erase(worker);
    lines_.erase(worker);
    overdue_.erase(worker);
    const bool was_member = generations_.is_member(worker);
    const bool is_loss = generations_.ended(worker, rank->has_finished());
    simulation().tell("{}: worker {} has ended{}", process().name, worker, is_loss ? ", which is a loss" : "");
    if (is_loss && was_member && coordinator_ends_ == kNever) coordinator_ends_ = clock() + kCoordinatorGrace;
    if (generations_.has_finished()) {
      for (const auto& [other, end] : lines_) {
        if (generations_.has_requested(other)) send(other, LauncherLine::kEnd, "the job has ended");
      }
    }
  }
}

void ElasticLauncher::end_overdue() {
  if (clock() >= coordinator_ends_) {
    coordinator_ends_ = kNever;
    world_->coordinator->stop(kSecond);
  }
  std::erase_if(overdue_, [this](const auto& one) {
    if (clock() < one.second) return false;
    simulation().tell("{} ends worker {}, which the others have lost", process().name, one.first);
    Process& late = workers_.at(one.first)->process();
    late.was_killed = true;
    network().end(late);
    return true;
  });
}

void ElasticLauncher::send(int worker, int kind, const std::string& text) {
  if (const auto found = lines_.find(worker); found != lines_.end()) found->second.send({.kind = kind, .bytes = text});
}

// ---- Generations ----

void ElasticLauncher::start_workers() {
  while (const auto place = generations_.place_to_start_at()) {
    const int worker = generations_.start(*place);
    workers_[worker] = &job_.start_worker(worker, *this);
    simulation().tell("{} starts worker {}", process().name, worker);
  }
}

// As ElasticJob::begin_if_all_requested().
void ElasticLauncher::begin_generation() {
  const auto next = generations_.begin();
  if (!next) return;
  overdue_.clear();
  coordinator_ends_ = kNever;
  if (world_ != nullptr) world_->coordinator->stop(kSecond);
  std::vector<Rank*> members;
  for (const int worker : next->workers) members.push_back(workers_.at(worker));
  if (next->generation == 1) {
    for (Rank* member : members) member->begin_with_state();
  } else if (!members.front()->holds_state()) {
    simulation().violated(fmt::format("rank 0 of generation {} does not hold the state", next->generation));
  }
  world_ = &job_.add_generation(next->generation, members, process());
  simulation().count("generations");
  for (const int worker : next->workers) send(worker, LauncherLine::kWorld, world_->name);
  for (const int worker : next->dismissed) send(worker, LauncherLine::kEnd, "it is not needed any more");
}

void ElasticLauncher::end_job(const std::string& why) {
  simulation().tell("{} gives up: {}", process().name, why);
  is_over_ = true;
  for (const auto& [worker, end] : lines_) {
    if (generations_.has_requested(worker)) send(worker, LauncherLine::kEnd, why);
  }
  // The supervisor ends those that still run.
  for (const auto& [worker, rank] : workers_) network().end(rank->process());
}

}  // namespace fdl::simulation
