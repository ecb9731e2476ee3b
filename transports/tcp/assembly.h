// Assembly connects a rank with all its peers in one blocking call. Every member listens, publishes its addresses,
// calls the members of lower rank, and accepts calls from those of higher rank.
#pragma once

#include <string>
#include <vector>

#include "transports/tcp/links.h"
#include "transports/tcp/stream.h"

namespace fdl {

class Assembly final : private TcpLinks {
 public:
  // Makes streams[p] connections for each channel with member p; both members must have the same number, and this
  // rank's own entry is not read. In the result each peer has place_count(streams) entries. Connection n of channel c
  // is at n * kChannelCount + c among them; entries of connections that are not used are empty. Blocking, bounded by
  // the membership's deadline.
  static Result<std::vector<TcpConnection>> connect(const Membership& membership, const std::vector<int>& streams);
  static std::size_t place_count(const std::vector<int>& streams);

 private:
  Assembly(const Membership& membership, const std::vector<int>& streams, Listening listening, Poller poller);
  // Publishes this rank's addresses, fetches those of lower ranks, and runs until all are connected.
  Status start();
  // Waits for the addresses of the lower ranks, and begins calls to those that have published one.
  Status fetch_addresses(Deadline deadline);
  Status run(Deadline deadline);

  Status on_accepted(std::size_t place) override;
  Status on_established(std::size_t place) override;
  Status on_round_failed(std::size_t place) override;
  Status on_out_of_resources(std::size_t, const Status& why) override { return why; }

  std::string key_of_each() const;  // what the key of an address begins with; the member's rank follows
  // Number of connections with `member`; 0 if it is no peer.
  int connections_with(int member) const;
  TcpConnection& connection(int peer, int number);
  bool all_connected(int member) const;
  bool complete() const;
  // Whether a lower rank has not published its addresses.
  bool lacks_an_address() const;
  Status missing_members_error() const;

  const Membership& membership_;
  const std::vector<int>& streams_;
  const std::size_t place_count_;
  Deadline for_fetching_ = Deadline::never();  // earlier than the deadline by a quarter of the time, at most 1 s
  std::vector<TcpConnection> connected_;
  std::vector<bool> published_;            // by member: whether its addresses were fetched
  std::vector<std::string> last_failure_;  // by member: errors of the last round of calls
};

// What both ends of a connection must have in common besides the communicator: they must protect their bytes alike.
std::string tcp_protection_of(const Membership& membership);

// The seals of a connection with a member; null if the two do not protect their bytes.
std::unique_ptr<StreamProtection> tcp_protection(const Membership& membership, int peer,
                                                 const TcpConnection& connection);

// This rank has no port to connect from: it lacks a resource, and the peer is not at fault.
Status tcp_lacks_port(const Membership& membership, int peer, const std::string& failures);

// The errors of members that do not fit together: different numbers of connections, different keys.
Status tcp_streams_differ(const Membership& membership, const TcpCaller& caller, int mine);
Status tcp_keys_differ(const Membership& membership, int peer, const std::string& failures);

}  // namespace fdl
