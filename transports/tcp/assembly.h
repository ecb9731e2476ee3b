// Assembly: connects a rank with its peers. Every member listens, tells the others where, calls the lower ranks and is
// called by the higher ones; one poller drives all calls and all callers at once, so that nobody waits for a stranger.
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

class Assembly {
 public:
  // streams[p] connections for each lane with member p (its own does not count), as p has it with this rank.
  // That number n of lane l stands at n * kChannelCount + l among its peer's, of which each has place_count(streams);
  // the places of those that are not wanted are empty.
  static Result<std::vector<UniqueFd>> connect(const Membership& membership, const std::vector<int>& streams);
  static std::size_t place_count(const std::vector<int>& streams);

 private:
  // A connection on its way: called by this rank (it knows whom it wants) or accepted (it does not know who comes).
  struct Link {
    enum class State { resting, connecting, introducing };
    bool calling = false;
    State state = State::introducing;
    Deadline timeout = Deadline::never();  // when the present state has lasted long enough
    UniqueFd fd;
    std::unique_ptr<Introduction> introduction;

    // Of a call only.
    int peer = -1;
    int number = -1;  // among this peer's
    std::vector<Address> addresses;
    std::size_t trying = 0;    // index of the present address
    std::string stories;       // what went wrong with each address in this round
    bool was_refused = false;  // a farandole answered in this round, and refused
    int refused_rounds = 0;
  };

  Assembly(const Membership& membership, const std::vector<int>& streams, Listening listening, Poller poller);
  Status start();
  Status fetch_addresses(Deadline deadline);
  Status run(Deadline deadline);
  Status turn(Deadline deadline);

  Status accept_callers();
  std::size_t place(std::unique_ptr<Link> link);
  void forget(std::size_t place);
  void make_room_for_a_stranger();
  void refuse(std::size_t place, const std::string& why);

  Status attend(std::size_t place);
  Status introduce(std::size_t place);
  Status try_address(std::size_t place);
  Status next_address(std::size_t place, const Status& why);
  Status expire(std::size_t place);
  Status welcome(std::size_t place);
  Status settled(std::size_t place);
  Deadline first_patience() const;

  std::string purpose() const;
  std::string key_of(int member) const;
  // Connections with this member; 0 for those that are no peers.
  int wanted_with(int member) const;
  UniqueFd& connection(int peer, int number);
  bool all_connected(int member) const;
  bool complete() const;
  Status somebody_is_missing() const;

  const Membership& membership_;
  const std::vector<int>& streams_;
  const std::size_t place_count_;
  Listening listening_;
  Poller poller_;
  std::vector<std::unique_ptr<Link>> links_;  // the place of a link is its token; ended links leave an empty place
  std::vector<UniqueFd> connected_;
  std::vector<bool> published_;          // by member: its addresses were fetched
  std::vector<std::string> last_story_;  // by member: what the last round of calls met
  std::string refusal_;                  // what was wrong with a caller; a wrong key rather than noise
  bool refused_farandole_ = false;
};

}  // namespace fdl
