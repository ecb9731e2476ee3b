// Fuzzes parse_rendezvous() and parse_address(): ports are in range, and an address that was accepted can be written.
#include "bootstrap/rendezvous/rendezvous.h"

#include "system/addresses.h"
#include "tests/fuzz/targets.h"

namespace fdl::fuzz {
namespace {

void check_address(const std::string& text) {
  const auto address = parse_address({text});
  if (!address.ok() || address->family() == AF_UNIX) return;  // a name has no numeric form
  const auto written = address_of(address->raw(), address->length);
  FDL_CHECK(parse_address(written).ok());
}

bool run(ConstBytes input) {
  const std::string text(text_of(input));
  check_address(text);
  const auto result = parse_rendezvous(text);
  if (!result.ok()) {
    FDL_CHECK(result.status().code() == Code::invalid_argument);
    return false;
  }
  FDL_CHECK((result->kind == Rendezvous::Kind::tcp) == !result->endpoints.empty());
  for (const Rendezvous::Endpoint& endpoint : result->endpoints) {
    FDL_CHECK(!endpoint.host.empty() && endpoint.first_port >= 0 && endpoint.first_port <= endpoint.last_port);
    FDL_CHECK(endpoint.last_port <= 65535);
    check_address(host_and_port(endpoint.host, endpoint.first_port));
  }
  if (result->coordinator_is_there) FDL_CHECK(coordinator_is_there(text));
  return true;
}

std::vector<std::string> seeds() {
  return {"tcp://10.0.0.7:29500",
          "tcp://train-0.train:29500-29563?coordinator=1",
          "tcp://[fe80::1%lo]:4242,127.0.0.1:80?hub=1",
          "dns://train:29500",
          "unix:@farandole-1f2e",
          "file:///shared/address",
          "memory://name",
          "[::1]:65535",
          "127.0.0.1:1"};
}

}  // namespace

const Target rendezvous{"rendezvous", run, seeds};

}  // namespace fdl::fuzz
