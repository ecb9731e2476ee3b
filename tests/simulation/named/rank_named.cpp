// A simulated rank makes groups as Runtime::open_group() does, and runs phases of named operations on them.
#include <algorithm>

#include "engine/late_ranks.h"
#include "tests/simulation/job.h"
#include "tests/simulation/named/named_phase.h"
#include "tests/simulation/named/simulated_clock.h"
#include "tests/simulation/rank.h"

namespace fdl::simulation {
namespace {

constexpr int kMostRounds = 10'000;  // a rank that still moves after so many never rests

bool is_overdue(const std::string& tensor) { return tensor.starts_with("overdue"); }

std::string title_of(const NamedPhase& phase, const NamedTensor& tensor, int round) {
  return fmt::format("{} of {}, round {}", tensor.name, phase.name, round);
}

}  // namespace

std::vector<SimulatedGroup*> Rank::groups() const {
  std::vector<SimulatedGroup*> all;
  for (const auto& comm : comms_) {
    if (comm->group) all.push_back(comm->group.get());
  }
  return all;
}

DrivenSet::Hooks Rank::hooks_of_groups() {
  return {
      .on_stuck = [this](Communicator& comm, int64_t /*waited*/) { probe_for(comm); },
      .on_failure_report = [this](Communicator& comm, const Status& failure) { report(*comm_of(comm.id()), failure); }};
}

// As the progress thread: advances until nothing moves any more, and then sleeps.
void Rank::drive_groups() {
  driven_.finish_sleep();
  for (int round = 0;; ++round) {
    if (round == kMostRounds) return simulation().violated(name() + " never rests");
    if (driven_.progress()) continue;
    driven_.watch(clock());
    if (driven_.prepare_to_sleep([](Driven& /*driven*/) { return true; })) break;
    driven_.finish_sleep();
  }
  for (SimulatedGroup* group : groups()) group->note_epochs();
}

// As Runtime::on_suspect().
void Rank::probe_for(Communicator& comm) {
  if (!link_) return;
  std::vector<int> others = comm_of(comm.id())->members;
  std::erase(others, rank_);
  std::vector<int> probed = ranks_to_probe(others, rank_);
  const InFlight waiting = comm.in_flight();
  if (waiting.any) probed.insert(probed.end(), waiting.ranks.begin(), waiting.ranks.end());
  link_->protocol().probe(probed, clock());
}

// The connections become those of the group's communicator.
void Rank::make_group(Comm& comm) {
  SimulatedGroup::Parts parts{.id = comm.id, .rank = comm.mine, .settings = group_settings(world_->plan)};
  for (const int rank : comm.members) {
    const CoordinatorClient::Hello hello =
        job_.hello_of(*world_->members[static_cast<std::size_t>(rank)], rank, *world_);
    parts.members.push_back({.world_rank = rank,
                             .host_id = hello.boot_id,
                             .host_name = hello.host_name,
                             .process_id = static_cast<int>(hello.process_id)});
  }
  for (auto& [rank, peer] : std::exchange(comm.peers, {})) parts.peers[rank] = {peer.end, std::move(peer.slices)};
  GroupRecord& record = job_.group_record(*world_, comm.id, comm.members);
  comm.group = std::make_unique<SimulatedGroup>(*this, record, driven_, std::move(parts));
  comm.group->named().report_stalls_to([this, &record, id = comm.id](const Stall& stall) {
    const std::string& text = stall.text;
    simulation().tell("{}: {}: {}", name(), id, text);
    simulation().count("stalls");
    record.stalls.push_back({text, simulation().now()});
    job_.check_stall(record, text);
    CoordinatorMessage message{.kind = CoordinatorMessage::Kind::stall};
    message.number = 4 * kSecond;
    message.key = id;
    message.value = text;
    message.values = stall.names;
    link_->protocol().tell(message);
    link_->carry_out();
  });
}

// As Runtime::leave().
Task<> Rank::end_groups(Status why, int64_t patience) {
  for (SimulatedGroup* group : groups()) group->named().prepare_to_leave();
  const int64_t until = clock() + patience;
  for (SimulatedGroup* group : groups()) {
    auto until_drained = wait([group] { return group->has_failed() || !group->named().running(); }, until);
    co_await until_drained;
    group->named().leave(why);
  }
}

// ---- The program ----

// Groups of all ranks and of some, phases of named operations, and collectives between them.
std::vector<Step> Rank::named_plan() const {
  std::mt19937_64 dice(world_->plan);
  const auto roll = [&](uint64_t sides) { return dice() % sides; };
  std::vector<Step> steps;
  Step all{.kind = Step::Kind::make_group};
  for (int rank = 0; rank < hello().size; ++rank) all.ranks.push_back(rank);
  steps.push_back(all);
  for (uint64_t count = 1 + roll(4); count > 0; --count) {
    Step some{.kind = Step::Kind::make_group};
    for (const int rank : all.ranks) {
      if (roll(3) > 0) some.ranks.push_back(rank);
    }
    if (roll(3) == 0 && some.ranks.size() >= 2) steps.push_back(some);
    steps.push_back({.kind = Step::Kind::named, .seed = dice()});
    if (roll(2) == 0) steps.push_back({.kind = Step::Kind::allreduce});
    if (roll(3) == 0) steps.push_back({.kind = Step::Kind::compute, .longest = static_cast<int64_t>(roll(500)) * kMs});
  }
  steps.push_back({.kind = Step::Kind::allreduce});
  return steps;
}

Task<Status> Rank::run_named(uint64_t seed) {
  // All ranks know all groups, because the program has them.
  std::vector<std::pair<std::string, std::vector<int>>> groups_of_world;
  std::size_t made = 0;
  for (const Step& step : plan()) {
    if (step.kind == Step::Kind::named && step.seed == seed) break;
    if (step.kind == Step::Kind::make_group) groups_of_world.emplace_back(fmt::format("group {}", ++made), step.ranks);
  }
  NamedPhase phase = make_phase(seed, hello().size, groups_of_world);
  phase.ends_after_shutdown = group_settings(world_->plan).config->stall_shutdown_s > 0;
  SimulatedGroup::Submission* join = nullptr;
  for (int round = 0; round < phase.rounds_on(rank_); ++round) {
    auto running = run_round(phase, round, join);
    Status status = co_await running;
    if (!status.ok()) co_return status;
  }
  if (phase.rounds_of.empty()) co_return Status();
  auto joining = finish_join(phase, join == nullptr ? submit_join(phase) : *join);
  co_return co_await joining;
}

// Sets `join` where this rank joins before the operations of its last round are done.
Task<Status> Rank::run_round(NamedPhase& phase, int round, SimulatedGroup::Submission*& join) {
  std::vector<std::vector<NamedTensor>> due;
  for (const auto& indices : phase.submissions) {
    due.emplace_back();
    for (const std::size_t index : indices) due.back().push_back(phase.tensor(index, round));
  }
  const bool waits_for_first = phase.waits_for_first || phase.has(Surprise::Kind::once, round);
  for (std::size_t i = waits_for_first ? 2 : 1; i < due.size(); ++i) {
    const auto least = static_cast<int64_t>(waits_for_first ? 1 : 0);
    std::swap(due[i], due[static_cast<std::size_t>(simulation().between(least, static_cast<int64_t>(i)))]);
  }
  const std::string& first_group = phase.tensors.front().group;
  const auto add = [&](const std::string& name) {
    due.push_back({NamedTensor{.name = name, .group = first_group, .elements = 3, .number = 9}});
  };
  if (phase.has(Surprise::Kind::extra, round)) add("extra");
  if (phase.has(Surprise::Kind::differs, round)) add("odd");
  // A rank that missed it may be in the next phase before the others reach their limit.
  if (phase.has(Surprise::Kind::overdue, round) && phase.ends_after_shutdown) add("overdue in " + phase.name);
  std::vector<std::pair<SimulatedGroup::Submission*, std::vector<NamedTensor>>> begun;
  const Surprise* late = phase.find(Surprise::Kind::late, round);
  for (std::size_t i = 0; i < due.size(); ++i) {
    const std::string& tensor = due[i].front().name;
    int64_t pause = simulation().percent(30) ? simulation().between(0, 2 * kMs) : 0;
    if (simulation().percent(1)) pause = simulation().between(0, 300 * kMs);
    // What is overdue is submitted in time, or the ranks that have gone on reach their limit first.
    if (late != nullptr && late->rank == rank_ && i + 1 == due.size() && !is_overdue(tensor)) pause = late->delay;
    const Surprise* overdue = phase.find(Surprise::Kind::overdue, round);
    if (is_overdue(tensor) && overdue->rank == rank_) pause = overdue->delay;
    if (pause > 0) {
      auto computing = sleep(pause);
      co_await computing;
    }
    if (is_overdue(tensor) && overdue->rank == rank_) continue;
    SimulatedGroup::Submission* submission = submit(phase, due[i], round);
    if (submission == nullptr) continue;
    begun.emplace_back(submission, due[i]);
    if (!waits_for_first || i > 0) continue;
    auto until_first = wait([submission] { return submission->is_done(); }, kNever);
    co_await until_first;
  }
  if (phase.joins_at_once && round + 1 == phase.rounds_on(rank_)) join = &submit_join(phase);
  const auto all_done = [&begun] {
    return std::ranges::all_of(begun, [](const auto& one) { return one.first->is_done(); });
  };
  if (join != nullptr) {
    auto until_joined = wait([&] { return join->is_done(); }, kNever);
    co_await until_joined;
    if (join->status().ok() && !all_done()) {
      simulation().violated(fmt::format("{}: its join ends before the operations that it submitted before", name()));
    }
  }
  auto until_done = wait(all_done, kNever);
  co_await until_done;
  Status first;
  for (const auto& [submission, tensors] : begun) {
    Status status = judge(phase, *submission, tensors, round);
    if (first.ok()) first = status;
  }
  co_return first;
}

// Null: this rank is no member of the group.
SimulatedGroup::Submission* Rank::submit(NamedPhase& phase, const std::vector<NamedTensor>& tensors, int round) {
  const Comm* comm = comm_of(tensors.front().group);
  if (comm == nullptr || !comm->group) return nullptr;
  SimulatedGroup& group = *comm->group;
  const Surprise* differs = phase.find(Surprise::Kind::differs, round);
  std::vector<std::string> titles;
  std::vector<Request> requests;
  std::vector<std::vector<int64_t>> inputs;
  for (const NamedTensor& tensor : tensors) {
    Request request = request_of(tensor, group.rank(), group.size());
    if (tensor.name == "odd" && differs->rank == rank_) request.dtype = Dtype::int32;
    std::vector<int64_t>& input = inputs.emplace_back();
    for (int64_t i = 0; i < request.element_count(); ++i) input.push_back(value_of(tensor, rank_, round, i));
    titles.push_back(title_of(phase, tensor, round));
    requests.push_back(std::move(request));
  }
  simulation().tell("{} submits {}{} to {}", name(), titles.front(),
                    titles.size() > 1 ? fmt::format(" and {} more", titles.size() - 1) : "", group.id());
  simulation().count("named operations");
  if (tensors.front().elements >= 70'000 && tensors.front().priority > 0)
    simulation().count("large ones with a priority");
  const SimulatedClock shows(clock());
  return &group.submit(std::move(titles), std::move(requests), std::move(inputs));
}

// Compares the result, or the error. Returns the error that ends the program.
Status Rank::judge(NamedPhase& phase, SimulatedGroup::Submission& submission, const std::vector<NamedTensor>& tensors,
                   int round) {
  SimulatedGroup& group = *comm_of(tensors.front().group)->group;
  const Status& status = submission.status();
  const auto& members = group.record().members;
  const Surprise* differs = phase.find(Surprise::Kind::differs, round);
  const bool must_fail =
      tensors.front().name == "odd" && std::ranges::count(members, differs->rank) > 0 && members.size() > 1;
  if (status.ok()) {
    if (must_fail) simulation().violated(fmt::format("{}: {} succeeds", name(), submission.titles.front()));
    std::vector<int> submitting;
    for (const int member : members) {
      if (phase.rounds_on(member) > round) submitting.push_back(member);
    }
    // The rank that has missed it may have joined in the next phase, before the limit.
    if (is_overdue(tensors.front().name)) std::erase(submitting, phase.find(Surprise::Kind::overdue, round)->rank);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::vector<int64_t> result = expected(tensors[i], members, submitting, group.rank(), round);
      if (!std::equal(result.begin(), result.end(), submission.result(i))) {
        simulation().violated(fmt::format("{}: {} is wrong: {} instead of {}", name(), submission.titles[i],
                                          submission.result(i)[0], result.front()));
      }
    }
    return {};
  }
  simulation().tell("{}: {} has failed: {}", name(), submission.titles.front(), status.text());
  if (group.has_failed() && status.text() == group.named().failure().text()) {
    note_failure(status, world_->name + " / " + group.id(), simulation().now());
    return status;
  }
  if (must_fail && status.code() == Code::mismatch) {
    simulation().count("mismatches");
    const int odd = static_cast<int>(std::ranges::find(members, differs->rank) - members.begin());
    const int second = members[static_cast<std::size_t>(odd == 0 ? 1 : odd)];
    const int first = members[static_cast<std::size_t>(0)];
    const bool names_both = status.text().find(name_of(first)) != std::string::npos &&
                            status.text().find(name_of(second)) != std::string::npos;
    if (status.error().culprit_rank != second || !names_both) {
      simulation().violated(
          fmt::format("{}: rank {} differs, and the error is: {}", name(), differs->rank, status.text()));
    }
    return {};
  }
  if (is_overdue(tensors.front().name) && status.code() == Code::timeout) {
    simulation().count("operations that are overdue");
    return {};
  }
  if (status.code() == Code::mismatch) {
    simulation().violated(
        fmt::format("{}: {} fails without a reason: {}", name(), submission.titles.front(), status.text()));
  }
  return status;
}

// Each rank joins after rounds of its own. The others go on, and its part of their sums is zero.
SimulatedGroup::Submission& Rank::submit_join(const NamedPhase& phase) {
  simulation().tell("{} joins", name());
  simulation().count("joins");
  Request request{.kind = RequestKind::join, .name = "join", .dtype = Dtype::uint8};
  const SimulatedClock shows(clock());
  return comm_of(phase.tensors.front().group)->group->submit({"join of " + phase.name}, {request}, {{}});
}

Task<Status> Rank::finish_join(const NamedPhase& phase, SimulatedGroup::Submission& submission) {
  SimulatedGroup& group = *comm_of(phase.tensors.front().group)->group;
  auto until_done = wait([&submission] { return submission.is_done(); }, kNever);
  co_await until_done;
  const Status status = submission.status();
  if (status.ok()) {
    const int last = submission.handle->output(0).last_joined;
    const auto [known, is_first] = group.record().last_joined.emplace(phase.name, last);
    if (last < 0 || last >= group.size() || known->second != last) {
      simulation().violated(
          fmt::format("{}: rank {} has joined last, and for another rank {}", name(), last, known->second));
    }
    co_return Status();
  }
  if (group.has_failed() && status.text() == group.named().failure().text()) {
    note_failure(status, world_->name + " / " + group.id(), simulation().now());
  }
  co_return status;
}

}  // namespace fdl::simulation
