// farandole explain: which algorithm runs, why, its steps, and what it is predicted to take beside its rivals.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "algorithms/choose.h"
#include "base/config.h"
#include "program/subcommands.h"
#include "schedule/describe.h"
#include "schedule/simulate.h"

namespace fdl {
namespace {

struct Question {
  std::string collective = "allreduce";
  int ranks = 2;
  int hosts = 1;
  std::string bytes = "1M";
  std::string algorithm = "auto";
  bool deterministic = false;
  double alpha_us = 5;
  double gigabytes_per_s = 2;
};

constexpr int kShownRanks = 8;

std::optional<Collective> collective_named(const std::string& name) {
  for (int kind = 0; kind < kCollectiveCount; ++kind) {
    if (name_of(static_cast<Collective>(kind)) == name) return static_cast<Collective>(kind);
  }
  return std::nullopt;
}

std::vector<Schedule> schedules_of(const Algorithm& algorithm, const GroupShape& shape) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    schedules.push_back(algorithm.write({.collective = algorithm.collective,
                                         .rank = rank,
                                         .size = shape.ranks,
                                         .ranks_per_host = std::max(1, shape.ranks_per_host)}));
  }
  return schedules;
}

void print_rivals(const Choice& choice, const GroupShape& shape, int64_t bytes, const CostModel& model) {
  fmt::print("\npredicted ({} us a message, {:.3g} GB/s a direction):\n", model.alpha_s * 1e6, 1e-9 / model.beta_s);
  for (const Algorithm& algorithm : catalog()) {
    if (algorithm.collective != choice.algorithm->collective || !fits(algorithm, shape.ranks)) continue;
    const SimulatedRun run = simulate(schedules_of(algorithm, shape), bytes, model);
    fmt::print("  {} {:<20} {:>12.1f} us   {}\n", &algorithm == choice.algorithm ? "->" : "  ", algorithm.name,
               run.seconds * 1e6, algorithm.sentence);
  }
}

int explain(const Question& question) {
  const auto fail = [](const std::string& text) {
    fmt::print(stderr, "farandole explain: {}\n", text);
    return static_cast<int>(kExitUsage);
  };
  const auto collective = collective_named(question.collective);
  if (!collective)
    return fail("'" + question.collective + "' is no collective; try allreduce, broadcast, alltoall ...");
  auto bytes = parse_bytes(question.bytes);
  if (!bytes.ok()) return fail("--bytes " + bytes.status().text());
  const CostModel model{.alpha_s = question.alpha_us * 1e-6, .beta_s = 1e-9 / question.gigabytes_per_s};
  const GroupShape shape{.ranks = question.ranks,
                         .hosts = question.hosts,
                         .ranks_per_host = question.ranks % question.hosts == 0 ? question.ranks / question.hosts : 0,
                         .alpha_s = model.alpha_s,
                         .beta_s = model.beta_s};
  auto choice = choose(*collective, shape, static_cast<int64_t>(*bytes), question.algorithm, question.deterministic);
  if (!choice.ok()) return fail(choice.status().text());
  fmt::print("{} of {} bytes on {} ranks: {}\n{}\n\n", question.collective, *bytes, question.ranks,
             choice->algorithm->name, choice->why);
  const std::vector<Schedule> schedules = schedules_of(*choice->algorithm, shape);
  if (question.ranks <= kShownRanks) {
    fmt::print("{}", describe(schedules));
  } else {
    fmt::print("{}(the other {} ranks do likewise)\n", describe(schedules.front()), question.ranks - 1);
  }
  print_rivals(*choice, shape, static_cast<int64_t>(*bytes), model);
  fmt::print(
      "\nRanks that share memory on one host use the shared-memory collectives instead, unless an algorithm is "
      "asked for.\n");
  return kExitOk;
}

}  // namespace

void add_explain(CLI::App& app, Work& work) {
  auto question = std::make_shared<Question>();
  CLI::App* command = app.add_subcommand("explain", "Show which algorithm is chosen, why, its steps and its cost");
  command
      ->add_option("--collective", question->collective,
                   "allreduce, reduce, broadcast, allgather, reduce_scatter, "
                   "alltoall, gather, scatter, barrier")
      ->capture_default_str();
  command->add_option("--ranks", question->ranks, "Ranks in the group")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  command->add_option("--hosts", question->hosts, "Hosts they are on")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  command->add_option("--bytes", question->bytes, "Size of the vector: 4, 64K, 1M")->capture_default_str();
  command->add_option("--algorithm", question->algorithm, "Ask for one instead of auto")->capture_default_str();
  command->add_flag("--deterministic", question->deterministic, "Only what folds in rank order");
  command->add_option("--latency-us", question->alpha_us, "Of one message")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--gigabytes-per-s", question->gigabytes_per_s, "Of one direction of one link")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->callback([&work, question] { work = [question] { return explain(*question); }; });
}

}  // namespace fdl
