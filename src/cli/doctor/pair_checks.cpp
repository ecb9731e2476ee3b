// Measures one pair of ranks after another, so that no measurement disturbs another. The lower rank of a pair measures.
#include "cli/doctor/pair_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <string>

#include "base/clock.h"
#include "cli/opened_world.h"
#include "cli/run/run_log.h"
#include "cli/subcommands.h"
#include "farandole/farandole.h"

namespace fdl {
namespace {

using Severity = Finding::Severity;

constexpr int kRounds = 50;
constexpr std::size_t kBytes = std::size_t{4} << 20;
constexpr int kTransfers = 4;
constexpr int kMostHosts = 64;  // with more hosts, each is paired with the next kNeighbours only
constexpr int kNeighbours = 4;
constexpr double kSlowerThan = 2;  // times the median: this is reported as a warning
constexpr double kSkew_s = 0.5;    // clocks that differ by less are not reported

// What each rank sends to all others, as bytes.
struct Card {
  std::array<char, 96> name{};  // of the pod or host
  int cross_rank = 0;
  int local_rank = 0;
};

// The result that the lower rank of a pair sends to rank 0.
struct Measured {
  int first = -1;
  int second = -1;
  double latency_us = 0;
  double bytes_per_s = 0;
  double skew_s = 0;  // the second rank's clock minus the first rank's
};

double wall_s() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

bool send(fdl_comm* comm, const void* data, std::size_t bytes, int peer) {
  return fdl_send(comm, data, bytes, FDL_UINT8, peer) == FDL_OK;
}
bool receive(fdl_comm* comm, void* data, std::size_t bytes, int peer) {
  return fdl_recv(comm, data, bytes, FDL_UINT8, peer) == FDL_OK;
}

// The fastest round counts: it shows the network without the other load of the host. The clocks are compared at the
// middle of that round, as NTP does.
bool measure(fdl_comm* comm, int peer, std::vector<std::byte>& buffer, Measured& out) {
  double best_s = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    double theirs = 0;
    const double wall = wall_s();
    const int64_t begin = now_ns();
    if (!send(comm, &wall, sizeof wall, peer) || !receive(comm, &theirs, sizeof theirs, peer)) return false;
    const double took_s = static_cast<double>(now_ns() - begin) * 1e-9;
    if (took_s < best_s) out.skew_s = theirs - (wall + took_s / 2);
    best_s = std::min(best_s, took_s);
  }
  out.latency_us = best_s / 2 * 1e6;
  double best_transfer_s = 1e9;
  for (int transfer = 0; transfer < kTransfers; ++transfer) {
    std::byte done{};
    const int64_t begin = now_ns();
    if (!send(comm, buffer.data(), kBytes, peer) || !receive(comm, &done, 1, peer)) return false;
    best_transfer_s = std::min(best_transfer_s, static_cast<double>(now_ns() - begin) * 1e-9);
  }
  out.bytes_per_s = static_cast<double>(kBytes) / best_transfer_s;
  return true;
}

// The other side of measure(): the same sends and receives, reversed.
bool answer(fdl_comm* comm, int peer, std::vector<std::byte>& buffer) {
  for (int round = 0; round < kRounds; ++round) {
    double theirs = 0;
    if (!receive(comm, &theirs, sizeof theirs, peer)) return false;
    const double wall = wall_s();
    if (!send(comm, &wall, sizeof wall, peer)) return false;
  }
  for (int transfer = 0; transfer < kTransfers; ++transfer) {
    const std::byte done{1};
    if (!receive(comm, buffer.data(), kBytes, peer) || !send(comm, &done, 1, peer)) return false;
  }
  return true;
}

// All pairs of hosts, one rank of each; on a single host, all pairs of its ranks.
std::vector<std::pair<int, int>> pairs_of(const std::vector<Card>& cards) {
  std::vector<int> chosen;
  const bool several = std::any_of(cards.begin(), cards.end(), [](const Card& card) { return card.cross_rank > 0; });
  for (std::size_t rank = 0; rank < cards.size(); ++rank) {
    if (!several || cards[rank].local_rank == 0) chosen.push_back(static_cast<int>(rank));
  }
  std::vector<std::pair<int, int>> pairs;
  const std::size_t reach = chosen.size() > kMostHosts ? kNeighbours : chosen.size();
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    for (std::size_t j = i + 1; j < std::min(chosen.size(), i + 1 + reach); ++j)
      pairs.emplace_back(chosen[i], chosen[j]);
  }
  return pairs;
}

std::string name_of(const std::vector<Card>& cards, int rank) {
  return fmt::format("rank {} on {}", rank, cards[static_cast<std::size_t>(rank)].name.data());
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// One note for each pair, and the slowest pairs compared with the median.
std::vector<Finding> findings_of(const std::vector<Card>& cards, const std::vector<Measured>& all) {
  std::vector<Finding> findings;
  std::vector<double> latencies;
  std::vector<double> bandwidths;
  for (const Measured& one : all) {
    latencies.push_back(one.latency_us);
    bandwidths.push_back(one.bytes_per_s);
    findings.push_back(
        {Severity::note, fmt::format("{} - {}", name_of(cards, one.first), name_of(cards, one.second)),
         fmt::format("{:.1f} us, {:.2f} GB/s, clocks {:+.3f} s", one.latency_us, one.bytes_per_s / 1e9, one.skew_s),
         ""});
  }
  const auto by_bandwidth = [](const Measured& a, const Measured& b) { return a.bytes_per_s < b.bytes_per_s; };
  const auto by_latency = [](const Measured& a, const Measured& b) { return a.latency_us < b.latency_us; };
  const Measured& narrow = *std::min_element(all.begin(), all.end(), by_bandwidth);
  const Measured& late = *std::max_element(all.begin(), all.end(), by_latency);
  const bool is_slow = narrow.bytes_per_s * kSlowerThan < median(bandwidths);
  const bool is_late = late.latency_us > kSlowerThan * median(latencies);
  const char* remedy = "is it in another zone, on a smaller machine, or behind a sidecar?";
  findings.push_back({is_slow ? Severity::warning : Severity::good, "slowest pair",
                      fmt::format("{} and {}: {:.2f} GB/s, median {:.2f}", name_of(cards, narrow.first),
                                  name_of(cards, narrow.second), narrow.bytes_per_s / 1e9, median(bandwidths) / 1e9),
                      is_slow ? remedy : ""});
  findings.push_back({is_late ? Severity::warning : Severity::good, "latest pair",
                      fmt::format("{} and {}: {:.1f} us, median {:.1f}", name_of(cards, late.first),
                                  name_of(cards, late.second), late.latency_us, median(latencies)),
                      is_late ? remedy : ""});
  for (const Measured& one : all) {
    if (std::abs(one.skew_s) < kSkew_s) continue;
    findings.push_back(
        {Severity::warning, "clocks",
         fmt::format("{} is {:+.3f} s from {}", name_of(cards, one.second), one.skew_s, name_of(cards, one.first)),
         "timelines and logs of the two do not fit together: is chrony running on the nodes?"});
  }
  return findings;
}

bool exchange_cards(const OpenedWorld& opened, const fdl_world_facts& facts, std::vector<Card>& cards) {
  Card mine;
  const Whereabouts& here = run_whereabouts();
  const std::string name = here.pod.empty() ? facts.host : here.pod;
  std::strncpy(mine.name.data(), name.c_str(), mine.name.size() - 1);
  mine.cross_rank = facts.cross_rank;
  mine.local_rank = facts.local_rank;
  cards.resize(static_cast<std::size_t>(facts.size));
  return fdl_allgather(opened.comm, &mine, cards.data(), sizeof mine, FDL_UINT8) == FDL_OK;
}

// Every rank takes part in the barrier of every pair; rank 0 collects the results.
bool measure_pairs(const OpenedWorld& opened, int rank, const std::vector<Card>& cards, std::vector<Measured>& all) {
  std::vector<std::byte> buffer(kBytes);
  for (const auto& [first, second] : pairs_of(cards)) {
    if (fdl_barrier(opened.comm) != FDL_OK) return false;
    Measured one{first, second};
    if (rank == first && !measure(opened.comm, second, buffer, one)) return false;
    if (rank == second && !answer(opened.comm, first, buffer)) return false;
    if (rank == first && rank != 0 && !send(opened.comm, &one, sizeof one, 0)) return false;
    if (rank == 0 && first != 0 && !receive(opened.comm, &one, sizeof one, first)) return false;
    if (rank == 0) all.push_back(one);
  }
  return true;
}

}  // namespace

std::vector<Finding> check_pairs(int& code) {
  OpenedWorld opened;
  fdl_world_facts facts{};
  facts.struct_size = sizeof facts;
  std::vector<Card> cards;
  std::vector<Measured> all;
  const bool well = fdl_world_create(nullptr, &opened.world) == FDL_OK &&
                    fdl_world_info(opened.world, &facts) == FDL_OK &&
                    fdl_comm_create(fdl_group_all(opened.world), &opened.comm) == FDL_OK &&
                    exchange_cards(opened, facts, cards) && measure_pairs(opened, facts.rank, cards, all);
  if (!well) {
    code = kExitRendezvous;
    return {{Severity::bad, "world", fdl_last_error()->text, ""}};
  }
  return all.empty() ? std::vector<Finding>() : findings_of(cards, all);
}

}  // namespace fdl
