// Generations: who belongs to the next world of an elastic job, decided without processes, sockets or a clock.
//
// A worker is a process. It is new until it has belonged to a generation; from then on it holds the state. It asks for
// a generation when it begins, and again when the one it belonged to has failed or is to change. The next generation
// begins when all workers that run have asked: nobody is waited for whom the others could not reach.
//
//   generation 1   worker 0 1 2     worker 1 is killed; worker 3 is started in its place; 0, 2 and 3 ask
//   generation 2   worker 0 2 3     rank 0 is who has held the state longest
//
// Workers run at places (nodes), each with room for some; place 0 is this launcher's own. Ranks of one place are
// neighbours. A place that closes lets its workers go at the next generation; a lost one takes them along.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace fdl {

class Generations {
 public:
  static constexpr int kNoLimit = -1;
  struct Limits {
    int ranks = 1;                // at the beginning, at place 0
    int fewest = 1;               // with fewer the job ends
    int most = 1;                 // what may be wanted later
    int resets = kNoLimit;        // how often a generation may follow another
    int replacements = kNoLimit;  // how many workers may be started in the place of others
    int restarts = 0;             // how often all may begin anew, without a state, when nobody is left who holds it
  };
  enum class Reason {
    too_few,  // fewer than `fewest` are left, and no more may be started
    too_many_resets,
    no_state,       // nobody is left who holds the state
    all_failed,     // before the first generation
    failed_at_end,  // somebody failed when others had finished
  };
  struct GiveUp {
    Reason reason;
    std::string text;
  };
  struct World {
    int generation = 0;
    std::vector<int> workers;    // in rank order
    std::vector<int> dismissed;  // who asked and is not wanted any more
  };

  explicit Generations(const Limits& limits);

  // ---- what happened
  int start(int place = 0);  // the number of a worker that is started now
  void asked(int worker);
  bool ended(int worker, bool well);  // false: that is no loss
  // Another number of ranks is wanted at place 0; it is kept within the limits.
  void want(int ranks);
  void open_place(int place, int room);
  void close_place(int place);
  // All its workers have ended with it, and nobody takes their places. Whether members were among them.
  bool lose_place(int place);

  // ---- what to do
  // Nothing is done once a reason is there.
  const std::optional<GiveUp>& give_up() const { return give_up_; }
  int to_start() const;
  std::optional<int> place_to_start_at() const;
  // The next generation, if it begins now.
  std::optional<World> begin();
  // Members are to be told that all who shall join wait for them, or that some of them are to go.
  bool has_waiting_newcomers() const;
  bool has_to_shrink() const;

  int wanted() const;  // in all
  int room_at(int place) const;
  int place_of(int worker) const { return workers_.at(worker).place; }
  std::vector<int> workers_at(int place) const;
  int restarts() const { return restarts_; }
  int generation() const { return generation_; }
  bool has_finished() const { return finished_; }
  bool runs(int worker) const { return workers_.contains(worker); }
  bool is_member(int worker) const;
  bool has_asked(int worker) const;
  std::optional<int> rank_of(int worker) const;
  std::optional<int> worker_at(int rank) const;
  std::vector<int> members() const;

 private:
  struct Place {
    int room = 0;
    bool closing = false;
  };
  struct Worker {
    int place = 0;
    int joined = 0;  // its first generation; 0: none yet
    int rank = -1;   // in the latest generation it belonged to
    bool asking = false;
    bool dismissed = false;
  };

  int staying_at(int place) const;
  bool is_in_order() const { return !give_up_ && !finished_; }
  std::vector<int> by_seniority() const;
  void decide_after_loss(const Worker& was);
  void handle_lost_state();
  void give_up(Reason reason, std::string text);

  const Limits limits_;
  std::map<int, Place> places_;
  std::map<int, Worker> workers_;  // those that run
  int started_ = 0;
  int replacements_ = 0;
  int restarts_ = 0;
  bool state_is_held_ = false;
  int generation_ = 0;
  bool finished_ = false;
  std::optional<GiveUp> give_up_;
};

}  // namespace fdl
