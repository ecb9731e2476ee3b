// Supervisor runs the ranks of this host, labels their output, and ends all of them when one fails.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/run/output/rank_output.h"
#include "cli/run/worker_group.h"
#include "system/poller.h"
#include "system/process/process.h"

namespace fdl {

// The exit code of a job without a rank, after the failure of ChildProcess::start() or of other resources.
int exit_code_of_start(const Status& failure);

class Supervisor {
 public:
  struct Rank {
    int rank = 0;
    std::map<std::string, std::string> variables;
    std::vector<int> processors;  // to which it is bound; empty: to none
  };
  struct Options {
    std::vector<std::string> command;
    std::vector<Rank> ranks;
    std::unique_ptr<WorkerGroup> job;  // of an elastic job, instead of `ranks`: orders which ranks start
    RankOutput::Options output;
    LauncherOutput* launcher_output = nullptr;  // outlives the supervisor
    // Asks all ranks what they do, and prints the answer later. False, or empty: no coordinator runs here.
    std::function<bool()> query_states;
    // Called with each rank that has ended; may be empty. Not for an elastic job, whose WorkerGroup gets the ends.
    std::function<void(int rank, pid_t process, const Ending& ending)> note_ended;
    std::string mark;          // the value of Guardian::kVariable for the ranks; empty: none
    pid_t guardian = -1;       // the launcher's other child, which end_all() spares
    std::string report;        // a file for one line of JSON about the rank that failed first; empty: none
    double grace_s = 3;        // after a failure: until the other ranks get SIGTERM
    double kill_after_s = 3;   // until SIGKILL, after SIGINT and the like, and after the SIGTERM that follows a failure
    double lost_after_s = 10;  // after the end of all other ranks: until stopped ones are killed
    double term_grace_s = 3;   // until SIGKILL after SIGTERM to this process: time to save
    // Some ranks are on other nodes, so that a failure here may be the consequence of one there.
    bool has_peers_elsewhere = false;
  };

  // Call before the first thread is started, so that only the supervisor's signalfd receives signals. SIGPIPE is
  // blocked too: a write without a reader fails, and the ranks are ended in good order.
  static void block_signals();
  // When no rank is left: signals that end a process end this one.
  static void unblock_ending_signals();

  // The digits of a rank's number in the name of its folder, of a job that is not elastic.
  static int width_of_ranks(std::size_t ranks) { return static_cast<int>(std::to_string(ranks - 1).size()); }

  static Result<Supervisor> make(Options options);
  // Blocks until all ranks have ended. Returns the exit code of the rank that failed first, or 0.
  Result<int> run();
  // A signal ended the job: the caller must not restart it.
  bool was_terminated() const { return was_terminated_; }

 private:
  struct Stream {
    std::size_t child = 0;
    bool is_error = false;
    bool open = true;
    bool is_paused = false;  // not read, because what its lines are written to is full
    RankOutput::Stream kind() const { return is_error ? RankOutput::Stream::error : RankOutput::Stream::output; }
  };
  struct Child {
    int rank = 0;
    int worker = -1;  // of an elastic job
    ChildProcess process;
    RankOutput output;
    bool running = true;
    int stopped_by = 0;  // the signal that stopped it; 0: it is not stopped
    Deadline stopped_since = Deadline::never();
    bool was_killed = false;  // by this launcher, as the job's WorkerGroup ordered
    bool given_up = false;    // killed because it was stopped for too long
  };

  static constexpr std::size_t kNotStarted = ~std::size_t{0};

  Supervisor(Options options, Poller poller, UniqueFd signals)
      : options_(std::move(options)), poller_(std::move(poller)), signals_(std::move(signals)) {}
  Status start_all();
  Status start(const Rank& rank, int width, int worker = -1);
  Status watch(Child& child);  // the last one started
  Status run_job_actions();
  Status run_action(const WorkerGroup::Action& action);
  Status start_worker(const WorkerGroup::Action& action);
  Child* child_of(int worker);  // null: it could not be started
  void fail(int exit_code);     // sets the exit code; all ranks end after the grace period
  void drain(int exit_code, const std::string& why);
  void serve_stream(std::size_t index);
  void read_stream(std::size_t index, std::size_t most_bytes);
  void drain_stream(std::size_t index);
  void pause(std::size_t index);
  void serve_output();
  void end_without_reader();
  int stream_fd(const Stream& stream) const;
  void handle_ending(std::size_t index);
  void read_signals();
  void handle_signal(int signal);
  void query_states();
  void reap_orphans();
  void note_stops();
  void watch_stopped();
  void give_up_stopped();
  void kill(Child& child, WorkerGroup::Action::When when);
  void log_collateral(const Child& child, const Ending& ending) const;
  void escalate();
  void end_all();
  bool any_left() const;
  bool any_runs() const;  // of the ranks
  int exit_code_of(const Child& child, const Ending& ending) const;
  static std::string stopped_text(const Child& child);
  std::string failure_text(const Child& child, const Ending& ending) const;
  void write_report(const Child& child, const Ending& ending) const;

  Options options_;
  Poller poller_;
  UniqueFd signals_;
  std::vector<Child> children_;  // only grows while ranks run, because tokens are indices
  std::vector<Stream> streams_;  // two for each child: output, error
  // By worker of an elastic job: an index of children_, or kNotStarted.
  std::vector<std::size_t> children_of_workers_;
  std::string first_last_line_;  // of the rank that failed first
  int exit_code_ = 0;
  bool failed_ = false;
  bool was_terminated_ = false;
  bool is_drained_ = false;                     // by drain(), and this launcher itself has got no SIGTERM yet
  int next_signal_ = 0;                         // the signal that escalate() sends next
  Deadline escalation_ = Deadline::never();     // when escalate() is called
  Deadline stopped_until_ = Deadline::never();  // when give_up_stopped() is called
};

}  // namespace fdl
