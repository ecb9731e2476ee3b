// Measures farandole's named operations: one of 4 bytes, or many tensors beside one ordered allreduce of as many bytes.
//   farandole_named [--ranks 2] [--seconds 1] [--tensors 64,9408]
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

// One training step: all gradients in flight at once. Library::allreduce() is not used.
void measure_step(Farandole& library, double seconds, const std::vector<std::size_t>& tensors) {
  std::vector<Gradient> gradients = make_gradients(library, tensors);
  const auto write = [&] {
    for (Gradient& gradient : gradients) gradient.write(library.rank());
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
  print(library, "submitted and waited for", sample(library, seconds, batch, write));
}

void measure_whole(Farandole& library, double seconds, const std::vector<std::size_t>& tensors) {
  std::size_t count = 0;
  // The lower bound for the tensors: one call without agreement and without packing.
  for (const std::size_t size : tensors) count += size;
  float* whole = library.allocate(count);
  const auto write = [&] { write_values(whole, count, library.rank(), 0); };
  const auto batch = [&](int calls) {
    for (int i = 0; i < calls; ++i) library.allreduce(whole, whole, count);
  };
  write();
  print(library, "one allreduce of as much", sample(library, seconds, batch, write));
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
      measure_step(library, options.seconds, options.tensors);
      measure_whole(library, options.seconds, options.tensors);
    }
    return 0;
  });
}
