// This file makes a simulated job of a seed, and lets its faults happen.
#include "tests/simulation/job.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace fdl::simulation {
namespace {

// Longer than any job that does not hang: every deadline of the protocol, one after another, twice.
constexpr int64_t kLimit = 600 * kSecond;

Network::Options network_of(Simulation& simulation) {
  Network::Options options;
  options.hosts = static_cast<int>(simulation.between(1, 3));
  options.slowest = simulation.one_of<int64_t>({200 * kUs, 2 * kMs, 20 * kMs});
  options.buffer = simulation.one_of<int>({4, 16, 64});
  options.hiccup = simulation.one_of<int64_t>({kMs, 5 * kMs, 100 * kMs});
  return options;
}

}  // namespace

// The process that starts the ranks and serves their coordinator. It ends it when all ranks have ended.
class Job::Launcher final : public Actor {
 public:
  Launcher(Network& network, Process& process, Job& job) : Actor(network, process), job_(job) {}
  void turn() override {
    const bool is_over = std::ranges::all_of(job_.ranks_, [](const auto& rank) { return !rank->process().is_alive; });
    if (!is_over) return wake_at(simulation().now() + 100 * kMs);
    for (const auto& coordinator : job_.coordinators_) {
      if (&coordinator->process() != &process() || !coordinator->is_serving()) continue;
      coordinator->stop(kSecond);
      return wake_at(simulation().now() + 100 * kMs);
    }
    network().end(process());
  }

 private:
  Job& job_;
};

Job::Job(uint64_t seed, Program program)
    : program_(program),
      losses_together_from_(seed % 2 == 0 ? 1 : CoordinatorOptions().losses_together_from),
      simulation_(seed),
      network_(simulation_, network_of(simulation_)) {
  if (simulation_.percent(25)) {
    make_elastic();
  } else {
    make_fixed();
  }
  choose_faults();
  if (program_ == Program::late) choose_late_ranks(seed);
}

void Job::make_fixed() {
  const int size = static_cast<int>(simulation_.between(2, 6));
  const bool has_launcher = simulation_.percent(40);
  after_failure_ = simulation_.one_of<Rank::AfterFailure>(
      {Rank::AfterFailure::exit, Rank::AfterFailure::shut_down, Rank::AfterFailure::recover});
  auto world = std::make_unique<World>();
  world->name = "the first world";
  world->has_groups = program_ == Program::named;
  world->is_served_by_rank_0 = !has_launcher;
  world->plan = static_cast<uint64_t>(simulation_.between(0, 1'000'000));
  for (int number = 0; number < size; ++number) {
    Process& process = network_.add_process(fmt::format("rank {}", number), number % network_.options().hosts);
    victims_.push_back(&process);
    ranks_.push_back(std::make_unique<Rank>(network_, process, *this, number, after_failure_));
    world->members.push_back(ranks_.back().get());
  }
  World& first = *(worlds_[world->name] = std::move(world));
  if (has_launcher) {
    Process& process = network_.add_process("the launcher", 0);
    victims_.push_back(&process);
    serve(first, process);
    launcher_ = std::make_unique<Launcher>(network_, process, *this);
    launcher_->wake();
  }
  simulation_.tell("{} ranks on {} hosts; {} serves the coordinator; after a failure ranks {}", size,
                   network_.options().hosts, has_launcher ? "the launcher" : "rank 0",
                   after_failure_ == Rank::AfterFailure::exit        ? "exit"
                   : after_failure_ == Rank::AfterFailure::shut_down ? "shut down"
                                                                     : "recover");
  for (int number = 0; number < size; ++number) rank(number).begin(first, number);
}

// ---- An elastic job ----

void Job::make_elastic() {
  Generations::Limits limits;
  limits.ranks = static_cast<int>(simulation_.between(2, 5));
  limits.most = limits.ranks;
  limits.fewest = static_cast<int>(simulation_.between(1, limits.ranks));
  limits.replacements = static_cast<int>(simulation_.one_of<int64_t>({Generations::kNoLimit, 0, 2}));
  Process& process = network_.add_process("the launcher", 0);
  victims_.push_back(&process);
  elastic_ = std::make_unique<ElasticLauncher>(network_, process, *this, limits);
  elastic_->wake();
  simulation_.tell("an elastic job of {} ranks, at least {}, on {} hosts", limits.ranks, limits.fewest,
                   network_.options().hosts);
}

Rank& Job::start_worker(int worker, ElasticLauncher& launcher) {
  const int number = static_cast<int>(ranks_.size());
  Process& process = network_.add_process(fmt::format("worker {}", worker), number % network_.options().hosts);
  victims_.push_back(&process);
  ranks_.push_back(std::make_unique<Rank>(network_, process, *this, number, Rank::AfterFailure::shut_down));
  ranks_.back()->set_worker(worker);
  ranks_.back()->begin_elastic(launcher);
  return *ranks_.back();
}

World& Job::add_generation(int generation, const std::vector<Rank*>& members, Process& process) {
  auto world = std::make_unique<World>();
  world->name = fmt::format("generation {}", generation);
  world->has_groups = program_ == Program::named;
  world->plan = static_cast<uint64_t>(generation);
  world->members = members;
  World& added = *(worlds_[world->name] = std::move(world));
  serve(added, process);
  return added;
}

Job::~Job() { network_.finish(); }

// ---- For ranks ----

CoordinatorClient::Hello Job::hello_of(const Rank& member, int rank, const World& world) const {
  const int host = member.process().host;
  return {.rank = rank,
          .size = static_cast<int>(world.members.size()),
          .host_name = fmt::format("host-{}", host),
          .boot_id = fmt::format("boot {}", host),
          .process_id = 100 + member.number()};
}

void Job::serve(World& world, Process& process) {
  CoordinatorOptions options;
  options.size = static_cast<int>(world.members.size());
  options.start_timeout_s = world.arrival_timeout_s;
  options.silence_warning_s = kLimits.silence_warning_s;
  options.lost_after_s = kLimits.lost_after_s;
  options.server_name = process.name;
  options.losses_together_from = losses_together_from_;
  CoordinatorClient::Hello own{.rank = -1, .size = 0, .host_name = {}, .boot_id = {}, .process_id = 1};
  if (world.is_served_by_rank_0) own = hello_of(*world.members.front(), -1, world);
  coordinators_.push_back(std::make_unique<CoordinatorActor>(network_, process, options, own));
  world.coordinator = coordinators_.back().get();
  simulation_.tell("{} serves the coordinator of {}", process.name, world.name);
}

World& Job::world_of(uint64_t round, const std::vector<int>& members) {
  const std::string name = fmt::format("world {} of {{{}}}", round, fmt::join(members, ","));
  std::unique_ptr<World>& world = worlds_[name];
  if (world) return *world;
  world = std::make_unique<World>();
  world->name = name;
  world->has_groups = program_ == Program::named;
  world->is_served_by_rank_0 = true;
  world->plan = round;
  for (const int number : members) world->members.push_back(&rank(number));
  return *world;
}

GroupRecord& Job::group_record(const World& world, const std::string& id, const std::vector<int>& members) {
  std::unique_ptr<GroupRecord>& record = records_[world.name + " / " + id];
  if (record) return *record;
  record = std::make_unique<GroupRecord>(members.size());
  record->world = world.name;
  record->members = members;
  return *record;
}

int Job::index_of(const CoordinatorActor& coordinator) const {
  const auto found = std::ranges::find(coordinators_, &coordinator, &std::unique_ptr<CoordinatorActor>::get);
  return static_cast<int>(found - coordinators_.begin());
}

// ---- Faults ----

void Job::choose_faults() {
  const int64_t count = simulation_.one_of<int64_t>({0, 1, 1, 1, 1, 2, 2, 3, 5});
  for (int64_t i = 0; i < count; ++i) faults_.push_back(any_fault());
}

// With dice of their own, so that the rest of the job is that of an ordered one with the same seed.
void Job::choose_late_ranks(uint64_t seed) {
  std::mt19937_64 dice(seed);
  const auto between = [&](int64_t least, int64_t most) {
    return least + static_cast<int64_t>(dice() % static_cast<uint64_t>(most - least + 1));
  };
  for (int64_t count = between(1, 3); count > 0; --count) {
    // Half of them come near the time limit, where one rank may give up while another one goes on.
    const int64_t how_long = between(0, 1) == 0 ? between(29'000, 36'000) * kMs : between(1, 90) * kSecond;
    late_.push_back({static_cast<int>(between(0, 5)), static_cast<int>(between(1, 3)), how_long});
  }
}

int64_t Job::lateness_of(const Rank& member, int set_up) {
  for (const Lateness& late : late_) {
    if (late.rank != member.number() || late.set_up != set_up) continue;
    simulation_.count("ranks that come late to a set-up");
    return late.how_long;
  }
  return 0;
}

Fault Job::any_fault() {
  Fault fault;
  const int64_t what = simulation_.between(0, 99);
  fault.kind = what < 35   ? Fault::Kind::kill
               : what < 60 ? Fault::Kind::pause
               : what < 65 ? Fault::Kind::pause_host
               : what < 70 ? Fault::Kind::jump
               : what < 78 ? Fault::Kind::cut
               : what < 84 ? Fault::Kind::cut_one_way
               : what < 93 ? Fault::Kind::reset
                           : Fault::Kind::slow;
  if (simulation_.percent(60)) {
    fault.event = static_cast<uint64_t>(simulation_.between(0, simulation_.one_of<int64_t>({300, 1000})));
  } else {
    fault.moment = simulation_.between(0, 5 * kSecond);
  }
  fault.victim = static_cast<int>(simulation_.between(0, 1000));  // modulo the number of processes then
  fault.other = static_cast<int>(simulation_.between(0, 100));
  // Far from the limit on both sides of it: an outage near it has either outcome.
  fault.how_long = simulation_.percent(50)   ? simulation_.between(1, 900) * kMs
                   : simulation_.percent(60) ? simulation_.between(1, 6) * kSecond
                                             : simulation_.between(15, 90) * kSecond;
  fault.clock_stands = simulation_.percent(50);
  return fault;
}

void Job::apply(Fault fault) {
  fault.victim %= static_cast<int>(victims_.size());
  Process& victim = *victims_[static_cast<std::size_t>(fault.victim)];
  if (!victim.is_alive) return;
  switch (fault.kind) {
    case Fault::Kind::kill:
      network_.kill(victim);
      break;
    case Fault::Kind::pause:
      network_.pause(victim, fault.how_long);
      break;
    case Fault::Kind::pause_host:
      network_.pause_host(victim.host, fault.how_long, fault.clock_stands);
      break;
    case Fault::Kind::jump:
      network_.jump_clock(victim.host, fault.how_long);
      break;
    case Fault::Kind::cut:
    case Fault::Kind::cut_one_way:
      if (network_.options().hosts == 1) return;
      apply_cut(fault);
      break;
    case Fault::Kind::reset: {
      const auto all = network_.open_connections();
      if (all.empty() || network_.options().hosts == 1) return;  // a connection within a host is not reset
      const auto& one = simulation_.one_of(all);
      if (one->actor(0).process().host == one->actor(1).process().host) return;
      const auto number = [](const Actor& actor) {
        const auto* rank = dynamic_cast<const Rank*>(&actor);
        return rank == nullptr ? -1 : rank->number();
      };
      reset_pairs_.emplace_back(number(one->actor(0)), number(one->actor(1)));
      network_.reset(one);
      break;
    }
    case Fault::Kind::slow:
      network_.slow_down(simulation_.now() + fault.how_long, simulation_.between(1, 300) * kMs);
      break;
  }
  static const std::vector<std::string> kNames{
      "kill", "pause", "pause of a host", "jump of a clock", "cut", "cut in one direction", "reset", "slow network"};
  simulation_.count("fault: " + kNames[static_cast<std::size_t>(fault.kind)]);
  done_.push_back(fault);
  fault_at_ = simulation_.now();
}

// Between the victim's host and all others, or one of them.
void Job::apply_cut(const Fault& fault) {
  const int host = victims_[static_cast<std::size_t>(fault.victim)]->host;
  const int hosts = network_.options().hosts;
  const bool is_one_way = fault.kind == Fault::Kind::cut_one_way;
  const bool is_inward = fault.clock_stands;
  for (int other = 0; other < hosts; ++other) {
    if (other == host) continue;
    if (!is_one_way || is_inward) network_.cut(other, host, fault.how_long);
    if (!is_one_way || !is_inward) network_.cut(host, other, fault.how_long);
  }
}

// ---- The run ----

bool Job::is_over() const { return std::ranges::none_of(network_.processes(), &Process::is_alive); }

void Job::run() {
  for (const Fault& fault : faults_) {
    if (fault.moment != kNever) simulation_.at(fault.moment, [this, fault] { apply(fault); });
  }
  while (!is_over() && simulation_.step(kLimit)) {
    for (const Fault& fault : faults_) {
      if (fault.event == simulation_.steps()) apply(fault);
    }
  }
  check();
}

}  // namespace fdl::simulation
