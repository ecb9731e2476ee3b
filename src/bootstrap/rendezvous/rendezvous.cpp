// parse_rendezvous() parses the text; its errors quote the text.
#include "bootstrap/rendezvous/rendezvous.h"

#include <fmt/core.h>

#include <charconv>
#include <optional>

#include "base/escape.h"

namespace fdl {
namespace {

std::optional<int> parse_port(std::string_view text) {
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size() || port < 0 || port > 65535) return std::nullopt;
  return port;
}

// "host:29501", "[::1]:29501" or "host:29501-29516"
std::optional<Rendezvous::Endpoint> parse_server(std::string_view text) {
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return std::nullopt;
  }
  const std::string_view ports = text.substr(colon + 1);
  const auto dash = ports.find('-');
  const auto first = parse_port(ports.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : parse_port(ports.substr(dash + 1));
  if (host.empty() || !first || !last || *last < *first) return std::nullopt;
  return Rendezvous::Endpoint{std::string(host), *first, *last};
}

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

bool parse_servers(std::string_view text, std::vector<Rendezvous::Endpoint>& servers) {
  while (true) {
    const auto comma = text.find(',');
    const auto server = parse_server(text.substr(0, comma));
    if (!server) return false;
    servers.push_back(*server);
    if (comma == std::string_view::npos) return true;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace

bool is_on_one_host(std::string_view rendezvous) {
  const auto parsed = parse_rendezvous(rendezvous);
  return parsed.ok() && (parsed->kind == Rendezvous::Kind::unix_socket || parsed->kind == Rendezvous::Kind::memory);
}

bool coordinator_is_there(std::string_view text) {
  return text.ends_with(kCoordinatorIsThere) || text.ends_with(kCoordinatorListens) || text.ends_with("?hub=1");
}

Result<Rendezvous> parse_rendezvous(std::string_view text) {
  const std::string_view whole = text;
  Rendezvous result;
  if (const auto mark = text.find('?'); mark != std::string_view::npos) {
    result.coordinator_is_there = coordinator_is_there(text);
    result.coordinator_listens = text.ends_with(kCoordinatorListens);
    text = text.substr(0, mark);
  }
  bool good = false;
  if (take_prefix(text, "tcp://")) {
    result.kind = Rendezvous::Kind::tcp;
    good = parse_servers(text, result.endpoints);
  } else if (take_prefix(text, kAllNodesPlace)) {
    result.kind = Rendezvous::Kind::tcp;
    result.names_all_nodes = true;
    good = parse_servers(text, result.endpoints) && result.endpoints.size() == 1 &&
           result.endpoints.front().first_port == result.endpoints.front().last_port &&
           result.endpoints.front().first_port > 0;
  } else if (take_prefix(text, "unix:@")) {
    result.kind = Rendezvous::Kind::unix_socket;
    good = !text.empty() && text.size() < 100;
  } else if (take_prefix(text, "file://")) {
    result.kind = Rendezvous::Kind::file;
    good = text.starts_with('/') && text.size() > 1;
  } else if (take_prefix(text, "memory://")) {
    result.kind = Rendezvous::Kind::memory;
    good = !text.empty();
  } else if (take_prefix(text, kLauncherPlace)) {
    result.kind = Rendezvous::Kind::launcher;
    good = text == "pmix" || text == "pmi" || text == "program";  // the last one: fdl_world_options.share
  }
  if (!good) {
    return Status(Code::invalid_argument,
                  fmt::format("the rendezvous {} is not tcp://host:port, tcp://host:first-last, dns://host:port, "
                              "unix:@name, file:///path, memory://name, launcher://pmix or launcher://pmi",
                              quoted_text(whole)));
  }
  if (result.kind != Rendezvous::Kind::tcp) result.name = text;
  return result;
}

std::string host_and_port(std::string_view host, int port) {
  return host.find(':') == std::string_view::npos ? fmt::format("{}:{}", host, port)
                                                  : fmt::format("[{}]:{}", host, port);
}

}  // namespace fdl
