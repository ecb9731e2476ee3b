// LaunchOrder gives the collectives of a world's communicators their turns at a device.
//
// A kernel of NCCL occupies a part of the device until its peers have launched theirs. If two communicators launched in
// different orders on two ranks, each rank could wait for the kernel that the other has not launched. So collectives on
// a device are launched in the order in which the program submits them, which is the same on all ranks. The turn ends
// when the collective is queued on the device.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <utility>

#include "base/check.h"

namespace fdl {

class Device;

// Only the owner of progress uses it. It outlives its tickets.
class LaunchOrder {
 public:
  // A place in the order. It is given up at the end of the object, or by leave().
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&& other) noexcept { *this = std::move(other); }
    Ticket& operator=(Ticket&& other) noexcept {
      leave();
      line_ = std::exchange(other.line_, nullptr);
      number_ = other.number_;
      return *this;
    }
    ~Ticket() { leave(); }
    // True for a ticket that was given up or never taken: such a collective waits for none.
    bool is_first() const { return line_ == nullptr || line_->front == number_; }
    void leave() {
      if (line_ != nullptr) std::exchange(line_, nullptr)->leave(number_);
    }

   private:
    friend class LaunchOrder;
    struct Line {
      uint64_t front = 0;        // the number of the first element of `waiting`
      std::deque<bool> waiting;  // whether the ticket is still held
      void leave(uint64_t number) {
        waiting[static_cast<std::size_t>(number - front)] = false;
        for (; !waiting.empty() && !waiting.front(); ++front) waiting.pop_front();
      }
    };
    Ticket(Line& line, uint64_t number) : line_(&line), number_(number) {}

    Line* line_ = nullptr;
    uint64_t number_ = 0;
  };

  Ticket enter(const Device& device) {
    Ticket::Line& line = lines_[&device];
    line.waiting.push_back(true);
    return {line, line.front + line.waiting.size() - 1};
  }

 private:
  std::map<const Device*, Ticket::Line> lines_;
};

}  // namespace fdl
