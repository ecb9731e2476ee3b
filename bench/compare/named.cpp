// Measures farandole's named operations: one of 4 bytes, or many tensors beside one ordered allreduce of as many bytes.
//   farandole_named [--ranks 2] [--seconds 1] [--tensors 64,9408] [--mode cold]
// With --mode cold each rank writes 256 MiB of other memory before each step, as a model does with its activations.
#include "farandole_library.h"
#include "fork_ranks.h"

namespace {

using namespace compare;

// One gradient: its memory, and the operation that is submitted for it in every step.
class Gradient {
 public:
  Gradient(std::string name, float* data, std::size_t count)
      : name_(std::move(name)), data_(data), count_(count), shape_(static_cast<int64_t>(count)) {}
  fdl_handle* submit(fdl_group* group) const {
    fdl_operation operation;
    fdl_operation_init(&operation);
    operation.kind = FDL_NAMED_ALLREDUCE;
    operation.name = name_.c_str();
    // The operation is built anew for each submission, as a framework does.
    operation.input = {data_, FDL_FLOAT32, 1, &shape_, 0, 0, nullptr};
    operation.output = data_;
    operation.op = FDL_SUM;
    fdl_handle* handle = nullptr;
    check(fdl_submit(group, &operation, 1, &handle));
    return handle;
  }
  void write(int rank) { write_values(data_, count_, rank, 0); }
  // Compares every element with ==: the inputs are small integers.
  bool is_sum_of(int ranks) const {
    for (std::size_t i = 0; i < count_; ++i) {
      float sum = 0;
      for (int rank = 0; rank < ranks; ++rank) sum += value_of(rank, i, 0);
      if (data_[i] != sum) return false;
    }
    return true;
  }

 private:
  std::string name_;
  float* data_;
  std::size_t count_;
  int64_t shape_;
};

void wait(fdl_handle* handle) {
  check(fdl_wait_handle(handle, -1));
  fdl_handle_free(handle);
}

// As in a framework, every gradient has memory of its own.
std::vector<Gradient> make_gradients(Library& library, const std::vector<std::size_t>& tensors) {
  std::vector<Gradient> gradients;
  for (const std::size_t count : tensors) {
    gradients.emplace_back("gradient " + std::to_string(gradients.size()), library.allocate(count), count);
  }
  return gradients;
}

void submit_and_wait(fdl_group* group, const std::vector<Gradient>& gradients) {
  std::vector<fdl_handle*> handles;
  for (const Gradient& gradient : gradients) handles.push_back(gradient.submit(group));
  // Waiting in order of submission; which one completes first does not matter for the whole step.
  for (fdl_handle* handle : handles) wait(handle);
}

void print(Library& library, const char* name, const Samples& samples) {
  if (library.rank() == 0) print_samples(std::string("\"case\": \"") + name + "\"", samples);
}

void measure_four_bytes(Farandole& library, double seconds) {
  float value = 1;
  const Gradient one("four bytes", &value, 1);
  const auto batch = [&](int calls) {
    for (int i = 0; i < calls; ++i) wait(one.submit(library.group()));
  };
  // Warm-up: the order of the single operation is locked by then.
  batch(500);
  print(library, "4 B", sample(library, seconds, batch, [&] { value = 1; }));
}

// Other memory of a program, which takes the place of the gradients in the caches and of their pages in the TLB.
class OtherMemory {
 public:
  OtherMemory(Library& library, const Options& options) : count_(options.mode == "cold" ? kBytes / sizeof(float) : 0) {
    if (count_ != 0) data_ = library.allocate(count_);
  }
  void write() {
    ++turn_;
    for (std::size_t i = 0; i < count_; ++i) data_[i] = static_cast<float>(turn_);
  }

 private:
  static constexpr std::size_t kBytes = 256 << 20;
  std::size_t count_;
  float* data_ = nullptr;
  int turn_ = 0;
};

// One training step: all gradients in flight at once. Library::allreduce() is not used.
void measure_step(Farandole& library, const Options& options, OtherMemory& other) {
  std::vector<Gradient> gradients = make_gradients(library, options.tensors);
  const auto write = [&] {
    for (Gradient& gradient : gradients) gradient.write(library.rank());
    other.write();
  };
  const auto batch = [&](int calls) {
    for (int i = 0; i < calls; ++i) submit_and_wait(library.group(), gradients);
  };
  // The library detects the repetition in the first steps, so they are not timed. Their results are checked.
  for (int step = 0; step < 4; ++step) {
    write();
    batch(1);
    for (const Gradient& gradient : gradients) {
      if (!gradient.is_sum_of(library.size())) stop("wrong sum of a gradient");
    }
  }
  write();
  print(library, "submitted and waited for", sample(library, options.seconds, batch, write));
}

void measure_whole(Farandole& library, const Options& options, OtherMemory& other) {
  std::size_t count = 0;
  // The lower bound for the tensors: one call without agreement and without packing.
  for (const std::size_t size : options.tensors) count += size;
  float* whole = library.allocate(count);
  const auto write = [&] {
    write_values(whole, count, library.rank(), 0);
    other.write();
  };
  const auto batch = [&](int calls) {
    for (int i = 0; i < calls; ++i) library.allreduce(whole, whole, count);
  };
  write();
  print(library, "one allreduce of as much", sample(library, options.seconds, batch, write));
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = read_options(argc, argv);
  // An abstract socket with the number of the parent, so that several comparisons can run beside each other.
  const std::string rendezvous = "unix:@farandole-compare-" + std::to_string(::getpid());
  return fork_ranks(options.ranks, [&](int rank) {
    Farandole library(options, rank, rendezvous);
    pin(rank, options.ranks);
    if (options.tensors.empty()) {
      measure_four_bytes(library, options.seconds);
    } else {
      OtherMemory other(library, options);
      measure_step(library, options, other);
      measure_whole(library, options, other);
    }
    return 0;
  });
}
