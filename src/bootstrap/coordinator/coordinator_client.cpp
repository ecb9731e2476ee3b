// This file has the words for a rank that are the same everywhere, and the attempts to connect to a coordinator.
#include "bootstrap/coordinator/coordinator_client.h"

#include <fmt/core.h>

#include <chrono>
#include <thread>

#include "bootstrap/client/socket_client.h"
#include "bootstrap/coordinator/find_coordinator.h"

namespace fdl {

std::string process_name(const CoordinatorClient::Hello& hello) {
  return fmt::format("rank {} on {} (process {})", hello.rank, hello.host_name, hello.process_id);
}

// The text is equal to that of agree/negotiation: either may report the departure first.
Status departure_of(int rank, const std::string& host_name) {
  return Status::blame(rank, host_name, Code::shut_down, fmt::format("rank {} ({}) has shut down", rank, host_name));
}

Status with_failure_before(const Status& why, const std::string& comm, const Status& failure) {
  Error error = why.error();
  error.text += fmt::format("; shortly before, communicator '{}' had failed: {}", comm, failure.text());
  return Status(std::move(error));
}

Status silence_warning(const std::string& name, bool are_several, double silence_warning_s, double lost_after_s) {
  return Status(Code::transport,
                fmt::format("{} {} not answered for {:g} s (stopped, swapped out or cut off); after {:g} s {} lost "
                            "(FARANDOLE_LOST_AFTER_S)",
                            name, are_several ? "have" : "has", silence_warning_s, lost_after_s,
                            are_several ? "they are" : "it is"));
}

// ---- Connecting ----

namespace {

constexpr int64_t kPause_ns = 20'000'000;  // before the next attempt to connect

// A rank that restarts at once may still reach the coordinator of the job that is ending.
bool belongs_to_the_job_before(const Status& status) {
  return (status.code() == Code::shut_down || status.code() == Code::peer_lost) && status.error().culprit_rank < 0;
}

Result<std::unique_ptr<CoordinatorClient>> connect_once(const std::string& rendezvous, const std::string& job_key,
                                                        const CoordinatorClient::Hello& hello, Deadline deadline,
                                                        const CoordinatorClient::Limits& limits) {
  FDL_ASSIGN_OR_RETURN(FoundCoordinator found,
                       find_coordinator(rendezvous, job_key, process_name(hello).substr(0, 256), deadline));
  FDL_ASSIGN_OR_RETURN(Poller poller, Poller::make());
  FDL_ASSIGN_OR_RETURN(Event sender, Event::make());
  auto client = std::make_unique<SocketClient>(std::move(found), hello, limits, std::move(poller), std::move(sender));
  FDL_RETURN_IF_ERROR(client->start(deadline));
  return std::unique_ptr<CoordinatorClient>(std::move(client));
}

}  // namespace

Result<std::unique_ptr<CoordinatorClient>> CoordinatorClient::connect(const std::string& rendezvous,
                                                                      const std::string& job_key, const Hello& hello,
                                                                      Deadline deadline, const Limits& limits) {
  if (hello.host_name.size() > kMostName || hello.boot_id.size() > kMostName) {
    return Status(Code::invalid_argument, fmt::format("the host name '{:.64}...' is too long", hello.host_name));
  }
  // The deadline bounds the whole loop, find_coordinator() included.
  while (true) {
    auto client = connect_once(rendezvous, job_key, hello, deadline, limits);
    if (client.ok() || !belongs_to_the_job_before(client.status()) || deadline.passed()) return client;
    std::this_thread::sleep_for(std::chrono::nanoseconds(kPause_ns));
  }
}

}  // namespace fdl
