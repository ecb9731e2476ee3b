// Ranks that a signal has stopped: Supervisor reports them, and kills those that nothing else can find lost.
#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "cli/run/run_log.h"
#include "cli/run/supervisor.h"

namespace fdl {

std::string Supervisor::stopped_text(const Child& child) {
  return fmt::format("rank {} (process {}){} was stopped by signal {} ({})", child.rank, child.process.id(),
                     run_whereabouts().text(), child.stopped_by, ::strsignal(child.stopped_by));
}

// SIGCHLD also reports a rank that was stopped or has continued. A debugger's stops are not reported here.
void Supervisor::note_stops() {
  for (Child& child : children_) {
    siginfo_t info{};
    const auto changed = [&] {
      return ::waitid(P_PID, static_cast<id_t>(child.process.id()), &info, WSTOPPED | WCONTINUED | WNOHANG) == 0 &&
             info.si_pid != 0;
    };
    while (child.running && changed()) {
      const int before = std::exchange(child.stopped_by, info.si_code == CLD_CONTINUED ? 0 : info.si_status);
      if (child.stopped_by != 0) {
        child.stopped_since = Deadline::after_seconds(0);
        log_line("stopped", stopped_text(child));
      } else if (before != 0) {
        log_line("continued", fmt::format("rank {} (process {}){} continues", child.rank, child.process.id(),
                                          run_whereabouts().text()));
      }
      info = {};
    }
  }
}

// No rank waits for a rank that is stopped after all others have ended, so that only this process can find it lost. A
// job with ranks elsewhere, or an elastic one, has others that may still wait for it.
void Supervisor::watch_stopped() {
  const auto is_stopped = [](const Child& child) { return child.running && child.stopped_by != 0 && !child.given_up; };
  const bool any_stopped = std::any_of(children_.begin(), children_.end(), is_stopped);
  const bool any_ended = !std::all_of(children_.begin(), children_.end(), [](const Child& c) { return c.running; });
  const bool any_runs = std::any_of(children_.begin(), children_.end(),
                                    [](const Child& child) { return child.running && child.stopped_by == 0; });
  if (!any_stopped || !any_ended || any_runs || failed_ || options_.job || options_.has_peers_elsewhere) {
    stopped_until_ = Deadline::never();
  } else if (stopped_until_.is_never()) {
    stopped_until_ = Deadline::after_seconds(options_.lost_after_s);
    for (const Child& child : children_) {
      if (!is_stopped(child)) continue;
      log_line("stopped", fmt::format("rank {} (process {}) is stopped, and all others have ended; it is killed if it "
                                      "does not continue within {:g} s (FARANDOLE_LOST_AFTER_S)",
                                      child.rank, child.process.id(), options_.lost_after_s));
    }
  } else if (stopped_until_.passed()) {
    give_up_stopped();
  }
}

// A stopped rank cannot come to the next generation of an elastic job, so the others do not wait for it.
void Supervisor::kill(Child& child, WorkerGroup::Action::When when) {
  if (when != WorkerGroup::Action::When::always) {
    if (!child.running || child.stopped_by == 0 || child.given_up) return;
    const bool for_long = child.stopped_since.shifted_by_ns(seconds_to_ns(options_.lost_after_s)).passed();
    if (when == WorkerGroup::Action::When::stopped_long && !for_long) return;
    child.given_up = true;
  }
  child.was_killed = true;
  child.process.signal_group(SIGKILL);
}

void Supervisor::give_up_stopped() {
  stopped_until_ = Deadline::never();
  for (Child& child : children_) {
    if (!child.running) continue;
    child.given_up = true;
    child.process.signal_group(SIGKILL);
  }
}

}  // namespace fdl
