// Simulation has the clock, the chance and the story of one simulated job. Everything happens in one thread, in the
// order of simulated time, and one seed gives one history.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace fdl::simulation {

inline constexpr int64_t kUs = 1'000;
inline constexpr int64_t kMs = 1'000'000;
inline constexpr int64_t kSecond = 1'000'000'000;
inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

class Simulation {
 public:
  explicit Simulation(uint64_t seed) : chance_(seed) {}
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  // ---- time ----
  int64_t now() const { return now_; }
  // Events of one moment happen in the order in which they were added.
  void at(int64_t moment, std::function<void()> event) {
    events_.push({std::max(moment, now_), next_event_++, std::move(event)});
  }
  void after(int64_t duration, std::function<void()> event) { at(now_ + duration, std::move(event)); }
  // Runs the next event. False if there is none, or if it is later than `limit`.
  bool step(int64_t limit);
  uint64_t steps() const { return steps_; }

  // ---- chance ----
  int64_t between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(chance_() % static_cast<uint64_t>(most - least + 1));
  }
  bool percent(int64_t percent) { return between(0, 99) < percent; }
  template <typename T>
  const T& one_of(const std::vector<T>& choices) {
    return choices[static_cast<std::size_t>(between(0, static_cast<int64_t>(choices.size()) - 1))];
  }

  // ---- the story ----
  // Adds a line to the story. Nothing is formatted unless keep_story() was called.
  template <typename... Arguments>
  void tell(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    if (keeps_story_) add_line(fmt::format(format, std::forward<Arguments>(arguments)...));
  }
  void keep_story() { keeps_story_ = true; }
  std::string story() const;
  // What must not be. A history goes on, so that its story has what follows.
  void violated(std::string what);
  const std::vector<std::string>& violations() const { return violations_; }

  // How often each kind of fault and of event has happened.
  void count(const std::string& what) { ++counts_[what]; }
  const std::map<std::string, int64_t>& counts() const { return counts_; }

 private:
  struct Event {
    int64_t moment;
    uint64_t number;
    std::function<void()> run;
    bool operator<(const Event& other) const {  // of a queue whose top is the greatest
      return moment != other.moment ? moment > other.moment : number > other.number;
    }
  };
  void add_line(const std::string& text);

  std::mt19937_64 chance_;
  std::priority_queue<Event> events_;
  uint64_t next_event_ = 0;
  uint64_t steps_ = 0;
  int64_t now_ = 0;
  bool keeps_story_ = false;
  std::vector<std::string> lines_;
  std::vector<std::string> violations_;
  std::map<std::string, int64_t> counts_;
};

}  // namespace fdl::simulation
