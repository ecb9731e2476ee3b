// Simulation runs events one by one and keeps the lines of its story.
#include "tests/simulation/simulation.h"

#include <fmt/ranges.h>

namespace fdl::simulation {

bool Simulation::step(int64_t limit) {
  if (events_.empty() || events_.top().moment > limit) return false;
  // The queue gives constant references only, because changing an element could break its order. This one leaves it.
  const std::function<void()> run = std::move(const_cast<Event&>(events_.top()).run);
  now_ = events_.top().moment;
  events_.pop();
  ++steps_;
  run();
  return true;
}

void Simulation::add_line(const std::string& text) {
  lines_.push_back(fmt::format("{:10.6f}  {}", static_cast<double>(now_) / 1e9, text));
}

std::string Simulation::story() const { return fmt::format("{}\n", fmt::join(lines_, "\n")); }

void Simulation::violated(std::string what) {
  tell("VIOLATION  {}", what);
  violations_.push_back(std::move(what));
}

}  // namespace fdl::simulation
