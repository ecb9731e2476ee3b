// Rendezvous is the parsed form of the text that gives the coordinator's address to the ranks:
//
//   tcp://host:port               also several, comma-separated: all are tried
//   tcp://host:first-last         the coordinator takes the first free port; other servers fail the handshake
//   dns://host:port               the name has the addresses of all nodes of an elastic job, as that of a headless
//                                 Service: one of them leads, and all can
//   unix:@name                    an abstract Unix socket: one host, one network namespace
//   file:///path                  rank 0 writes the address there
//   memory://name                 within one process
//   launcher://pmix               rank 0 serves at any port; the launcher's own service gives the ranks its address and
//   a
//                                 fresh job key; pmix or pmi (bootstrap/launcher_service/launcher_service.h)
// The suffix "?coordinator=1" means that another process serves the coordinator there, so rank 0 only connects. The
// former spelling "?hub=1" means the same. "?coordinator=listens" means also that it listens already: where nothing
// listens any more it has ended.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace fdl {

struct Rendezvous {
  enum class Kind { tcp, unix_socket, file, memory, launcher };
  // A host and a range of ports, both ends included.
  struct Endpoint {
    std::string host;
    int first_port = 0;
    int last_port = 0;
  };

  Kind kind = Kind::tcp;
  std::vector<Endpoint> endpoints;  // tcp
  // The abstract name without '@', the file's path, the name within the process, or the launcher's service.
  std::string name;
  bool coordinator_is_there = false;
  bool coordinator_listens = false;  // since before this text was made
  bool names_all_nodes = false;      // tcp: written dns://
};

inline constexpr std::string_view kCoordinatorIsThere = "?coordinator=1";
inline constexpr std::string_view kCoordinatorListens = "?coordinator=listens";

Result<Rendezvous> parse_rendezvous(std::string_view text);
inline constexpr std::string_view kLauncherPlace = "launcher://";
inline constexpr std::string_view kAllNodesPlace = "dns://";

// Returns whether only processes of this host can meet there.
bool is_on_one_host(std::string_view rendezvous);

// Returns whether the text ends with one of the suffixes above, in any spelling.
bool coordinator_is_there(std::string_view text);

// "host:port", with brackets around an IPv6 address.
std::string host_and_port(std::string_view host, int port);

}  // namespace fdl
