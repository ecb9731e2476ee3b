// choose() prefers measured times. Without them it takes the cheapest row by a cost formula in alpha, beta and gamma.
// All ranks use the same numbers and make the same choice.
//
// The formulas are those of Thakur et al. 2005 and Chan et al. 2007 with five additions. An algorithm that streams
// hides its reductions behind its transfers; one that runs in rounds does not. Messages sent at once share the latency.
// Between more than two hosts, patterns other than neighbour exchanges share links: their bytes cost kContention times
// as much. In these patterns all ranks of a host also use its link at once, where a neighbour exchange has one of them
// cross. Links inside a host count as kLocalSpeed times faster than links between hosts. Where the latency of each
// level of the network was measured, a message counts with that of the level that it crosses.
#include "algorithms/choice/choose.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <span>
#include <vector>

#include "algorithms/choice/measured_choice.h"

namespace fdl {
namespace {

constexpr double kGamma_s = 1.0 / 10e9;  // per reduced or copied byte
constexpr double kContention = 1.25;
constexpr double kLocalSpeed = 5;
constexpr double kInFlight = 16;            // messages of a lane that the executor has on the way, as in the simulation
constexpr double kSliceBytes = 256 * 1024;  // as CostModel::slice_bytes

// The facts of one choice, named as in the literature.
struct Terms {
  double p;      // ranks
  double n;      // bytes
  double alpha;  // per message that is waited for
  double each;   // per further message sent at once
  double beta;   // per byte between neighbours
  double cross;  // per byte in patterns other than neighbour exchanges
  double hosts;
  double local;  // ranks per host; 0 if unequal
  double log2p;  // rounded up
  double core;   // the largest power of two <= p
  // Sums of alpha over the messages of a chain: between all neighbours in the order; between neighbouring hosts;
  // between positions whose distance doubles, in log2p rounds and in those of the core.
  double along_ring;
  double along_hosts;
  double rounds;
  double core_rounds;
  std::span<const int> levels;            // from the innermost outwards; empty: one
  std::span<const double> level_alpha_s;  // by level
  double share() const { return (p - 1) / p * n; }
  // The cost of folding extra ranks into and out of a butterfly (see fold.h).
  double extra() const { return core == p ? 0 : 2 * (alpha + n * cross) + n * kGamma_s; }
};

struct Rule {
  Collective collective;
  std::string_view algorithm;
  double (*seconds)(const Terms&);
};

// The largest of three times: a chunk crosses p - 1 links, one after the other; a link carries p - 1 chunks; and the
// farthest link has at most kInFlight of them on the way at once.
double ring_s(const Terms& t) {
  if (t.levels.empty()) return t.along_ring + t.share() * t.beta;
  const double inside = t.local >= 2 && t.hosts >= 2 ? t.p - t.hosts : 0;
  const double chain = t.along_ring + t.n / t.p * t.beta * (t.p - 1 - inside + inside / kLocalSpeed);
  const double alpha = t.level_alpha_s.back();
  return std::max({chain, alpha + t.share() * t.beta, (t.p - 1) * alpha / kInFlight});
}
double direct_s(const Terms& t) { return t.alpha - t.each + (t.p - 1) * t.each + t.share() * t.cross; }
double tree_s(const Terms& t) { return t.rounds + t.log2p * t.n * t.beta; }
double chain_s(const Terms& t) {
  const double slices = std::max(1.0, t.n / kSliceBytes);
  return t.along_ring + (t.p - 1) * t.n / slices * t.beta + (slices - 1) * (t.each + t.n / slices * t.beta);
}
double deal_s(const Terms& t) { return t.log2p * t.alpha + t.share() * t.cross + t.n * kGamma_s; }

// The bytes of a butterfly that begins with near ranks: half of the vector to the neighbour, a quarter to the next, and
// so on. Between hosts all ranks of a host exchange at once.
double butterfly_s(const Terms& t) {
  if (t.local < 2 || t.hosts < 2) return (t.core - 1) / t.core * t.n * t.cross;
  const double far = t.beta * t.local * (t.hosts > 2 ? kContention : 1);
  double seconds = 0;
  for (double distance = 1; distance < t.core; distance *= 2) {
    seconds += t.n / (2 * distance) * (distance < t.local ? t.beta / kLocalSpeed : far);
  }
  return seconds;
}

// The rings across hosts share each host's link, so the bytes between hosts are those of a flat ring.
double two_level_s(const Terms& t) {
  if (t.local < 2 || t.hosts < 2) return INFINITY;
  const double inside = 2 * (t.local - 1) * t.hosts * t.alpha / kLocalSpeed + 2 * t.n * t.beta / kLocalSpeed;
  return inside + 2 * t.along_hosts + 2 * (t.hosts - 1) / t.hosts * t.n * t.beta;
}

// One pass over the levels, outwards or inwards. In each round a rank sends `pieces` messages, of which it waits for
// the first. The ranks of a host share its link. `shrinks`: each level has the part of the bytes that the level inside
// has left (allreduce); otherwise all levels between hosts together move the vector once. A host's memory is as fast as
// twice kLocalSpeed links, which its ranks share while all of them exchange.
double over_levels_s(const Terms& t, bool shrinks) {
  const bool has_hosts = t.local >= 2;
  const double memory_speed = std::max(1.0, 2 * kLocalSpeed / std::max(t.local, 1.0));
  double seconds = 0;
  double outside = t.p;  // groups of this level
  double bytes = t.n;    // of a group of the level inside
  for (std::size_t i = 0; i < t.levels.size(); ++i) {
    const double size = t.levels[i];
    outside /= size;
    const double speed = has_hosts && i == 0 ? kLocalSpeed : 1;
    const double next = i + 1 < t.levels.size() ? t.levels[i + 1] : 1;
    const double pieces = shrinks ? next : outside;
    seconds += (size - 1) * (t.level_alpha_s[i] + (pieces - 1) * t.each) / speed;
    if (speed > 1) {
      seconds += (size - 1) / size * t.n * t.beta / memory_speed;
    } else if (shrinks) {
      seconds += (size - 1) / size * bytes * t.beta;
      bytes /= size;
    }
  }
  return shrinks ? seconds : seconds + (t.hosts - 1) / t.hosts * t.n * t.beta;
}

// With the ranks of hosts and the hosts alone, it is two_level.
double multi_level_allreduce_s(const Terms& t) {
  const std::size_t least = t.local >= 2 ? 3 : 2;
  return t.levels.size() < least ? INFINITY : 2 * over_levels_s(t, true) + t.n * kGamma_s;
}
double multi_level_gather_s(const Terms& t) { return t.levels.size() < 2 ? INFINITY : over_levels_s(t, false); }
double multi_level_scatter_s(const Terms& t) { return multi_level_gather_s(t) + t.n * kGamma_s; }

// Inside hosts each chunk is a message of its own. All bytes but those of the first host are exchanged inside while
// others cross.
double two_level_alltoall_s(const Terms& t) {
  if (t.local < 2 || t.hosts < 2) return INFINITY;
  const double inside = (t.alpha + (t.local - 1) * t.hosts * t.each + t.n / t.hosts * t.beta) / kLocalSpeed;
  return inside + t.alpha + (t.hosts - 2) * t.each + t.share() * t.cross;
}

constexpr Rule kRules[] = {
    {Collective::allreduce, "ring", [](const Terms& t) { return 2 * ring_s(t); }},
    {Collective::allreduce, "recursive_doubling",
     [](const Terms& t) { return t.core_rounds + std::log2(t.core) * t.n * (t.cross + kGamma_s) + t.extra(); }},
    {Collective::allreduce, "halving_doubling",
     [](const Terms& t) {
       return 2 * (t.core_rounds + butterfly_s(t)) + (t.core - 1) / t.core * t.n * kGamma_s + t.extra();
     }},
    {Collective::allreduce, "bruck",
     [](const Terms& t) { return 2 * t.log2p * t.alpha + t.share() * (2 * t.cross + kGamma_s) + 2 * t.n * kGamma_s; }},
    {Collective::allreduce, "binomial_tree", [](const Terms& t) { return 2 * tree_s(t); }},
    {Collective::allreduce, "double_binary_tree",
     [](const Terms& t) {
       return 2 * (t.rounds + t.alpha + (t.log2p + 1) * std::min(t.n / 2, kSliceBytes) * t.cross) + 2 * t.n * t.cross;
     }},
    {Collective::allreduce, "two_level", two_level_s},
    {Collective::allreduce, "multi_level", multi_level_allreduce_s},
    {Collective::allreduce, "direct", [](const Terms& t) { return 2 * direct_s(t) + t.share() * kGamma_s; }},
    {Collective::reduce, "binomial_tree", tree_s},
    {Collective::reduce, "direct", [](const Terms& t) { return 2 * direct_s(t) + t.share() * kGamma_s; }},
    {Collective::broadcast, "binomial_tree", tree_s},
    {Collective::broadcast, "chain", chain_s},
    {Collective::broadcast, "scatter_allgather",
     [](const Terms& t) { return t.rounds + t.along_ring + t.share() * (t.cross + t.beta); }},
    {Collective::allgather, "ring", ring_s},
    {Collective::allgather, "recursive_doubling",
     [](const Terms& t) { return t.log2p * t.alpha + t.share() * t.cross; }},
    {Collective::allgather, "bruck", deal_s},
    {Collective::allgather, "multi_level", multi_level_gather_s},
    {Collective::allgather, "direct", direct_s},
    {Collective::reduce_scatter, "ring", ring_s},
    {Collective::reduce_scatter, "halving",
     [](const Terms& t) { return t.core_rounds + (t.core - 1) / t.core * t.n * (t.cross + kGamma_s) + t.extra(); }},
    {Collective::reduce_scatter, "bruck",
     [](const Terms& t) { return t.log2p * t.alpha + t.share() * (t.cross + kGamma_s) + t.n * kGamma_s; }},
    {Collective::reduce_scatter, "multi_level", multi_level_scatter_s},
    {Collective::reduce_scatter, "direct", [](const Terms& t) { return direct_s(t) + t.share() * kGamma_s; }},
    {Collective::alltoall, "pairwise", direct_s},
    {Collective::alltoall, "bruck",
     [](const Terms& t) { return t.log2p * (t.alpha + t.n / 2 * (t.cross + 2 * kGamma_s)) + 2 * t.n * kGamma_s; }},
    {Collective::alltoall, "two_level", two_level_alltoall_s},
    {Collective::gather, "binomial_tree", deal_s},
    {Collective::gather, "direct", direct_s},
    {Collective::scatter, "binomial_tree", deal_s},
    {Collective::scatter, "direct", direct_s},
    {Collective::barrier, "dissemination", [](const Terms& t) { return t.log2p * t.alpha; }},
    {Collective::barrier, "binomial_tree", [](const Terms& t) { return 2 * t.rounds; }},
};

std::string duration_text(double seconds) {
  char text[32];
  if (seconds < 1e-3) {
    std::snprintf(text, sizeof text, "%.1f us", seconds * 1e6);
  } else {
    std::snprintf(text, sizeof text, "%.2f ms", seconds * 1e3);
  }
  return text;
}

double cost_of(const Algorithm& algorithm, const Terms& terms) {
  for (const Rule& rule : kRules) {
    if (rule.collective == algorithm.collective && rule.algorithm == algorithm.name) return rule.seconds(terms);
  }
  return INFINITY;
}

// How many ranks of a host use its link at once, on average over the messages of a rank to all others.
double sharing(const GroupShape& shape) {
  if (shape.hosts < 2) return 1;
  const double local = static_cast<double>(shape.ranks) / shape.hosts;
  return std::max(1.0, local * (shape.ranks - local) / (shape.ranks - 1));
}

// Alpha by level: the same for all levels if their latencies are not known.
std::vector<double> level_alphas(const GroupShape& shape) {
  std::vector<double> alphas(shape.levels.size(), shape.alpha_s + shape.latency_s);
  if (shape.level_latency_s.size() != alphas.size()) return alphas;
  for (std::size_t i = 0; i < alphas.size(); ++i) alphas[i] = shape.alpha_s + shape.level_latency_s[i];
  return alphas;
}

// Alpha of a message between two positions that are so far apart: of the innermost level whose groups are larger.
double alpha_at(double distance, std::span<const int> levels, std::span<const double> alphas) {
  double group = 1;
  for (std::size_t i = 0; i < levels.size(); ++i) {
    group *= levels[i];
    if (distance < group) return alphas[i];
  }
  return alphas.back();
}

Terms terms_of(const GroupShape& shape, Collective collective, int64_t bytes, std::span<const double> alphas) {
  const double beta = shape.beta_s * (collective == Collective::allreduce ? shape.parts : 1);
  const double core = std::exp2(std::floor(std::log2(shape.ranks)));
  const double log2p = std::ceil(std::log2(shape.ranks));
  const double alpha = shape.alpha_s + shape.latency_s;
  double along_ring = alphas.empty() ? (shape.ranks - 1) * alpha : 0;
  double along_hosts = alphas.empty() ? (shape.hosts - 1) * alpha : 0;
  double groups = shape.ranks;
  for (std::size_t i = 0; i < alphas.size(); ++i) {
    const double outside = groups / shape.levels[i];
    along_ring += (groups - outside) * alphas[i];
    if (groups <= shape.hosts) along_hosts += (groups - outside) * alphas[i];
    groups = outside;
  }
  const auto doubling = [&](double rounds) {
    if (alphas.empty()) return rounds * alpha;
    double sum = 0;
    for (int round = 0; round < static_cast<int>(rounds); ++round) {
      sum += alpha_at(std::exp2(round), shape.levels, alphas);
    }
    return sum;
  };
  return {.p = static_cast<double>(shape.ranks),
          .n = static_cast<double>(bytes),
          .alpha = alpha,
          .each = shape.alpha_s,
          .beta = beta,
          .cross = beta * sharing(shape) * (shape.hosts > 2 ? kContention : 1.0),
          .hosts = static_cast<double>(shape.hosts),
          .local = static_cast<double>(shape.ranks_per_host),
          .log2p = log2p,
          .core = core,
          .along_ring = along_ring,
          .along_hosts = along_hosts,
          .rounds = doubling(log2p),
          .core_rounds = doubling(std::log2(core)),
          .levels = shape.levels,
          .level_alpha_s = alphas};
}

std::string group_text(const GroupShape& shape, int64_t bytes) {
  return std::to_string(shape.ranks) + (shape.ranks == 1 ? " rank" : " ranks") + " on " + std::to_string(shape.hosts) +
         (shape.hosts == 1 ? " host, " : " hosts, ") + std::to_string(bytes) + " bytes";
}

Result<Choice> choose_named(Collective collective, const GroupShape& shape, int64_t bytes, std::string_view requested,
                            Need need) {
  FDL_ASSIGN_OR_RETURN(const Algorithm* algorithm, find_algorithm(collective, requested));
  const std::string_view why_not = obstacle(*algorithm, shape.ranks, need);
  if (why_not.empty()) return Choice{algorithm, std::string(requested) + " was requested; " + group_text(shape, bytes)};
  std::string able;
  for (const Algorithm& row : catalog()) {
    if (row.collective != collective || !obstacle(row, shape.ranks, need).empty()) continue;
    able += (able.empty() ? "" : ", ") + std::string(row.name);
  }
  return Status(Code::invalid_argument, std::string(name_of(collective)) + " by " + std::string(requested) +
                                            " cannot run here (" + std::to_string(shape.ranks) + " ranks): it " +
                                            std::string(why_not) + "; these can: " + able);
}

// Returns nothing if no row that can run was measured.
std::optional<Choice> choose_measured(Collective collective, const GroupShape& shape, int64_t bytes, Need need) {
  const TuningTable::Sizes* sizes = measured_sizes(collective, shape);
  if (sizes == nullptr) return std::nullopt;
  const MeasuredBest best = best_measured(*sizes, collective, shape.ranks, bytes, need);
  if (best.algorithm == nullptr) return std::nullopt;
  std::string why =
      group_text(shape, bytes) + ": " + std::string(best.algorithm->name) + " took " + duration_text(best.us * 1e-6);
  if (best.next != nullptr) why += ", " + std::string(best.next->name) + " " + duration_text(best.next_us * 1e-6);
  return Choice{best.algorithm, why + " where it was measured (tuning table)", true};
}

}  // namespace

double predicted_s(const Algorithm& algorithm, const GroupShape& shape, int64_t bytes) {
  const std::vector<double> alphas = level_alphas(shape);
  return cost_of(algorithm, terms_of(shape, algorithm.collective, bytes, alphas));
}

Result<Choice> choose(Collective collective, const GroupShape& shape, int64_t bytes, std::string_view requested,
                      bool deterministic, bool commutative, bool even_chunks) {
  const Need need{.rank_order = deterministic || !commutative, .uneven = !even_chunks};
  if (requested != "auto") return choose_named(collective, shape, bytes, requested, need);
  if (auto measured = choose_measured(collective, shape, bytes, need)) return *measured;
  const std::vector<double> alphas = level_alphas(shape);
  const Terms terms = terms_of(shape, collective, bytes, alphas);
  const Algorithm* best = nullptr;
  const Algorithm* next = nullptr;
  double best_s = INFINITY;
  double next_s = INFINITY;
  for (const Algorithm& row : catalog()) {
    if (row.collective != collective || !obstacle(row, shape.ranks, need).empty()) continue;
    const double cost_s = cost_of(row, terms);
    if (best == nullptr || cost_s < best_s) {
      next = best;
      next_s = best_s;
      best = &row;
      best_s = cost_s;
    } else if (next == nullptr || cost_s < next_s) {
      next = &row;
      next_s = cost_s;
    }
  }
  if (best == nullptr) {
    return Status(Code::unsupported, std::string(name_of(collective)) + " has no algorithm for " +
                                         group_text(shape, bytes) +
                                         (need.rank_order ? " that folds in rank order" : ""));
  }
  char model[96];
  std::snprintf(model, sizeof model, " (alpha %.1f us, %.2f GB/s%s)", terms.alpha * 1e6, 1e-9 / shape.beta_s,
                need.rank_order ? ", rank order only" : "");
  std::string why = group_text(shape, bytes) + ": " + std::string(best->name) + " should take " + duration_text(best_s);
  if (next != nullptr) why += ", " + std::string(next->name) + " " + duration_text(next_s);
  return Choice{best, why + model};
}

}  // namespace fdl
