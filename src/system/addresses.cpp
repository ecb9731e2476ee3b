// This file converts numeric addresses with getaddrinfo and getnameinfo and lists interfaces with getifaddrs.
#include "system/addresses.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <memory>

namespace fdl {
namespace {

constexpr std::string_view kUnixPrefix = "unix:@";

struct FreeList {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
  void operator()(ifaddrs* list) const { ::freeifaddrs(list); }
};

// sun_path has 108 bytes, one of which is the leading zero.
Result<SocketAddress> parse_unix(std::string_view name) {
  SocketAddress parsed;
  auto& unix_address = reinterpret_cast<sockaddr_un&>(parsed.storage);
  if (name.empty() || name.size() + 1 > sizeof unix_address.sun_path) {
    return Status(Code::invalid_argument, "'unix:@" + std::string(name) + "' is not an abstract Unix address");
  }
  unix_address.sun_family = AF_UNIX;
  // An abstract name begins with a zero byte; the address length gives its size.
  std::memcpy(unix_address.sun_path + 1, name.data(), name.size());
  parsed.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return parsed;
}

// InterfaceFilter selects interfaces by "eth0,eth1", "^lo,docker0" or "".
struct InterfaceFilter {
  std::vector<std::string> names;
  bool excluding = false;

  explicit InterfaceFilter(std::string_view text) {
    excluding = text.starts_with('^');
    if (excluding) text.remove_prefix(1);
    while (!text.empty()) {
      const std::size_t comma = std::min(text.find(','), text.size());
      std::string_view name = text.substr(0, comma);
      while (name.starts_with(' ')) name.remove_prefix(1);
      while (name.ends_with(' ')) name.remove_suffix(1);
      if (!name.empty()) names.emplace_back(name);
      text.remove_prefix(std::min(comma + 1, text.size()));
    }
    if (names.empty()) excluding = true;
  }
  // A named interface is always taken. Without names, or with exclusions, interfaces that are local to the host are
  // not.
  bool names_it(std::string_view name) const { return std::find(names.begin(), names.end(), name) != names.end(); }
  bool takes(std::string_view name) const {
    return excluding ? !names_it(name) && !leads_to_no_other_host(name) : names_it(name);
  }
};

// The scope of an address: routable, link-local or loopback.
// The numbers index the lists in addresses_of_interfaces().
enum class Reach { far = 0, link = 1, host = 2 };

Reach reach_of(const ifaddrs& entry) {
  if ((entry.ifa_flags & IFF_LOOPBACK) != 0) return Reach::host;
  if (entry.ifa_addr->sa_family == AF_INET6) {
    const auto& ipv6 = reinterpret_cast<const sockaddr_in6&>(*entry.ifa_addr);
    return IN6_IS_ADDR_LINKLOCAL(&ipv6.sin6_addr) ? Reach::link : Reach::far;
  }
  const auto& ipv4 = reinterpret_cast<const sockaddr_in&>(*entry.ifa_addr);
  return (ntohl(ipv4.sin_addr.s_addr) >> 16) == 0xa9fe ? Reach::link : Reach::far;  // 169.254/16
}

// The address is copied because getifaddrs() owns the entry, and its port field is 0.
Address with_port(const ifaddrs& entry, int port) {
  sockaddr_storage storage{};
  const bool ipv6 = entry.ifa_addr->sa_family == AF_INET6;
  const socklen_t length = ipv6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  std::memcpy(&storage, entry.ifa_addr, length);
  if (ipv6) {
    reinterpret_cast<sockaddr_in6&>(storage).sin6_port = htons(static_cast<uint16_t>(port));
  } else {
    reinterpret_cast<sockaddr_in&>(storage).sin_port = htons(static_cast<uint16_t>(port));
  }
  return address_of(reinterpret_cast<const sockaddr*>(&storage), length);
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

bool leads_to_no_other_host(std::string_view name) {
  constexpr std::string_view kWhole[] = {"docker0", "cni0", "nodelocaldns", "pod-id-link0", "kube-ipvs0", "virbr0"};
  constexpr std::string_view kBegin[] = {"veth", "cali", "flannel", "cilium", "lxc"};
  if (std::find(std::begin(kWhole), std::end(kWhole), name) != std::end(kWhole)) return true;
  // Docker names its networks br- and 12 digits; the network plug-in of EKS names its interfaces eni and a hash.
  if (name.starts_with("br-") && name.size() == 15) return true;
  // EKS uses eni and 11 hexadecimal digits. A physical interface may be called eni0 or the like, hence the length.
  if (name.starts_with("eni") && name.size() > 10) return true;
  return std::any_of(std::begin(kBegin), std::end(kBegin), [&](auto begin) { return name.starts_with(begin); });
}

Result<SocketAddress> parse_address(const Address& address) {
  const std::string& text = address.text;
  if (text.starts_with(kUnixPrefix)) return parse_unix(std::string_view(text).substr(kUnixPrefix.size()));

  // The last colon separates the port: IPv6 addresses have others before it, in brackets.
  const std::size_t colon = text.rfind(':');
  std::string host = text.substr(0, colon);
  const std::string port = colon == std::string::npos ? "" : text.substr(colon + 1);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);

  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* raw_list = nullptr;
  const int failure = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &raw_list);
  const std::unique_ptr<addrinfo, FreeList> list(raw_list);
  if (failure != 0 || host.empty() || port.empty()) {
    return Status(Code::invalid_argument, "'" + text + "' is not an address such as 10.0.0.7:4242 or [::1]:4242");
  }
  SocketAddress parsed;
  std::memcpy(&parsed.storage, list->ai_addr, list->ai_addrlen);
  parsed.length = list->ai_addrlen;
  return parsed;
}

Address address_of(const sockaddr* raw, socklen_t length) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (::getnameinfo(raw, length, host.data(), host.size(), port.data(), port.size(), NI_NUMERICHOST | NI_NUMERICSERV) !=
      0) {
    return {"an unknown address"};
  }
  const std::string name = host.data();
  return {(raw->sa_family == AF_INET6 ? "[" + name + "]" : name) + ":" + port.data()};
}

Result<std::vector<Address>> addresses_of_interfaces(std::string_view interfaces, int port, bool with_ipv6) {
  ifaddrs* raw_list = nullptr;
  if (::getifaddrs(&raw_list) != 0) return Status::from_errno("getifaddrs");
  const std::unique_ptr<ifaddrs, FreeList> list(raw_list);

  const InterfaceFilter filter(interfaces);
  // Within a scope the kernel's order stays, so all ranks of a host list the same address first.
  std::array<std::vector<Address>, 3> found;  // by reach
  std::vector<std::string> present;
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    const std::string name = entry->ifa_name;
    if (std::find(present.begin(), present.end(), name) == present.end()) present.push_back(name);
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0 || !filter.takes(name)) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && !(family == AF_INET6 && with_ipv6)) continue;
    found[static_cast<std::size_t>(reach_of(*entry))].push_back(with_port(*entry, port));
  }
  if (!filter.excluding) {
    for (const std::string& name : filter.names) {
      if (std::find(present.begin(), present.end(), name) == present.end()) {
        return Status(Code::invalid_argument,
                      "interfaces: there is no '" + name + "' on this host; it has " + joined(present));
      }
    }
  }
  // Link-local addresses belong to services of the node (169.254) or need a scope that is valid only on this host.
  const bool use_fallback = found[0].empty() && !filter.excluding;
  std::vector<Address> addresses = use_fallback ? std::move(found[1]) : std::move(found[0]);
  addresses.insert(addresses.end(), found[2].begin(), found[2].end());
  if (addresses.empty()) {
    return Status(Code::invalid_argument, "interfaces: none of '" + std::string(interfaces) +
                                              "' is up and has an address; this host has " + joined(present));
  }
  return addresses;
}

std::vector<InterfaceReport> describe_interfaces(std::string_view interfaces) {
  ifaddrs* raw_list = nullptr;
  if (::getifaddrs(&raw_list) != 0) return {};
  const std::unique_ptr<ifaddrs, FreeList> list(raw_list);
  const InterfaceFilter filter(interfaces);
  std::vector<InterfaceReport> reports;
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    if (entry->ifa_addr->sa_family != AF_INET && entry->ifa_addr->sa_family != AF_INET6) continue;
    const std::string text = with_port(*entry, 0).text;
    InterfaceReport report{entry->ifa_name, text.substr(0, text.rfind(':')), false, {}};
    if ((entry->ifa_flags & IFF_UP) == 0) {
      report.why_not = "it is down";
    } else if (!filter.takes(report.name)) {
      report.why_not = leads_to_no_other_host(report.name) ? "it leads to no other host" : "it is excluded";
    } else if (reach_of(*entry) == Reach::link && filter.excluding) {
      report.why_not = "link-local: it belongs to the node";
    } else if (reach_of(*entry) == Reach::host) {
      report.why_not = "offered last: only this host can reach it";
    } else {
      report.is_taken = true;
    }
    reports.push_back(std::move(report));
  }
  return reports;
}

Result<std::vector<Address>> resolve(const std::string& host, int port, bool* is_absent) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* raw_list = nullptr;
  const int failure = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &raw_list);
  const std::unique_ptr<addrinfo, FreeList> list(raw_list);
  if (is_absent != nullptr) *is_absent = failure == EAI_NONAME || failure == EAI_NODATA;
  if (failure != 0) {
    return Status(Code::transport, "the host name '" + host + "' does not resolve: " +
                                       (failure == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(failure)) +
                                       "; check its spelling and the name service");
  }
  std::vector<Address> addresses;
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    Address address = address_of(entry->ai_addr, entry->ai_addrlen);
    const auto same = [&](const Address& other) { return other.text == address.text; };
    if (std::none_of(addresses.begin(), addresses.end(), same)) addresses.push_back(std::move(address));
  }
  return addresses;
}

}  // namespace fdl
