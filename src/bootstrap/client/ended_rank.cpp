// The message is the first one of a connection, where a rank sends its hello.
#include "bootstrap/client/ended_rank.h"

#include <fmt/core.h>

#include <vector>

#include "bootstrap/coordinator/coordinator_wire.h"
#include "bootstrap/coordinator/find_coordinator.h"
#include "bootstrap/rendezvous/framed_socket.h"
#include "system/poller.h"

namespace fdl {

// cli/run/consequence.cpp recognizes this sentence.
Status ended_before_joining(int rank, int process_id, const std::string& host, std::string_view how) {
  const std::string where =
      process_id > 0 ? fmt::format("(process {} on {})", process_id, host) : fmt::format("on {}", host);
  return Status::blame(
      rank, host, Code::peer_lost,
      fmt::format("rank {} {} ended before it had joined the job: {}; see its output", rank, where, how));
}

Status send_ended_rank(const std::string& rendezvous, const std::string& job_key, int rank, const Status& why,
                       Deadline deadline) {
  FDL_ASSIGN_OR_RETURN(FoundCoordinator found, find_coordinator(rendezvous, job_key, "farandole run", deadline));
  FramedSocket socket(std::move(found.fd), found.introduced.session_key, Direction::from_coordinator);
  CoordinatorMessage message{.kind = CoordinatorMessage::Kind::rank_ended, .rank = rank};
  message.why = why;
  socket.send(message);
  std::vector<CoordinatorMessage> answers;
  while (true) {
    socket.flush();
    const FramedSocket::State state = socket.receive(answers);
    if (!answers.empty()) return {};
    if (state != FramedSocket::State::open) return Status(Code::peer_lost, "the coordinator has ended");
    if (!wait_readable(socket.fd(), deadline)) return Status(Code::timeout, "the coordinator did not answer in time");
  }
}

}  // namespace fdl
