// farandole bench starts its own ranks, checks their results, and prints one table beside the machine's limits.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/config.h"
#include "cli/bench/bench_rank.h"
#include "cli/local_ranks.h"
#include "cli/subcommands.h"
#include "data/dtype.h"
#include "schedule/schedule.h"

namespace fdl {
namespace {

// The command line, not yet checked.
struct Wanted {
  std::string collective = "allreduce";
  int ranks = 2;
  std::string transport = "auto";
  std::string algorithm = "auto";
  std::string sizes = "4,64,1K,4K,64K,1M,16M,64M";
  std::string dtype = "float32";
  bool json = false;
  bool launched = false;
};

Result<BenchOptions> understand(const Wanted& wanted) {
  BenchOptions options{.collective_name = wanted.collective,
                       .ranks = wanted.ranks,
                       .transport = wanted.transport,
                       .algorithm = wanted.algorithm,
                       .json = wanted.json,
                       .launched = wanted.launched};
  bool known = false;
  for (int kind = 0; kind < kCollectiveCount; ++kind) {
    if (name_of(static_cast<Collective>(kind)) != wanted.collective) continue;
    options.collective = static_cast<fdl_collective>(kind);
    known = true;
  }
  if (!known) {
    return Status(Code::invalid_argument, "--collective '" + wanted.collective +
                                              "' is none of allreduce, reduce, broadcast, allgather, reduce_scatter, "
                                              "alltoall, gather, scatter, barrier");
  }
  const auto dtype = dtype_named(wanted.dtype);
  if (!dtype)
    return Status(Code::invalid_argument, "--dtype '" + wanted.dtype + "' is not a dtype; try float32, bfloat16");
  options.dtype = static_cast<fdl_dtype>(*dtype);
  for (std::size_t begin = 0; begin <= wanted.sizes.size();) {
    const std::size_t end = std::min(wanted.sizes.find(',', begin), wanted.sizes.size());
    auto bytes = parse_bytes(wanted.sizes.substr(begin, end - begin));
    if (!bytes.ok()) return bytes.status().while_doing("reading --sizes " + wanted.sizes);
    options.sizes.push_back(*bytes);
    begin = end + 1;
  }
  return options;
}

int bench(const Wanted& wanted) {
  auto options = understand(wanted);
  if (!options.ok()) {
    fmt::print(stderr, "farandole bench: {}\n", options.status().text());
    return kExitUsage;
  }
  if (wanted.launched) return bench_rank(*options, -1);  // the launcher has started the other ranks
  const bool threads = runs_in_threads(wanted.transport);
  options->rendezvous = fresh_rendezvous(threads, "bench");
  return run_local_ranks(wanted.ranks, threads, [&](int rank) { return bench_rank(*options, rank); });
}

}  // namespace

void add_bench(CLI::App& app, Work& work) {
  auto wanted = std::make_shared<Wanted>();
  CLI::App* command = app.add_subcommand("bench", "Time a collective on this host, beside the machine's limits");
  command->add_option("--collective", wanted->collective, "Which collective")->capture_default_str();
  command->add_option("--ranks", wanted->ranks, "How many ranks")->check(CLI::Range(1, 1024))->capture_default_str();
  command->add_option("--transport", wanted->transport, "shm, tcp, loopback (threads) or auto")->capture_default_str();
  command->add_option("--algorithm", wanted->algorithm, "As `farandole explain` names them")->capture_default_str();
  command->add_option("--sizes", wanted->sizes, "Bytes: 4,64K,1M")->capture_default_str();
  command->add_option("--dtype", wanted->dtype, "float32, bfloat16, int64 ...")->capture_default_str();
  command->add_flag("--launched", wanted->launched,
                    "This process is one rank, as its launcher says: farandole run ... -- farandole bench --launched");
  command->add_flag("--json", wanted->json, "One JSON object a line");
  command->callback([&work, wanted] { work = [wanted] { return bench(*wanted); }; });
}

}  // namespace fdl
