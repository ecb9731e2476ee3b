// farandole where asks a running job what each of its ranks does, and prints a table.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "bootstrap/coordinator/job_view.h"
#include "bootstrap/rendezvous/job_key.h"
#include "cli/subcommands.h"
#include "cli/where/where_table.h"

namespace fdl {
namespace {

// The coordinator answers after at most 2 s, whatever the ranks do.
constexpr double kAnswer_s = 5;

struct WhereOptions {
  int process_id = 0;
  std::string rendezvous;
  bool has_rendezvous = false;  // it may be empty, which is an error and not the absence of the option
  bool json = false;
  bool stacks = false;
};

struct Answer {
  JobView view;
  int process_id = 0;  // of the process that serves the coordinator; 0: unknown
};

int fail(const std::string& text, int code) {
  fmt::print(stderr, "farandole where: {}\n", text);
  return code;
}

// "farandole run -np 4 python train.py", cut to a length for a list.
std::string command_of(int process_id) {
  std::ifstream file(fmt::format("/proc/{}/cmdline", process_id));
  std::string text(std::istreambuf_iterator<char>(file), {});
  std::ranges::replace_if(
      text, [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  constexpr std::size_t kShown = 60;
  if (text.size() > kShown) text = text.substr(0, kShown) + "...";
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

int print(const std::vector<Answer>& answers, const WhereOptions& options) {
  bool all = true;
  for (const Answer& answer : answers) {
    all = all && answer.view.all_answered();
    if (options.json) {
      fmt::print("{}\n", where_json(answer.view, answer.process_id).str());
      continue;
    }
    for (const std::string& line : where_lines(answer.view, answer.process_id)) fmt::print("{}\n", line);
    if (!options.stacks) continue;
    for (const std::string& line : stack_lines(answer.view)) fmt::print("{}\n", line);
  }
  return all ? kExitOk : kExitSilent;
}

bool has_present_rank(const JobView& view) {
  return std::ranges::any_of(view.ranks, [](const RankView& rank) {
    return rank.presence == RankPresence::answered || rank.presence == RankPresence::silent;
  });
}

bool has_process(const JobView& view, int process_id) {
  return std::ranges::any_of(view.ranks, [&](const RankView& rank) {
    return rank.presence != RankPresence::absent && rank.member.process_id == process_id;
  });
}

// A process may serve several coordinators, as the launcher of an elastic job does for each generation. Those without a
// present rank are left out if there are others.
Result<std::vector<Answer>> ask(const std::vector<LocalJob>& jobs, const WhereOptions& options) {
  std::vector<Answer> answers;
  Status failure;
  for (const LocalJob& job : jobs) {
    auto view = query_local_job(job, Deadline::after_seconds(kAnswer_s), options.stacks);
    if (view.ok()) {
      answers.push_back({view.take(), job.process_id});
    } else {
      failure = view.status();
    }
  }
  if (answers.empty() && !failure.ok()) return failure;
  const auto is_present = [](const Answer& answer) { return has_present_rank(answer.view); };
  if (std::ranges::any_of(answers, is_present)) {
    std::erase_if(answers, [&](const Answer& answer) { return !is_present(answer); });
  }
  return answers;
}

// The jobs whose coordinators the process serves, or else the one in which it is a rank.
int ask_process(const WhereOptions& options, const std::vector<LocalJob>& jobs) {
  std::vector<LocalJob> served = jobs;
  std::erase_if(served, [&](const LocalJob& job) { return job.process_id != options.process_id; });
  if (!served.empty()) {
    const auto answers = ask(served, options);
    return answers.ok() ? print(*answers, options) : fail(answers.status().text(), kExitNoJob);
  }
  for (const LocalJob& job : jobs) {
    const auto answers = ask({job}, options);
    if (answers.ok() && has_process(answers->front().view, options.process_id)) return print(*answers, options);
  }
  return fail(fmt::format("process {} serves no job of this user on this host and is no rank of one; a job whose "
                          "coordinator is on another host can be asked with --rendezvous",
                          options.process_id),
              kExitNoJob);
}

int ask_only_job(const WhereOptions& options, const std::vector<LocalJob>& jobs) {
  if (jobs.empty()) {
    return fail(
        "no job of this user is served on this host; a job whose coordinator is on another host can be asked with "
        "--rendezvous",
        kExitNoJob);
  }
  const bool is_one = jobs.front().process_id == jobs.back().process_id;
  if (!is_one) {
    std::string list;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      if (i > 0 && jobs[i].process_id == jobs[i - 1].process_id) continue;
      list += fmt::format("{}{} ({})", list.empty() ? "" : ", ", jobs[i].process_id, command_of(jobs[i].process_id));
    }
    return fail(fmt::format("several jobs are served on this host: name one by its process: {}", list), kExitUsage);
  }
  const auto answers = ask(jobs, options);
  return answers.ok() ? print(*answers, options) : fail(answers.status().text(), kExitNoJob);
}

int ask_at(const WhereOptions& options) {
  auto config = Config::read(Environment::of_process());
  if (!config.ok()) return fail(config.status().text(), kExitBadEnvironment);
  const auto key = given_job_key(*config);
  if (!key.ok()) return fail(key.status().text(), kExitBadEnvironment);
  if (key->empty()) return fail("--rendezvous needs the key of the job in FARANDOLE_JOB_KEY", kExitBadEnvironment);
  auto view = query_job_at(options.rendezvous, *key, Deadline::after_seconds(kAnswer_s), options.stacks);
  if (!view.ok()) return fail(view.status().text(), kExitNoJob);
  return print({{view.take(), 0}}, options);
}

int where(const WhereOptions& options) {
  if (options.has_rendezvous) return ask_at(options);
  const std::vector<LocalJob> jobs = find_own_jobs(Deadline::after_seconds(kAnswer_s));
  return options.process_id != 0 ? ask_process(options, jobs) : ask_only_job(options, jobs);
}

}  // namespace

void add_where(CLI::App& app, Work& work) {
  auto options = std::make_shared<WhereOptions>();
  CLI::App* command = app.add_subcommand("where", "Show what each rank of a running job does, and what it waits for");
  command->add_option("process", options->process_id,
                      "The process of `farandole run`, or of any rank; not needed if one job is served on this host");
  auto* rendezvous = command->add_option("--rendezvous", options->rendezvous,
                                         "Instead: the address of the job's coordinator, with FARANDOLE_JOB_KEY");
  rendezvous->excludes("process");
  command->add_flag("--json", options->json, "One JSON object a job");
  command->add_flag("--stacks", options->stacks,
                    "Show the stacks of each rank's threads too, which Python programs give");
  command->footer("Exit code 0: all ranks answered; 205: some did not; 206: there is no such job.");
  command->callback([options, rendezvous, &work] {
    options->has_rendezvous = rendezvous->count() > 0;
    work = [options] { return where(*options); };
  });
}

}  // namespace fdl
