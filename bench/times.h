// Times summarizes the repetitions of one measurement, in microseconds.
#pragma once

#include <algorithm>
#include <vector>

namespace bench {

// The median is what a call usually takes. The least time is that of a call which nothing else on the machine
// disturbed.
struct Times {
  double median_us = 0;
  double least_us = 0;

  // `all` must not be empty. With an even number of entries the median is the upper one of the two in the middle.
  static Times of(std::vector<double> all) {
    std::sort(all.begin(), all.end());
    return {all[all.size() / 2], all.front()};
  }
};

}  // namespace bench
