// Plan is one nonblocking collective: farandole's call, and what must be packed before and unpacked after it.
#pragma once

#include <farandole/farandole.h>

#include <memory>
#include <optional>
#include <vector>

#include "views.h"

namespace fdl::mpi_preload {

// Movable, because the call points to memory that the plan owns on the heap.
class Plan {
 public:
  Plan(fdl_collective collective, std::size_t count, fdl_dtype dtype, int root);

  // The memory of the program, which is used as it is if its type has no gaps. Else a copy is, from now on.
  void set_input(const Elements& elements);
  void set_output(const Elements& elements);
  // Blocks of the ranks, in their order. They are used as they are if each begins where the one before it ends.
  void set_output(const std::vector<Elements>& blocks);
  // For a buffer that is input on the root and output on the others: farandole has one pointer for both.
  void set_both(const Elements& elements, bool is_input);
  // Elements of each rank.
  void set_counts(std::vector<std::size_t> counts);

  fdl_call call;

  // Before the call, and after it if it has succeeded. Return a code of MPI.
  int pack_input(MPI_Comm comm) const;
  int unpack_output(MPI_Comm comm) const;

 private:
  std::unique_ptr<std::byte[]> input_, output_;
  std::optional<Elements> packed_;
  std::vector<Elements> unpacked_;  // one behind the other in output_
  std::vector<std::size_t> counts_;
};

}  // namespace fdl::mpi_preload
