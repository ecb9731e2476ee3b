// connect_mpi() checks that all members are in one MPI before it makes the communicator: MPI itself would wait.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <functional>

#include "transports/mpi/mpi_transport.h"

namespace fdl {
namespace {

constexpr std::size_t kLongest = 1ull << 30;  // of a message; MPI counts in ints

// "3 17 Open MPI v4.1.4": rank and size of MPI_COMM_WORLD, and the library, which has no slash.
std::string facts_of(const MpiLibrary& mpi) {
  const std::string& text = mpi.description();
  return fmt::format("{} {} {}", mpi.world_rank(), mpi.world_size(), text.substr(0, text.find(" (")));
}

}  // namespace

Result<std::shared_ptr<MpiGroup>> join_mpi(MpiLibrary& mpi, const Membership& membership) {
  const auto key_of = [&](int member) { return fmt::format("mpi/{}/{}", membership.id, member); };
  const std::string mine = facts_of(mpi);
  FDL_RETURN_IF_ERROR(membership.exchange->publish_for(membership.size(), key_of(membership.rank), mine));
  // When all members have published, all are about to make the communicator: MPI's call blocks, and may keep the other
  // calls of this process waiting.
  std::vector<int> world_ranks;
  for (int member = 0; member < membership.size(); ++member) {
    FDL_ASSIGN_OR_RETURN(const std::string facts, membership.fetch_from("mpi", member, key_of(member)));
    const auto after_rank = facts.find(' ');
    if (facts.substr(after_rank) != mine.substr(mine.find(' '))) {
      return Status(Code::mismatch,
                    fmt::format("mpi: {} is rank {} of MPI_COMM_WORLD, but {} is rank {} (rank, number of ranks, "
                                "library); start all ranks with the mpirun of one MPI, or name its library in "
                                "FARANDOLE_MPI_LIBRARY",
                                membership.name_of(membership.rank), mine, membership.name_of(member), facts));
    }
    int world_rank = -1;
    std::from_chars(facts.data(), facts.data() + after_rank, world_rank);
    world_ranks.push_back(world_rank);
  }
  std::vector<int> sorted = world_ranks;
  std::ranges::sort(sorted);
  if (const auto twice = std::ranges::adjacent_find(sorted); twice != sorted.end()) {
    return Status(Code::unsupported,
                  fmt::format("mpi: two of the {} members are rank {} of MPI_COMM_WORLD, which has {} ranks: this MPI "
                              "({}) was not started by the launcher of these ranks; start them with its own mpirun, or "
                              "name the launcher's library in FARANDOLE_MPI_LIBRARY",
                              membership.size(), *twice, mpi.world_size(), mpi.description()));
  }
  // MPI needs a number that differs between communicators that are made at once by some of the same ranks.
  const int tag = static_cast<int>(std::hash<std::string>()(membership.id) % 32767);
  FDL_ASSIGN_OR_RETURN(const MpiComm comm, mpi.make_communicator(world_ranks, tag));
  return std::make_shared<MpiGroup>(mpi, comm);
}

Result<std::unique_ptr<Transport>> connect_mpi(const Membership& membership, const std::vector<bool>& peers) {
  FDL_ASSIGN_OR_RETURN(MpiLibrary * mpi, MpiLibrary::of_process(*membership.config));
  return connect_mpi_over(*mpi, membership, peers);
}

Result<std::unique_ptr<Transport>> connect_mpi_over(MpiLibrary& mpi, const Membership& membership,
                                                    const std::vector<bool>& peers) {
  if (membership.config->slice_bytes > kLongest) {
    return Status(
        Code::invalid_argument,
        fmt::format("mpi: FARANDOLE_SLICE_BYTES = {} is more than 1 GiB, the longest message of this transport",
                    membership.config->slice_bytes));
  }
  if (!mpi.may_call()) return mpi.wrong_thread();
  FDL_ASSIGN_OR_RETURN(auto group, join_mpi(mpi, membership));
  return make_mpi_transport(std::move(group), membership, peers);
}

}  // namespace fdl
