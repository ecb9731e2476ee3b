// A simulated worker of an elastic job requests a generation of its launcher, takes part in it, and requests the next
// one when it has failed.
#include <algorithm>

#include "tests/simulation/elastic_launcher.h"
#include "tests/simulation/job.h"
#include "tests/simulation/rank.h"

namespace fdl::simulation {

void Rank::begin_elastic(Actor& launcher) {
  program_ = run_elastic(&launcher);
  wake();
}

Task<> Rank::run_elastic(Actor* launcher) {
  auto delay = sleep(simulation().between(0, simulation().percent(20) ? 2 * kSecond : 50 * kMs));
  co_await delay;
  const auto attempt = std::make_shared<Attempt>();
  begin_connect(launcher, attempt);
  auto until_connected = wait([attempt] { return attempt->is_over(); }, kNever);
  co_await until_connected;
  if (!attempt->made) co_return;
  const End line = *attempt->made;
  int lost = -1;
  while (true) {
    line.send({.kind = LauncherLine::kRequest,
               .bytes = fmt::format("{} {} {}", worker_, lost, world_ == nullptr || holds_state_ ? 1 : 0)});
    auto until_told = wait([line] { return line.has_news(); }, kNever);
    co_await until_told;
    std::vector<Packet> packets;
    static_cast<void>(line.receive(packets));
    if (packets.empty() || packets.back().kind != LauncherLine::kWorld) {
      simulation().tell("{} ends: {}", name(), packets.empty() ? "the launcher has ended" : packets.back().bytes);
      co_return;
    }
    world_ = &job_.world(packets.back().bytes);
    rank_ = static_cast<int>(std::ranges::find(world_->members, this) - world_->members.begin());
    simulation().tell("{} is rank {} of {}", name(), rank_, world_->name);
    auto starting = start();
    Status status = co_await starting;
    if (!status.ok()) {
      note_start_failure(status);
    } else {
      auto working = work();
      status = co_await working;
    }
    has_finished_ = status.ok();
    finished_at_ = simulation().now();
    lost = status.ok() ? -1 : status.error().culprit_rank;
    auto ending = shut_down(has_finished_ ? seconds_to_ns(kLimits.lost_after_s) : kSecond);
    co_await ending;
    link_.reset();
    comms_.clear();
    if (has_finished_) co_return;
  }
}

}  // namespace fdl::simulation
