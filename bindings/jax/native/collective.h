// Collective: one execution of one call in a compiled program, from its buffers to the completion of XLA's future.
//
//   XLA's thread           fills a Call, start() submits it and returns; the buffers stay in place until the future
//   ends the completing thread  copies results that the library has allocated, and completes the promise
#pragma once

#include <farandole/farandole.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ffi.h"

namespace farandole_jax {

// Whose classes of errors a call uses: those of JAX, or those that TensorFlow's ops have.
enum class Framework : bool { kJax, kTensorFlow };

// The attributes of a call, fixed when the program was compiled.
struct Attributes {
  std::string_view names;  // of all operations, each with a final 0
  int64_t group = 0;       // a number of Groups
  fdl_kind kind = FDL_NAMED_ALLREDUCE;
  fdl_reduce_op op = FDL_SUM;
  int root = 0;  // rank in the group
  double prescale = 1, postscale = 1;
  int priority = 0;
  std::span<const int64_t> splits;  // alltoall: rows for each rank; empty: equal parts
  Framework framework = Framework::kJax;
};

// Memory of one result in the program, and the shape for which the program was compiled.
struct Target {
  void* data = nullptr;
  std::size_t bytes = 0;
  std::vector<int64_t> shape;
};

class Collective {
 public:
  explicit Collective(const Attributes& attributes) : attributes_(attributes) {}

  // Adds one operation. The shapes must stay in place until start() returns, the data until the promise ends.
  void add(const fdl_tensor& input, void* output, std::size_t output_bytes, std::span<const int64_t> output_shape);
  // A program that runs on several devices of this process calls once for each of them. Device 0 uses the names as they
  // are; the others add their number, so that each device meets the same one of the other ranks.
  void set_device(int ordinal) { device_ = ordinal; }
  // Submits all operations as one unit. The promise ends with the outcome, perhaps before this returns.
  void start(const xla::ffi::Promise& promise);

 private:
  // The library writes the results of these kinds into the program's memory. It allocates those of other kinds.
  bool writes_in_place() const {
    return attributes_.kind == FDL_NAMED_ALLREDUCE || attributes_.kind == FDL_NAMED_BROADCAST;
  }
  bool set_names(std::string& problem);

  Attributes attributes_;
  int device_ = 0;
  std::vector<fdl_operation> operations_;
  std::vector<Target> targets_;           // of the results that the library allocates
  std::vector<std::string> other_names_;  // of devices other than 0
};

// Ends the promise with this failure, which Python can then look up.
void fail(xla::ffi::Promise promise, Framework framework, fdl_result code, std::string text);

}  // namespace farandole_jax
