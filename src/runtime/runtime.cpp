// Runtime: a start and a stop that can be read, and what happens in between when ranks are lost.
#include "runtime/runtime.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "agree/wire.h"
#include "base/log.h"
#include "base/version.h"
#include "runtime/assemble.h"
#include "runtime/own_terms.h"
#include "system/handshake.h"
#include "world/efa.h"
#include "world/topology.h"

namespace fdl {
namespace {

// How long a rank that leaves goes on with what all have agreed upon.
constexpr int64_t kFarewellNs = 2'000'000'000;

// A page that the kernel wipes in a forked child: the cheapest way to notice a fork, and no handler is installed.
constexpr std::size_t kPageBytes = 4096;

std::atomic<bool>* make_fork_witness() {
  void* page = ::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  FDL_CHECK(page != MAP_FAILED);
  FDL_CHECK(::madvise(page, kPageBytes, MADV_WIPEONFORK) == 0);
  return new (page) std::atomic<bool>(true);
}

// The store of the world, under a prefix of its own for each use.
class StoreExchange final : public Exchange {
 public:
  StoreExchange(HubLink& link, std::string prefix) : link_(link), prefix_(std::move(prefix)) {}
  Status publish(std::string_view key, std::string_view value) override {
    return link_.publish(prefix_ + "/" + std::string(key), value);
  }
  Result<std::string> fetch(std::string_view key, Deadline deadline) override {
    return link_.fetch(prefix_ + "/" + std::string(key), deadline);
  }

 private:
  HubLink& link_;
  std::string prefix_;
};

Result<LogLevel> parse_log_level(std::string_view word) {
  const std::vector<std::pair<std::string_view, LogLevel>> levels{
      {"trace", LogLevel::trace}, {"debug", LogLevel::debug}, {"info", LogLevel::info},  {"warning", LogLevel::warning},
      {"error", LogLevel::error}, {"off", LogLevel::off},     {"fatal", LogLevel::error}};
  for (const auto& [name, level] : levels) {
    if (word == name) return level;
  }
  return Status(Code::invalid_argument,
                "FARANDOLE_LOG_LEVEL = '" + std::string(word) + "' is not trace, debug, info, warning, error or off");
}

Result<Identity> explicit_identity(const RuntimeOptions& options, const Config& config) {
  if (options.size < 1 || options.rank >= options.size) {
    return Status(Code::invalid_argument, "rank " + std::to_string(options.rank) + " of " +
                                              std::to_string(options.size) + " was given; rank must be below size");
  }
  Identity identity{.rank = options.rank,
                    .size = options.size,
                    .local_rank = options.local_rank,
                    .local_size = options.local_size,
                    .source = "options",
                    .rendezvous = config.rendezvous,
                    .job_key = config.job_key};
  if (identity.rendezvous.empty() && options.size == 1) identity.rendezvous = "memory://alone-" + random_hex(8);
  if (identity.rendezvous.empty()) {
    return Status(Code::invalid_argument,
                  "rank and size were given without a rendezvous; give tcp://host:port, "
                  "file:///path or memory://name (the same on all ranks)");
  }
  identity.rank_zero_serves = identity.rendezvous.find("?hub=1") == std::string::npos;
  if (identity.job_key.empty()) {
    identity.job_key = "farandole " + identity.rendezvous;
    identity.job_key_is_derived = true;
  }
  return identity;
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ",") + std::to_string(rank);
  return text;
}

}  // namespace

Runtime::Runtime() : alive_here_(make_fork_witness()) {}

Runtime::~Runtime() {
  if (is_forked_child()) {
    // A forked child has none of our threads: it must not join them, nor touch the parent's sockets.
    if (hub_thread_.joinable()) hub_thread_.detach();
    static_cast<void>(loop_.release());
    static_cast<void>(link_.release());
    static_cast<void>(hub_.release());
    static_cast<void>(timeline_.release());
    static_cast<void>(metrics_server_.release());
    MutexLock lock(mutex_);
    for (auto& group : groups_) new std::shared_ptr<Group>(std::move(group));  // never to be ended here
    return;
  }
  shut_down();
  ::munmap(alive_here_, kPageBytes);
}

Status Runtime::usable() const {
  if (is_forked_child()) {
    return Status(
        Code::not_initialized,
        "this process was forked after farandole was initialized; initialize it in the child, or fork before");
  }
  if (shut_down_.load(std::memory_order_relaxed)) {
    return Status(Code::shut_down, "rank " + std::to_string(identity_.rank) + " has shut farandole down");
  }
  return {};
}

// ---- start
// -------------------------------------------------------------------------------------------------------------

Result<std::unique_ptr<Runtime>> Runtime::create(const RuntimeOptions& options) {
  std::unique_ptr<Runtime> runtime(new Runtime());
  Status started = runtime->start(options);
  if (!started.ok()) return started.while_doing("starting farandole");
  return runtime;
}

Status Runtime::start(const RuntimeOptions& options) {
  const Environment environment = Environment::of_process();
  std::map<std::string, std::string> knobs = options.knobs;
  if (!options.rendezvous.empty()) knobs["rendezvous"] = options.rendezvous;
  if (!options.job_key.empty()) knobs["job_key"] = options.job_key;
  FDL_ASSIGN_OR_RETURN(config_, Config::read(environment, knobs));
  devices_ = std::make_shared<Devices>(config_);
  FDL_ASSIGN_OR_RETURN(tuning_, load_tuning(config_, environment));
  FDL_ASSIGN_OR_RETURN(const LogLevel level, parse_log_level(config_.log_level));
  set_log_level(level);
  if (options.rank >= 0) {
    FDL_ASSIGN_OR_RETURN(identity_, explicit_identity(options, config_));
  } else {
    FDL_ASSIGN_OR_RETURN(identity_, who_am_i(environment, config_));
  }
  if (identity_.rank == 0) {
    for (const std::string& line : config_.without_meaning) log_warning("{}", line);
  }
  if (identity_.rank == 0 && identity_.rank_zero_serves) FDL_RETURN_IF_ERROR(serve_hub());
  FDL_RETURN_IF_ERROR(meet());
  FDL_RETURN_IF_ERROR(place());
  FDL_RETURN_IF_ERROR(share_memory());
  start_configured_timeline();  // before there is anything to tell
  start_metrics();
  std::vector<int> everyone(members_.size());
  for (std::size_t rank = 0; rank < everyone.size(); ++rank) everyone[rank] = static_cast<int>(rank);
  FDL_ASSIGN_OR_RETURN(all_, open_group("all", everyone));
  log_at(identity_.rank == 0 ? LogLevel::info : LogLevel::debug, "{}; {}; {} of {} on this host, {}, fusion {} MiB",
         identity_.line(), facts_.transports, facts_.local_rank, facts_.local_size, describe_machine(),
         config_.fusion_bytes >> 20);
  if (facts_.local_rank == 0) log_efa(environment, facts_.transports);
  return {};
}

// A job is not given up because nobody can be told of it.
void Runtime::start_metrics() {
  if (config_.metrics_port == 0) return;
  const int64_t port = config_.metrics_port + facts_.local_rank;
  auto metrics = std::make_shared<Metrics>(Metrics::Labels{{"rank", std::to_string(facts_.rank)},
                                                           {"size", std::to_string(facts_.size)},
                                                           {"local_rank", std::to_string(facts_.local_rank)},
                                                           {"host", facts_.host},
                                                           {"launcher", facts_.source},
                                                           {"transports", facts_.transports},
                                                           {"version", std::string(kVersion)}});
  auto server = port > 65535 ? Status(Code::invalid_argument, "FARANDOLE_METRICS_PORT = '" +
                                                                  std::to_string(config_.metrics_port) +
                                                                  "' and the local rank are more than 65535")
                             : serve_metrics(metrics, static_cast<int>(port));
  if (!server.ok())
    return log_warning("{}; the job goes on without the metrics of rank {}", server.status().text(), facts_.rank);
  metrics_ = std::move(metrics);
  metrics_server_ = server.take();
}

std::shared_ptr<GroupMetrics> Runtime::metrics_of(const Group& group) const {
  if (!metrics_) return nullptr;
  std::vector<int> ranks;
  for (const Member& member : group.members()) ranks.push_back(member.world_rank);
  return metrics_->group(Metrics::label_of(ranks, facts_.size));
}

Status Runtime::serve_hub() {
  FDL_ASSIGN_OR_RETURN(hub_, Hub::open({.size = identity_.size,
                                        .job_key = identity_.job_key,
                                        .address = identity_.rendezvous,
                                        .interfaces = config_.interfaces,
                                        .port_base = static_cast<int>(config_.port_base),
                                        .start_timeout_s = config_.start_timeout_s,
                                        .lost_after_s = config_.lost_after_s,
                                        .server_name = "rank 0 on " + host_facts().host_name}));
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  hub_thread_ = std::thread([this] { hub_->run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return {};
}

Status Runtime::meet() {
  const Deadline deadline = Deadline::after_seconds(config_.start_timeout_s);
  const HostFacts mine = host_facts();
  FDL_ASSIGN_OR_RETURN(link_, HubLink::connect(identity_.rendezvous, identity_.job_key,
                                               {.rank = identity_.rank,
                                                .size = identity_.size,
                                                .host_name = mine.host_name,
                                                .boot_id = mine.boot_id,
                                                .process_id = mine.process_id,
                                                .terms = own_terms(config_, tuning_.table),
                                                .numa_node = numa_node()},
                                               deadline));
  FDL_ASSIGN_OR_RETURN(
      loop_,
      Loop::start(*link_, config_,
                  {.on_event = [this](const HubEvent& event) { on_event(event); },
                   .on_stuck = [this](Group& group) { on_stuck(group); },
                   .on_suspicion = [this](Group& group, const Status& why) { link_->report(group.comm().id(), why); },
                   .on_watch = [this](int64_t now) { return watch_devices(now); }}));
  // The hub itself gives up after start_timeout_s and names the missing; a little longer here lets its text win.
  FDL_ASSIGN_OR_RETURN(const auto everyone, link_->wait_for_all(Deadline::after_seconds(config_.start_timeout_s + 2)));
  std::vector<HostFacts> facts;
  for (const auto& hello : everyone) {
    facts.push_back({hello.host_name, hello.boot_id, hello.process_id, hello.numa_node});
  }
  StoreExchange exchange(*link_, "world");
  FDL_ASSIGN_OR_RETURN(members_, find_hosts(identity_.rank, facts, identity_.job_key, exchange, deadline));
  return {};
}

// Where each rank is: what the launcher did not say, the hosts do.
Status Runtime::place() {
  const auto me = static_cast<std::size_t>(identity_.rank);
  std::vector<std::string> hosts;
  std::vector<int> local_rank(members_.size(), 0);
  std::map<std::string, int> per_host;
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    if (!per_host.contains(members_[rank].host_id)) hosts.push_back(members_[rank].host_id);
    local_rank[rank] = per_host[members_[rank].host_id]++;
  }
  facts_ = {.rank = identity_.rank,
            .size = identity_.size,
            .local_rank = identity_.local_rank >= 0 ? identity_.local_rank : local_rank[me],
            .local_size = identity_.local_size >= 0 ? identity_.local_size : per_host[members_[me].host_id],
            .host = members_[me].host_name,
            .source = identity_.source,
            .rendezvous = identity_.rendezvous,
            .transports = transports_between(members_, identity_.rank, config_)};
  facts_.is_homogeneous =
      std::ranges::all_of(per_host, [&](const auto& host) { return host.second == per_host.begin()->second; });
  facts_.cross_size = 0;
  for (const std::string& host : hosts) {
    if (per_host[host] <= local_rank[me]) continue;
    if (host == members_[me].host_id) facts_.cross_rank = facts_.cross_size;
    ++facts_.cross_size;
  }
  if (!each_has_a_core(members_, members_[me].host_id)) config_.spin_us = 0;
  return {};
}

Status Runtime::share_memory() {
  StoreExchange exchange(*link_, "memory");
  FDL_ASSIGN_OR_RETURN(memory_, assemble_memory({.id = "the world's memory",
                                                 .rank = identity_.rank,
                                                 .members = members_,
                                                 .job_key = identity_.job_key,
                                                 .config = &config_,
                                                 .exchange = &exchange,
                                                 .deadline = Deadline::after_seconds(config_.start_timeout_s)}));
  return {};
}

// ---- stop
// --------------------------------------------------------------------------------------------------------------

void Runtime::shut_down() {
  if (shut_down_.exchange(true)) return;
  const Status why(Code::shut_down, "rank " + std::to_string(identity_.rank) + " has shut farandole down");
  if (loop_) {
    loop_->call([&] {
      const Deadline deadline = Deadline::after_ns(kFarewellNs);
      MutexLock lock(mutex_);
      // All of them first: while one is drained, the others are not driven.
      for (auto& group : groups_) group->named().prepare_to_leave();
      for (auto& group : groups_) {
        loop_->drain(*group, deadline);
        group->named().fail_all(why);
        loop_->remove(*group);
      }
    });
  }
  {
    MutexLock lock(timeline_mutex_);
    static_cast<void>(finish_timeline());  // what failed is in the log
  }
  if (link_) link_->leave();
  interrupt_comms([](const Communicator&) { return true; }, why);
  if (loop_) loop_->end();
  verdicts_.close();
  metrics_server_.reset();
  {
    MutexLock lock(mutex_);
    for (auto& group : groups_) group->comm().interrupt(why);
  }
  // The link stays until the end: a thread that waits in a communicator may still ask it about peers.
  if (hub_) {
    // The others may still want to know of each other; but nobody is waited for long.
    hub_->wait_until_empty(Deadline::after_ns(kFarewellNs));
    hub_->stop();
    if (hub_thread_.joinable()) hub_thread_.join();
    hub_.reset();
  }
}

// ---- groups
// ------------------------------------------------------------------------------------------------------------

Result<std::unique_ptr<Communicator>> Runtime::connect(const std::string& id, const std::vector<Member>& members,
                                                       int rank, std::function<void()> watch) {
  StoreExchange exchange(*link_, "comm");
  const Membership membership{.id = id,
                              .rank = rank,
                              .members = members,
                              .job_key = identity_.job_key,
                              .config = &config_,
                              .memory = memory_,
                              .exchange = &exchange,
                              .deadline = Deadline::after_seconds(config_.start_timeout_s)};
  const auto suspect = [this, members] {
    if (link_) link_->probe(others(members));
  };
  const auto find_library = [devices = devices_.get()] { return devices->library(); };
  auto comm = assemble(membership, suspect, &tuning_.table, find_library, std::move(watch));
  if (!comm.ok()) return comm.status().while_doing("connecting " + id);
  return comm;
}

Result<Group*> Runtime::open_group(std::string id, const std::vector<int>& world_ranks) {
  std::vector<Member> members;
  int mine = -1;
  for (const int rank : world_ranks) {
    if (rank == identity_.rank) mine = static_cast<int>(members.size());
    members.push_back(members_[static_cast<std::size_t>(rank)]);
  }
  FDL_ASSIGN_OR_RETURN(auto comm, connect("group " + id, members, mine));
  auto group = std::make_shared<Group>(std::move(id), mine, std::move(members), std::move(comm), config_, memory_);
  Group* opened = group.get();
  opened->named().count_with(metrics_of(*opened));
  Status added;
  loop_->call([&] {
    added = loop_->add(*opened);
    if (traced_by_ != nullptr)
      opened->named().trace_with(traced_by_->trace(opened->id(), opened->rank(), opened->size()));
  });
  MutexLock lock(mutex_);
  groups_.push_back(std::move(group));
  if (!added.ok()) return added;
  return opened;
}

Result<Group*> Runtime::make_group(const std::vector<int>& world_ranks) {
  FDL_RETURN_IF_ERROR(usable());
  std::vector<int> sorted = world_ranks;
  std::sort(sorted.begin(), sorted.end());
  const auto refuse = [&](const std::string& why) {
    return Status(Code::invalid_argument, "ranks {" + ranks_text(world_ranks) + "}: " + why);
  };
  if (sorted.empty()) return refuse("a group needs at least one rank");
  if (sorted.front() < 0 || sorted.back() >= facts_.size) {
    return refuse("ranks of this world are 0 to " + std::to_string(facts_.size - 1));
  }
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) return refuse("a rank is named twice");
  if (!std::binary_search(sorted.begin(), sorted.end(), identity_.rank)) {
    return refuse("rank " + std::to_string(identity_.rank) + " is no member; only members make a group");
  }
  int number = 0;
  {
    MutexLock lock(mutex_);
    number = groups_of_ranks_[world_ranks]++;
  }
  return open_group("{" + ranks_text(world_ranks) + "} #" + std::to_string(number), world_ranks);
}

Result<Group*> Runtime::split(Group& group, int color, int key) {
  FDL_RETURN_IF_ERROR(usable());
  const std::string id = group.id() + " split " + std::to_string(group.next_number());
  StoreExchange exchange(*link_, id);
  FDL_RETURN_IF_ERROR(
      exchange.publish(std::to_string(group.rank()), std::to_string(color) + " " + std::to_string(key)));
  std::vector<std::pair<int, int>> chosen;  // (key, rank in the group)
  const Deadline deadline = Deadline::after_seconds(config_.start_timeout_s);
  for (int rank = 0; rank < group.size(); ++rank) {
    FDL_ASSIGN_OR_RETURN(const std::string text, exchange.fetch(std::to_string(rank), deadline));
    int their_color = 0;
    int their_key = 0;
    const char* end = text.data() + text.size();
    const auto read = std::from_chars(text.data(), end, their_color);
    FDL_CHECK(read.ec == std::errc() && read.ptr != end);
    FDL_CHECK(std::from_chars(read.ptr + 1, end, their_key).ec == std::errc());
    if (their_color == color) chosen.emplace_back(their_key, rank);
  }
  if (color < 0) return static_cast<Group*>(nullptr);
  std::sort(chosen.begin(), chosen.end());
  std::vector<int> ranks;
  for (const auto& [unused, rank] : chosen) ranks.push_back(group.members()[static_cast<std::size_t>(rank)].world_rank);
  return open_group(id + " color " + std::to_string(color), ranks);
}

void Runtime::end(Group& group) {
  const Status why(Code::shut_down, "the group " + group.id() + " has been destroyed");
  if (usable().ok()) {
    loop_->call([&] {
      group.named().prepare_to_leave();
      loop_->drain(group, Deadline::after_ns(kFarewellNs));
      group.named().fail_all(why);
      loop_->remove(group);
    });
  }
  MutexLock lock(mutex_);
  std::erase_if(groups_, [&](const auto& kept) { return kept.get() == &group; });
}

// ---- communicators
// -----------------------------------------------------------------------------------------------------

Result<std::unique_ptr<OrderedComm>> Runtime::make_comm(Group& group) {
  FDL_RETURN_IF_ERROR(usable());
  const std::string id = group.id() + " comm " + std::to_string(group.next_number());
  auto made = std::make_unique<OrderedComm>();
  made->group = &group;
  made->metrics = metrics_of(group);
  made->watch =
      std::make_unique<DeviceWatch>(id, group.members(), group.rank(),
                                    DeviceWatch::Terms{.warning_ns = seconds_to_ns(config_.stall_warning_s),
                                                       .shutdown_ns = seconds_to_ns(config_.stall_shutdown_s)});
  FDL_ASSIGN_OR_RETURN(made->comm, connect(id, group.members(), group.rank(), [this] { loop_->watch(); }));
  MutexLock lock(mutex_);
  comms_.insert(made.get());
  return made;
}

void Runtime::end(std::unique_ptr<OrderedComm> comm) {
  MutexLock lock(mutex_);
  comms_.erase(comm.get());
  verdicts_.forget(comm->comm->id());
}

void Runtime::abort(OrderedComm& comm, const std::string& reason) {
  const Status why =
      Status::blame(identity_.rank, facts_.host, Code::aborted,
                    "rank " + std::to_string(identity_.rank) + " (" + facts_.host + ") aborted: " + reason);
  comm.failure_reported = true;
  verdicts_.deliver(comm.comm->id(), why);
  comm.comm->interrupt(why);
  if (link_) link_->report(comm.comm->id(), why);
}

Status Runtime::settle(OrderedComm& comm, const Status& failure) {
  if (failure.ok() || failure.code() == Code::invalid_argument || failure.code() == Code::unsupported) return failure;
  if (!link_ || shut_down_) return failure;
  report(comm, failure);
  // The hub asks the suspect first, which takes up to lost_after_s.
  const auto verdict =
      verdicts_.wait(comm.comm->id(), Deadline::after_seconds(config_.lost_after_s + config_.suspect_after_s));
  if (!verdict) return failure;
  return verdict->during(failure.error().operation, failure.error().phase, comm.group->id());
}

std::vector<int> Runtime::others(const std::vector<Member>& members) const {
  std::vector<int> ranks;
  for (const Member& member : members) {
    if (member.world_rank != identity_.rank) ranks.push_back(member.world_rank);
  }
  return ranks;
}

void Runtime::interrupt_comms(const std::function<bool(const Communicator&)>& which, const Status& why) {
  MutexLock lock(mutex_);
  for (OrderedComm* comm : comms_) {
    if (!which(*comm->comm)) continue;
    verdicts_.deliver(comm->comm->id(), why);
    comm->comm->interrupt(why);
    comm->comm->end_device_work();
  }
}

// ---- what the hub and the loop tell (in the loop's thread)
// -----------------------------------------------------------------

void Runtime::on_event(const HubEvent& event) {
  // Another thread may end a group meanwhile.
  std::vector<std::shared_ptr<Group>> groups;
  {
    MutexLock lock(mutex_);
    groups = groups_;
  }
  const auto has_rank = [&](const std::vector<Member>& members) {
    return std::any_of(members.begin(), members.end(),
                       [&](const Member& member) { return member.world_rank == event.rank; });
  };
  log_debug("hub: {}", event.why.text());
  switch (event.kind) {
    case HubEvent::Kind::lost:
      for (const auto& group : groups) {
        if (has_rank(group->members())) group->named().fail_all(event.why);
      }
      interrupt_comms([&](const Communicator& comm) { return has_rank(comm.members()); }, event.why);
      break;
    case HubEvent::Kind::left:
      for (const auto& group : groups) {
        if (has_rank(group->members())) group->named().depart(group->rank_of(event.rank), event.why);
      }
      break;
    case HubEvent::Kind::comm_failed:
      for (const auto& group : groups) {
        if (group->comm().id() == event.comm) group->named().fail_all(event.why);
      }
      interrupt_comms([&](const Communicator& comm) { return comm.id() == event.comm; }, event.why);
      break;
    case HubEvent::Kind::asked:
      tell_of_comm(event);
      break;
    case HubEvent::Kind::told:
      hear_of_comm(event);
      break;
    case HubEvent::Kind::hub_lost:
      verdicts_.close();
      // A hub that was stopped in good order takes nothing with it: communicators notice what happens to their peers.
      if (event.why.code() == Code::shut_down) break;
      for (const auto& group : groups) group->named().fail_all(event.why);
      interrupt_comms([](const Communicator&) { return true; }, event.why);
      break;
  }
}

void Runtime::on_stuck(Group& group) { link_->probe(others(group.members())); }

// ---- ordered communicators whose work is on devices, where nobody may be driving (in the loop's thread)
// ------------------

int64_t Runtime::watch_devices(int64_t now_ns) {
  bool any = false;
  std::vector<std::string> warnings;  // told without the lock: the sink is the program's
  {
    MutexLock lock(mutex_);
    for (OrderedComm* comm : comms_) {
      const auto work = look_after(*comm, now_ns, warnings);
      any |= !work || (work->in_flight && work->failure.ok());
    }
  }
  for (const std::string& each : warnings) log_warning("{}", each);
  return any ? now_ns + std::max<int64_t>(seconds_to_ns(config_.suspect_after_s), 1'000'000)
             : std::numeric_limits<int64_t>::max();
}

// Nothing: its own thread is at it, and is not disturbed.
std::optional<Communicator::DeviceWork> Runtime::look_at(OrderedComm& comm) {
  auto work = comm.comm->look_at_device_work();
  if (work && !work->failure.ok()) report(comm, work->failure);
  return work;
}

std::optional<Communicator::DeviceWork> Runtime::look_after(OrderedComm& comm, int64_t now_ns,
                                                            std::vector<std::string>& warnings) {
  const Communicator& communicator = *comm.comm;
  auto work = look_at(comm);
  if (!work || !work->failure.ok()) return work;
  const auto name_of = [&](uint64_t number) { return communicator.name_of_device_work(number); };
  const DeviceWatch::Wish wish = comm.watch->look(*work, name_of, now_ns);
  if (wish.question != 0) {
    const std::vector<int> asked = others(communicator.members());
    link_->probe(asked);
    link_->ask(communicator.id(), wish.question, asked, comm.watch->claim_ns());
  }
  if (!wish.warning.empty()) {
    warnings.push_back(wish.warning);
    if (comm.metrics) comm.metrics->stalled(1);
  }
  if (!wish.failure.ok()) report(comm, wish.failure);
  return work;
}

void Runtime::report(OrderedComm& comm, const Status& failure) {
  if (!comm.failure_reported.exchange(true)) link_->report(comm.comm->id(), failure);
}

OrderedComm* Runtime::comm_of(const std::string& id) {
  const auto found = std::ranges::find_if(comms_, [&](const OrderedComm* comm) { return comm->comm->id() == id; });
  return found == comms_.end() ? nullptr : *found;
}

void Runtime::tell_of_comm(const HubEvent& event) {
  MutexLock lock(mutex_);
  OrderedComm* comm = comm_of(event.comm);
  if (comm == nullptr) return link_->tell(event, -1, false);
  const auto work = look_at(*comm);
  link_->tell(event, static_cast<int64_t>(comm->comm->begun_on_device()), work && work->in_flight);
}

void Runtime::hear_of_comm(const HubEvent& event) {
  MutexLock lock(mutex_);
  OrderedComm* comm = comm_of(event.comm);
  if (comm != nullptr) comm->watch->told(event.rank, event.question, {event.begun, event.waiting});
}

// ---- named operations
// --------------------------------------------------------------------------------------------------

Status Runtime::submit(Group& group, std::vector<Entry> entries) {
  FDL_RETURN_IF_ERROR(usable());
  if (metrics_ || notes_times_.load(std::memory_order_relaxed)) note_time(entries);
  if (loop_->submit(group, std::move(entries))) return {};
  return Status(Code::shut_down, "farandole has been shut down");
}

Status Runtime::submit_and_wait(Group& group, std::vector<Entry> entries, Handle& handle, Deadline deadline) {
  FDL_RETURN_IF_ERROR(usable());
  FDL_RETURN_IF_ERROR(may_wait());
  if (metrics_ || notes_times_.load(std::memory_order_relaxed)) note_time(entries);
  if (loop_->submit_and_wait(group, std::move(entries), handle, deadline)) return {};
  return Status(Code::shut_down, "farandole has been shut down");
}

Result<bool> Runtime::wait(Handle& handle, Deadline deadline) {
  if (handle.done()) return true;
  if (is_forked_child()) return usable();
  FDL_RETURN_IF_ERROR(may_wait());
  return loop_->wait(handle, deadline);
}

Result<std::shared_ptr<DevicePlace>> Runtime::device_place(Group& group, int kind, int index, Stream stream) {
  FDL_ASSIGN_OR_RETURN(auto used, device(kind, index));
  if (!group.claim_device(int64_t{kind} << 32 | index)) {
    return Status(Code::invalid_argument, "rank " + std::to_string(facts_.rank) + ": tensors of group '" + group.id() +
                                              "' lie on another device than " + std::string(used->device().name()) +
                                              "; a group works on one device a rank: make another group for this one");
  }
  return DevicePlace::make(std::move(used), stream);
}

// Agreed upon like a broadcast. A rank that cannot use its device takes part, so that the others do not wait for it.
Result<GroupMemory> Runtime::take_memory(Group& group, int kind, int index, Stream stream, std::size_t bytes) {
  FDL_RETURN_IF_ERROR(usable());
  const auto handle = std::make_shared<Handle>(1);
  Entry entry{.handle = handle, .holds = true};
  entry.request.kind = RequestKind::broadcast;
  entry.request.name = "device memory " + std::to_string(group.next_memory());
  entry.request.dtype = Dtype::uint8;
  entry.request.shape = {static_cast<int64_t>(bytes)};
  entry.request.root = 0;
  auto place = device_place(group, kind, index, stream);
  if (place.ok()) {
    entry.place = place.take();
    entry.request.device = kind;
  }
  FDL_RETURN_IF_ERROR(check_request(entry.request));
  std::vector<Entry> entries;
  entries.push_back(std::move(entry));
  FDL_RETURN_IF_ERROR(submit_and_wait(group, std::move(entries), *handle, Deadline::never()));
  if (!place.ok()) return place.status();
  FDL_RETURN_IF_ERROR(handle->status());
  Holding& holding = handle->output(0).holding;
  group.held()->add(holding);
  return GroupMemory{devices_, group.held(), std::move(holding.memory)};
}

Status Runtime::may_wait() const {
  if (!loop_->drives_here()) return {};
  return Status(Code::invalid_argument, "a callback of a handle must not wait for an operation that is in flight");
}

// ---- the timeline
// ------------------------------------------------------------------------------------------------------

void Runtime::note_time(std::vector<Entry>& entries) const {
  const int64_t now = now_ns();
  for (Entry& entry : entries) entry.submitted_ns = now;
}

// A job is not given up for want of a picture of it.
void Runtime::start_configured_timeline() {
  if (config_.timeline.empty() || config_.timeline == "DYNAMIC") return;  // that is: when the program asks for one
  const Status started = start_timeline(config_.timeline, config_.timeline_mark_cycles);
  if (!started.ok()) log_warning("{} (FARANDOLE_TIMELINE); the job goes on without one", started.text());
}

Status Runtime::start_timeline(const std::string& path, bool marks_cycles) {
  if (path.empty()) return Status(Code::invalid_argument, "timeline: the path of the file is empty");
  FDL_RETURN_IF_ERROR(may_wait());
  MutexLock lock(timeline_mutex_);
  FDL_RETURN_IF_ERROR(usable());
  if (timeline_started_) {
    return Status(Code::invalid_argument, "timeline: one is being written already; stop it before you start another");
  }
  std::string mine = path;
  const auto place = mine.find("%r");
  if (place != std::string::npos) mine.replace(place, 2, std::to_string(facts_.rank));
  if (place != std::string::npos || facts_.rank == 0) {
    const std::string who =
        "rank " + std::to_string(facts_.rank) + " of " + std::to_string(facts_.size) + " on " + facts_.host;
    FDL_ASSIGN_OR_RETURN(timeline_, Timeline::start(mine, who, marks_cycles));
    Timeline* timeline = timeline_.get();
    loop_->call([&] { trace_groups(timeline); });
    notes_times_.store(true, std::memory_order_relaxed);
  }
  timeline_started_ = true;
  return {};
}

Status Runtime::stop_timeline() {
  FDL_RETURN_IF_ERROR(may_wait());
  MutexLock lock(timeline_mutex_);
  FDL_RETURN_IF_ERROR(usable());
  return finish_timeline();
}

Status Runtime::finish_timeline() {
  timeline_started_ = false;
  if (!timeline_) return {};
  notes_times_.store(false, std::memory_order_relaxed);
  loop_->call([&] { trace_groups(nullptr); });
  const Status outcome = timeline_->stop();
  timeline_.reset();
  return outcome;
}

void Runtime::trace_groups(Timeline* timeline) {
  traced_by_ = timeline;
  MutexLock lock(mutex_);
  for (auto& group : groups_) {
    group->named().trace_with(timeline == nullptr ? nullptr
                                                  : timeline->trace(group->id(), group->rank(), group->size()));
  }
}

Runtime::NamedCounts Runtime::count_named() {
  NamedCounts counts;
  if (!usable().ok()) return counts;
  loop_->call([&] {
    MutexLock lock(mutex_);
    for (auto& group : groups_) {
      const NamedOperations& named = group->named();
      counts.operations += named.completed();
      counts.buckets += named.buckets();
      counts.control_messages += named.control_messages();
      counts.locked_steps += named.locked_steps();
      counts.lock_epochs += named.lock_epochs();
    }
  });
  return counts;
}

}  // namespace fdl
