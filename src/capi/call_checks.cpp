// The call checks return the text of a fault in one part of an ordered call, or nothing. Every argument is checked
// once, here; the modules below rely on it.
#include "capi/call_checks.h"

#include <limits>
#include <numeric>

#include "data/compression.h"
#include "data/reduce.h"
#include "schedule/schedule.h"

namespace fdl::capi {

bool reduces(fdl_collective kind) { return kind == FDL_ALLREDUCE || kind == FDL_REDUCE || kind == FDL_REDUCE_SCATTER; }

bool has_counts(fdl_collective kind) {
  return kind == FDL_ALLGATHER || kind == FDL_GATHER || kind == FDL_REDUCE_SCATTER || kind == FDL_SCATTER ||
         kind == FDL_ALLTOALL;
}

namespace {

bool has_root(fdl_collective kind) {
  return kind == FDL_REDUCE || kind == FDL_BROADCAST || kind == FDL_GATHER || kind == FDL_SCATTER;
}

// How many elements this rank's input and output have.
// In elements and not in bytes, as the texts of the faults name them.
struct Elements {
  std::size_t input = 0;
  std::size_t output = 0;
};

// Whether this rank has an input or output. If it has none, its pointer and stated size are ignored.
bool needs_input(const fdl_call& call, int rank) { return call.collective != FDL_SCATTER || call.root == rank; }
bool needs_output(const fdl_call& call, int rank) {
  return (call.collective != FDL_REDUCE && call.collective != FDL_GATHER) || call.root == rank;
}

// Adds up the counts. Returns false if their bytes exceed int64_t.
bool sum_fits(std::span<const std::size_t> counts, std::size_t element_bytes, std::size_t& sum) {
  sum = 0;
  // Compared before the addition, so the sum never overflows.
  const std::size_t most = static_cast<std::size_t>(std::numeric_limits<int64_t>::max()) / element_bytes;
  for (const std::size_t count : counts) {
    if (count > most - sum) return false;
    sum += count;
  }
  return true;
}

// For tensors on the CPU the device index is unused, so it is not checked.
Fault fault_of_call_place(const fdl_call& call) {
  if (call.device_kind == FDL_DEVICE_CPU) return std::nullopt;
  return fault_of_place(call.device_kind, call.device_index);
}

// Sets how many elements this rank reads and writes, or returns the fault of the counts. `counts` and `recv_counts`
// have one entry for each rank if the collective takes them.
Fault fault_of_counts(const fdl_call& call, int rank, std::span<const std::size_t> counts,
                      std::span<const std::size_t> recv_counts, Elements& elements) {
  const std::size_t dtype_bytes = fdl_dtype_size(call.dtype);
  const bool root = call.root == rank;
  elements = {call.count, call.count};
  if (has_counts(call.collective)) {
    std::size_t all = 0;
    std::size_t received = 0;
    if (!sum_fits(counts, dtype_bytes, all) || !sum_fits(recv_counts, dtype_bytes, received)) {
      return "the counts add up to more bytes than memory can hold";
    }
    const std::size_t mine = counts[static_cast<std::size_t>(rank)];
    switch (call.collective) {
      case FDL_ALLGATHER:
        elements = {mine, all};
        break;
      case FDL_GATHER:
        elements = {mine, root ? all : 0};
        break;
      case FDL_REDUCE_SCATTER:
        elements = {all, mine};
        break;
      case FDL_SCATTER:
        elements = {root ? all : 0, mine};
        break;
      default:
        // Alltoall: `counts` are the elements that this rank sends, `recv_counts` those that it receives.
        elements = {all, received};
        break;
    }
  } else if (call.count > static_cast<std::size_t>(std::numeric_limits<int64_t>::max()) / dtype_bytes) {
    return "count " + std::to_string(call.count) + " is more than memory can hold (was it negative?)";
  }
  // On these ranks the pointer is ignored and may be NULL.
  if (call.collective == FDL_REDUCE && !root) elements.output = 0;
  if (call.collective == FDL_BROADCAST) (root ? elements.output : elements.input) = 0;
  return std::nullopt;
}

// Whether input and output overlap in a permitted way: they start at the same address, or one is the rank's own part of
// the other (engine/aliasing.h).
bool is_in_place(const fdl_call& call, int rank, std::span<const std::size_t> counts) {
  if (call.input == call.output) return true;
  if (call.collective == FDL_ALLREDUCE || call.collective == FDL_REDUCE || call.collective == FDL_ALLTOALL)
    return false;
  // The rank's own block begins behind the blocks of the lower ranks.
  const std::size_t before = std::accumulate(counts.begin(), counts.begin() + rank, std::size_t{0});
  const bool gathers = call.collective == FDL_ALLGATHER || call.collective == FDL_GATHER;
  const auto* whole = static_cast<const std::byte*>(gathers ? call.output : call.input);
  const void* part = gathers ? call.input : call.output;
  return part == whole + before * fdl_dtype_size(call.dtype);
}

Fault fault_of_buffers(const fdl_call& call, int rank, std::span<const std::size_t> counts, const Elements& elements) {
  if (elements.input > 0 && call.input == nullptr) return "input is NULL";
  if (elements.output > 0 && call.output == nullptr) return "output is NULL";
  if (call.collective == FDL_BROADCAST) {
    const std::size_t stated = call.root == rank ? call.input_elements : call.output_elements;
    return fault_of_elements("the buffer", stated, call.count);
  }
  if (needs_input(call, rank)) {
    if (auto fault = fault_of_elements("input", call.input_elements, elements.input)) return fault;
  }
  if (needs_output(call, rank)) {
    if (auto fault = fault_of_elements("output", call.output_elements, elements.output)) return fault;
  }
  const std::size_t dtype_bytes = fdl_dtype_size(call.dtype);
  const Extent input{"input", call.input, elements.input * dtype_bytes};
  const Extent output{"output", call.output, elements.output * dtype_bytes};
  // The common case, separate buffers, costs two comparisons.
  if (!overlap(input, output) || is_in_place(call, rank, counts)) return std::nullopt;
  return fault_of_overlap(input, output);
}

Fault fault_of_reduction(const fdl_call& call, const fdl_call_options& options) {
  const auto dtype = static_cast<Dtype>(call.dtype);
  if (!is_op(call.op)) return "op " + std::to_string(call.op) + " does not exist";
  if (!supports(dtype, static_cast<Op>(call.op))) {
    return "op " + std::string(name_of(static_cast<Op>(call.op))) + " is not defined for dtype " +
           std::string(name_of(dtype));
  }
  // A function that is given with a built-in operation would be ignored, and the result would not be what the caller
  // expects.
  if ((call.op == FDL_USER) != (options.user_op != nullptr)) {
    return "op FDL_USER and fdl_call_options.user_op go together";
  }
  return std::nullopt;
}

}  // namespace

Fault fault_of_compression(fdl_compression compression, fdl_dtype dtype, bool takes_kind, bool has_op, fdl_reduce_op op,
                           int device_kind) {
  if (!is_compression(compression)) return "compression " + std::to_string(compression) + " does not exist";
  if (compression == FDL_COMPRESSION_NONE) return std::nullopt;
  const std::string title = "compression " + std::string(name_of(static_cast<Compression>(compression)));
  if (!takes_kind) return title + " is for allreduce, reduce_scatter and allgather; leave it out";
  if (dtype != FDL_FLOAT32) {
    return title + " takes dtype float32, not " + fdl_dtype_name(dtype) + "; convert the input or leave it out";
  }
  if (has_op && op != FDL_SUM && op != FDL_AVERAGE) {
    return title + " takes op sum or average, not " + std::string(name_of(static_cast<Op>(op))) + "; leave it out";
  }
  if (device_kind != FDL_DEVICE_CPU) return title + " takes memory of the CPU; copy the input to it or leave it out";
  return std::nullopt;
}

namespace {

Fault fault_of_compressed_call(const fdl_call& call, const fdl_call_options& options) {
  if (options.compression == FDL_COMPRESSION_NONE) {
    if (options.error_bound == nullptr) return std::nullopt;
    return "fdl_call_options.error_bound is given without a compression; set fdl_call_options.compression or pass NULL";
  }
  const bool compresses =
      call.collective == FDL_ALLREDUCE || call.collective == FDL_REDUCE_SCATTER || call.collective == FDL_ALLGATHER;
  if (auto fault = fault_of_compression(options.compression, call.dtype, compresses, reduces(call.collective), call.op,
                                        call.device_kind)) {
    return fault;
  }
  if (options.algorithm == nullptr || is_auto(options.algorithm)) return std::nullopt;
  return "algorithm '" + std::string(options.algorithm) +
         "' is given with a compression, which has its own; leave one out";
}

}  // namespace

Fault fault_of_lengths(const fdl_call& call, int size) {
  if (call.collective == FDL_ALLTOALL && (call.counts == nullptr) != (call.recv_counts == nullptr)) {
    return "pass both counts and recv_counts, or neither";
  }
  if (call.counts != nullptr) {
    if (auto fault = fault_of_length("counts", call.counts_length, size)) return fault;
  }
  if (call.recv_counts != nullptr) return fault_of_length("recv_counts", call.recv_counts_length, size);
  return std::nullopt;
}

Fault fault_of_collective(const fdl_call& call, const fdl_call_options& options, int rank, int size,
                          std::span<const std::size_t> counts, std::span<const std::size_t> recv_counts) {
  if (call.collective < FDL_ALLREDUCE || call.collective > FDL_BARRIER) {
    return "collective " + std::to_string(call.collective) + " does not exist";
  }
  if (auto fault = fault_of_compressed_call(call, options)) return fault;
  if (call.collective == FDL_BARRIER) return std::nullopt;
  if (!is_dtype(call.dtype)) return "dtype " + std::to_string(call.dtype) + " does not exist";
  if (reduces(call.collective)) {
    if (auto fault = fault_of_reduction(call, options)) return fault;
  }
  if (has_root(call.collective) && (call.root < 0 || call.root >= size)) {
    return "root " + std::to_string(call.root) + " is not a rank of this communicator (0 to " +
           std::to_string(size - 1) + ")";
  }
  if (auto fault = fault_of_call_place(call)) return fault;
  Elements elements;
  if (auto fault = fault_of_counts(call, rank, counts, recv_counts, elements)) return fault;
  return fault_of_buffers(call, rank, counts, elements);
}

Fault fault_of_message(const fdl_call& call, int size) {
  if (!is_dtype(call.dtype)) return "dtype " + std::to_string(call.dtype) + " does not exist";
  if (call.root < 0 || call.root >= size) {
    return "peer " + std::to_string(call.root) + " is not a rank of this communicator (0 to " +
           std::to_string(size - 1) + ")";
  }
  if (auto fault = fault_of_call_place(call)) return fault;
  if (call.count > static_cast<std::size_t>(std::numeric_limits<int64_t>::max()) / fdl_dtype_size(call.dtype)) {
    return "count " + std::to_string(call.count) + " is more than memory can hold (was it negative?)";
  }
  const bool outgoing = call.collective == FDL_SEND;
  if (call.count > 0 && (outgoing ? call.input : call.output) == nullptr) return "buffer is NULL";
  return fault_of_elements("the buffer", outgoing ? call.input_elements : call.output_elements, call.count);
}

}  // namespace fdl::capi
