// DevicePacking: the tensors of a bucket on their way through memory of a device in which they lie side by side: at
// once or, where it is smaller than they are, in rounds.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "contract/device.h"

namespace fdl {

// A round is as many elements as there is room for, the last one what is left; a tensor may be cut anywhere. So ranks
// that have the same tensors and as much room cut alike.
//
//   pack()     this round's elements are in the room once the stream is there, and may be worked on
//   unpack()   they are in the outputs, and the next round begins
//   done()     there was no other
//
// Everything is queued on one stream: a round waits there for the one before.
class DevicePacking {
 public:
  // Null: not this rank's; zeros in the room, and for nobody behind it.
  struct Tensor {
    const void* input = nullptr;
    void* output = nullptr;
    std::size_t count = 0;
  };
  struct Scratch {
    void* memory = nullptr;
    std::size_t bytes = 0;
  };
  // What elements are multiplied with when they are packed, and when they are unpacked.
  struct Factors {
    double before = 1;
    double after = 1;
  };

  DevicePacking(std::vector<Tensor> tensors, Dtype dtype, Scratch scratch, Factors factors);

  void* scratch() const { return scratch_.memory; }
  std::size_t count() const { return count_; }  // elements of this round

  Status pack(Device& device, Stream stream) const;
  Status unpack(Device& device, Stream stream);
  bool done() const { return done_; }

 private:
  void begin_round(std::size_t from);
  template <typename Place>
  std::vector<DeviceSegment> segments(const Place& place_of) const;

  const std::vector<Tensor> tensors_;
  const Dtype dtype_;
  const Scratch scratch_;
  const Factors factors_;
  std::size_t total_ = 0;  // elements of all tensors
  std::size_t from_ = 0;   // the round's first
  std::size_t count_ = 0;
  bool done_ = false;
};

}  // namespace fdl
