// farandole simulate runs the schedules of a collective over a simulated cluster, and prints how long they take.
#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <memory>

#include "base/clock.h"
#include "base/config.h"
#include "cli/json_line.h"
#include "cli/simulate/cluster_text.h"
#include "cli/simulate/picture.h"
#include "cli/simulate/simulated_control.h"
#include "cli/simulate/simulated_steps.h"
#include "cli/simulate/simulated_ways.h"
#include "cli/simulate/training_models.h"
#include "cli/subcommands.h"
#include "cli/table_text.h"
#include "simulate/lower_bound.h"

namespace fdl {
namespace {

constexpr int64_t kMostHosts = 65536;  // as many as ranks

// The command line, not yet checked.
struct SimulateArguments {
  std::string hosts = "4";
  int ranks_per_host = 1;
  std::string link = "100Gbit,10us,0.5us";
  std::string local_link = "800Gbit,1us,0.2us";
  bool local_ports = false;
  std::string topology = "flat";
  std::string collective = "allreduce";
  std::string bytes = "1M";
  std::string algorithm = "all";
  std::string reduce_speed = "10GB";
  std::string copy_speed = "10GB";
  std::string noise = "0%";
  std::string stragglers;
  std::string slice = "256K";
  std::string most_slices = "20M";
  uint64_t seed = 1;
  std::string steps;  // a model; empty: single collectives
  std::string compute = "250ms";
  std::string backward = "67%";
  bool start = false;
  std::string lose;  // empty: nothing is lost
  std::string coordinator = "150us,8us,1.5GB,4.5GB";
  bool json = false;
  std::string svg;
};

// The checked command line: one cluster for each number of hosts, and the sizes.
struct Experiment {
  SimulateQuery query;
  std::vector<Cluster> clusters;
  std::vector<int64_t> sizes;
  std::optional<TrainingQuery> training;
  ControlCosts control;
};

Result<Collective> parse_collective(const std::string& name) {
  std::string names;
  for (int kind = 0; kind < kCollectiveCount; ++kind) {
    if (name_of(static_cast<Collective>(kind)) == name) return static_cast<Collective>(kind);
    names += (names.empty() ? "" : ", ") + std::string(name_of(static_cast<Collective>(kind)));
  }
  return Status(Code::invalid_argument, "--collective '" + name + "' is none of " + names);
}

// Adds the name of the option to the error of its value.
Status of_option(const Status& status, const char* option) {
  return status.ok() ? status : Status(status.code(), std::string(option) + ": " + status.text());
}

template <typename T>
Status assign(T& target, const Result<T>& value, const char* option) {
  if (!value.ok()) return of_option(value.status(), option);
  target = *value;
  return {};
}

Status parse_count(int64_t& target, const std::string& text, const char* option, int64_t least) {
  const auto values = parse_sizes(text, 2, least);
  if (!values.ok()) return of_option(values.status(), option);
  if (values->size() != 1) return Status(Code::invalid_argument, fmt::format("{}: one number, not '{}'", option, text));
  target = values->front();
  return {};
}

Result<Cluster> parse_cluster(const SimulateArguments& arguments) {
  Cluster cluster{.ranks_per_host = arguments.ranks_per_host, .local_ports = arguments.local_ports};
  cluster.seed = arguments.seed;
  FDL_RETURN_IF_ERROR(of_option(parse_link(arguments.link, cluster.network), "--link"));
  FDL_RETURN_IF_ERROR(of_option(parse_link(arguments.local_link, cluster.local), "--local-link"));
  FDL_RETURN_IF_ERROR(of_option(parse_topology(arguments.topology, cluster), "--topology"));
  FDL_RETURN_IF_ERROR(of_option(parse_stragglers(arguments.stragglers, cluster), "--stragglers"));
  FDL_RETURN_IF_ERROR(assign(cluster.reduce_bytes_per_s, parse_bandwidth(arguments.reduce_speed), "--reduce-speed"));
  FDL_RETURN_IF_ERROR(assign(cluster.copy_bytes_per_s, parse_bandwidth(arguments.copy_speed), "--copy-speed"));
  FDL_RETURN_IF_ERROR(assign(cluster.noise, parse_fraction(arguments.noise), "--noise"));
  return cluster;
}

Result<TrainingQuery> parse_training(const SimulateArguments& arguments) {
  TrainingQuery training{.model = arguments.steps, .parameters = {}};
  FDL_RETURN_IF_ERROR(assign(training.parameters, parameters_of(arguments.steps), "--steps"));
  FDL_RETURN_IF_ERROR(assign(training.compute_s, parse_seconds(arguments.compute), "--compute"));
  FDL_RETURN_IF_ERROR(assign(training.backward, parse_fraction(arguments.backward), "--backward"));
  if (training.backward > 1) return Status(Code::invalid_argument, "--backward: at most 100%");
  if (arguments.collective != "allreduce")
    return Status(Code::invalid_argument, "--steps: gradients are summed by allreduces; leave out --collective");
  return training;
}

Result<Experiment> parse(const SimulateArguments& arguments) {
  Experiment experiment;
  if (!arguments.steps.empty()) {
    FDL_ASSIGN_OR_RETURN(experiment.training, parse_training(arguments));
  }
  FDL_RETURN_IF_ERROR(of_option(parse_control_costs(arguments.coordinator, experiment.control), "--coordinator"));
  FDL_ASSIGN_OR_RETURN(experiment.query.collective, parse_collective(arguments.collective));
  experiment.query.algorithms = arguments.algorithm;
  FDL_RETURN_IF_ERROR(parse_count(experiment.query.slice_bytes, arguments.slice, "--slice", 4));
  FDL_RETURN_IF_ERROR(parse_count(experiment.query.limits.most_slices, arguments.most_slices, "--most-slices", 1));
  FDL_RETURN_IF_ERROR(assign(experiment.sizes, parse_sizes(arguments.bytes, 4, 4), "--bytes"));
  for (const int64_t size : experiment.sizes) {
    if (size % kSimulatedElementBytes != 0)
      return Status(Code::invalid_argument,
                    fmt::format("--bytes: {} is not a multiple of the 4 bytes of a float32 element", size));
  }
  std::vector<int64_t> hosts;
  FDL_RETURN_IF_ERROR(assign(hosts, parse_sizes(arguments.hosts, 2, 1, kMostHosts), "--hosts"));
  FDL_ASSIGN_OR_RETURN(Cluster cluster, parse_cluster(arguments));
  for (const int64_t count : hosts) {
    cluster.hosts = static_cast<int>(count);
    FDL_RETURN_IF_ERROR(check(cluster));
    experiment.clusters.push_back(cluster);
  }
  if (!arguments.svg.empty() && experiment.clusters.size() > 1 && experiment.sizes.size() > 1)
    return Status(
        Code::invalid_argument,
        "--svg draws times over bytes or over ranks: give several sizes or several numbers of hosts, not both");
  return experiment;
}

// GB/s as nccl-tests defines it; 0 where nothing takes time.
double busbw_GBps(const SimulatedPoint& point, Collective collective, double seconds) {
  if (!(seconds > 0)) return 0;
  return static_cast<double>(point.bytes) / seconds * bus_factor(collective, point.cluster.ranks()) * 1e-9;
}

std::string symmetry_text(const SimulatedCollective& run, int ranks) {
  if (run.symmetry == Renumbering::none) return fmt::format("all {}", ranks);
  return fmt::format("{} by {}", run.simulated_ranks, run.symmetry == Renumbering::rotation ? "rotation" : "exchange");
}

void print_table(const SimulatedPoint& point, Collective collective) {
  const int ranks = point.cluster.ranks();
  fmt::print("{} of {} on {} ranks: {}\n", name_of(collective), bytes_text(static_cast<double>(point.bytes)), ranks,
             cluster_text(point.cluster));
  std::vector<std::vector<std::string>> rows{
      {"way", "time", "busbw GB/s", "of bound", "messages", "model predicts", "simulated ranks"}};
  for (const SimulatedRow& row : point.rows) {
    auto& cells = rows.emplace_back(std::vector<std::string>{(row.is_chosen ? "-> " : "   ") + row.name});
    const std::string predicted = row.predicted_s ? seconds_text(*row.predicted_s) : "-";
    if (!row.run) {
      cells.insert(cells.end(), {"-", "-", "-", "-", predicted, "too large, see below"});
      continue;
    }
    const SimulatedCollective& run = *row.run;
    const double of_bound = run.seconds > 0 ? 100 * point.bound_s / run.seconds : 100;
    cells.insert(
        cells.end(),
        {seconds_text(run.seconds), fmt::format("{:.4g}", busbw_GBps(point, collective, run.seconds)),
         fmt::format("{:.1f} %", of_bound), fmt::format("{}", run.messages), predicted, symmetry_text(run, ranks)});
  }
  rows.front().front() = "   way";
  for (const std::string& line : align(rows)) fmt::print("{}\n", line);
  fmt::print("   lower bound: {}\n", seconds_text(point.bound_s));
  for (const SimulatedRow& row : point.rows) {
    if (!row.run) fmt::print("   {}\n", row.refusal);
  }
  fmt::print("\n");
}

void print_json(const SimulatedPoint& point, Collective collective) {
  for (const SimulatedRow& row : point.rows) {
    JsonLine line;
    line.text("collective", name_of(collective)).number("hosts", static_cast<long long>(point.cluster.hosts));
    line.number("ranks", static_cast<long long>(point.cluster.ranks()))
        .number("bytes", static_cast<long long>(point.bytes));
    line.text("algorithm", row.name).flag("chosen", row.is_chosen).number("bound_us", point.bound_s * 1e6);
    if (row.predicted_s) line.number("predicted_us", *row.predicted_s * 1e6);
    if (row.run) {
      line.number("time_us", row.run->seconds * 1e6).number("first_rank_us", row.run->first_rank_s * 1e6);
      line.number("busbw_GBps", busbw_GBps(point, collective, row.run->seconds))
          .number("messages", static_cast<long long>(row.run->messages));
      line.number("sent_bytes", static_cast<long long>(row.run->sent_bytes));
      line.number("simulated_ranks", static_cast<long long>(row.run->simulated_ranks));
    } else {
      line.text("refused", row.refusal);
    }
    fmt::print("{}\n", line.str());
  }
}

Status write_file(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return Status::from_errno("--svg " + path);
  const bool is_written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const int error = errno;
  if (std::fclose(file) != 0) return Status::from_errno("--svg " + path);
  return is_written ? ok_status() : Status::from_errno("--svg " + path, error);
}

void print_training_table(const TrainingQuery& training, const std::vector<SimulatedTraining>& all) {
  const auto percent = [](double part) { return fmt::format("{:.1f} %", 100 * part); };
  int64_t bytes = 0;
  for (const SimulatedBucket& bucket : all.front().step.buckets) bytes += bucket.bytes;
  fmt::print("a step of {}: {} gradients, {} in {} buckets; it computes for {}, the last {} of it the backward pass\n",
             training.model, training.parameters.size(), bytes_text(static_cast<double>(bytes)),
             all.front().step.buckets.size(), seconds_text(training.compute_s), percent(training.backward));
  fmt::print("{}\n", cluster_text(all.back().cluster));
  std::vector<std::vector<std::string>> rows{
      {"   hosts", "ranks", "step", "communication", "exposed", "hidden", "efficiency"}};
  for (const SimulatedTraining& one : all) {
    rows.push_back({fmt::format("   {}", one.cluster.hosts), fmt::format("{}", one.cluster.ranks()),
                    seconds_text(one.step.seconds), seconds_text(one.step.communication_s),
                    seconds_text(one.step.exposed_s), percent(one.hidden()), percent(one.efficiency())});
  }
  for (const std::string& line : align(rows)) fmt::print("{}\n", line);
}

void print_training_json(const TrainingQuery& training, const SimulatedTraining& one) {
  JsonLine line;
  line.text("model", training.model).number("hosts", static_cast<long long>(one.cluster.hosts));
  line.number("ranks", static_cast<long long>(one.cluster.ranks()))
      .number("buckets", static_cast<long long>(one.step.buckets.size()));
  line.number("compute_us", training.compute_s * 1e6).number("step_us", one.step.seconds * 1e6);
  line.number("communication_us", one.step.communication_s * 1e6).number("exposed_us", one.step.exposed_s * 1e6);
  line.number("hidden", one.hidden()).number("efficiency", one.efficiency());
  fmt::print("{}\n", line.str());
}

Status simulate_steps(const SimulateArguments& arguments, const Experiment& experiment) {
  const TrainingQuery& training = *experiment.training;
  std::vector<SimulatedTraining> all;
  std::vector<SimulatedPoint> points;
  for (const Cluster& cluster : experiment.clusters) {
    FDL_ASSIGN_OR_RETURN(all.emplace_back(), simulated_training(experiment.query, training, cluster));
    points.push_back(as_point(all.back()));
    if (arguments.json) print_training_json(training, all.back());
  }
  if (!arguments.json) print_training_table(training, all);
  if (arguments.svg.empty()) return {};
  const std::string title = fmt::format("simulated step of {}", training.model);
  return write_file(arguments.svg, picture_of(points, title, /*over_ranks=*/true, "computation"));
}

Status simulate_control(const SimulateArguments& arguments, const Experiment& experiment) {
  std::vector<SimulatedPoint> points;
  FDL_RETURN_IF_ERROR(
      arguments.start
          ? print_simulated_starts(experiment.clusters, experiment.control, arguments.json, points)
          : print_simulated_losses(experiment.clusters, experiment.control, arguments.lose, arguments.json, points));
  if (arguments.svg.empty()) return {};
  const std::string title = arguments.start ? "simulated start of a world" : "simulated loss of " + arguments.lose;
  return write_file(arguments.svg, picture_of(points, title, /*over_ranks=*/true));
}

// Tells what takes long: thousands of ranks, or what comes after the first seconds. Tables appear point by point.
void tell_progress(const Cluster& cluster, const std::string& way) {
  constexpr int kMany = 2048;
  constexpr int64_t kLong_ns = 2'000'000'000;
  static const int64_t began_ns = now_ns();
  if (cluster.ranks() < kMany && now_ns() - began_ns < kLong_ns) return;
  fmt::print(stderr, "simulating {} on {} ranks ({:.0f} s so far)\n", way, cluster.ranks(),
             static_cast<double>(now_ns() - began_ns) / 1e9);
}

Status simulate_all(const SimulateArguments& arguments) {
  FDL_ASSIGN_OR_RETURN(Experiment experiment, parse(arguments));
  experiment.query.on_begin = tell_progress;
  if (arguments.start || !arguments.lose.empty()) return simulate_control(arguments, experiment);
  if (experiment.training) return simulate_steps(arguments, experiment);
  const Collective collective = experiment.query.collective;
  std::vector<SimulatedPoint> points;
  for (const Cluster& cluster : experiment.clusters) {
    for (const int64_t bytes : experiment.sizes) {
      FDL_ASSIGN_OR_RETURN(points.emplace_back(), simulated_point(experiment.query, cluster, bytes));
      arguments.json ? print_json(points.back(), collective) : print_table(points.back(), collective);
      std::fflush(stdout);
    }
  }
  if (arguments.svg.empty()) return {};
  const bool over_ranks = experiment.clusters.size() > 1;
  const std::string of = over_ranks ? bytes_text(static_cast<double>(points.front().bytes))
                                    : fmt::format("{} ranks", points.front().cluster.ranks());
  const std::string title = fmt::format("simulated time of {}, {}", name_of(collective), of);
  return write_file(arguments.svg, picture_of(points, title, over_ranks));
}

// A simulated start or loss can end by its limit of time, as one of real ranks.
int exit_code_of_simulation(const Status& failure) {
  switch (failure.code()) {
    case Code::invalid_argument:
      return kExitUsage;
    case Code::timeout:
      return kExitRendezvous;
    case Code::internal:
      return kExitBug;
    default:
      return kExitCannotWrite;
  }
}

int simulate_or_fail(const SimulateArguments& arguments) {
  const Status outcome = simulate_all(arguments);
  if (outcome.ok()) return kExitOk;
  fmt::print(stderr, "farandole simulate: {}\n", outcome.text());
  return exit_code_of_simulation(outcome);
}

void add_cluster_options(CLI::App* command, SimulateArguments& arguments) {
  const auto option = [&](const char* name, auto& value, const char* what) {
    return command->add_option(name, value, what)->capture_default_str();
  };
  option("--hosts", arguments.hosts, "Hosts: 4096, a list, or a range that doubles (2:4096)");
  option("--ranks-per-host", arguments.ranks_per_host, "Ranks of each host")->check(CLI::Range(1, 65536));
  option("--link", arguments.link, "A host's card: bandwidth of each direction, latency, overhead a message[,gap=1us]");
  option("--local-link", arguments.local_link, "The link inside a host, which its ranks share");
  command->add_flag("--local-ports", arguments.local_ports, "Each rank has its own local link in each direction");
  option("--topology", arguments.topology,
         "flat; rack:32,2:1 (racks of 32 hosts, uplink oversubscribed 2:1); or several levels, widest first, with the "
         "latency that crossing them adds: zone:512,4:1,400us/rack:32,2:1");
  option("--reduce-speed", arguments.reduce_speed, "Of a reduction on one core, per second");
  option("--copy-speed", arguments.copy_speed, "Of a copy on one core, per second");
  option("--noise", arguments.noise, "Mean of a random addition to each latency and each piece of work");
  option("--stragglers", arguments.stragglers, "RANKS:TIME, so many ranks begin late: 3:10ms");
  option("--seed", arguments.seed, "Of noise and stragglers");
}

void add_control_options(CLI::App* command, SimulateArguments& arguments, const std::vector<CLI::Option*>& others) {
  CLI::Option* start = command->add_flag("--start", arguments.start, "Simulate the start of a world of all ranks");
  CLI::Option* lose = command->add_option("--lose", arguments.lose,
                                          "Simulate a loss, until the last rank knows: rank:7@3s, host:2@3s, "
                                          "coordinator@3s; with ,silent no connection ends");
  start->excludes(lose);
  for (CLI::Option* other : others) {
    start->excludes(other);
    lose->excludes(other);
  }
  command
      ->add_option(
          "--coordinator", arguments.coordinator,
          "Of its thread in --start and --lose: a handshake, a message, bytes authenticated and written in a second")
      ->capture_default_str();
}

}  // namespace

void add_simulate(CLI::App& app, Work& work) {
  auto arguments = std::make_shared<SimulateArguments>();
  CLI::App* command = app.add_subcommand("simulate", "Simulate a collective on a cluster of any size");
  add_cluster_options(command, *arguments);
  command
      ->add_option("--collective", arguments->collective,
                   "allreduce, reduce, broadcast, allgather, reduce_scatter, "
                   "alltoall, gather, scatter, barrier")
      ->capture_default_str();
  CLI::Option* bytes = command->add_option("--bytes,--sizes", arguments->bytes,
                                           "Size of the vector: 1G, a list, or a range by fours (4:1G)");
  bytes->capture_default_str();
  command
      ->add_option("--algorithm", arguments->algorithm,
                   "all, auto (what the library would run), or names as `farandole explain` has them: ring,whole")
      ->capture_default_str();
  command->add_option("--slice", arguments->slice, "Unit of pipelining, as FARANDOLE_SLICE_BYTES")
      ->capture_default_str();
  command->add_option("--most-slices", arguments->most_slices, "Refuse simulations of more slices than this")
      ->capture_default_str();
  CLI::Option* steps = command->add_option(
      "--steps", arguments->steps,
      "Simulate training steps that sum the gradients of resnet50, bert-base, or of elements such as 4M,64K,1000");
  steps->excludes(bytes);
  command->add_option("--compute", arguments->compute, "How long a step of --steps computes, on each rank")
      ->needs(steps)
      ->capture_default_str();
  command->add_option("--backward", arguments->backward, "The part of it that the backward pass takes")
      ->needs(steps)
      ->capture_default_str();
  add_control_options(command, *arguments, {bytes, steps});
  command->add_flag("--json", arguments->json, "One JSON object a line");
  command->add_option("--svg", arguments->svg, "Write a picture: time over bytes, or over ranks");
  command->callback([&work, arguments] { work = [arguments] { return simulate_or_fail(*arguments); }; });
}

}  // namespace fdl
