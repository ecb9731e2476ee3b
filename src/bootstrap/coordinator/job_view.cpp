// A question is one message, and its answer one message for each rank and one at the end.
#include "bootstrap/coordinator/job_view.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <fstream>
#include <iterator>
#include <string_view>

#include "bootstrap/coordinator/find_coordinator.h"
#include "bootstrap/rendezvous/framed_socket.h"
#include "system/poller.h"
#include "system/socket.h"

namespace fdl {
namespace {

using Kind = CoordinatorMessage::Kind;

constexpr std::string_view kSocketPrefix = "farandole-query-";

// The process that listens may be of another user that took the name.
Result<UniqueFd> connect_to(const LocalJob& job, Deadline deadline) {
  const std::vector<Address> addresses{{"unix:@" + job.socket}};
  FDL_ASSIGN_OR_RETURN(UniqueFd fd, connect_any(addresses, deadline));
  if (!is_of_another_user(fd.get())) return fd;
  return Status(Code::authentication,
                fmt::format("process {} belongs to another user, who alone may ask its job", job.process_id));
}

Result<JobView> ask(FramedSocket& socket, Deadline deadline, bool with_stacks) {
  CoordinatorMessage query{.kind = Kind::job_query};
  query.number = with_stacks ? 1 : 0;
  socket.send(query);
  JobViewReader reader;
  std::vector<CoordinatorMessage> messages;
  while (true) {
    socket.flush();
    const FramedSocket::State state = socket.receive(messages);
    for (CoordinatorMessage& message : messages) {
      FDL_ASSIGN_OR_RETURN(const bool complete, reader.take(std::move(message)));
      if (complete) return reader.take_view();
    }
    messages.clear();
    if (state != FramedSocket::State::open) {
      return Status(Code::peer_lost, "the process that serves the job closed the connection; it may have ended");
    }
    if (!wait_readable(socket.fd(), deadline)) {
      return Status(Code::timeout, "the process that serves the job did not answer in time; it may be stopped");
    }
  }
}

}  // namespace

bool JobView::all_answered() const { return std::ranges::none_of(ranks, &RankView::must_answer); }

Result<bool> JobViewReader::take(CoordinatorMessage message) {
  if (message.kind == Kind::job_reply) {
    if (!message.why.ok()) return message.why;
    view_.server = std::move(message.key);
    std::ranges::sort(view_.ranks, {}, [](const RankView& one) { return one.member.rank; });
    return true;
  }
  const bool is_valid = message.kind == Kind::rank_state && message.members.size() == 1 && message.number >= 0 &&
                        message.number < kRankPresences && view_.ranks.size() < std::size_t{kMostRanks};
  if (!is_valid) return Status(Code::transport, "the process that serves the job sent an answer that makes no sense");
  RankView& rank = view_.ranks.emplace_back();
  rank.presence = static_cast<RankPresence>(message.number);
  rank.member = std::move(message.members.front());
  rank.member.rank = message.rank;
  rank.why = message.why;
  if (message.state) rank.state = std::move(*message.state);
  return false;
}

// A process may serve several jobs: one for each world of a test, or for each generation of an elastic job.
std::string make_query_socket_name() {
  static std::atomic<int> count{0};
  return fmt::format("{}{}-{}", kSocketPrefix, ::getpid(), count.fetch_add(1));
}

// A listening socket has its name in the last column, with @ for the zero byte; a connection to it has the same name.
std::vector<LocalJob> local_jobs_in(std::string_view sockets) {
  std::vector<LocalJob> jobs;
  const std::string prefix = "@" + std::string(kSocketPrefix);
  while (!sockets.empty()) {
    const std::string_view line = sockets.substr(0, sockets.find('\n'));
    sockets.remove_prefix(std::min(line.size() + 1, sockets.size()));
    const auto at = line.rfind(' ');
    if (at == std::string_view::npos || !line.substr(at + 1).starts_with(prefix)) continue;
    LocalJob job{.socket = std::string(line.substr(at + 2))};
    const char* digits = job.socket.data() + kSocketPrefix.size();
    const auto read = std::from_chars(digits, job.socket.data() + job.socket.size(), job.process_id);
    const auto is_same = [&](const LocalJob& other) { return other.socket == job.socket; };
    if (read.ec != std::errc() || job.process_id <= 0 || std::ranges::any_of(jobs, is_same)) continue;
    jobs.push_back(std::move(job));
  }
  std::ranges::sort(jobs, {}, [](const LocalJob& job) { return std::pair(job.process_id, job.socket); });
  return jobs;
}

std::vector<LocalJob> find_own_jobs(Deadline deadline) {
  std::ifstream file("/proc/net/unix");
  std::vector<LocalJob> jobs = local_jobs_in(std::string(std::istreambuf_iterator<char>(file), {}));
  std::erase_if(jobs, [&](const LocalJob& job) { return !connect_to(job, deadline).ok(); });
  return jobs;
}

Result<JobView> query_local_job(const LocalJob& job, Deadline deadline, bool with_stacks) {
  FDL_ASSIGN_OR_RETURN(UniqueFd fd, connect_to(job, deadline));
  FramedSocket socket(std::move(fd), kQuerySocketKey, Direction::from_coordinator);
  return ask(socket, deadline, with_stacks);
}

Result<JobView> query_job_at(const std::string& rendezvous, const std::string& job_key, Deadline deadline,
                             bool with_stacks) {
  FDL_ASSIGN_OR_RETURN(FoundCoordinator found, find_coordinator(rendezvous, job_key, "farandole where", deadline));
  FramedSocket socket(std::move(found.fd), found.introduced.session_key, Direction::from_coordinator);
  return ask(socket, deadline, with_stacks);
}

}  // namespace fdl
