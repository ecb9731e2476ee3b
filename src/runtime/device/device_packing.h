// DevicePacking moves the tensors of a bucket through a scratch buffer of a device in which they lie side by side: at
// once or, where the buffer is smaller than the tensors, in rounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "contract/device.h"

namespace fdl {

// Each tensor begins at a multiple of 16 bytes, so that one of an odd size does not make the accesses to those behind
// it narrow. What lies between two tensors is reduced with them and then ignored.
//
// A round has as many elements as fit into the scratch buffer, the last round has the rest; a tensor may be cut
// anywhere. So ranks with the same tensors and equally large scratch buffers cut alike.
//
//   pack()     queues the copy of this round's elements into the scratch buffer; the collective is queued behind it
//   unpack()   queues the copy from there to the outputs, and begins the next round
//   done()     true after the unpack() of the last round
//
// Everything is queued on one stream, so a round waits there for the round before.
class DevicePacking {
 public:
  // Of a tensor that this rank does not have, both pointers are null: it contributes zeros and receives no output.
  struct Tensor {
    const void* input = nullptr;
    void* output = nullptr;
    std::size_t count = 0;
  };
  struct Scratch {
    void* memory = nullptr;
    std::size_t bytes = 0;
  };
  // Elements are multiplied by `before` when they are packed, and by `after` when they are unpacked.
  struct Factors {
    double before = 1;
    double after = 1;
  };

  // The elements of all tensors of these sizes, with those between them.
  static std::size_t elements_of(std::span<const int64_t> counts, Dtype dtype);

  // The scratch buffer has space for at least one element. The caller owns it.
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
  std::size_t total_ = 0;  // elements of all tensors, with those between them
  std::size_t from_ = 0;   // the round's first element, among all
  std::size_t count_ = 0;
  bool done_ = false;
};

}  // namespace fdl
