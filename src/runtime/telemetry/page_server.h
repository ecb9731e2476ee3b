// PageServer answers HTTP requests for one page from a thread of its own. Connections that send nothing, or half of a
// request, delay no other one.
#pragma once

#include <poll.h>

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/telemetry/metrics_server.h"
#include "system/fd.h"

namespace fdl {

class PageServer {
 public:
  static constexpr int64_t kMostMs = 10'000;

  // Listens at the address; `page` makes the text, in the server's thread. A request and its answer take at most
  // `most_ms`. Returns null, and the reason in `why`, if it cannot listen.
  static std::unique_ptr<PageServer> open(const MetricsAddress& address, std::function<std::string()> page,
                                          std::string& why, int64_t most_ms = kMostMs);
  ~PageServer();
  PageServer(const PageServer&) = delete;
  PageServer& operator=(const PageServer&) = delete;

 private:
  // Reads a request and then writes the answer. It ends at its deadline, whatever it has done until then.
  struct Connection {
    UniqueFd fd;
    int64_t deadline_ms = 0;
    std::string request;
    std::string answer;
    std::size_t sent = 0;
  };

  PageServer(std::vector<UniqueFd> listeners, UniqueFd stop, std::string token, std::function<std::string()> page,
             int64_t most_ms);
  void run();
  bool serve_once();
  int wait();
  void accept_all(int listener);
  bool advance(Connection& connection);
  bool read_request(Connection& connection);
  static bool send_answer(Connection& connection);
  std::string answer_to(const std::string& request) const;

  const std::vector<UniqueFd> listeners_;
  const UniqueFd stop_;  // an eventfd
  const std::string token_;
  const std::function<std::string()> page_;
  const int64_t most_ms_;
  std::vector<pollfd> descriptors_;    // that are waited for
  std::list<Connection> connections_;  // oldest first
  std::thread thread_;
};

}  // namespace fdl
