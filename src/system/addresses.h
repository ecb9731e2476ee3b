// This header converts addresses between text and the kernel's form and lists the addresses of this host.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "system/socket.h"

namespace fdl {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  int family() const { return storage.ss_family; }
  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// Parses a numeric address; resolve() handles names. The error quotes a text that does not parse.
Result<SocketAddress> parse_address(const Address& address);
Address address_of(const sockaddr* raw, socklen_t length);

// Returns whether an interface is known by its name to be local to the host: a bridge, the virtual end of a container
// or a service of the node. Other hosts cannot connect through it, and each attempt would cost a peer a timeout.
bool leads_to_no_other_host(std::string_view interface);

// One address of this host: whether it would be offered to peers, and if not, the reason.
struct InterfaceReport {
  std::string name;
  std::string address;
  bool is_taken = false;
  std::string why_not;
};
std::vector<InterfaceReport> describe_interfaces(std::string_view interfaces);

// Returns the addresses of the chosen interfaces that are up: routable ones first, loopback last. Interfaces that lead
// to no other host (docker0, veth, ...) and link-local addresses are included only if `interfaces` names them. A named
// interface that does not exist is an error that lists the existing ones.
Result<std::vector<Address>> addresses_of_interfaces(std::string_view interfaces, int port, bool with_ipv6);

}  // namespace fdl
