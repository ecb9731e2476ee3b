// farandole explain prints which algorithm runs and why, its steps, and its predicted time beside the alternatives.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <string_view>

#include "algorithms/choice/choose.h"
#include "algorithms/choice/measured_choice.h"
#include "base/config.h"
#include "base/escape.h"
#include "base/split_list.h"
#include "cli/json_line.h"
#include "cli/network_report.h"
#include "cli/numa_report.h"
#include "cli/number_checks.h"
#include "cli/subcommands.h"
#include "runtime/lifecycle/tuning.h"
#include "schedule/print/describe.h"
#include "schedule/proof/simulate.h"

namespace fdl {
namespace {

struct Query {
  std::string collective = "allreduce";
  int ranks = 2;
  int hosts = 1;
  std::string bytes = "1M";
  std::string algorithm = "auto";
  bool deterministic = false;
  double alpha_us = 5;
  double gigabytes_per_s = 2;
  std::string transport;   // empty: derived from the numbers of ranks and hosts, see transport_of()
  std::string nodes;       // NUMA node of each rank of a host; empty: this machine's nodes
  std::string levels;      // sizes from the ranks of a host outwards; empty: ranks and hosts
  std::string topology;    // a file of hosts and their locations; empty: --levels
  int ranks_per_host = 1;  // of the hosts of that file
  bool is_in_turn = false;
  bool json = false;
};

// One way to run the collective: an algorithm, or the shared-memory implementation.
struct Candidate {
  bool chosen = false;
  std::string_view name;
  std::optional<double> predicted_us;  // by the simulator; absent for shared memory
  std::optional<double> took_us;       // from the tuning table; absent where it has no measurement
  std::string_view sentence;
};

// The chosen schedule, and whether an implementation of the whole collective runs instead of it.
struct Answer {
  Choice schedule;
  bool has_whole = false;  // such an implementation exists for this shape
  bool is_whole = false;   // and is chosen
};

constexpr int kMostRanks = 4096;
constexpr int kShownRanks = 8;  // in larger groups only the steps of rank 0 are printed
// In larger groups the model's formulas predict the times, as in the choice: the time of a simulation grows with the
// cube of the ranks where each has a message for each other. `farandole simulate` has no such limit.
constexpr int kSimulatedRanks = 128;

std::optional<Collective> collective_named(const std::string& name) {
  for (int kind = 0; kind < kCollectiveCount; ++kind) {
    if (name_of(static_cast<Collective>(kind)) == name) return static_cast<Collective>(kind);
  }
  return std::nullopt;
}

// The schedules of all ranks of a group of this shape.
std::vector<Schedule> schedules_of(const Algorithm& algorithm, const GroupShape& shape) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < shape.ranks; ++rank) schedules.push_back(write_schedule(algorithm, shape, rank));
  return schedules;
}

// Whether an implementation without a schedule exists: shared memory on one host, and shared memory inside the hosts
// composed with a schedule between them.
bool has_whole(Collective collective, const GroupShape& shape, bool deterministic) {
  if (shape.transport.find("shm") == std::string::npos || shape.ranks < 2) return false;
  if (shape.hosts == 1) return true;
  const bool composed =
      collective == Collective::allreduce || collective == Collective::broadcast || collective == Collective::barrier;
  return composed && shape.ranks_per_host > 1 && !(deterministic && collective == Collective::allreduce);
}

std::string us_text(std::optional<double> us) { return us ? fmt::format("{:.2f}", *us) : std::string("-"); }

std::optional<double> predicted_us(const Algorithm& algorithm, const GroupShape& shape, int64_t bytes,
                                   const CostModel& model) {
  if (shape.ranks <= kSimulatedRanks) return simulate(schedules_of(algorithm, shape), bytes, model).seconds * 1e6;
  const double seconds = predicted_s(algorithm, shape, bytes);
  return std::isfinite(seconds) ? std::optional(seconds * 1e6) : std::nullopt;
}

std::vector<Candidate> ways_of(const Answer& answer, const GroupShape& shape, int64_t bytes, const CostModel& model) {
  const Collective collective = answer.schedule.algorithm->collective;
  const TuningTable::Sizes* sizes = measured_sizes(collective, shape);
  const auto took_us = [&](std::string_view way) {
    return sizes == nullptr ? std::optional<double>() : measured_us(*sizes, way, bytes);
  };
  std::vector<Candidate> ways;
  if (answer.has_whole) {
    ways.push_back({answer.is_whole, kWhole, std::nullopt, took_us(kWhole),
                    shape.hosts == 1 ? "Shared memory, without a schedule: every rank reads the others' memory"
                                     : "Shared memory inside each host, a schedule between the hosts"});
  }
  for (const Algorithm& algorithm : catalog()) {
    if (algorithm.collective != collective || !fits(algorithm, shape.ranks)) continue;
    const bool chosen = !answer.is_whole && &algorithm == answer.schedule.algorithm;
    ways.push_back({chosen, algorithm.name, predicted_us(algorithm, shape, bytes, model), took_us(algorithm.name),
                    algorithm.sentence});
  }
  return ways;
}

void print_ways(const std::vector<Candidate>& ways, const GroupShape& shape, const CostModel& model) {
  const std::string how = shape.ranks <= kSimulatedRanks ? "" : " by formulas (`farandole simulate` simulates them)";
  fmt::print("\n{:<23} {:>14} {:>14}   predicted from {} us a message and {:.3g} GB/s a direction{}\n", "   way",
             "predicted us", "measured us", model.alpha_s * 1e6, 1e-9 / model.beta_s, how);
  for (const Candidate& way : ways) {
    fmt::print("{} {:<20} {:>14} {:>14}   {}\n", way.chosen ? "->" : "  ", way.name, us_text(way.predicted_us),
               us_text(way.took_us), way.sentence);
  }
}

void print_answer_as_json(const Answer& answer, const GroupShape& shape, int64_t bytes,
                          const std::vector<Candidate>& ways, const NumaReport& numa, const Tuning& tuning) {
  JsonLine line;
  line.text("collective", name_of(answer.schedule.algorithm->collective))
      .number("bytes", static_cast<long long>(bytes));
  line.number("ranks", static_cast<long long>(shape.ranks)).number("hosts", static_cast<long long>(shape.hosts));
  line.text("transport", shape.transport).flag("whole", answer.is_whole);
  line.text("algorithm", answer.schedule.algorithm->name).text("why", answer.schedule.why);
  std::vector<JsonLine> rows;
  for (const Candidate& way : ways) {
    JsonLine& row = rows.emplace_back();
    row.text("way", way.name).flag("chosen", way.chosen);
    if (way.predicted_us) row.number("predicted_us", *way.predicted_us);
    if (way.took_us) row.number("measured_us", *way.took_us);
  }
  line.list("ways", rows).text("tuning_table", tuning.source);
  add_to(line, shape);
  add_to(line, numa);
  fmt::print("{}\n", line.str());
}

// Chooses as a communicator of this shape does.
Result<Answer> answer_of(Collective collective, const GroupShape& shape, int64_t bytes, const Query& query) {
  const bool is_named = query.algorithm != "auto" && query.algorithm != kWhole;
  Answer answer;
  answer.has_whole = has_whole(collective, shape, query.deterministic);
  if (query.algorithm == kWhole && !answer.has_whole) {
    return Status(Code::invalid_argument,
                  query.collective + " does not run as a whole here: that needs ranks that share memory");
  }
  // The measured table may prefer a schedule to shared memory.
  // An alltoall is taken to be one of equal chunks where the bytes allow it.
  const Need need{.rank_order = query.deterministic, .uneven = bytes % shape.ranks != 0};
  const bool slower = query.algorithm == "auto" && Preference(shape).is_schedule(collective, bytes, need);
  answer.is_whole = answer.has_whole && !is_named && !slower;
  FDL_ASSIGN_OR_RETURN(answer.schedule, choose(collective, shape, bytes, is_named ? query.algorithm : "auto",
                                               need.rank_order, true, !need.uneven));
  return answer;
}

void print_choice(const Answer& answer, const GroupShape& shape, int64_t bytes, const Query& query) {
  fmt::print("{} of {} bytes on {} ranks over {}: ", query.collective, bytes, shape.ranks, shape.transport);
  if (answer.is_whole) fmt::print("{}, without a schedule; as a schedule it would be ", kWhole);
  fmt::print("{}\n{}\n", answer.schedule.algorithm->name, answer.schedule.why);
}

std::string transport_of(const Query& query, int ranks_per_host) {
  if (!query.transport.empty()) return query.transport;
  return query.hosts == 1 ? "shm" : ranks_per_host == 1 ? "tcp" : "shm+tcp";
}

void print_answer_as_text(const Answer& answer, const GroupShape& shape, int64_t bytes,
                          const std::vector<Candidate>& ways, const NumaReport& numa, const Tuning& tuning,
                          const Query& query, const std::string& network) {
  print_choice(answer, shape, bytes, query);
  fmt::print("{}tuning table: {} ({})\n\n", text_of(numa), tuning.source, tuning.table.fingerprint());
  const Algorithm& algorithm = *answer.schedule.algorithm;
  fmt::print("{}{}", network, stages_text(algorithm, shape, bytes));
  if (shape.ranks <= kShownRanks) {
    fmt::print("{}", describe(schedules_of(algorithm, shape)));
  } else {
    fmt::print("{}(the schedules of the other {} ranks are alike)\n", describe(write_schedule(algorithm, shape, 0)),
               shape.ranks - 1);
  }
  print_ways(ways, shape, {.alpha_s = shape.alpha_s, .beta_s = shape.beta_s});
}

// What follows a colon is for the transport: "ofi:tcp". The transport need not be one of this build.
Status check_transport(const std::string& text) {
  constexpr std::array<std::string_view, 6> kNames = {"shm", "tcp", "efa", "ofi", "mpi", "loopback"};
  for (const std::string& word : split_list(text, '+')) {
    if (std::ranges::find(kNames, word.substr(0, word.find(':'))) != kNames.end()) continue;
    return Status(Code::invalid_argument,
                  fmt::format("--transport {}: {} is not one of {}; several are joined by +: shm+tcp",
                              quoted_text(text), quoted_text(word), fmt::join(kNames, ", ")));
  }
  return {};
}

// The groups of hosts, if the query gives them.
Result<std::optional<GivenNetwork>> given_network(const Query& query) {
  if (query.levels.empty() && query.topology.empty()) return std::optional<GivenNetwork>();
  FDL_ASSIGN_OR_RETURN(GivenNetwork network, query.topology.empty()
                                                 ? network_of_levels(query.levels, kMostRanks)
                                                 : network_of_file(query.topology, query.ranks_per_host));
  if (network.hosts.size() > static_cast<std::size_t>(kMostRanks / network.ranks_per_host)) {
    return Status(Code::invalid_argument,
                  fmt::format("--topology '{}' lists {} hosts; with {} ranks each they have more than {} ranks",
                              query.topology, network.hosts.size(), network.ranks_per_host, kMostRanks));
  }
  network.is_in_turn = query.is_in_turn;
  return std::optional(std::move(network));
}

Status explain(const Query& given) {
  Query query = given;
  if (!query.transport.empty()) FDL_RETURN_IF_ERROR(check_transport(query.transport));
  FDL_ASSIGN_OR_RETURN(const std::optional<GivenNetwork> network, given_network(query));
  RankLevels levels;
  if (network) {
    query.ranks = network->ranks();
    query.hosts = static_cast<int>(network->hosts.size());
    levels = levels_of(*network);
  }
  const auto collective = collective_named(query.collective);
  if (!collective) {
    return Status(Code::invalid_argument,
                  "'" + query.collective + "' is not a collective; try allreduce, broadcast, alltoall ...");
  }
  if (query.hosts > query.ranks) {
    return Status(Code::invalid_argument,
                  fmt::format("--hosts {}: {} ranks are on at most {} hosts", query.hosts, query.ranks, query.ranks));
  }
  const auto bytes = parse_bytes(query.bytes);
  if (!bytes.ok()) return Status(Code::invalid_argument, "--bytes " + bytes.status().text());
  const CostModel model{.alpha_s = query.alpha_us * 1e-6, .beta_s = 1e-9 / query.gigabytes_per_s};
  FDL_ASSIGN_OR_RETURN(const Config config, Config::read(Environment::of_process()));
  FDL_ASSIGN_OR_RETURN(const Tuning tuning, tuning_in_force());
  const int per_host = query.ranks % query.hosts == 0 ? query.ranks / query.hosts : 0;  // 0: uneven
  const GroupShape shape{.ranks = query.ranks,
                         .hosts = query.hosts,
                         .ranks_per_host = per_host,
                         .alpha_s = model.alpha_s,
                         .beta_s = model.beta_s,
                         .transport = transport_of(query, per_host),
                         .table = &tuning.table,
                         .order = levels.order,
                         .levels = levels.levels};
  const auto size = static_cast<int64_t>(*bytes);
  FDL_ASSIGN_OR_RETURN(const Answer answer, answer_of(*collective, shape, size, query));
  FDL_ASSIGN_OR_RETURN(const NumaReport numa,
                       numa_report(query.nodes, *collective, shape, size, answer.is_whole, config));
  const std::vector<Candidate> ways = ways_of(answer, shape, size, model);
  if (query.json) {
    print_answer_as_json(answer, shape, size, ways, numa, tuning);
  } else {
    const std::string drawing = network ? drawing_of(*network, levels) + levels_text(levels) + "\n" : std::string();
    print_answer_as_text(answer, shape, size, ways, numa, tuning, query, drawing);
  }
  return {};
}

int explain_or_fail(const Query& query) {
  const Status outcome = explain(query);
  if (outcome.ok()) return kExitOk;
  fmt::print(stderr, "farandole explain: {}\n", outcome.text());
  return kExitUsage;
}

}  // namespace

void add_explain(CLI::App& app, Work& work) {
  auto query = std::make_shared<Query>();
  CLI::App* command = app.add_subcommand("explain", "Show which algorithm is chosen, why, its steps and its cost");
  command
      ->add_option("--collective", query->collective,
                   "allreduce, reduce, broadcast, allgather, reduce_scatter, "
                   "alltoall, gather, scatter, barrier")
      ->capture_default_str();
  command->add_option("--ranks", query->ranks, "Ranks in the group")
      ->capture_default_str()
      ->check(CLI::Range(1, kMostRanks));
  command->add_option("--hosts", query->hosts, "Hosts they are on")
      ->capture_default_str()
      ->check(CLI::Range(1, kMostRanks));
  CLI::Option* levels = command->add_option("--levels", query->levels,
                                            "Instead of these: 8,32,4 is 8 ranks a host, 32 hosts a group, 4 groups");
  CLI::Option* topology =
      command->add_option("--topology", query->topology, "Instead of these: a file of hosts and their locations");
  levels->excludes("--ranks", "--hosts", topology);
  topology->excludes("--ranks", "--hosts");
  command->add_option("--ranks-per-host", query->ranks_per_host, "With --topology: ranks on each host")
      ->capture_default_str()
      ->check(CLI::Range(1, kMostRanks))
      ->needs(topology);
  command->add_flag("--in-turn", query->is_in_turn,
                    "With --levels or --topology: ranks are numbered one on each host in turn, not host by host");
  command->add_option("--bytes", query->bytes, "Size of the vector: 4, 64K, 1M")->capture_default_str();
  command->add_option("--transport", query->transport,
                      "shm, tcp, shm+tcp, shm+efa, ofi:tcp, mpi; else what such ranks would have");
  command->add_option("--algorithm", query->algorithm, "Use this one instead of auto")->capture_default_str();
  command->add_flag("--deterministic", query->deterministic, "Only what folds in rank order");
  command->add_option("--nodes", query->nodes,
                      "NUMA node of each rank of a host, 0,0,1,1 (-: of none); else this machine's, in blocks");
  command->add_flag("--json", query->json, "One JSON object");
  command->add_option("--latency-us", query->alpha_us, "Of one message")
      ->capture_default_str()
      ->check(positive_number());
  command->add_option("--gigabytes-per-s", query->gigabytes_per_s, "Of one direction of one link")
      ->capture_default_str()
      ->check(positive_number());
  command->callback([&work, query] { work = [query] { return explain_or_fail(*query); }; });
}

}  // namespace fdl
