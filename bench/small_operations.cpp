// Runs small operations and nothing else, for tools that count instructions or calls. Ranks are threads of this
// process.
//   small_operations RANKS ordered|run|submit COUNT [BYTES]
#include <cstdio>
#include <cstdlib>
#include <farandole/farandole.hpp>
#include <string>
#include <thread>
#include <vector>

namespace {

// A waiting rank sleeps at once, because the tools would count spinning too.
constexpr const char* kOptions[] = {"spin_us", "0", "log_level", "error"};

fdl::World open_world(int rank, int ranks) {
  fdl_world_options options;
  fdl_world_options_init(&options);
  options.rank = rank;
  options.size = ranks;
  // Ranks of one process find each other without sockets.
  options.rendezvous = "memory://small operations";
  options.job_key = "of no importance here";
  options.options = kOptions;
  options.option_count = sizeof kOptions / sizeof kOptions[0] / 2;
  return fdl::World(&options);
}

void work(int rank, int ranks, const std::string& what, int count, std::size_t bytes) {
  const fdl::World world = open_world(rank, ranks);
  fdl::Comm comm(world.all());
  // Below 4 bytes there is no element, and the operations carry no data.
  std::vector<float> values(bytes / sizeof(float), 1.0f);
  fdl::Batch batch;
  batch.allreduce("gradient", values.data(), values.size());
  for (int i = 0; i < count; ++i) {
    if (what == "ordered") {
      comm.allreduce(values.data(), values.size(), FDL_AVERAGE);
    } else if (what == "run") {
      batch.run(world.all());
    } else {
      batch.submit(world.all()).wait();
    }
  }
  // A rank that leaves early would make the others unlock their order, which would be counted too.
  comm.barrier();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "small_operations RANKS ordered|run|submit COUNT [BYTES]\n");
    return 2;
  }
  const int ranks = std::atoi(argv[1]);
  const std::size_t bytes = argc > 4 ? static_cast<std::size_t>(std::atoll(argv[4])) : 4;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] { work(rank, ranks, argv[2], std::atoi(argv[3]), bytes); });
  }
  for (std::thread& thread : threads) thread.join();
}
