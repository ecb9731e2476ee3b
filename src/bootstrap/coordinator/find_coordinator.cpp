// find_coordinator tries all addresses in rounds, with a growing pause between them.
#include "bootstrap/coordinator/find_coordinator.h"

#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>

#include "bootstrap/coordinator/coordinator_listener.h"
#include "bootstrap/rendezvous/rendezvous.h"
#include "bootstrap/rendezvous/rendezvous_file.h"
#include "system/socket.h"

namespace fdl {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int kEmptyRounds = 5;  // that show that a coordinator has ended

// Attempt is one try at one address: it connects, runs the handshake, and succeeds or fails.
class Attempt {
 public:
  Attempt(const Address& address, std::string_view purpose, std::string_view job_key, std::string_view mine)
      : address_(address), introduction_(Introduction::Role::client, job_key, purpose, mine) {
    ConnectFault fault = ConnectFault::other;
    auto fd = begin_connect(address, &fault);
    nothing_listens_ = fault == ConnectFault::nothing_listens;
    if (fd.ok()) {
      fd_ = fd.take();
    } else {
      failure_ = fd.status();
    }
  }

  bool failed() const { return !failure_.ok(); }
  // Returns whether the other end sent data and then refused, or is not a coordinator. A retry will not help. An end
  // that does not answer in time has not refused: it may have more ranks to answer than it can.
  bool refused() const { return failed() && failure_.code() != Code::timeout && introduction_.received_anything(); }
  bool met_other_version() const { return introduction_.met_other_version(); }
  // Returns whether the host has answered that no process listens at this address.
  bool found_nothing() const { return nothing_listens_; }
  std::string failure_text() const { return fmt::format("{}: {}", address_.text, failure_.text()); }

  pollfd interest() const {
    const bool write = !connected_ || introduction_.has_output();
    return {fd_.get(), static_cast<short>(connected_ ? POLLIN | (write ? POLLOUT : 0) : POLLOUT), 0};
  }

  // Returns true when the handshake is complete.
  bool advance() {
    if (!connected_) failure_ = finish_connecting();
    if (failed()) return false;
    connected_ = true;
    auto through = introduction_.advance(fd_.get());
    if (!through.ok()) failure_ = through.status();
    return through.ok() && *through;
  }
  void give_up(const char* why) { failure_ = Status(Code::timeout, why); }

  FoundCoordinator take() { return {std::move(fd_), introduction_.introduced()}; }

 private:
  Status finish_connecting() {
    int error = 0;
    socklen_t length = sizeof error;
    if (::getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) return Status::from_errno("getsockopt");
    nothing_listens_ = error == ECONNREFUSED;
    if (error != 0) return Status::from_errno("connect", error);
    if (is_of_another_user(fd_.get()))
      return Status(Code::authentication, "a process of another user listens at this address");
    return {};
  }

  Address address_;
  UniqueFd fd_;
  Introduction introduction_;
  bool connected_ = false;
  bool nothing_listens_ = false;
  Status failure_;
};

struct Round {
  std::string_view purpose;
  std::string failures;  // the failure of each attempt
  Status lasting;        // of the rendezvous itself, so that no further round can succeed
  int refusals = 0;      // attempts that were refused
  bool met_other_version = false;
  bool single = false;  // the rendezvous identifies exactly one server
  int attempts = 0;
  int found_nothing = 0;  // attempts that found no process listening
};

// Tries all addresses of a list at once, because in a range of ports other servers may accept and stay silent.
std::unique_ptr<FoundCoordinator> try_at_once(const std::vector<Address>& addresses, std::string_view job_key,
                                              std::string_view mine, Deadline deadline, Round& round) {
  std::vector<std::unique_ptr<Attempt>> attempts;
  for (const Address& address : addresses)
    attempts.push_back(std::make_unique<Attempt>(address, round.purpose, job_key, mine));
  while (true) {
    std::vector<pollfd> waits;
    std::vector<Attempt*> waiting;
    for (const auto& attempt : attempts) {
      if (attempt->failed()) continue;
      waits.push_back(attempt->interest());
      waiting.push_back(attempt.get());
    }
    if (waiting.empty()) break;
    const int ready = ::poll(waits.data(), waits.size(), deadline.until_ask().remaining_ms());
    if (ready <= 0) deadline.ask();
    if (ready <= 0 && deadline.passed()) {
      for (Attempt* attempt : waiting) attempt->give_up("no answer in time");
      break;
    }
    for (std::size_t i = 0; i < waits.size(); ++i) {
      if (waits[i].revents != 0 && waiting[i]->advance()) return std::make_unique<FoundCoordinator>(waiting[i]->take());
    }
  }
  for (const auto& attempt : attempts) {
    round.failures += (round.failures.empty() ? "" : "; ") + attempt->failure_text();
    round.refusals += attempt->refused() ? 1 : 0;
    round.met_other_version = round.met_other_version || attempt->met_other_version();
    ++round.attempts;
    round.found_nothing += attempt->found_nothing() ? 1 : 0;
  }
  return nullptr;
}

// One list for each address of the host; each list holds all ports of the range.
std::vector<std::vector<Address>> addresses_of(const Rendezvous::Endpoint& server, Round& round) {
  auto resolved = resolve(server.host, server.first_port);
  if (!resolved.ok()) {
    round.failures += (round.failures.empty() ? "" : "; ") + resolved.status().text();
    return {};
  }
  std::vector<std::vector<Address>> lists;
  for (const Address& address : *resolved) {
    std::vector<Address> ports;
    const std::string host = address.text.substr(0, address.text.rfind(':'));
    for (int port = server.first_port; port <= server.last_port; ++port) {
      ports.push_back({fmt::format("{}:{}", host, port)});
    }
    lists.push_back(std::move(ports));
  }
  return lists;
}

// Resolves a rendezvous to its current address. Its file or name may appear only later; INVALID_ARGUMENT: it cannot.
Result<Rendezvous> look_up(const Rendezvous& rendezvous, Deadline deadline) {
  if (rendezvous.kind == Rendezvous::Kind::memory) {
    FDL_ASSIGN_OR_RETURN(const std::string address, find_in_memory(rendezvous.name, deadline));
    return parse_rendezvous(address);
  }
  if (rendezvous.kind == Rendezvous::Kind::file) {
    FDL_ASSIGN_OR_RETURN(auto address, read_rendezvous_file(rendezvous.name));
    if (!address) return Status(Code::timeout, "there is no address in " + rendezvous.name);
    return std::move(*address);
  }
  return rendezvous;
}

std::unique_ptr<FoundCoordinator> try_once(const Rendezvous& rendezvous, std::string_view job_key,
                                           std::string_view mine, Deadline deadline, Round& round) {
  auto place = look_up(rendezvous, deadline);
  if (!place.ok()) {
    if (place.status().code() == Code::invalid_argument) round.lasting = place.status();
    round.failures = place.status().text();
    return nullptr;
  }
  // A file may still hold the address of an earlier job, and a range of ports may contain other servers.
  round.single = rendezvous.kind != Rendezvous::Kind::file;
  if (place->kind == Rendezvous::Kind::unix_socket) {
    return try_at_once({{"unix:@" + place->name}}, job_key, mine, deadline, round);
  }
  for (const Rendezvous::Endpoint& server : place->endpoints) {
    round.single = round.single && server.first_port == server.last_port;
    for (const std::vector<Address>& list : addresses_of(server, round)) {
      if (auto found = try_at_once(list, job_key, mine, deadline, round)) return found;
    }
  }
  return nullptr;
}

void pause(int64_t ns) { std::this_thread::sleep_for(std::chrono::nanoseconds(ns)); }

}  // namespace

Result<FoundCoordinator> find_coordinator(const std::string& rendezvous, const std::string& job_key,
                                          const std::string& mine, Deadline deadline, std::string_view purpose) {
  FDL_ASSIGN_OR_RETURN(const Rendezvous parsed, parse_rendezvous(rendezvous));
  if (parsed.kind == Rendezvous::Kind::launcher) {
    return Status(Code::invalid_argument,
                  fmt::format("{} is for programs that mpirun or srun started; here give tcp://host:port", rendezvous));
  }
  const int64_t began = now_ns();
  int64_t timeout = 1000 * kMillisecond;
  int64_t rest = 10 * kMillisecond;
  int refused_in_a_row = 0;
  int empty_in_a_row = 0;
  while (true) {
    Round round{.purpose = purpose, .failures = {}};
    if (auto found = try_once(parsed, job_key, mine, Deadline::after_ns(timeout).earlier(deadline), round)) {
      return std::move(*found);
    }
    FDL_RETURN_IF_ERROR(round.lasting);
    if (round.single && round.met_other_version) {
      return Status(Code::mismatch,
                    fmt::format("{} and the coordinator at {} have different versions of farandole ({})", mine,
                                rendezvous, round.failures));
    }
    // An overloaded coordinator may drop this connection during the handshake, which is reported as a refusal. Three
    // refusals in a row count as real.
    refused_in_a_row = round.refusals > 0 ? refused_in_a_row + 1 : 0;
    if (round.single && refused_in_a_row == 3) {
      return Status(
          Code::authentication,
          fmt::format("the job key differs from the coordinator's: {} was refused at {} ({}); give all ranks the same "
                      "FARANDOLE_JOB_KEY, and each job its own rendezvous",
                      mine, rendezvous, round.failures));
    }
    // A coordinator that has listened has ended if its host answers that nothing listens any more.
    const bool is_empty = round.attempts > 0 && round.found_nothing == round.attempts;
    empty_in_a_row = parsed.coordinator_listens && is_empty ? empty_in_a_row + 1 : 0;
    if (empty_in_a_row == kEmptyRounds) {
      return Status(Code::transport, fmt::format("the coordinator at {} has ended: {} finds no process that listens "
                                                 "there any more ({})",
                                                 rendezvous, mine, round.failures));
    }
    deadline.ask();
    if (deadline.passed()) {
      return Status(Code::timeout,
                    fmt::format("{} did not find the coordinator at {} within {:.3g} s ({}); check that rank 0 or "
                                "`farandole run` is running there and can be reached from here",
                                mine, rendezvous, static_cast<double>(now_ns() - began) / 1e9, round.failures));
    }
    pause(std::min(rest, deadline.remaining_ns()));
    rest = std::min(2 * rest, 500 * kMillisecond);
    timeout = std::min(2 * timeout, 5000 * kMillisecond);
  }
}

}  // namespace fdl
