// Measures farandole's allreduce for each size, with ordinary memory or memory of fdl_alloc(), or only start and end.
//   farandole_allreduce [--ranks 2] [--sizes 4,1024] [--seconds 0.1] [--transport tcp] [--mode own-memory|start]
#include "farandole_library.h"
#include "fork_ranks.h"

namespace {

using namespace compare;

// The time from the fork of the ranks to the end of the last one, which creates and destroys a world.
int start_and_end(const Options& options, const std::string& rendezvous) {
  const double begin = now_us();
  const int code = fork_ranks(options.ranks, [&](int rank) {
    Farandole library(options, rank, rendezvous);
    return 0;
  });
  print_samples("\"case\": \"init and shutdown\"", {now_us() - begin});
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = read_options(argc, argv);
  // An abstract socket with the number of the parent: several comparisons can run beside each other.
  const std::string rendezvous = "unix:@farandole-compare-" + std::to_string(::getpid());
  if (options.mode == "start") return start_and_end(options, rendezvous);
  return fork_ranks(options.ranks, [&](int rank) {
    Farandole library(options, rank, rendezvous);
    if (options.bound) pin(rank, options.ranks);
    measure_sizes(library, options);
    return 0;
  });
}
