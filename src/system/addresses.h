// Addresses: from text to what the kernel takes and back, and which addresses this host has.
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

// Numeric addresses only: names are resolve()'s business. What does not parse is quoted in the error.
Result<SocketAddress> parse_address(const Address& address);
Address address_of(const sockaddr* raw, socklen_t length);

// Bridges and virtual ends of containers on their host, and what answers only there: nobody elsewhere can come in by
// them, and trying their addresses costs every peer its patience.
bool leads_to_no_other_host(std::string_view interface);

// Each address of this host, whether it would be offered to peers, and if not, why.
struct InterfaceReport {
  std::string name;
  std::string address;
  bool is_taken = false;
  std::string why_not;
};
std::vector<InterfaceReport> describe_interfaces(std::string_view interfaces);

// The addresses of the chosen interfaces that are up: first those that reach far, loopback last. Interfaces that lead
// to no other host (docker0, veth, ...) and link-local addresses count only where the interface is named. A named
// interface that does not exist is an error that lists what there is.
Result<std::vector<Address>> addresses_of_interfaces(std::string_view interfaces, int port, bool with_ipv6);

}  // namespace fdl
