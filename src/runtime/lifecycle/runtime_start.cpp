// Runtime, part 3: the start, from the environment to a world in which every rank has the facts of all ranks.
#include <algorithm>
#include <charconv>
#include <map>
#include <span>

#include "base/log.h"
#include "base/version.h"
#include "bootstrap/launcher_service/launcher_service.h"
#include "bootstrap/rendezvous/job_key.h"
#include "bootstrap/rendezvous/rendezvous.h"
#include "bootstrap/topology/location.h"
#include "bootstrap/topology/member_locations.h"
#include "bootstrap/topology/topology.h"
#include "contract/security.h"
#include "runtime/lifecycle/assemble.h"
#include "runtime/lifecycle/compatibility_settings.h"
#include "runtime/lifecycle/runtime.h"
#include "runtime/lifecycle/store_exchange.h"
#include "system/handshake.h"
#include "system/process/descriptor_limit.h"
#include "system/seal.h"
#include "system/thread.h"

namespace fdl {
namespace {

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
                    .rendezvous = config.rendezvous};
  FDL_ASSIGN_OR_RETURN(identity.job_key, given_job_key(config));
  if (options.succession) {
    identity.source = options.succession->source;
    identity.job_key_is_derived = options.succession->key_is_derived;
  }
  if (options.share) {
    // Ranks of one host need no port.
    const bool on_one_host = options.succession ? options.succession->on_one_host : options.local_size == options.size;
    const Config::PortRange ports = config.rank_ports();
    identity.rendezvous = on_one_host ? "unix" : std::string(kLauncherPlace) + "program";
    // The coordinator of the world that has ended may still have its port.
    if (!on_one_host && options.succession && ports.first != 0) {
      identity.rendezvous = "tcp://0.0.0.0:" + std::to_string(ports.first) + "-" + std::to_string(ports.last);
    }
    return identity;
  }
  if (identity.rendezvous.empty() && options.size == 1) identity.rendezvous = "memory://alone-" + random_hex(8);
  if (identity.rendezvous.empty()) {
    return Status(Code::invalid_argument,
                  "rank and size were given without a rendezvous; give tcp://host:port, "
                  "file:///path or memory://name (the same on all ranks)");
  }
  identity.rank_zero_serves = !coordinator_is_there(identity.rendezvous);
  if (identity.job_key.empty() && !identity.rendezvous.starts_with(kLauncherPlace)) {
    identity.job_key = "farandole " + identity.rendezvous;
    identity.job_key_is_derived = true;
  }
  return identity;
}

// How often a rank of a world of survivors checks that rank 0 is there while it does not find the coordinator.
constexpr double kServerCheck_s = 0.3;

// The survivors of a world are already known to be there, and try again without those that are lost meanwhile.
double arrival_timeout_s(const RuntimeOptions& options, const Config& config) {
  return options.succession ? options.succession->arrival_timeout_s : config.start_timeout_s;
}

// PMI-1 limits values to 1024 bytes without spaces; the key takes 65.
constexpr std::size_t kLongestShared = 800;
constexpr uint64_t kOtherDescriptors = 512;
constexpr uint64_t kFewestOthers = 8;  // a start needs more
constexpr std::string_view kFailed = "failed#";
// The group of all ranks, and its communicator: the last thing that a start makes. A failure anywhere in the start is
// reported as its own, so that all ranks return it with the name of the rank that failed.
constexpr std::string_view kAllRanks = "all";
const std::string& comm_of_all() {
  static const auto& name = *new std::string("group " + std::string(kAllRanks));
  return name;
}

// A word that carries the beginning of a text, two digits for each byte, and the text of such a word.
std::string failure_word(const std::string& text) {
  return std::string(kFailed) + hex(std::as_bytes(std::span(text).first(std::min(text.size(), kLongestShared / 2))));
}
std::string text_of_failure(std::string_view word) {
  std::string text;
  for (word.remove_prefix(kFailed.size()); word.size() >= 2; word.remove_prefix(2)) {
    int byte = '?';
    std::from_chars(word.data(), word.data() + 2, byte, 16);
    text += static_cast<char>(byte);
  }
  return text;
}

}  // namespace

Result<std::unique_ptr<Runtime>> Runtime::create(const RuntimeOptions& options) {
  std::unique_ptr<Runtime> runtime(new Runtime());
  Status started = runtime->start(options);
  if (started.ok()) return runtime;
  if (options.succession && runtime->coordinator_client_) {
    options.succession->lost = runtime->coordinator_client_->lost_ranks();
  }
  return started.while_doing("starting farandole");
}

Status Runtime::start(const RuntimeOptions& options) {
  const Environment environment = Environment::of_process();
  const Status prepared = prepare(options, environment);
  if (!prepared.ok() && !options.share) return prepared;
  if (options.share) {
    FDL_RETURN_IF_ERROR(meet_through(options.share, "program", prepared));
  } else if (identity_.rendezvous.starts_with(kLauncherPlace)) {
    FDL_RETURN_IF_ERROR(meet_through_launcher(environment));
  } else if (identity_.rank == 0 && identity_.rank_zero_serves) {
    FDL_RETURN_IF_ERROR(serve_coordinator());
  }
  FDL_RETURN_IF_ERROR(connect_ranks());
  FDL_RETURN_IF_ERROR(compute_facts());
  FDL_RETURN_IF_ERROR(share_memory());
  FDL_RETURN_IF_ERROR(start_connector());
  start_configured_timeline();  // before the first group, so that its trace is complete
  start_metrics();
  start_history(environment);
  std::vector<int> everyone(members_.size());
  for (std::size_t rank = 0; rank < everyone.size(); ++rank) everyone[rank] = static_cast<int>(rank);
  FDL_ASSIGN_OR_RETURN(all_, open_group(std::string(kAllRanks), everyone));
  if (history_) history_->sample();
  const LogLevel level = identity_.rank == 0 ? LogLevel::info : LogLevel::debug;
  if (log_enabled(level)) {  // to describe the machine takes milliseconds
    log_at(level, "{}; {}; {} of {} on this host, {}, fusion {} MiB", identity_.line(), facts_.transports,
           facts_.local_rank, facts_.local_size, describe_machine(), config_.fusion_bytes >> 20);
  }
  report_network();
  report_security();
  return {};
}

// Reads settings and environment; contacts no other rank.
Status Runtime::prepare(const RuntimeOptions& options, const Environment& environment) {
  std::map<std::string, std::string> knobs = options.knobs;
  if (!options.rendezvous.empty()) knobs["rendezvous"] = options.rendezvous;
  if (!options.job_key.empty()) knobs["job_key"] = options.job_key;
  FDL_ASSIGN_OR_RETURN(config_, Config::read(environment, knobs));
  options_ = options;
  devices_ = std::make_shared<Devices>(config_);
  FDL_ASSIGN_OR_RETURN(tuning_, load_tuning(config_, environment));
  FDL_ASSIGN_OR_RETURN(const LogLevel level, parse_log_level(config_.log_level));
  FDL_RETURN_IF_ERROR(check_security(config_));
  set_log_level(level);
  if (options.rank >= 0) {
    FDL_ASSIGN_OR_RETURN(identity_, explicit_identity(options, config_));
  } else {
    FDL_ASSIGN_OR_RETURN(identity_, who_am_i(environment, config_));
  }
  FDL_RETURN_IF_ERROR(locate(environment));
  if (identity_.rank == 0) {
    for (const std::string& line : config_.without_meaning) log_warning("{}", line);
  }
  return {};
}

// The survivors of a loss keep their locations: the file may be gone by now.
Status Runtime::locate(const Environment& environment) {
  if (options_.succession) {
    location_ = options_.succession->location;
    return {};
  }
  FDL_ASSIGN_OR_RETURN(HostLocation found, find_location(environment, config_, host_facts().host_name));
  location_ = std::move(found.path);
  return {};
}

// A job does not fail because its metrics cannot be served.
void Runtime::start_metrics() {
  if (config_.metrics_port == 0) return;
  const int64_t port = config_.metrics_port + facts_.local_rank;
  const Result<std::string> token = given_metrics_token(config_);
  if (!token.ok()) {
    return log_warning("{}; the job goes on without the metrics of rank {}", token.status().text(), facts_.rank);
  }
  auto metrics = std::make_shared<Metrics>(Metrics::Labels{{"rank", std::to_string(facts_.rank)},
                                                           {"size", std::to_string(facts_.size)},
                                                           {"local_rank", std::to_string(facts_.local_rank)},
                                                           {"host", facts_.host},
                                                           {"launcher", facts_.source},
                                                           {"transports", facts_.transports},
                                                           {"version", std::string(kVersion)}});
  count_devices(*metrics);
  auto server =
      port > 65535
          ? Status(Code::invalid_argument, "FARANDOLE_METRICS_PORT = '" + std::to_string(config_.metrics_port) +
                                               "' and the local rank are more than 65535")
          : serve_metrics(metrics, {.host = config_.metrics_address, .port = static_cast<int>(port), .token = *token});
  if (!server.ok())
    return log_warning("{}; the job goes on without the metrics of rank {}", server.status().text(), facts_.rank);
  metrics_ = std::move(metrics);
  metrics_server_ = server.take();
}

// A job does not fail because its history cannot be kept. The name of the job is the same on all ranks, fresh for each
// world, and tells nothing about the key. The file has the name of the launcher's run, so that the launcher finds it.
void Runtime::start_history(const Environment& environment) {
  if (!config_.history) return;
  const std::string derived = derive_session_key(session_key_, "history", "farandole history");
  const std::string job = hex(std::as_bytes(std::span(derived).first(std::min<std::size_t>(derived.size(), 8))));
  const HistoryFacts facts{.rank = facts_.rank, .size = facts_.size, .job = job, .host = facts_.host};
  std::string path;
  if (!config_.history_dir.empty()) {
    std::string run = environment.get("FARANDOLE_RUN_ID").value_or(job);
    // The ranks of the first world have files of their own, which tell why there is another one.
    if (options_.succession) run += "-shrunk" + std::to_string(options_.succession->round);
    path = history_path(config_.history_dir, run, facts_.rank);
  }
  auto history = History::make(facts, path);
  if (!history.ok() && !path.empty()) {
    log_warning("{} (FARANDOLE_HISTORY_DIR); the history is kept in memory", history.status().text());
    history = History::make(facts);
  }
  if (!history.ok()) return log_warning("{}; the job goes on without a history", history.status().text());
  history_ = history.take();
}

std::shared_ptr<GroupMetrics> Runtime::metrics_of(const Group& group) const {
  if (!metrics_) return nullptr;
  std::vector<int> ranks;
  for (const Member& member : group.members()) ranks.push_back(member.world_rank);
  return metrics_->group(Metrics::label_of(ranks, facts_.size));
}

Status Runtime::meet_through_launcher(const Environment& environment) {
  FDL_ASSIGN_OR_RETURN(const Rendezvous place, parse_rendezvous(identity_.rendezvous));
  FDL_ASSIGN_OR_RETURN(LauncherService * service, launcher_service(place.name, Variables(environment), config_));
  const auto share = [&](const std::string& word) {
    return service->share(identity_.rank, word, Deadline::after_seconds(config_.start_timeout_s));
  };
  return meet_through(share, place.name, {});
}

// Rank 0 serves the coordinator at a free port. The launcher's service, or the program, gives its address and a fresh
// job key to all ranks, in one word: "tcp://10.0.0.1:40213#<key>". A job key that the user set does not travel. A rank
// that has failed already takes part, so that the others do not wait for it here.
Status Runtime::meet_through(const std::function<Result<std::string>(const std::string&)>& share,
                             const std::string& service, const Status& prepared) {
  const bool has_key = !identity_.job_key.empty();
  Status served = prepared;
  std::string word = prepared.ok() ? std::string() : failure_word(prepared.text());
  if (identity_.rank == 0 && prepared.ok()) {
    if (!has_key) identity_.job_key = random_hex(32);
    served = serve_coordinator();
    if (served.ok() && coordinator_->address().size() > kLongestShared) {
      served =
          Status(Code::invalid_argument, "this host has too many addresses for the launcher's service to pass on (" +
                                             std::to_string(coordinator_->address().size()) +
                                             " bytes); name the interfaces to use in FARANDOLE_INTERFACES");
    }
    word =
        served.ok() ? coordinator_->address() + "#" + (has_key ? "" : identity_.job_key) : failure_word(served.text());
  }
  // Rank 0 shares its failure too; otherwise the others would wait for it until the deadline.
  auto shared = share(word);
  FDL_RETURN_IF_ERROR(served);
  FDL_RETURN_IF_ERROR(shared.status());
  if (shared->starts_with(kFailed)) {
    return Status(Code::peer_lost, "rank 0 could not serve the coordinator: " + text_of_failure(*shared));
  }
  const auto mark = std::min(shared->find('#'), shared->size() - 1);
  identity_.rendezvous = shared->substr(0, mark);
  if (!has_key) identity_.job_key = shared->substr(mark + 1);
  identity_.service = service;
  return {};
}

// The coordinator has a thread of its own, which takes no signals. An address that the launcher or the program passes
// on is of no use to anything but the ranks.
Status Runtime::serve_coordinator() {
  // For a connection to each rank, beside what the program and this rank have open.
  const auto ranks = static_cast<uint64_t>(identity_.size);
  const uint64_t limit = raise_limit_of_descriptors(ranks + kOtherDescriptors);
  const std::string host = host_facts().host_name;
  Status cannot_start;
  if (limit < ranks + kFewestOthers) {
    cannot_start = Status::blame(0, host, Code::resource,
                                 "rank 0 (" + host + ") serves the coordinator, which needs a connection to each of " +
                                     std::to_string(ranks) + " ranks, and may open " + std::to_string(limit) +
                                     " files: raise the hard limit of `ulimit -n` there");
  }
  const bool only_ranks_know_it = options_.share || identity_.rendezvous.starts_with(kLauncherPlace);
  FDL_ASSIGN_OR_RETURN(coordinator_, Coordinator::open({.size = identity_.size,
                                                        .job_key = identity_.job_key,
                                                        .address = identity_.rendezvous,
                                                        .interfaces = config_.interfaces,
                                                        .port_base = static_cast<int>(config_.port_base),
                                                        .start_timeout_s = arrival_timeout_s(options_, config_),
                                                        .silence_warning_s = config_.silence_warning_s,
                                                        .lost_after_s = config_.lost_after_s,
                                                        .server_name = "rank 0 on " + host,
                                                        .closes_when_complete = only_ranks_know_it,
                                                        .cannot_start = cannot_start}));
  coordinator_thread_ = start_thread_without_signals([this] { coordinator_->run(); });
  return cannot_start;  // this rank does not connect either
}

// The coordinator of a world of survivors was there when they got its address. If it is not any more, it has ended.
Result<std::unique_ptr<CoordinatorClient>> Runtime::connect_to_coordinator(Deadline deadline) {
  const HostFacts mine = host_facts();
  const CoordinatorClient::Hello hello{.rank = identity_.rank,
                                       .size = identity_.size,
                                       .host_name = mine.host_name,
                                       .boot_id = mine.boot_id,
                                       .process_id = mine.process_id,
                                       .settings = compatibility_settings(config_, tuning_.table),
                                       .numa_node = numa_node(),
                                       .efa = static_cast<int8_t>(answer_for_efa()),
                                       .recovery = recovery_.address,
                                       .salt = identity_.rank == 0 ? random_hex(32) : std::string(),
                                       .location = location_};
  const CoordinatorClient::Limits limits{.silence_warning_s = config_.silence_warning_s,
                                         .lost_after_s = config_.lost_after_s,
                                         .suspect_after_s = config_.suspect_after_s};
  const bool is_successor = options_.succession != nullptr && identity_.rank > 0;
  while (true) {
    const Deadline limit = is_successor ? deadline.earlier(Deadline::after_seconds(kServerCheck_s)) : deadline;
    auto client = CoordinatorClient::connect(identity_.rendezvous, identity_.job_key, hello, limit, limits);
    if (client.ok() || !is_successor || deadline.passed()) return client;
    if (!options_.succession->server_is_there()) {
      return Status(Code::peer_lost, "rank 0 of the new world was lost before all ranks had arrived");
    }
  }
}

Status Runtime::connect_ranks() {
  const double arrival_s = arrival_timeout_s(options_, config_);
  open_recovery();
  // Set by this thread alone, in its own waits.
  Interrupt own;
  if (options_.interrupted) {
    own.ask = [&] {
      if (options_.interrupted()) own.moment_ns = now_ns();
    };
  }
  const auto is_interrupted = [&] { return own.moment_ns.load() != std::numeric_limits<int64_t>::max(); };
  auto client = connect_to_coordinator(Deadline::after_seconds(arrival_s).interrupted_by(own));
  if (!client.ok()) return is_interrupted() ? interrupted() : client.status();
  coordinator_client_ = client.take();
  auto progress_thread = ProgressThread::start(
      *coordinator_client_, config_,
      {.on_event = [this](const CoordinatorEvent& event) { on_event(event); },
       .on_stuck = [this](Communicator& comm, int64_t waited_ns) { on_suspect(comm, waited_ns); },
       .on_failure_report = [this](Communicator& comm, const Status& why) { on_failure_report(comm.id(), why); },
       .on_watch =
           [this](int64_t now) {
             return std::min({watch_devices(now), watch_set_ups(now), answer_states(now)});
           }});
  if (!progress_thread.ok()) return report_own(comm_of_all(), progress_thread.status());
  progress_thread_ = progress_thread.take();
  FDL_ASSIGN_OR_RETURN(SetUp set_up, begin_set_up({}, comm_of_all()));
  // The coordinator fails after arrival_s with a text that names the missing ranks. This deadline is 2 s later,
  // so that its text arrives first.
  const auto all = coordinator_client_->wait_for_all(Deadline::after_seconds(arrival_s + 2).interrupted_by(own));
  if (!all.ok()) return is_interrupted() ? interrupted() : all.status();
  const auto& everyone = *all;
  std::vector<HostFacts> facts;
  std::vector<EfaAnswer> answers;
  std::vector<std::string> locations;
  for (const auto& hello : everyone) {
    locations.push_back(hello.location);
    facts.push_back({hello.host_name, hello.boot_id, hello.process_id, hello.numa_node});
    answers.push_back(static_cast<EfaAnswer>(hello.efa));
  }
  StoreExchange exchange(*coordinator_client_, "world");
  std::vector<int> others;
  for (const auto& hello : everyone) {
    if (hello.rank != identity_.rank) others.push_back(hello.rank);
  }
  FDL_ASSIGN_OR_RETURN(set_up, begin_set_up(others, comm_of_all()));
  auto members = find_hosts(identity_.rank, facts, identity_.job_key, exchange, set_up.deadline);
  if (!members.ok()) return outcome(set_up, members.status());
  locations_ = assign_locations(*members, locations);
  members_ = members.take();
  const Status agreed = agree_on_session_key(everyone.front().salt, exchange, set_up.deadline);
  if (!agreed.ok()) return outcome(set_up, agreed);
  keep_recovery(everyone);
  return choose_network(answers);
}

// Rank 0 draws a random salt for each world, so that no message of an earlier world of the same job key is valid in
// this one. The salt travels in the sealed frames of the coordinator: in the list of members, or as a fact if the
// coordinator is of a former version, whose list has none.
Status Runtime::agree_on_session_key(std::string salt, Exchange& exchange, Deadline deadline) {
  constexpr std::string_view kSalt = "session";
  if (salt.empty() && identity_.rank == 0) FDL_RETURN_IF_ERROR(exchange.publish(kSalt, random_hex(32)));
  if (salt.empty()) {
    FDL_ASSIGN_OR_RETURN(salt, exchange.fetch(kSalt, deadline));
  }
  session_key_ = derive_session_key(identity_.job_key, salt, "farandole session");
  return {};
}

// Computes local and cross ranks from the hosts of all ranks, where the launcher did not set them.
Status Runtime::compute_facts() {
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
  // Ranks that share a core must not spin: the rank that they wait for may need the core.
  if (!each_has_a_core(members_, members_[me].host_id)) config_.spin_us = 0;
  return {};
}

Status Runtime::share_memory() {
  StoreExchange exchange(*coordinator_client_, "memory");
  FDL_ASSIGN_OR_RETURN(const SetUp set_up, begin_set_up(others(members_), comm_of_all()));
  const Membership world{.id = "the world's memory",
                         .rank = identity_.rank,
                         .members = members_,
                         .job_key = identity_.job_key,
                         .config = &config_,
                         .locations = locations_,
                         .exchange = &exchange,
                         .deadline = set_up.deadline};
  auto memory = assemble_memory(world);
  if (!memory.ok()) return outcome(set_up, memory.status());
  memory_ = memory.take();
  auto group = assemble_memory_group(world);
  if (!group.ok()) return outcome(set_up, group.status());
  memory_group_ = group.take();
  return {};
}

Status Runtime::start_connector() {
  auto connector = assemble_connector({.id = "the world's connections",
                                       .rank = identity_.rank,
                                       .members = members_,
                                       .job_key = identity_.job_key,
                                       .session_key = session_key_,
                                       .key_is_secret = !identity_.job_key_is_derived,
                                       .config = &config_,
                                       .locations = locations_},
                                      std::make_unique<StoreExchange>(*coordinator_client_, "connections"));
  if (!connector.ok()) return report_own(comm_of_all(), connector.status());
  tcp_connector_ = connector.take();
  return {};
}

}  // namespace fdl
