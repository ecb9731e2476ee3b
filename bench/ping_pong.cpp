// Sends a message from rank 0 to rank 1 and back, again and again, as a launcher started the two ranks. Rank 0 prints
// one line for each size: bytes, and the median and the least time of one way in microseconds.
//   ping_pong [BYTES ...]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <farandole/farandole.hpp>
#include <vector>

namespace {

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// About as much data for each size, and at least so many rounds that a median means something.
int rounds_of(std::size_t bytes) {
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  return static_cast<int>(std::clamp<std::size_t>(kBytes / std::max<std::size_t>(bytes, 1), 20, 5000));
}

void measure(fdl::Comm& comm, int rank, std::size_t bytes) {
  std::vector<unsigned char> mine(bytes, 1), theirs(bytes);
  std::vector<double> times;
  const int rounds = rounds_of(bytes);
  for (int i = 0; i < rounds + rounds / 10; ++i) {
    const double begun = now_us();
    if (rank == 0) {
      comm.send(mine.data(), bytes, 1);
      comm.recv(theirs.data(), bytes, 1);
    } else {
      comm.recv(theirs.data(), bytes, 0);
      comm.send(mine.data(), bytes, 0);
    }
    if (i >= rounds / 10) times.push_back((now_us() - begun) / 2);
  }
  if (rank != 0) return;
  std::sort(times.begin(), times.end());
  std::printf("%zu %.2f %.2f\n", bytes, times[times.size() / 2], times.front());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const fdl::World world;
  if (world.size() != 2) {
    std::fprintf(stderr, "ping_pong: 2 ranks are needed: farandole run -np 2 -- ping_pong\n");
    return 64;
  }
  fdl::Comm comm(world.all());
  for (int i = 1; i < argc; ++i) measure(comm, world.rank(), static_cast<std::size_t>(std::atoll(argv[i])));
  return 0;
}
