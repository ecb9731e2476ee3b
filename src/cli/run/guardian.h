// Guardian ends what ranks have started if this launcher is killed, for example by the memory limit.
//
// The ranks themselves end with the launcher (PR_SET_PDEATHSIG). Processes that they have started, also in sessions of
// their own, have no such tie. The guardian is a child of the launcher that waits for its end, and then kills all
// processes of this user whose environment has the launcher's mark.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/status.h"
#include "system/fd.h"

namespace fdl {

class Guardian {
 public:
  // The environment variable of the mark. Each rank gets it, and all that it starts inherit it.
  static constexpr const char* kVariable = "FARANDOLE_RUN_ID";

  // Forks. Call it before the first thread is started, because the child allocates memory. `outer`: the mark of the
  // launcher that has started this one, or empty; this mark begins with it, so that the guardian there finds all.
  static Result<Guardian> start(const std::string& outer);
  Guardian(Guardian&& other) noexcept;
  Guardian& operator=(Guardian&&) = delete;
  // Ends the guardian, which kills nothing then: the caller has ended its ranks.
  ~Guardian();

  pid_t id() const { return pid_; }
  const std::string& mark() const { return mark_; }

 private:
  Guardian(pid_t pid, std::string mark, UniqueFd alive) : pid_(pid), mark_(std::move(mark)), alive_(std::move(alive)) {}

  pid_t pid_;
  std::string mark_;
  UniqueFd alive_;  // the writing end of a pipe: its end is the end of the launcher
};

}  // namespace fdl
