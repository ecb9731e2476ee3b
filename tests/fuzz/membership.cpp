// Fuzzes JobMembership with any sequence of messages from four connections to a coordinator of three ranks.
//
// An input is a list of records: a byte for the connection and the action, a byte of time, and a message with its
// length before it.
#include <set>

#include "bootstrap/coordinator/job_membership.h"
#include "tests/fuzz/coordinator_messages.h"
#include "tests/fuzz/targets.h"

namespace fdl::fuzz {
namespace {

using Kind = CoordinatorMessage::Kind;
constexpr unsigned kPeers = 4;
constexpr unsigned kClose = 4;

// The coordinator's server without its sockets.
class Server {
 public:
  Server() : membership_(options(), "here", {0, 3, "host-a", "boot", 100, {}, -1}) {}

  bool receive(JobMembership::Peer peer, CoordinatorMessage message) {
    if (members_.contains(peer)) {
      if (membership_.receive(peer, std::move(message), now_).ok()) return true;
      close(peer);
      return false;
    }
    if (message.kind == Kind::job_query) return membership_.query_job(peer, now_).ok();
    if (message.kind != Kind::hello || message.members.size() != 1) return false;
    const CoordinatorClient::Hello& hello = message.members.front();
    if (hello.host_name.size() > kMostName || hello.boot_id.size() > kMostName) return false;
    if (membership_.greet(peer, hello, now_, message.number)) members_.insert(peer);
    return true;
  }
  void close(JobMembership::Peer peer) {
    members_.erase(peer);
    membership_.closed(peer);
  }
  void pass(int64_t ns) { membership_.tick(now_ += ns); }
  // Every message can be sent, and every connection that must be closed exists.
  void deliver() {
    for (const JobMembership::Outgoing& one : membership_.take_outgoing()) {
      FDL_CHECK(one.peer < kPeers);
      const std::string encoded = encode(*one.message);
      FDL_CHECK(encoded.size() <= most_payload(Direction::from_coordinator) && decode(encoded).ok());
    }
    for (const JobMembership::Peer peer : membership_.take_hang_ups()) {
      FDL_CHECK(peer < kPeers);
      close(peer);
    }
    (void)membership_.is_empty();
  }

 private:
  static CoordinatorOptions options() {
    CoordinatorOptions options;
    options.size = 3;
    options.store_bytes = 4096;
    options.server_name = "fuzz";
    options.serves_again = true;
    return options;
  }

  JobMembership membership_;
  std::set<JobMembership::Peer> members_;
  int64_t now_ = 0;
};

bool run(ConstBytes bytes) {
  Server server;
  bool accepted = false;
  for (Input input(bytes); !input.empty();) {
    const unsigned action = input.number();
    server.pass(static_cast<int64_t>(input.number()) * 50'000'000);
    const auto message = decode(input.text());
    if (action & kClose) {
      server.close(action % kPeers);
    } else if (message.ok()) {
      accepted = server.receive(action % kPeers, *message) || accepted;
    }
    server.deliver();
  }
  return accepted;
}

std::string record(unsigned action, unsigned time, const CoordinatorMessage& message) {
  return std::string{static_cast<char>(action), static_cast<char>(time)} + with_length(encode(message));
}

std::vector<std::string> seeds() {
  std::string start, talk, loss;
  for (int rank = 0; rank < 3; ++rank) start += record(static_cast<unsigned>(rank), 0, hello_of(rank));
  const auto all = some_messages();
  for (std::size_t i = 3; i < all.size(); ++i) talk += record(static_cast<unsigned>(i % 3), 1, all[i]);
  loss = record(1 | kClose, 40, all[3]);
  return {start, start + talk, start + loss + talk, record(0, 0, hello_of(0)) + record(0, 200, all[3]) + talk};
}

}  // namespace

const Target membership{"membership", run, seeds, 5'000};

}  // namespace fdl::fuzz
