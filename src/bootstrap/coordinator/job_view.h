// JobView is the answer to the question what all ranks of a job do. This header also finds the jobs of this host and
// asks them.
//
// The process that serves a job's coordinator listens at an abstract socket whose name has its process id. The kernel
// vouches for the user at the other end, so a process of the same user needs no job key there, and can only ask. From
// other hosts the question goes to the coordinator's own address, with the job key.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "bootstrap/coordinator/coordinator_wire.h"
#include "bootstrap/coordinator/rank_state.h"

namespace fdl {

struct RankView {
  RankPresence presence = RankPresence::absent;
  CoordinatorClient::Hello member;  // without settings; only its rank is known if the rank is absent
  Status why;                       // how it left or was lost
  RankState state;                  // if it has answered

  bool must_answer() const { return presence != RankPresence::answered && presence != RankPresence::left; }
};

struct JobView {
  std::string server;  // the name of the process that serves the coordinator: "farandole run on train-1"
  std::vector<RankView> ranks;

  bool all_answered() const;
};

// JobViewReader assembles the messages that answer a job query.
class JobViewReader {
 public:
  // Returns whether the view is complete. An error: the query was refused, or the messages make no sense.
  Result<bool> take(CoordinatorMessage message);
  JobView take_view() { return std::move(view_); }

 private:
  JobView view_;
};

// A process of this host that serves a coordinator and can be asked without a key.
struct LocalJob {
  std::string socket;  // an abstract name
  int process_id = 0;
};

// The name of a socket for such questions; unique in this host's network namespace.
std::string make_query_socket_name();
// The jobs of this host and user, by process id.
std::vector<LocalJob> find_own_jobs(Deadline deadline);
// The names in the text of /proc/net/unix.
std::vector<LocalJob> local_jobs_in(std::string_view sockets);

// Ask, and block until the answer or the deadline. A job of another user is AUTHENTICATION.
Result<JobView> query_local_job(const LocalJob& job, Deadline deadline, bool with_stacks = false);
Result<JobView> query_job_at(const std::string& rendezvous, const std::string& job_key, Deadline deadline,
                             bool with_stacks = false);

// The frames of connections at such a socket are sealed with this key: it is no secret, because the kernel vouches for
// both ends.
inline constexpr const char* kQuerySocketKey = "farandole query";

}  // namespace fdl
