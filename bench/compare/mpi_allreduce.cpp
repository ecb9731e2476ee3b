// Measures an MPI's allreduce: each size, or tensors one by one, or only its start.
//   mpirun -n 2 mpi_allreduce [--sizes 4,1024] [--tensors 64,9408] [--seconds 0.1] [--mode start]
#include <mpi.h>

#include "measure.h"

namespace {

using namespace compare;

// MPI's default error handler ends the job, so return codes are not checked.
class Mpi : public Library {
 public:
  int rank() const override {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank;
  }
  int size() const override {
    int size = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    return size;
  }
  void barrier() override { MPI_Barrier(MPI_COMM_WORLD); }
  void allreduce(const float* input, float* output, std::size_t count) override {
    // Counts are int in MPI 3: up to 2^31 - 1 elements, 8 GB of float32.
    MPI_Allreduce(input, output, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
  void max(std::vector<double>& values) override {
    MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  }
  void from_first_rank(double& value) override { MPI_Bcast(&value, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD); }
  float* allocate(std::size_t count) override {
    return static_cast<float*>(std::aligned_alloc(4096, (count * sizeof(float) + 4095) / 4096 * 4096));
  }
};

// One blocking call in place for each tensor.
void measure_tensors(Library& library, const Options& options) {
  std::vector<std::vector<float>> gradients;
  for (const std::size_t size : options.tensors) gradients.emplace_back(size, 1.0f);
  const auto batch = [&](int calls) {
    for (int i = 0; i < calls; ++i) {
      for (std::vector<float>& gradient : gradients) {
        MPI_Allreduce(MPI_IN_PLACE, gradient.data(), static_cast<int>(gradient.size()), MPI_FLOAT, MPI_SUM,
                      MPI_COMM_WORLD);
      }
    }
  };
  // Ones again: with two ranks the values double in each call and would be infinite after 128.
  const auto between = [&] {
    for (std::vector<float>& gradient : gradients) std::fill(gradient.begin(), gradient.end(), 1.0f);
  };
  const Samples samples = sample(library, options.seconds, batch, between);
  if (library.rank() == 0) print_samples("\"case\": \"one by one\"", samples);
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = read_options(argc, argv);
  // Before MPI_Init(), which the mode "start" measures.
  const double begin = now_us();
  MPI_Init(&argc, &argv);
  Mpi library;
  if (options.mode == "start") {
    Samples took = {now_us() - begin};
    library.max(took);
    if (library.rank() == 0) print_samples("\"case\": \"init\"", took);
  } else if (options.tensors.empty()) {
    measure_sizes(library, options);
  } else {
    measure_tensors(library, options);
  }
  MPI_Finalize();
}
