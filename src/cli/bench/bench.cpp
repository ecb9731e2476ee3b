// farandole bench starts its own ranks, checks their results, and prints one table beside the machine's limits.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/config.h"
#include "base/split_list.h"
#include "cli/bench/bench_rank.h"
#include "cli/local_ranks.h"
#include "cli/subcommands.h"
#include "data/compression.h"
#include "data/dtype.h"
#include "schedule/schedule.h"

namespace fdl {
namespace {

// The command line, not yet checked.
struct BenchArguments {
  std::string collective = "allreduce";
  int ranks = 2;
  std::string transport = "auto";
  std::string algorithm = "auto";
  std::string sizes = "4,64,1K,4K,64K,1M,16M,64M";
  std::string dtype = "float32";
  std::string compression = "none";
  bool json = false;
  bool launched = false;
};

Result<BenchOptions> parse(const BenchArguments& arguments) {
  BenchOptions options{.collective_name = arguments.collective,
                       .ranks = arguments.ranks,
                       .transport = arguments.transport,
                       .algorithm = arguments.algorithm,
                       .json = arguments.json,
                       .launched = arguments.launched};
  bool known = false;
  for (int kind = 0; kind < kCollectiveCount; ++kind) {
    if (name_of(static_cast<Collective>(kind)) != arguments.collective) continue;
    options.collective = static_cast<fdl_collective>(kind);
    known = true;
  }
  if (!known) {
    return Status(Code::invalid_argument, "--collective '" + arguments.collective +
                                              "' is none of allreduce, reduce, broadcast, allgather, reduce_scatter, "
                                              "alltoall, gather, scatter, barrier");
  }
  const auto dtype = dtype_named(arguments.dtype);
  if (!dtype)
    return Status(Code::invalid_argument, "--dtype '" + arguments.dtype + "' is not a dtype; try float32, bfloat16");
  options.dtype = static_cast<fdl_dtype>(*dtype);
  const auto compression = compression_named(arguments.compression);
  if (!compression) {
    return Status(Code::invalid_argument, "--compression '" + arguments.compression +
                                              "' is none of int8, int4, float8_e4m3, float8_e5m2, bfloat16, none");
  }
  options.compression = static_cast<fdl_compression>(*compression);
  for (const std::string& size : split_list(arguments.sizes)) {
    auto bytes = parse_bytes(size);
    if (!bytes.ok()) return bytes.status().while_doing("reading --sizes " + arguments.sizes);
    options.sizes.push_back(*bytes);
  }
  return options;
}

int bench(const BenchArguments& arguments) {
  auto options = parse(arguments);
  if (!options.ok()) {
    fmt::print(stderr, "farandole bench: {}\n", options.status().text());
    return kExitUsage;
  }
  if (arguments.launched) return bench_rank(*options, -1);  // the launcher has started the other ranks
  const bool threads = runs_in_threads(arguments.transport);
  options->rendezvous = fresh_rendezvous(threads, "bench");
  return run_local_ranks(arguments.ranks, threads, [&](int rank) { return bench_rank(*options, rank); });
}

}  // namespace

void add_bench(CLI::App& app, Work& work) {
  auto arguments = std::make_shared<BenchArguments>();
  CLI::App* command = app.add_subcommand("bench", "Time a collective on this host, beside the machine's limits");
  command->add_option("--collective", arguments->collective, "Which collective")->capture_default_str();
  command->add_option("--ranks", arguments->ranks, "How many ranks")->check(CLI::Range(1, 1024))->capture_default_str();
  command
      ->add_option("--transport", arguments->transport,
                   "shm, tcp, mpi (under mpirun), ofi:tcp, efa, loopback (threads) or auto")
      ->capture_default_str();
  command->add_option("--algorithm", arguments->algorithm, "As `farandole explain` names them")->capture_default_str();
  command->add_option("--sizes", arguments->sizes, "Bytes: 4,64K,1M")->capture_default_str();
  command->add_option("--dtype", arguments->dtype, "float32, bfloat16, int64 ...")->capture_default_str();
  command->add_option("--compression", arguments->compression, "int8, int4, float8_e4m3, float8_e5m2, bfloat16 or none")
      ->capture_default_str();
  command->add_flag(
      "--launched", arguments->launched,
      "This process is one rank, which its launcher numbers: farandole run ... -- farandole bench --launched");
  command->add_flag("--json", arguments->json, "One JSON object a line");
  command->callback([&work, arguments] { work = [arguments] { return bench(*arguments); }; });
}

}  // namespace fdl
