// farandole tune measures every way of running every collective on this host and writes the tuning table.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/clock.h"
#include "base/config.h"
#include "bootstrap/topology/topology.h"
#include "cli/local_ranks.h"
#include "cli/number_checks.h"
#include "cli/subcommands.h"
#include "cli/tune/tune_rank.h"
#include "runtime/lifecycle/tuning.h"
#include "schedule/schedule.h"

namespace fdl {
namespace {

struct TuneArguments {
  std::vector<int> ranks;
  std::vector<std::string> transports{"shm", "tcp"};
  std::vector<std::string> collectives;
  std::vector<std::string> sizes;
  std::string output;
  double seconds = 0;
  bool quick = false;
  bool launched = false;
};

constexpr double kQuick_s = 24;  // with start and end of the ranks the whole run stays below half a minute
constexpr double kThorough_s = 180;
// Intentionally leaked: objects of the program are not destroyed at exit.
const auto& kQuickSizes = *new std::vector<std::string>{"64", "4K", "32K", "256K", "2M", "16M"};
const auto& kThoroughSizes =
    *new std::vector<std::string>{"64", "512", "4K", "16K", "64K", "256K", "1M", "4M", "16M", "64M"};

Status parse_collectives(const TuneArguments& arguments, TuneOptions& options) {
  for (int kind = 0; kind < kCollectiveCount; ++kind) {
    const std::string name(name_of(static_cast<Collective>(kind)));
    if (arguments.collectives.empty() ||
        std::ranges::find(arguments.collectives, name) != arguments.collectives.end()) {
      options.collectives.push_back(static_cast<fdl_collective>(kind));
    }
  }
  for (const std::string& name : arguments.collectives) {
    const bool known = std::ranges::any_of(
        options.collectives, [&](fdl_collective kind) { return name_of(static_cast<Collective>(kind)) == name; });
    if (!known) return Status(Code::invalid_argument, "--collectives '" + name + "' is not a collective");
  }
  return {};
}

Status parse_sizes(const TuneArguments& arguments, TuneOptions& options) {
  const std::vector<std::string>& standard = arguments.quick ? kQuickSizes : kThoroughSizes;
  for (const std::string& text : arguments.sizes.empty() ? standard : arguments.sizes) {
    FDL_ASSIGN_OR_RETURN(const std::size_t bytes, parse_bytes(text));
    options.sizes.push_back(std::max<std::size_t>(bytes, 1));
  }
  std::ranges::sort(options.sizes);
  return {};
}

Result<TuneOptions> parse(const TuneArguments& arguments) {
  TuneOptions options{.launched = arguments.launched, .output = arguments.output};
  FDL_RETURN_IF_ERROR(parse_collectives(arguments, options));
  FDL_RETURN_IF_ERROR(parse_sizes(arguments, options));
  if (options.output.empty()) options.output = own_tuning_file(Environment::of_process());
  if (options.output.empty()) {
    return Status(Code::invalid_argument, "neither XDG_CONFIG_HOME nor HOME is set; give --output");
  }
  return options;
}

// The usual numbers of ranks of jobs on one host: two, and one for each core.
std::vector<int> usual_ranks(bool quick) {
  const int cores = std::max(2, usable_cores());
  return quick || cores == 2 ? std::vector<int>{cores} : std::vector<int>{2, cores};
}

int tune(const TuneArguments& arguments) {
  auto options = parse(arguments);
  if (!options.ok()) {
    fmt::print(stderr, "farandole tune: {}\n", options.status().text());
    return kExitUsage;
  }
  const double seconds = arguments.seconds > 0 ? arguments.seconds : arguments.quick ? kQuick_s : kThorough_s;
  if (arguments.launched) {
    options->seconds = seconds;
    options->transport = arguments.transports.size() == 1 ? arguments.transports.front() : "auto";
    return tune_rank(*options, -1);
  }
  if (const Status writable = check_output(*options); !writable.ok()) {
    fmt::print(stderr, "farandole tune: {}\n", writable.text());
    return kExitBadEnvironment;
  }
  const std::vector<int> all_ranks = arguments.ranks.empty() ? usual_ranks(arguments.quick) : arguments.ranks;
  // Each combination gets an equal share of the time that is left when it begins.
  const int64_t end_ns = now_ns() + seconds_to_ns(seconds);
  std::size_t left = all_ranks.size() * arguments.transports.size();
  for (const int ranks : all_ranks) {
    for (const std::string& transport : arguments.transports) {
      const bool threads = runs_in_threads(transport);
      options->ranks = ranks;
      options->transport = transport;
      options->rendezvous = fresh_rendezvous(threads, "tune");
      options->seconds = std::max(0.1, static_cast<double>(end_ns - now_ns()) * 1e-9) / static_cast<double>(left--);
      const int code = run_local_ranks(ranks, threads, [&](int rank) { return tune_rank(*options, rank); });
      if (code != kExitOk) return code;
    }
  }
  return kExitOk;
}

}  // namespace

void add_tune(CLI::App& app, Work& work) {
  auto arguments = std::make_shared<TuneArguments>();
  CLI::App* command = app.add_subcommand("tune", "Measure what is quickest here, and write the table to choose by");
  command->add_option("--ranks", arguments->ranks, "How many ranks: 2,4; else two and one a core")
      ->delimiter(',')
      ->check(CLI::Range(2, 1024));
  command->add_option("--transports", arguments->transports, "shm, tcp")->delimiter(',')->capture_default_str();
  command->add_option("--collectives", arguments->collectives, "allreduce,broadcast ...; else all")->delimiter(',');
  command->add_option("--sizes", arguments->sizes, "Bytes: 64,64K,1M")->delimiter(',');
  command->add_flag("--quick", arguments->quick, "Half a minute instead of three");
  command->add_option("--seconds", arguments->seconds, "About how long in all")->check(positive_number());
  command->add_option("--output", arguments->output, "Where to save; else where it is found by itself; -: print it");
  command->add_flag(
      "--launched", arguments->launched,
      "This process is one rank, which its launcher numbers: farandole run ... -- farandole tune --launched");
  command->callback([&work, arguments] { work = [arguments] { return tune(*arguments); }; });
}

}  // namespace fdl
