// farandole sshd-init is process 1 of an MPI worker pod: it runs sshd, passes SIGTERM to ranks and reaps zombies.
//
// With sshd itself as process 1, SIGTERM ends sshd, and the kernel kills the ranks with it: they never receive the
// signal, and the pod ends with 0 as if it had finished. This process sends SIGTERM to the ranks, gives them time to
// save, then ends sshd, and exits with 143.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>

#include "base/config.h"
#include "bootstrap/launchers/platform.h"
#include "cli/run/run_log.h"
#include "cli/subcommands.h"
#include "system/fd.h"
#include "system/poller.h"
#include "system/process/process.h"

namespace fdl {
namespace {

namespace files = std::filesystem;

constexpr uint64_t kSshdSignalToken = ~uint64_t{0};
constexpr double kSshdGrace_s = 2;  // between SIGTERM and SIGKILL to sshd

// A process with one of these variables was started by a launcher's daemon.
constexpr std::string_view kRankVariables[] = {
    "OMPI_COMM_WORLD_RANK=", "PMI_RANK=",      "PMIX_RANK=", "MV2_COMM_WORLD_RANK=",
    "MVP_COMM_WORLD_RANK=",  "FARANDOLE_RANK="};

std::string content_of(const files::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

bool has_rank(const files::path& process) {
  std::istringstream variables(content_of(process / "environ"));
  for (std::string one; std::getline(variables, one, '\0');) {
    for (const std::string_view front : kRankVariables) {
      if (one.starts_with(front)) return true;
    }
  }
  return false;
}

// -1 for a zombie. The name in "stat" may contain spaces and parentheses, so parsing begins after the last ')'.
pid_t parent_of(const files::path& process) {
  const std::string text = content_of(process / "stat");
  std::istringstream rest(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  std::string state;
  pid_t parent = 0;
  rest >> state >> parent;
  return state == "Z" ? -1 : parent;
}

std::optional<pid_t> as_pid(const std::string& name) {
  pid_t pid = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return pid;
}

// Maps every live process to its parent.
std::map<pid_t, pid_t> parents() {
  std::map<pid_t, pid_t> found;
  std::error_code none;
  for (const auto& entry : files::directory_iterator("/proc", none)) {
    const auto pid = as_pid(entry.path().filename());
    const pid_t parent = pid ? parent_of(entry.path()) : -1;
    if (parent >= 0) found[*pid] = parent;
  }
  return found;
}

// Whether `pid` descends from this process. Orphans do too: this process is their subreaper.
bool is_below_us(pid_t pid, const std::map<pid_t, pid_t>& parent_of_each) {
  for (auto at = parent_of_each.find(pid); at != parent_of_each.end(); at = parent_of_each.find(at->second)) {
    if (at->second == ::getpid()) return true;
  }
  return false;
}

// The processes that daemons started as ranks, without the children of those ranks.
std::vector<pid_t> ranks_here() {
  const std::map<pid_t, pid_t> all = parents();
  std::set<pid_t> with_rank;
  for (const auto& [pid, parent] : all) {
    if (is_below_us(pid, all) && has_rank(fmt::format("/proc/{}", pid))) with_rank.insert(pid);
  }
  std::vector<pid_t> ranks;
  for (const pid_t pid : with_rank) {
    if (!with_rank.contains(all.at(pid))) ranks.push_back(pid);
  }
  return ranks;
}

// Signals the whole process group of a rank that leads one. Any other rank shares its daemon's group, and the daemon
// must survive, so only the rank is signalled.
void signal_rank(pid_t pid, int signal) { ::kill(::getpgid(pid) == pid ? -pid : pid, signal); }

struct SshdOptions {
  std::string program = "/usr/sbin/sshd";
  std::string configuration;  // empty: ~/.sshd_config or ~/sshd_config if there is one
  int port = 0;
};

// -D keeps sshd in the foreground, -e sends its log to the pod's log. A user other than root needs a configuration of
// its own.
std::vector<std::string> command_of(const SshdOptions& options, const Environment& environment) {
  std::vector<std::string> command = {options.program, "-De"};
  std::string configuration = options.configuration;
  for (const char* name : {"/.sshd_config", "/sshd_config"}) {
    const std::string own = environment.get("HOME").value_or("/nowhere") + name;
    std::error_code none;
    if (configuration.empty() && files::exists(own, none)) configuration = own;
  }
  if (!configuration.empty()) command.insert(command.end(), {"-f", configuration});
  if (options.port > 0) command.insert(command.end(), {"-p", std::to_string(options.port)});
  return command;
}

// The null-terminated array that exec() takes. It points into `texts`.
std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// Everything runs in one thread, driven by one epoll set over a signalfd and the pidfds of ranks.
class SshdInit {
 public:
  static Result<SshdInit> start(const std::vector<std::string>& command, double grace_s);
  int run();

 private:
  SshdInit(Poller poller, UniqueFd signals, double grace_s)
      : poller_(std::move(poller)), signals_(std::move(signals)), grace_s_(grace_s) {}
  Status spawn(const std::vector<std::string>& command);
  void read_signals();
  void reap();
  void drain();     // SIGTERM to all ranks, and time to end
  void end_sshd();  // SIGTERM at the first call, SIGKILL at the next

  Poller poller_;
  UniqueFd signals_;
  double grace_s_;
  pid_t sshd_ = -1;
  int sshd_status_ = 0;
  bool sshd_runs_ = true;
  bool draining_ = false;
  bool next_is_last_ = false;
  std::vector<UniqueFd> ranks_;  // pidfds of the ranks that got SIGTERM; a token is an index here
  std::size_t ranks_left_ = 0;
  Deadline next_ = Deadline::never();  // when end_sshd() is called next
};

Result<SshdInit> SshdInit::start(const std::vector<std::string>& command, double grace_s) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGCHLD}) sigaddset(&set, signal);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  FDL_ASSIGN_OR_RETURN(Poller poller, Poller::make());
  UniqueFd signals(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals) return Status::from_errno("signalfd");
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  SshdInit init(std::move(poller), std::move(signals), grace_s);
  FDL_RETURN_IF_ERROR(init.poller_.add(init.signals_.get(), kSshdSignalToken));
  FDL_RETURN_IF_ERROR(init.spawn(command));
  return init;
}

Status SshdInit::spawn(const std::vector<std::string>& command) {
  std::vector<std::string> words = command;
  std::vector<std::string> variables;
  const Environment inherited = Environment::of_process();
  for (const auto& [name, value] : inherited.all()) variables.push_back(name + "=" + value);
  std::vector<char*> arguments = pointers(words);
  std::vector<char*> environment = pointers(variables);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  const int failure = ::posix_spawnp(&sshd_, arguments[0], nullptr, &attributes, arguments.data(), environment.data());
  ::posix_spawnattr_destroy(&attributes);
  if (failure == 0) return {};
  return Status(Code::invalid_argument, fmt::format("cannot run '{}': {}; install openssh-server, or give --sshd",
                                                    command.front(), std::strerror(failure)));
}

int SshdInit::run() {
  std::array<Poller::Ready, 32> ready;
  while (sshd_runs_) {
    const std::size_t count = poller_.wait(ready, next_);
    for (std::size_t i = 0; i < count; ++i) {
      if (ready[i].token == kSshdSignalToken) {
        read_signals();
        continue;
      }
      poller_.remove(ranks_[ready[i].token].get());
      if (--ranks_left_ == 0) end_sshd();
    }
    if (next_.passed()) end_sshd();
  }
  if (draining_) return 128 + SIGTERM;
  log_line("failed", fmt::format("sshd ended by itself ({}); see its lines above",
                                 WIFEXITED(sshd_status_) ? fmt::format("exit code {}", WEXITSTATUS(sshd_status_))
                                                         : fmt::format("signal {}", WTERMSIG(sshd_status_))));
  return WIFEXITED(sshd_status_) && WEXITSTATUS(sshd_status_) != 0 ? WEXITSTATUS(sshd_status_) : 1;
}

void SshdInit::read_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    if (info.ssi_signo == SIGCHLD) {
      reap();
    } else if (draining_) {
      end_sshd();  // a second signal ends the wait for the ranks
    } else {
      drain();
    }
  }
}

void SshdInit::reap() {
  int status = 0;
  for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
    if (pid != sshd_) continue;
    sshd_runs_ = false;
    sshd_status_ = status;
  }
}

void SshdInit::drain() {
  draining_ = true;
  const std::vector<pid_t> ranks = ranks_here();
  log_line("draining", fmt::format("SIGTERM: {} ranks have {:g} s to save and to end", ranks.size(), grace_s_));
  for (const pid_t rank : ranks) {
    auto fd = open_process(rank);
    if (!fd.ok() || !poller_.add(fd->get(), ranks_.size()).ok()) continue;
    ranks_.push_back(fd.take());
    ++ranks_left_;
    signal_rank(rank, SIGTERM);
  }
  next_ = Deadline::after_seconds(grace_s_);
  if (ranks_left_ == 0) end_sshd();
}

void SshdInit::end_sshd() {
  ::kill(sshd_, next_is_last_ ? SIGKILL : SIGTERM);
  next_is_last_ = true;
  next_ = Deadline::after_seconds(kSshdGrace_s);
}

int serve(const SshdOptions& options) {
  const Environment environment = Environment::of_process();
  set_run_log(false, whereabouts_of(environment, Platform::of_this_host().host_name));
  auto config = Config::read(environment);
  if (!config.ok()) {
    log_line("error", config.status().text());
    return kExitBadEnvironment;
  }
  auto init = SshdInit::start(command_of(options, environment), config->term_grace_s);
  if (!init.ok()) {
    log_line("error", init.status().text());
    return kExitBadEnvironment;
  }
  return init->run();
}

}  // namespace

void add_sshd_init(CLI::App& app, Work& work) {
  auto options = std::make_shared<SshdOptions>();
  CLI::App* command =
      app.add_subcommand("sshd-init", "Process 1 of an MPI worker pod: starts sshd, passes SIGTERM on to the ranks");
  command->add_option("--sshd", options->program, "The program")->capture_default_str();
  command->add_option("--config", options->configuration,
                      "Its configuration; else ~/.sshd_config or ~/sshd_config, where it is");
  command->add_option("--port", options->port, "Its port; else that of the configuration")->check(CLI::Range(1, 65535));
  command->footer("FARANDOLE_TERM_GRACE_S is how long ranks have after SIGTERM. The exit code is then 143.");
  command->callback([options, &work] { work = [options] { return serve(*options); }; });
}

}  // namespace fdl
