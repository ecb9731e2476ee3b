// The parts of a simulated group that the product makes in Runtime::open_group() and assemble().
#include "tests/simulation/named/simulated_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace fdl::simulation {
namespace {

constexpr std::size_t kConfigs = 7;

// `along_a_tree`: requests and plans pass through other ranks in groups of four and more.
const Config& config_of(std::size_t number, bool along_a_tree) {
  static const std::vector<Config> all = [] {
    using Options = std::map<std::string, std::string>;
    std::vector<Config> read;
    for (const Options& options : {Options{}, Options{{"lock_after", "2"}}, Options{{"lock_after", "2"}},
                                   Options{{"lock_after", "2"}, {"autotune", "1"}},
                                   Options{{"lock_after", "3"}, {"cache_capacity", "3"}, {"fusion_bytes", "1K"}},
                                   Options{{"lock_after", "2"}, {"stall_shutdown_s", "12"}},
                                   Options{{"lock_after", "0"}, {"cache_capacity", "0"}}}) {
      for (const char* width : {"16", "1"}) {
        Options all_options = options;
        all_options["stall_warning_s"] = "2";
        all_options["agreement_width"] = width;
        auto config = Config::read(Environment({}), all_options);
        FDL_CHECK(config.ok());
        read.push_back(config.take());
      }
    }
    FDL_CHECK(read.size() == 2 * kConfigs);
    return read;
  }();
  return all[2 * (number % kConfigs) + (along_a_tree ? 1 : 0)];
}

GroupShape shape_of(const std::vector<Member>& members) {
  std::set<std::string> hosts;
  for (const Member& member : members) hosts.insert(member.host_id);
  const bool is_one_host = hosts.size() == 1;
  return {.ranks = static_cast<int>(members.size()),
          .hosts = static_cast<int>(hosts.size()),
          .ranks_per_host = is_one_host ? static_cast<int>(members.size()) : 0};
}

}  // namespace

GroupSettings group_settings(uint64_t number) {
  GroupSettings settings;
  settings.config = &config_of(number, number / 224 % 2 == 1);
  settings.shares_words = number / 7 % 4 != 0;
  if (number / 28 % 8 == 0) settings.session_key = "the session key of a simulated world";
  if (settings.config->autotune)
    settings.tuning.tune = TunerOptions{.steps = 2, .warmup = 1, .loss_limit = 1, .least = 64, .most = 4096};
  return settings;
}

SimulatedGroup::SimulatedGroup(Actor& actor, GroupRecord& record, DrivenSet& driven, Parts parts)
    : actor_(actor), record_(record), driven_(driven) {
  Communicator::Parts made{.id = parts.id,
                           .rank = parts.rank,
                           .members = parts.members,
                           .shape = shape_of(parts.members),
                           .config = parts.settings.config,
                           .session_key = parts.settings.session_key};
  if (parts.members.size() > 1) {
    made.transport = std::make_unique<SimulatedTransport>(parts.members, std::move(parts.peers));
  }
  if (parts.settings.shares_words && made.shape.hosts == 1) {
    record_.words->readers[static_cast<std::size_t>(parts.rank)] = &actor;
    made.readiness_flags = std::make_unique<SimulatedFlags>(record_.words, parts.rank);
  }
  auto comm = Communicator::make(std::move(made));
  FDL_CHECK(comm.ok());
  group_ = std::make_unique<Group>(std::move(parts.id), parts.rank, std::move(parts.members), comm.take(),
                                   *parts.settings.config, nullptr, std::move(parts.settings.tuning));
  driven_.add_lasting(*group_);
}

SimulatedGroup::~SimulatedGroup() {
  driven_.finish_sleep();  // at the end of a simulation a rank sleeps
  driven_.remove(*group_);
  record_.words->readers[static_cast<std::size_t>(rank())] = nullptr;
  named().fail_all(Status(Code::shut_down, "the simulated group has ended"));
  const NamedOperations::Counts counts = named().counts();
  const bool all_done = std::ranges::all_of(submissions_, &Submission::is_done);
  if (!all_done || counts.operations != operations_) {
    actor_.simulation().violated(fmt::format("{}: {} of {} operations of group {} have ended", actor_.process().name,
                                             counts.operations, operations_, id()));
  }
}

SimulatedGroup::Submission& SimulatedGroup::submit(std::vector<std::string> titles, std::vector<Request> requests,
                                                   std::vector<std::vector<int64_t>> inputs) {
  Submission& submission = submissions_.emplace_back();
  submission.titles = std::move(titles);
  submission.requests = std::move(requests);
  submission.inputs = std::move(inputs);
  const std::size_t count = submission.requests.size();
  submission.handle = std::make_shared<Handle>(count);
  submission.handle->notify([this, &submission] { note_end(submission); });
  std::vector<Entry> entries;
  for (std::size_t i = 0; i < count; ++i) {
    Request& request = submission.requests[i];
    const bool has_output = request.kind == RequestKind::allreduce || request.kind == RequestKind::broadcast;
    submission.outputs.emplace_back(has_output ? submission.inputs[i].size() : 0);
    Entry entry{.handle = submission.handle, .index = i};
    entry.request = request;
    if (count > 1) {
      entry.request.group = submission.requests.front().name + "+" + std::to_string(count - 1);
      entry.request.group_size = static_cast<int32_t>(count);
    }
    entry.input = submission.inputs[i].data();
    if (has_output) entry.output = submission.outputs[i].data();
    record_.submitted[{rank(), request.name}] = actor_.simulation().now();
    record_.pending.emplace(rank(), request.name);
    entries.push_back(std::move(entry));
  }
  operations_ += count;
  named().submit(std::move(entries));
  return submission;
}

// In the order of the ends on this rank.
void SimulatedGroup::note_end(Submission& submission) {
  const Status& status = submission.status();
  const bool is_of_group = !status.ok() && status.text() == named().failure().text();
  for (const Request& request : submission.requests) {
    const int64_t waited = actor_.simulation().now() - record_.submitted[{rank(), request.name}];
    if (request.kind != RequestKind::join) record_.longest_wait = std::max(record_.longest_wait, waited);
    record_.pending.erase({rank(), request.name});
  }
  for (const std::string& title : submission.titles) {
    record_.endings[title][rank()] = {status, is_of_group};
    if (status.ok()) record_.ended[static_cast<std::size_t>(rank())].push_back(title);
  }
}

// All ranks lock the same orders, one after another, and none is more than one order ahead of another.
void SimulatedGroup::note_epochs() {
  uint64_t& mine = record_.epochs[static_cast<std::size_t>(rank())];
  const uint64_t now = named().counts().lock_epochs;
  if (now == mine) return;
  mine = now;
  actor_.simulation().count("locked orders");
  actor_.simulation().tell("{} locks order {} of {}", actor_.process().name, now, id());
  const auto [least, most] = std::ranges::minmax(record_.epochs);
  if (most > least + 1 && !has_failed()) {
    actor_.simulation().violated(fmt::format("{} is in order {} of {}, and another rank is in order {}",
                                             actor_.process().name, most, id(), least));
  }
}

}  // namespace fdl::simulation
