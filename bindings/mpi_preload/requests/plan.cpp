// Copies are made of types with gaps alone, and live as long as the plan.
#include "requests/plan.h"

#include <utility>

namespace fdl::mpi_preload {

Plan::Plan(fdl_collective collective, std::size_t count, fdl_dtype dtype, int root) {
  fdl_call_init(&call);
  call.collective = collective;
  call.count = count;
  call.dtype = dtype;
  call.root = root;
}

void Plan::set_input(const Elements& elements) {
  call.input = elements.data;
  if (elements.plain != 0) return;
  input_.reset(new std::byte[elements.bytes]);
  packed_ = elements;
  call.input = input_.get();
}

void Plan::set_output(const Elements& elements) { set_output(std::vector{elements}); }

void Plan::set_output(const std::vector<Elements>& blocks) {
  const auto* next = static_cast<const std::byte*>(blocks.front().data);
  bool is_plain = true;
  std::size_t bytes = 0;
  for (const Elements& block : blocks) {
    is_plain = is_plain && (block.bytes == 0 || (block.plain != 0 && block.data == next));
    next += block.bytes;
    bytes += block.bytes;
  }
  call.output = const_cast<void*>(blocks.front().data);
  if (is_plain) return;
  output_.reset(new std::byte[bytes]);
  unpacked_ = blocks;
  call.output = output_.get();
}

void Plan::set_both(const Elements& elements, bool is_input) {
  if (is_input) {
    set_input(elements);
    call.output = const_cast<void*>(call.input);
  } else {
    set_output(elements);
    call.input = call.output;
  }
}

void Plan::set_counts(std::vector<std::size_t> counts) {
  counts_ = std::move(counts);
  call.counts = counts_.data();
}

int Plan::pack_input(MPI_Comm comm) const { return packed_ ? pack(*packed_, input_.get(), comm) : MPI_SUCCESS; }
int Plan::unpack_output(MPI_Comm comm) const {
  const std::byte* from = output_.get();
  for (const Elements& block : unpacked_) {
    if (const int code = unpack(from, block, comm); code != MPI_SUCCESS) return code;
    from += block.bytes;
  }
  return MPI_SUCCESS;
}

}  // namespace fdl::mpi_preload
