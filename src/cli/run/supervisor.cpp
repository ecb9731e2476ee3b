// Supervisor waits in one epoll set for pipes, pidfds and signals; it has no threads and does not poll.
#include "cli/run/supervisor.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "base/config.h"
#include "bootstrap/topology/topology.h"
#include "cli/json_line.h"
#include "cli/run/consequence.h"
#include "cli/run/guardian.h"
#include "cli/run/output/report_file.h"
#include "cli/run/run_log.h"
#include "cli/subcommands.h"

namespace fdl {
namespace {

// Poller tokens. Smaller ones are indices of streams_; those from kEndingToken on are indices of children_.
constexpr uint64_t kSignalToken = ~uint64_t{0};
constexpr uint64_t kOutputToken = kSignalToken - 1;
constexpr uint64_t kEndingToken = uint64_t{1} << 32;
constexpr uint64_t kJobToken = uint64_t{1} << 33;

// The launcher installs no handlers, so the answer is what it inherited.
bool is_ignored(int signal) {
  struct sigaction inherited {};
  return ::sigaction(signal, nullptr, &inherited) == 0 && inherited.sa_handler == SIG_IGN;
}

// A signalfd receives a blocked signal even if the process ignores it. Ignored signals are therefore left out: nohup
// ignores SIGHUP, and a script ignores SIGINT for its commands in the background. The script ignores SIGQUIT for them
// too, but here SIGQUIT ends nothing, and users send it to such launchers: it prints what each rank does.
sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGQUIT, SIGCHLD}) sigaddset(&set, signal);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) {
    if (!is_ignored(signal)) sigaddset(&set, signal);
  }
  return set;
}

// Scripts and frameworks read the variables that Horovod's launcher sets.
void add_horovod_variables(std::map<std::string, std::string>& variables) {
  const auto copy = [&](const char* to, const char* from, const char* otherwise) {
    const auto found = variables.find(from);
    variables[to] = found == variables.end() ? otherwise : found->second;
  };
  copy("HOROVOD_RANK", "FARANDOLE_RANK", "0");
  copy("HOROVOD_SIZE", "FARANDOLE_SIZE", "1");
  copy("HOROVOD_LOCAL_RANK", "FARANDOLE_LOCAL_RANK", "0");
  copy("HOROVOD_LOCAL_SIZE", "FARANDOLE_LOCAL_SIZE", "1");
  copy("HOROVOD_CROSS_RANK", "FARANDOLE_NODE_RANK", "0");
  copy("HOROVOD_CROSS_SIZE", "FARANDOLE_NODE_COUNT", "1");
  variables["HOROVOD_HOSTNAME"] = host_facts().host_name;
  variables["HOROVOD_CONTROLLER"] = "gloo";  // Horovod's controller without MPI
}

}  // namespace

int exit_code_of_start(const Status& failure) {
  if (failure.code() == Code::invalid_argument) return kExitNotFound;
  return failure.code() == Code::unsupported ? kExitCannotRun : exit_code_of_system(failure);
}

void Supervisor::block_signals() {
  sigset_t set = watched_signals();
  sigaddset(&set, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

void Supervisor::unblock_ending_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

Result<Supervisor> Supervisor::make(Options options) {
  block_signals();
  FDL_ASSIGN_OR_RETURN(Poller poller, Poller::make());
  const sigset_t set = watched_signals();
  UniqueFd signals(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals) return Status::from_errno("signalfd");
  // Processes that a rank leaves behind become children of this process, so that they can be ended too.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  return Supervisor(std::move(options), std::move(poller), std::move(signals));
}

Status Supervisor::start_all() {
  FDL_RETURN_IF_ERROR(poller_.add(signals_.get(), kSignalToken));
  FDL_RETURN_IF_ERROR(poller_.add(options_.launcher_output->fd(), kOutputToken));
  if (options_.job) {
    FDL_RETURN_IF_ERROR(options_.job->watch(poller_, kJobToken));
    return run_job_actions();
  }
  const int width = width_of_ranks(options_.ranks.size());
  for (const Rank& rank : options_.ranks) FDL_RETURN_IF_ERROR(start(rank, width));
  return {};
}

Status Supervisor::start(const Rank& rank, int width, int worker) {
  std::map<std::string, std::string> environment = rank.variables;
  add_horovod_variables(environment);
  const Environment inherited = Environment::of_process();
  if (!options_.mark.empty()) environment[Guardian::kVariable] = options_.mark;
  environment.insert(inherited.all().begin(), inherited.all().end());  // the rank's own variables win
  auto process = ChildProcess::start(options_.command, environment,
                                     {.directory = {}, .die_with_parent = true, .processors = rank.processors});
  if (!process.ok()) return process.status().while_doing("starting rank " + std::to_string(rank.rank));
  children_.push_back({.rank = rank.rank,
                       .worker = worker,
                       .process = process.take(),
                       .output = RankOutput(options_.output, *options_.launcher_output, rank.rank, width)});
  Status watched = watch(children_.back());
  if (watched.ok()) return {};
  children_.pop_back();  // kills it; what its descriptors are watched for ends with them
  streams_.resize(2 * children_.size());
  return watched;
}

Status Supervisor::watch(Child& child) {
  const std::size_t index = children_.size() - 1;
  FDL_RETURN_IF_ERROR(poller_.add(child.process.output_fd(), streams_.size()));
  streams_.push_back({.child = index, .is_error = false});
  FDL_RETURN_IF_ERROR(poller_.add(child.process.error_fd(), streams_.size()));
  streams_.push_back({.child = index, .is_error = true});
  return poller_.add(child.process.ended_fd(), kEndingToken + index);
}

Result<int> Supervisor::run() {
  Status started = start_all();
  if (!started.ok()) {
    end_all();
    return started;
  }
  while (any_left()) {
    std::array<Poller::Ready, 32> ready;
    const Deadline next = escalation_.earlier(stopped_until_);
    const std::size_t count = poller_.wait(ready, options_.job ? next.earlier(options_.job->next()) : next);
    for (std::size_t i = 0; i < count; ++i) {
      const uint64_t token = ready[i].token;
      if (token == kSignalToken) {
        read_signals();
      } else if (token == kOutputToken) {
        serve_output();
      } else if (token >= kJobToken) {
        options_.job->serve(token);
      } else if (token >= kEndingToken) {
        handle_ending(static_cast<std::size_t>(token - kEndingToken));
      } else {
        serve_stream(static_cast<std::size_t>(token));
      }
    }
    if (Status status = run_job_actions(); !status.ok()) {
      end_all();
      return status;
    }
    if (escalation_.passed()) escalate();
    watch_stopped();
  }
  end_all();
  return exit_code_;
}

bool Supervisor::any_left() const { return (options_.job && options_.job->stays()) || any_runs(); }

bool Supervisor::any_runs() const {
  return std::ranges::any_of(children_, [](const Child& child) { return child.running; });
}

// ---- Ends of ranks ----

std::string Supervisor::failure_text(const Child& child, const Ending& ending) const {
  if (child.given_up) {
    const std::string stopped = stopped_text(child);
    if (options_.job) return stopped + ", and was killed so that the others can continue without it";
    return fmt::format(
        "{} when the others had ended, and did not continue for {:g} s (FARANDOLE_LOST_AFTER_S): it was "
        "killed",
        stopped, options_.lost_after_s);
  }
  const std::string consequence = options_.has_peers_elsewhere ? consequence_of(child.output.last_lines()).text : "";
  std::string text = fmt::format("rank {} (process {}){} {}: {}", child.rank, child.process.id(),
                                 run_whereabouts().text(), options_.job ? "was lost" : "failed first", ending.text());
  if (!consequence.empty()) text += fmt::format(", as a consequence: {}", consequence);
  if (const int left = rank_that_left(child.output.last_lines()); left >= 0 && left != child.rank) {
    text = fmt::format(
        "rank {} ended before the others were done; rank {} (process {}){} failed because of it: {}; give "
        "all ranks the same number of steps, or call join()",
        left, child.rank, child.process.id(), run_whereabouts().text(), ending.text());
  }
  if (child.was_killed) {
    text += ", by this launcher";
  } else if (ending.by_signal && ending.number == SIGKILL) {
    text += "; signal 9 often means that the memory limit was reached: see `dmesg` or the pod's events";
  }
  return text;
}

void Supervisor::log_collateral(const Child& child, const Ending& ending) const {
  if (was_terminated_ || options_.job) return;
  const auto& lines = child.output.last_lines();
  if (!lines.empty() && lines.back() == first_last_line_) {
    log_line("alike", fmt::format("rank {} ended with {} and the same last line", child.rank, ending.text()));
    return;
  }
  log_line("collateral",
           fmt::format("rank {} ended with {}: collateral of the first failure", child.rank, ending.text()));
}

// An uncaught exception ends Python with 1 whatever its cause, so the code of a consequence replaces that 1.
int Supervisor::exit_code_of(const Child& child, const Ending& ending) const {
  const Consequence consequence = consequence_of(child.output.last_lines());
  const bool has_consequence_code = options_.has_peers_elsewhere && !ending.by_signal && ending.number == 1;
  return has_consequence_code && consequence.exit_code != 0 ? consequence.exit_code : ending.exit_code();
}

// Other programs read the report; farandole.run does. Launchers of a job that is not elastic do not communicate, so
// each reports its own ranks with pod and node, and whether the cause was elsewhere.
void Supervisor::write_report(const Child& child, const Ending& ending) const {
  if (options_.report.empty()) return;
  JsonLine line;
  line.number("rank", static_cast<long long>(child.rank)).number("process", static_cast<long long>(child.process.id()));
  line.number("exit_code", static_cast<long long>(ending.exit_code())).text("ending", ending.text());
  line.text("pod", run_whereabouts().pod).text("node", run_whereabouts().node);
  line.text("consequence", options_.has_peers_elsewhere ? consequence_of(child.output.last_lines()).text : "");
  if (const Status written = write_report_file(options_.report, line.str()); !written.ok())
    log_line("report", written.text());
}

void Supervisor::handle_ending(std::size_t index) {
  Child& child = children_[index];
  if (!child.running) return;
  const auto ending = child.process.ending();
  if (!ending) return;
  child.process.signal_group(SIGTERM);  // processes that it leaves behind
  child.running = false;
  poller_.remove(child.process.ended_fd());
  child.process.release();  // an elastic job may lose any number of ranks
  drain_stream(2 * index);
  drain_stream(2 * index + 1);
  if (options_.note_ended) options_.note_ended(child.rank, child.process.id(), *ending);
  const bool is_loss = options_.job ? options_.job->ended(child.worker, *ending) : !ending->success();
  if (is_loss && failed_) log_collateral(child, *ending);
  // Messages of other ranks about a loss may arrive before the lost rank's own end. While no signal has been sent, an
  // end by a signal is then still the cause.
  const bool is_cause = failed_ && options_.job && next_signal_ == SIGTERM && ending->by_signal;
  if (!is_loss || (failed_ && !is_cause)) return;
  log_line("failed", failure_text(child, *ending));
  const auto& last_lines = child.output.last_lines();
  if (!last_lines.empty()) log_line("last lines", fmt::format("last lines of rank {}:", child.rank));
  for (const std::string& line : last_lines) log_detail(line);
  if (!last_lines.empty()) first_last_line_ = last_lines.back();
  write_report(child, *ending);
  if (!options_.job) fail(exit_code_of(child, *ending));
}

// The other ranks detect the failure themselves and can report it. Those that have not ended after the grace period get
// SIGTERM, and later SIGKILL.
void Supervisor::fail(int exit_code) {
  failed_ = true;
  exit_code_ = exit_code;
  next_signal_ = SIGTERM;
  escalation_ = Deadline::after_seconds(options_.grace_s);
}

Supervisor::Child* Supervisor::child_of(int worker) {
  const std::size_t index = children_of_workers_[static_cast<std::size_t>(worker)];
  return index == kNotStarted ? nullptr : &children_[index];
}

// A worker that cannot be started is lost, as one that ends at once: the job decides whether the others go on. An error
// where no rank runs here: the command itself cannot be run.
Status Supervisor::start_worker(const WorkerGroup::Action& action) {
  FDL_CHECK(action.worker == static_cast<int>(children_of_workers_.size()));
  const std::size_t index = children_.size();
  const Status started = start({action.rank, action.variables, {}}, 1, action.worker);
  children_of_workers_.push_back(started.ok() ? index : kNotStarted);
  if (started.ok() || !any_runs()) return started;
  log_line("failed", fmt::format("rank {}{} was lost before it began: {}", action.rank, run_whereabouts().text(),
                                 started.text()));
  options_.job->ended(action.worker, {.by_signal = false, .number = exit_code_of_start(started)});
  return {};
}

Status Supervisor::run_job_actions() {
  if (!options_.job) return {};
  options_.job->tick();
  // Until none is left: the end of a worker that could not be started is an event, which may cause more.
  for (auto actions = options_.job->take_actions(); !actions.empty(); actions = options_.job->take_actions()) {
    for (const WorkerGroup::Action& action : actions) FDL_RETURN_IF_ERROR(run_action(action));
  }
  return {};
}

Status Supervisor::run_action(const WorkerGroup::Action& action) {
  switch (action.kind) {
    case WorkerGroup::Action::Kind::start:
      return start_worker(action);
    case WorkerGroup::Action::Kind::rename:
      if (Child* child = child_of(action.worker)) {
        child->rank = action.rank;
        child->output.rename(action.rank);
      }
      break;
    case WorkerGroup::Action::Kind::kill:
      if (Child* child = child_of(action.worker)) kill(*child, action.when);
      break;
    case WorkerGroup::Action::Kind::give_up:
      log_line("ends", fmt::format("the job ends: {}", action.text));
      fail(action.exit_code);
      break;
    case WorkerGroup::Action::Kind::drain:
      drain(action.exit_code, action.text);
      break;
  }
  return {};
}

// Sends SIGTERM first and SIGKILL after kill_after_s, to whole process groups.
void Supervisor::escalate() {
  for (Child& child : children_) {
    if (child.running) child.process.signal_group(next_signal_);
  }
  escalation_ = next_signal_ == SIGKILL ? Deadline::never() : Deadline::after_seconds(options_.kill_after_s);
  next_signal_ = SIGKILL;
}

void Supervisor::read_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal != SIGCHLD) {
      handle_signal(signal);
      continue;
    }
    reap_orphans();
    note_stops();
  }
}

// The job goes on, and its ranks do not get the signal: without a handler of their own it would end them.
void Supervisor::query_states() {
  const bool asked = options_.job ? options_.job->query_states() : options_.query_states && options_.query_states();
  if (asked) return;
  log_line("where",
           "SIGQUIT: no coordinator of the job runs here at present; send it to the launcher of the first node");
}

void Supervisor::handle_signal(int signal) {
  if (signal == SIGQUIT) return query_states();
  // The node that leads got SIGTERM before this one, so the ranks leave already.
  if (signal == SIGTERM && std::exchange(is_drained_, false)) {
    exit_code_ = 128 + signal;
    return;
  }
  // A second SIGTERM kills the ranks at once.
  const bool again = signal == SIGTERM && was_terminated_;
  const bool ends = !again && signal != SIGUSR1 && signal != SIGUSR2;
  if (ends && !any_runs() && options_.job && options_.job->has_succeeded()) return options_.job->stop("");
  if (ends && options_.job) options_.job->stop("farandole run was requested to end");  // before its ranks end
  for (Child& child : children_) {
    if (child.running) child.process.signal_group(again ? SIGKILL : signal);
  }
  if (!ends) return;
  if (!failed_) exit_code_ = 128 + signal;
  failed_ = true;
  was_terminated_ = true;
  const double grace_s = signal == SIGTERM ? options_.term_grace_s : options_.kill_after_s;
  if (signal == SIGTERM)
    log_line("draining", fmt::format("SIGTERM: the ranks have {:g} s to save and to end", grace_s));
  next_signal_ = SIGKILL;
  escalation_ = Deadline::after_seconds(grace_s);
}

// As after SIGTERM to this launcher, when the launcher that leads the job was terminated.
void Supervisor::drain(int exit_code, const std::string& why) {
  log_line("draining", fmt::format("{}: the ranks have {:g} s to save and to end", why, options_.term_grace_s));
  for (Child& child : children_) {
    if (child.running) child.process.signal_group(SIGTERM);
  }
  is_drained_ = !failed_;
  if (!failed_) exit_code_ = exit_code;
  failed_ = true;
  was_terminated_ = true;
  next_signal_ = SIGKILL;
  escalation_ = Deadline::after_seconds(options_.term_grace_s);
}

// A subreaper inherits the processes that ranks leave behind. Those that have ended are reaped here; a rank is reaped
// only by the ChildProcess that owns it.
void Supervisor::reap_orphans() {
  std::ifstream list(fmt::format("/proc/self/task/{}/children", ::getpid()));
  for (pid_t pid = 0; list >> pid;) {
    const bool is_rank = std::any_of(children_.begin(), children_.end(),
                                     [&](const Child& child) { return child.running && child.process.id() == pid; });
    if (!is_rank) ::waitpid(pid, nullptr, WNOHANG);
  }
}

// Kills all descendants but the guardian, including processes in sessions of their own that were orphaned to this
// process. When a child dies its children become ours, hence the loop.
void Supervisor::end_all() {
  children_.clear();  // kills and reaps the ranks that have not ended
  const std::string list = fmt::format("/proc/self/task/{}/children", ::getpid());
  for (bool any = true; any;) {
    any = false;
    std::ifstream children(list);
    for (pid_t child = 0; children >> child;) {
      if (child == options_.guardian) continue;
      any = true;
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
  }
}

}  // namespace fdl
