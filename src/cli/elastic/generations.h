// Generations decides which workers belong to the next generation of an elastic job. It is pure: it uses no processes,
// sockets or clock.
//
// A worker is a process. It is new until it has belonged to a generation; from then on it holds the training state,
// unless it requests the next one without having received it. It requests a generation when it begins, and again when
// its generation has failed or is to change. The next generation begins when all workers that run have requested it. A
// worker that is lost meanwhile is not waited for. If enough workers hold the state, they do not wait for new ones
// either, which take seconds to start: these join in the generation after it.
//
//   generation 1   worker 0 1 2     worker 1 is killed; worker 3 replaces it; 0 and 2 request a generation
//   generation 2   worker 0 2       worker 3 requests a generation, and the others do at their next commit
//   generation 3   worker 0 2 3     rank 0 is the worker that has held the state longest
//
// Workers run at places (nodes). Each place has slots, one for each worker that it may run; one place is this
// launcher's own. Ranks of one place are consecutive. A place that closes releases its workers at the next generation;
// a lost place loses them.
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
    int place = 0;                // this launcher's own
    int ranks = 1;                // at the beginning, at that place
    int fewest = 1;               // with fewer ranks the job ends
    int most = 1;                 // the largest value that set_target() accepts
    int resets = kNoLimit;        // how often a generation may follow another
    int replacements = kNoLimit;  // how many lost members may be replaced
    int restarts = 0;             // how often all workers may begin anew when no worker holds the state
    int enough = kNoLimit;        // so many workers begin without those that are starting; no limit: they wait
  };
  enum class Reason {
    too_few,  // fewer than `fewest` are left, and no more may be started
    too_many_resets,
    no_state,       // no worker is left that holds the state
    all_failed,     // all workers failed before the first generation
    failed_at_end,  // a worker failed after others had finished
  };
  struct GiveUp {
    Reason reason;
    std::string text;
  };
  struct World {
    int generation = 0;
    std::vector<int> workers;    // in rank order
    std::vector<int> dismissed;  // workers that requested it and are no longer needed
  };

  // What a launcher that takes over continues with.
  struct Counts {
    int generation = 0;
    int completions = 0;
    int replacements = 0;
    int restarts = 0;
    int state_since = 0;
    bool has_finished = false;
    bool operator==(const Counts&) const = default;
  };
  struct Held {
    int joined = 0;           // the worker's first generation; 0: none, so it holds no state
    int rank = -1;            // in its latest generation
    bool requesting = false;  // has requested the next one
    bool lacks_state = false;
  };

  explicit Generations(const Limits& limits);

  // ---- Taking over from another launcher ----
  Counts counts() const {
    return {.generation = generation_,
            .completions = completions_,
            .replacements = replacements_,
            .restarts = restarts_,
            .state_since = state_since_,
            .has_finished = finished_};
  }
  // `first_worker`: the smallest number of workers that this launcher starts; no other launcher has used it.
  void continue_from(const Counts& counts, int first_worker);
  // A worker that another launcher has started, at an open place.
  void adopt(int worker, int place, const Held& held);
  // All places that take part have come: without a worker that holds the state, all begin anew or the job ends. Until
  // this call, other places may hold it.
  void check_state();

  // ---- Events. Numbers of workers that do not run are ignored. ----
  int start(int place = 0);  // returns the number of the worker that the caller starts now
  // `lacks_state`: the worker has not received the state in the generation that it leaves.
  void requested(int worker, bool lacks_state = false);
  bool ended(int worker, bool well);  // true: the end is a loss, which the user must know of
  // Sets the target number of ranks at the own place, clamped to the limits.
  void set_target(int ranks);
  void open_place(int place, int slots);
  void close_place(int place);
  // The place and all its workers are lost and are not replaced. Returns whether members were among them.
  bool lose_place(int place);

  // ---- Decisions ----
  // Once a reason is set, no worker is started and no generation begins.
  const std::optional<GiveUp>& give_up() const { return give_up_; }
  int to_start() const;  // how many workers are missing
  std::optional<int> place_to_start_at() const;
  // Begins the next generation if all workers that run have requested it, or all that hold the state and are enough.
  std::optional<World> begin();
  // Dismisses workers of places that close and have left the former generation, which need not wait for the next one,
  // and returns them. Those at `last` stay until all members have left it.
  std::vector<int> dismiss_leaving(int last);
  // Whether members must be interrupted: all newcomers have requested a generation, or some members must leave.
  bool has_waiting_newcomers() const;
  // Whether another generation may begin for them. At the limit of resets it would end the job.
  bool may_add() const { return !is_last_reset() || only_completes(); }
  bool has_to_shrink() const;

  int target() const;  // over all places
  int slots_at(int place) const;
  int place_of(int worker) const { return workers_.at(worker).place; }
  std::vector<int> workers_at(int place) const;
  int restarts() const { return restarts_; }
  int generation() const { return generation_; }
  bool has_finished() const { return finished_; }
  bool runs(int worker) const { return workers_.contains(worker); }
  bool is_member(int worker) const;
  bool has_requested(int worker) const;
  // The workers that keep the next generation from beginning: members, else those that are starting.
  std::vector<int> awaited() const;
  std::optional<int> rank_of(int worker) const;
  std::optional<int> worker_at(int rank) const;
  std::vector<int> members() const;

 private:
  struct Place {
    int slots = 0;         // the target number of workers
    bool closing = false;  // its workers are dismissed when they have left the present generation
  };
  struct Worker {
    int place = 0;
    int joined = 0;           // its first generation; 0: none yet
    int rank = -1;            // in the latest generation it belonged to
    bool requesting = false;  // has requested the next generation
    bool lacks_state = false;
    bool dismissed = false;  // still runs, but its end is no loss
  };

  static bool holds_state(const Worker& facts) { return facts.joined > 0 && !facts.lacks_state && !facts.dismissed; }
  int staying_at(int place) const;  // workers that are not dismissed
  bool state_is_left() const;       // also if places that may hold it have not come yet
  void check_state_now();
  bool is_in_order() const { return !give_up_ && !finished_; }
  // All workers that are not dismissed. Places are ordered by their eldest worker, so that rank 0 holds the state.
  std::vector<int> by_seniority() const;
  bool may_begin() const;
  bool only_completes() const { return is_incomplete_ && !lost_since_; }
  bool is_last_reset() const { return generation_ - 1 - completions_ == limits_.resets; }
  bool ends_early(const Worker& was) const;
  void decide_after_loss(const Worker& was);
  void handle_lost_state();
  void give_up(Reason reason, std::string text);

  const Limits limits_;
  std::map<int, Place> places_;
  std::map<int, Worker> workers_;  // those that run
  int started_ = 0;
  int replacements_ = 0;
  int restarts_ = 0;
  bool state_is_held_ = false;  // a generation has begun since the start or the last restart
  bool awaits_places_ = false;  // has taken over, and check_state() was not called yet
  int state_since_ = 0;         // that generation: all its workers have the state with which the training begins
  int generation_ = 0;
  int completions_ = 0;         // generations that only added workers for which the one before did not wait: no resets
  bool is_incomplete_ = false;  // the present generation began without workers that were starting
  bool lost_since_ = false;     // a member was lost since it began
  bool finished_ = false;
  std::optional<GiveUp> give_up_;
};

}  // namespace fdl
