// All ranks of a world derive the same phase from its seed.
#include "tests/simulation/named/named_phase.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "data/reduce.h"

namespace fdl::simulation {
namespace {

constexpr int64_t kSecond_ns = 1'000'000'000;

// Dice are the same on all ranks.
class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  int64_t roll(int64_t sides) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(sides)); }
  bool percent(int64_t percent) { return roll(100) < percent; }

 private:
  std::mt19937_64 engine_;
};

RequestKind other_kind(Dice& dice) {
  const RequestKind kinds[]{RequestKind::allgather, RequestKind::broadcast, RequestKind::alltoall,
                            RequestKind::reduce_scatter, RequestKind::barrier};
  return kinds[dice.roll(std::size(kinds))];
}

int64_t rows_of_gather(int rank) { return 1 + rank % 3; }

void add_tensors(NamedPhase& phase, Dice& dice, const std::vector<std::pair<std::string, std::vector<int>>>& groups) {
  const bool only_sums = dice.percent(60) || !phase.rounds_of.empty();
  const bool on_one = groups.size() == 1 || dice.percent(50);
  const std::size_t one = static_cast<std::size_t>(dice.roll(static_cast<int64_t>(groups.size())));
  const int64_t count = 1 + dice.roll(6);
  for (int number = 0; number < count; ++number) {
    const auto any = static_cast<std::size_t>(dice.roll(static_cast<int64_t>(groups.size())));
    const bool is_of_all = !phase.rounds_of.empty();
    const auto& [id, members] = groups[is_of_all ? 0 : on_one ? one : any];
    NamedTensor tensor{.name = fmt::format("t{}", number), .group = id, .number = number};
    if (!only_sums && dice.percent(40)) tensor.kind = other_kind(dice);
    tensor.elements = dice.percent(10) ? 1 + dice.roll(3000) : 1 + dice.roll(40);
    const bool is_greatest = dice.percent(20);
    tensor.is_greatest = is_greatest && !is_of_all && tensor.kind == RequestKind::allreduce;
    tensor.root = static_cast<int>(dice.roll(static_cast<int64_t>(members.size())));
    phase.tensors.push_back(std::move(tensor));
  }
  phase.is_of_all = phase.tensors.front().group == groups.front().first;
}

// Some phases have tensors that are large enough for the root to hold back some of them.
void add_priorities(NamedPhase& phase, Dice& dice) {
  if (!dice.percent(30)) return;
  const bool holds_back = dice.percent(8);
  for (NamedTensor& tensor : phase.tensors) {
    tensor.priority = static_cast<int>(holds_back ? 1 + dice.roll(3) : dice.roll(3));
    if (holds_back && tensor.kind == RequestKind::allreduce) tensor.elements = 70'000 + tensor.number;
  }
  if (!holds_back) return;
  // They take long to compare.
  phase.rounds = std::min(phase.rounds, 4);
  for (int& rounds : phase.rounds_of) rounds = std::min(rounds, phase.rounds);
}

// Neighbours of one group may be submitted together.
void add_submissions(NamedPhase& phase, Dice& dice) {
  for (std::size_t index = 0; index < phase.tensors.size(); ++index) {
    const bool joins_last = index > 0 && phase.tensors[index].group == phase.tensors[index - 1].group;
    if (joins_last && dice.percent(20)) {
      phase.submissions.back().push_back(index);
    } else {
      phase.submissions.push_back({index});
    }
  }
}

void add_surprises(NamedPhase& phase, Dice& dice, int ranks) {
  for (int64_t count = dice.roll(4); count > 0; --count) {
    Surprise surprise{.kind = static_cast<Surprise::Kind>(dice.roll(6)),
                      .round = static_cast<int>(dice.roll(phase.rounds)),
                      .rank = static_cast<int>(dice.roll(ranks)),
                      .delay = dice.percent(50) ? dice.roll(kSecond_ns) : dice.roll(7 * kSecond_ns)};
    if (surprise.kind == Surprise::Kind::overdue) surprise.delay = 6 * kSecond_ns;  // half of that limit
    const bool is_of_few = surprise.kind == Surprise::Kind::differs || surprise.kind == Surprise::Kind::overdue;
    if (!phase.rounds_of.empty() && is_of_few) continue;  // a rank that has joined submits nothing
    // Ranks that are in other groups too would wait there for longer than the limit.
    const auto is_elsewhere = [&](const NamedTensor& tensor) { return tensor.group != phase.tensors.front().group; };
    const bool is_alone = phase.is_of_all && std::ranges::none_of(phase.tensors, is_elsewhere);
    // After another one the ranks are apart by more than the limit: that may be of the phase before in the first round.
    const auto is_overdue = [](const Surprise& one) { return one.kind == Surprise::Kind::overdue; };
    const bool follows_another = surprise.round == 0 || std::ranges::any_of(phase.surprises, is_overdue);
    if (is_overdue(surprise) && (!is_alone || follows_another)) continue;
    if (phase.find(surprise.kind, surprise.round) == nullptr) phase.surprises.push_back(surprise);
  }
  // A rank that has missed what is overdue is ahead by half of the limit, at most until the first round of the next
  // phase: a rank that is late then is so by little.
  const bool has_overdue = std::ranges::any_of(
      phase.surprises, [](const Surprise& surprise) { return surprise.kind == Surprise::Kind::overdue; });
  for (Surprise& surprise : phase.surprises) {
    const bool is_late = surprise.kind == Surprise::Kind::late;
    if (is_late && (has_overdue || surprise.round == 0)) surprise.delay %= kSecond_ns;
  }
}

}  // namespace

const Surprise* NamedPhase::find(Surprise::Kind kind, int round) const {
  const auto found = std::ranges::find_if(
      surprises, [&](const Surprise& surprise) { return surprise.kind == kind && surprise.round == round; });
  return found == surprises.end() ? nullptr : &*found;
}
bool NamedPhase::has(Surprise::Kind kind, int round) const { return find(kind, round) != nullptr; }

NamedTensor NamedPhase::tensor(std::size_t index, int round) const {
  NamedTensor tensor = tensors[index];
  for (const Surprise& surprise : surprises) {
    if (surprise.kind == Surprise::Kind::reshaped && surprise.round <= round && index == 0) tensor.elements += 5;
  }
  return tensor;
}

NamedPhase make_phase(uint64_t seed, int ranks, const std::vector<std::pair<std::string, std::vector<int>>>& groups) {
  Dice dice(seed);
  NamedPhase phase{.seed = seed, .name = fmt::format("phase {}", seed % 100'000)};
  phase.rounds = static_cast<int>(dice.percent(70) ? 4 + dice.roll(12) : 1 + dice.roll(3));
  if (dice.percent(15)) {
    for (int rank = 0; rank < ranks; ++rank) {
      phase.rounds_of.push_back(static_cast<int>(std::max<int64_t>(0, phase.rounds - dice.roll(4))));
    }
    phase.rounds = *std::ranges::max_element(phase.rounds_of);
  }
  add_tensors(phase, dice, groups);
  Dice of_priorities(seed + 1);
  add_priorities(phase, of_priorities);
  add_submissions(phase, dice);
  if (phase.rounds > 0) add_surprises(phase, dice, ranks);
  phase.waits_for_first = dice.percent(20);
  phase.joins_at_once = !phase.rounds_of.empty() && dice.percent(50);
  return phase;
}

int64_t value_of(const NamedTensor& tensor, int world_rank, int round, int64_t element) {
  return (world_rank + 1) * 1000 + round * 10 + element % 7 + tensor.number * 100'000;
}

Request request_of(const NamedTensor& tensor, int rank, int size) {
  Request request{.kind = tensor.kind, .name = tensor.name, .dtype = Dtype::int64, .shape = {tensor.elements}};
  request.priority = tensor.priority;
  switch (tensor.kind) {
    case RequestKind::allreduce:
      request.op = static_cast<uint8_t>(tensor.is_greatest ? Op::max : Op::sum);
      break;
    case RequestKind::broadcast:
      request.root = tensor.root;
      break;
    case RequestKind::allgather:
      request.shape = {rows_of_gather(rank), tensor.elements};
      break;
    case RequestKind::alltoall:
    case RequestKind::reduce_scatter:
      request.shape = {size, tensor.elements};
      request.op = static_cast<uint8_t>(Op::sum);
      break;
    default:
      request.dtype = Dtype::uint8;
      request.shape = {};
  }
  return request;
}

std::vector<int64_t> expected(const NamedTensor& tensor, const std::vector<int>& members,
                              const std::vector<int>& submitting, int rank, int round) {
  std::vector<int64_t> all;
  const auto size = static_cast<int64_t>(members.size());
  const auto from = [&](int member, int64_t element) {
    return value_of(tensor, members[static_cast<std::size_t>(member)], round, element);
  };
  const auto fold = [&](int64_t element) {
    int64_t folded = 0;
    for (const int member : submitting) {
      const int64_t value = value_of(tensor, member, round, element);
      folded = tensor.is_greatest ? std::max(folded, value) : folded + value;
    }
    return folded;
  };
  switch (tensor.kind) {
    case RequestKind::allreduce:
      for (int64_t i = 0; i < tensor.elements; ++i) all.push_back(fold(i));
      break;
    case RequestKind::broadcast:
      for (int64_t i = 0; i < tensor.elements; ++i) all.push_back(from(tensor.root, i));
      break;
    case RequestKind::allgather:
      for (int member = 0; member < size; ++member) {
        for (int64_t i = 0; i < rows_of_gather(member) * tensor.elements; ++i) all.push_back(from(member, i));
      }
      break;
    case RequestKind::alltoall:
      for (int member = 0; member < size; ++member) {
        for (int64_t i = 0; i < tensor.elements; ++i) all.push_back(from(member, rank * tensor.elements + i));
      }
      break;
    case RequestKind::reduce_scatter:
      for (int64_t i = 0; i < tensor.elements; ++i) all.push_back(fold(rank * tensor.elements + i));
      break;
    default:
      break;
  }
  return all;
}

}  // namespace fdl::simulation
