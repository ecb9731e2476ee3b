// Assembly connects a rank with its peers. Every member listens, publishes its addresses, calls the members of lower
// rank, and accepts calls from those of higher rank. One poller drives all connections at once, so that no slow or
// foreign connection delays another.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "contract/membership.h"
#include "system/handshake.h"
#include "system/poller.h"
#include "system/socket.h"

namespace fdl {

// An authenticated connection. Both ends have the same session key, and one of them has called the other.
struct TcpConnection {
  UniqueFd fd;
  std::string session_key;
  bool called = false;  // by this rank
};

class Assembly {
 public:
  // Makes streams[p] connections for each channel with member p; both members must have the same number, and this
  // rank's own entry is not read. In the result each peer has place_count(streams) entries. Connection n of channel c
  // is at n * kChannelCount + c among them; entries of connections that are not used are empty. Blocking, bounded by
  // the membership's deadline.
  static Result<std::vector<TcpConnection>> connect(const Membership& membership, const std::vector<int>& streams);
  static std::size_t place_count(const std::vector<int>& streams);

 private:
  // A connection that is being made: called by this rank, which has chosen the peer, or accepted, whose peer is not
  // known yet.
  struct Link {
    enum class State { resting, connecting, introducing };
    bool calling = false;
    State state = State::introducing;
    Deadline timeout = Deadline::never();  // of the present state
    UniqueFd fd;
    std::unique_ptr<Introduction> introduction;

    // For calls only.
    int peer = -1;
    int number = -1;  // among this peer's
    std::vector<Address> addresses;
    std::size_t trying = 0;    // index in addresses
    std::string failures;      // what went wrong with each address in this round
    bool was_refused = false;  // a farandole process answered in this round and refused the handshake
    int refused_rounds = 0;    // in a row
  };

  Assembly(const Membership& membership, const std::vector<int>& streams, Listening listening, Poller poller);
  // Publishes this rank's addresses, fetches those of lower ranks, and runs until all are connected.
  Status start();
  // Begins calls to the lower ranks as soon as their addresses are published.
  Status fetch_addresses(Deadline deadline);
  Status run(Deadline deadline);
  Status poll_once(Deadline deadline);

  // Accepts all waiting connections and begins their handshakes.
  Status accept_callers();
  std::size_t place(std::unique_ptr<Link> link);
  void drop(std::size_t place);
  void evict_oldest_unidentified();
  void refuse(std::size_t place, const std::string& why);

  // Handles an event of a link in its state.
  Status advance(std::size_t place);
  Status introduce(std::size_t place);
  // Begins to connect to the current address of a call.
  Status try_address(std::size_t place);
  Status next_address(std::size_t place, const Status& why);
  Status expire(std::size_t place);
  Status admit(std::size_t place);
  Status establish(std::size_t place);
  Deadline earliest_timeout() const;

  // The handshake proves the key for this purpose, so that communicators are not mixed up.
  std::string purpose() const;
  std::string key_of(int member) const;
  // Number of connections with `member`; 0 if it is no peer.
  int connections_with(int member) const;
  TcpConnection& connection(int peer, int number);
  bool all_connected(int member) const;
  bool complete() const;
  Status missing_members_error() const;

  const Membership& membership_;
  const std::vector<int>& streams_;
  const std::size_t place_count_;
  Listening listening_;
  Poller poller_;
  std::vector<std::unique_ptr<Link>> links_;  // the index of a link is its poller token; ended links leave a null
  std::vector<TcpConnection> connected_;
  std::vector<bool> published_;            // by member: whether its addresses were fetched
  std::vector<std::string> last_failure_;  // by member: errors of the last round of calls
  std::string refusal_;             // error of one refused caller; one with a wrong key is preferred to a foreign one
  bool refused_farandole_ = false;  // refusal_ is about a farandole process
};

}  // namespace fdl
