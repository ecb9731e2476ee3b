// order() passes once over the steps. For each run of places that no access divides it keeps the last step that wrote
// it and the steps that have read it since. A butterfly over p ranks thus costs log(p) runs, not p places.
#include "schedule/order.h"

#include <algorithm>

#include "schedule/places.h"

namespace fdl {
namespace {

// One read or write of a run of places by a step. `reduce` has one access for each source chunk.
struct Access {
  int32_t first;
  int32_t count;
  bool writes;
};

// A step's access to one place, with the run of places that the access covers.
struct Touch {
  int32_t step = -1;
  int32_t first = 0;
  int32_t count = 0;
};

class Orderer {
 public:
  Orderer(const Schedule& schedule, bool in_place) : places_(schedule, in_place), found_(schedule.steps.size(), -1) {
    for (const Step& step : schedule.steps) list_accesses(step);
    for (const Access& access : accesses_) {
      starts_.push_back(access.first);
      starts_.push_back(access.first + access.count);
    }
    std::sort(starts_.begin(), starts_.end());
    starts_.erase(std::unique(starts_.begin(), starts_.end()), starts_.end());
    writer_.resize(starts_.size());
    readers_.resize(starts_.size());
  }

  std::vector<Dependency> follow(int32_t step, const Step& what) {
    accesses_.clear();
    list_accesses(what);
    std::vector<Dependency> dependencies;
    for (const Access& access : accesses_) {
      for (std::size_t run = run_at(access.first); starts_[run] < access.first + access.count; ++run) {
        // A step that has read the run since the last write already follows that write.
        const auto& readers = readers_[run];
        if (access.writes && !readers.empty()) {
          for (const Touch& reader : readers) add(dependencies, step, access, reader);
        } else {
          add(dependencies, step, access, writer_[run]);
        }
      }
    }
    for (const Dependency& dependency : dependencies) found_[static_cast<std::size_t>(dependency.step)] = -1;
    record(step);
    return dependencies;
  }

 private:
  // The run that begins at a place where an access begins. Each access also ends where a run, or the last one, begins.
  std::size_t run_at(int32_t place) const {
    return static_cast<std::size_t>(std::lower_bound(starts_.begin(), starts_.end(), place) - starts_.begin());
  }

  void list_accesses(const Step& step) {
    const int32_t source = places_.first(step.source);
    const int32_t target = places_.first(step.target);
    switch (step.kind) {
      case StepKind::send:
        accesses_.push_back({source, step.source.count, false});
        return;
      case StepKind::recv:
      case StepKind::recv_reduce:
        accesses_.push_back({target, step.target.count, true});
        return;
      case StepKind::copy:
        accesses_.push_back({source, step.source.count, false});
        break;
      case StepKind::reduce:
        for (int32_t i = 0; i < step.source.count; ++i) accesses_.push_back({source + i, 1, false});
        break;
    }
    accesses_.push_back({target, step.target.count, true});
  }

  // found_[earlier] is the index of `earlier` in `dependencies`, or -1; so each earlier step is listed once.
  void add(std::vector<Dependency>& dependencies, int32_t step, const Access& access, const Touch& earlier) {
    if (earlier.step < 0 || earlier.step == step) return;
    const bool whole = earlier.first != access.first || earlier.count != access.count;
    int32_t& at = found_[static_cast<std::size_t>(earlier.step)];
    if (at < 0) {
      at = static_cast<int32_t>(dependencies.size());
      dependencies.push_back({earlier.step, whole});
    } else {
      dependencies[static_cast<std::size_t>(at)].whole |= whole;
    }
  }

  void record(int32_t step) {
    for (const Access& access : accesses_) {
      const Touch touch{step, access.first, access.count};
      for (std::size_t run = run_at(access.first); starts_[run] < access.first + access.count; ++run) {
        if (access.writes) {
          writer_[run] = touch;
          readers_[run].clear();
        } else {
          readers_[run].push_back(touch);
        }
      }
    }
  }

  Places places_;
  std::vector<int32_t> starts_;              // by run: its first place; the last one is the end of the last run
  std::vector<Touch> writer_;                // by run: the last write
  std::vector<std::vector<Touch>> readers_;  // by run: the reads since that write
  std::vector<int32_t> found_;
  std::vector<Access> accesses_;
};

}  // namespace

std::vector<std::vector<Dependency>> order(const Schedule& schedule, bool in_place) {
  Orderer orderer(schedule, in_place);
  std::vector<std::vector<Dependency>> dependencies;
  dependencies.reserve(schedule.steps.size());
  for (const Step& step : schedule.steps) {
    dependencies.push_back(orderer.follow(static_cast<int32_t>(dependencies.size()), step));
  }
  return dependencies;
}

}  // namespace fdl
