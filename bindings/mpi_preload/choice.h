// Choices remembers for each kind and size of a collective whether farandole or MPI runs it on a communicator.
//
// The first call of each kind and size on a communicator measures both. All ranks measure at the same call, because the
// kind and the bytes are the same on all of them, and they agree on the times, so that all choose alike.
#pragma once

#include <array>
#include <cstddef>

namespace fdl::mpi_preload {

struct Communicator;

// Kinds of collectives that take about as long for equal bytes. Of gatherv, scatterv and alltoallv no rank knows the
// bytes of all; allgatherv is measured with them, because its places differ between ranks.
enum class Family { allreduce, reduce, reduce_scatter, broadcast, gather, scatter, allgather, alltoall, scan, barrier,
                    gatherv, scatterv, allgatherv, alltoallv };
inline constexpr std::size_t kFamilies = 14;

enum class Runner : unsigned char { unknown, farandole, mpi };

// The bytes of each rank that stand for a class of sizes; a class reaches up to twice its bytes.
inline constexpr std::array<std::size_t, 7> kSizeClasses = {8, 512, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20};

class Choices {
 public:
  Runner& of(Family family, std::size_t bytes) { return all_[static_cast<std::size_t>(family)][class_of(bytes)]; }
  static std::size_t class_of(std::size_t bytes) {
    std::size_t at = 0;
    while (at + 1 < kSizeClasses.size() && bytes > 2 * kSizeClasses[at]) ++at;
    return at;
  }

 private:
  std::array<std::array<Runner, kSizeClasses.size()>, kFamilies> all_{};
};

// Runs the collective some times by each of both, for about 2 ms; collective over the communicator.
Runner measure(const Communicator& entry, Family family, std::size_t bytes);

}  // namespace fdl::mpi_preload
