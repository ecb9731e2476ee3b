// TcpLinks makes authenticated connections: it calls other processes and accepts their calls. One poller drives all of
// them at once, so that no slow or foreign connection delays another. Derived classes decide whom to call and what
// becomes of a connection.
#pragma once

#include <cstdint>
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

// The identity that a caller sends in the handshake: "3 1 0 2" is rank 3 for connection 1 of the 2 that it opens to
// rank 0, and may be followed by the name of the communicator.
struct TcpCaller {
  int rank = -1;
  int number = -1;
  int target = -1;
  int count = -1;
  std::string communicator = {};

  std::string text() const;
  static TcpCaller parse(std::string_view text);
};

// Addresses travel through the exchange as one line, separated by spaces.
std::string join_addresses(std::span<const Address> addresses);
std::vector<Address> split_addresses(std::string_view text);

class TcpLinks {
 protected:
  // A connection that is being made: called by this rank, which has chosen the callee, or accepted, whose caller is not
  // known yet.
  struct Link {
    enum class State { resting, connecting, introducing, kept };
    bool calling = false;
    State state = State::introducing;
    Deadline timeout = Deadline::never();  // of the present state
    UniqueFd fd;
    std::unique_ptr<Introduction> introduction;

    // For calls only.
    TcpCaller caller;
    std::string callee;  // what the other end must say of itself
    std::vector<Address> addresses;
    std::size_t trying = 0;                  // index in addresses
    std::string failures;                    // what went wrong with each address in this round
    bool was_refused = false;                // a farandole process answered in this round and refused the handshake
    Deadline refusable = Deadline::never();  // later the callee may have ended the handshake because it took too long
    bool none_listens = true;                // every address of this round refused the connection
    bool has_begun = false;                  // a connection to some address of this round was begun
    bool had_no_port = false;                // this host had no port to connect to some address of this round from
    int refused_rounds = 0;                  // in a row
    int deaf_rounds = 0;                     // in a row, in which none listened

    // After a round: the call has failed for want of a port of this host, so the callee is not at fault.
    bool lacks_port() const { return had_no_port && !has_begun; }
  };

  // Limit for the handshake of an established connection.
  static constexpr int64_t kIntroduceNs = 10'000'000'000;

  // The handshake proves `key` for `purpose`. `mine` is what this end says of itself to its callers, of which `callers`
  // may come at once.
  TcpLinks(std::string key, std::string purpose, std::string mine, int callers, Listening listening, Poller poller,
           int64_t introduce_ns = kIntroduceNs);
  ~TcpLinks() = default;

  // Watches the listener. Call once, before the other functions.
  Status begin();
  // Ends all connections that are being made, and listens no more.
  void end_links();
  // Waits for one batch of events, or for the earliest timeout of a connection, and handles it.
  Status poll_once(Deadline deadline);

  // Stores a link at the first free index, which becomes its poller token.
  std::size_t place(std::unique_ptr<Link> link);
  Link& link(std::size_t place) { return *links_[place]; }
  void drop(std::size_t place) { links_[place].reset(); }
  // Takes the finished connection out of a link and drops the link.
  TcpConnection take(std::size_t place);
  // Begins to connect to the current address of a call.
  Status try_address(std::size_t place);
  // Tries the next address, or ends the round and rests.
  Status next_address(std::size_t place, const Status& why);
  void rest(std::size_t place);
  // Keeps a link whose handshake is complete: on_kept() is called when its other end has sent something or has closed.
  Status keep(std::size_t place);
  // Drops an accepted connection and keeps the reason for error texts.
  void refuse(std::size_t place, const std::string& why);
  const std::string& refusal() const { return refusal_; }
  Poller& poller() { return poller_; }
  const Listening& listening() const { return listening_; }

  // The caller of an accepted connection has proved that it has the key, and that it means this purpose.
  virtual Status on_accepted(std::size_t place) = 0;
  // The callee has answered and is the right one.
  virtual Status on_established(std::size_t place) = 0;
  // Until when a call waits for the answer to its proof. The callee may have taken the connection, and then refuses
  // another one, so a call that is repeated could never succeed.
  virtual Deadline answer_deadline(std::size_t /*place*/) { return Deadline::never(); }
  // All addresses of a call have failed. Unless this drops the link, the call rests and tries them again.
  virtual Status on_round_failed(std::size_t place) = 0;
  // This process has no descriptor left for a call.
  virtual Status on_out_of_resources(std::size_t place, const Status& why) = 0;
  virtual Status on_kept(std::size_t /*place*/) { return {}; }
  // A call has rested.
  virtual Status on_rested(std::size_t place) { return try_address(place); }
  // An event of another descriptor in the poller; tokens of links are below kListenerToken.
  virtual void on_other(uint64_t /*token*/) {}

  static constexpr uint64_t kListenerToken = ~uint64_t{0} / 2;
  // Rounds of refused handshakes before the refusal is final. A single one may mean that the callee had too many
  // unidentified connections and dropped this one.
  static constexpr int kFinalRefusals = 3;

 private:
  // Accepts all waiting connections and begins their handshakes.
  Status accept_callers();
  void evict_oldest_unidentified();
  // Handles an event of a link in its state.
  Status advance(std::size_t place);
  Status introduce(std::size_t place);
  // Handles a link whose state has lasted too long.
  Status expire(std::size_t place);
  Deadline earliest_timeout() const;

  const std::string key_;
  const std::string purpose_;
  const std::string mine_;
  const int64_t introduce_ns_;
  const std::size_t most_unidentified_;  // accepted connections whose handshake is not complete
  Listening listening_;
  Poller poller_;
  std::vector<std::unique_ptr<Link>> links_;  // the index of a link is its poller token; ended links leave a null
  std::string refusal_;             // error of one refused caller; one with a wrong key is preferred to a foreign one
  bool refused_farandole_ = false;  // refusal_ is about a farandole process
};

}  // namespace fdl
