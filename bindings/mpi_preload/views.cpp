// Derived types are packed by MPI. MPI counts in ints, so long buffers are packed in parts.
#include "views.h"

#include <algorithm>
#include <cstring>

#include "datatypes.h"
#include "real_mpi.h"

namespace fdl::mpi_preload {
namespace {

std::ptrdiff_t extent_of(MPI_Datatype datatype) {
  MPI_Aint low = 0, extent = 0;
  real().Type_get_extent(datatype, &low, &extent);
  return extent;
}

// Calls part(first element, elements, bytes before it) for parts whose packed size is below 1 GiB.
template <typename Part>
int in_parts(const Elements& elements, const Part& part) {
  if (elements.bytes == 0) return MPI_SUCCESS;
  constexpr std::size_t kMost = 1 << 30;
  const std::size_t each = elements.bytes / elements.count;
  const std::size_t most = std::max<std::size_t>(1, kMost / each);
  for (std::size_t first = 0; first < elements.count; first += most) {
    const int code = part(first, static_cast<int>(std::min(most, elements.count - first)), first * each);
    if (code != MPI_SUCCESS) return code;
  }
  return MPI_SUCCESS;
}

}  // namespace

Elements::Elements(const void* at, MPI_Count elements, MPI_Datatype type)
    : data(at), count(elements < 0 ? 0 : static_cast<std::size_t>(elements)), datatype(type), plain(plain_bytes(type)) {
  std::size_t each = plain;
  if (each == 0) {
    int size = 0;
    if (real().Type_size(type, &size) == MPI_SUCCESS && size > 0) each = static_cast<std::size_t>(size);
  }
  bytes = count * each;
}

void* Elements::at(std::ptrdiff_t index) const {
  const std::ptrdiff_t extent = plain != 0 ? static_cast<std::ptrdiff_t>(plain) : extent_of(datatype);
  return static_cast<std::byte*>(const_cast<void*>(data)) + index * extent;
}

std::byte* Scratch::reserve(std::size_t bytes) {
  if (bytes > bytes_) {
    memory_.reset(new std::byte[bytes]);
    bytes_ = bytes;
  }
  return memory_.get();
}

void Scratch::finish() {
  if (bytes_ <= kKept) return;
  memory_.reset();
  bytes_ = 0;
}

int pack(const Elements& elements, std::byte* to, MPI_Comm comm) {
  if (elements.plain != 0) {
    if (elements.bytes > 0) std::memcpy(to, elements.data, elements.bytes);
    return MPI_SUCCESS;
  }
  return in_parts(elements, [&](std::size_t first, int count, std::size_t before) {
    int position = 0;
    const auto room = static_cast<int>(elements.bytes / elements.count * static_cast<std::size_t>(count));
    return real().Pack(elements.at(static_cast<std::ptrdiff_t>(first)), count, elements.datatype, to + before, room,
                       &position, comm);
  });
}

int unpack(const std::byte* from, const Elements& elements, MPI_Comm comm) {
  if (elements.plain != 0) {
    if (elements.bytes > 0) std::memcpy(const_cast<void*>(elements.data), from, elements.bytes);
    return MPI_SUCCESS;
  }
  return in_parts(elements, [&](std::size_t first, int count, std::size_t before) {
    int position = 0;
    const auto room = static_cast<int>(elements.bytes / elements.count * static_cast<std::size_t>(count));
    return real().Unpack(from + before, room, &position, elements.at(static_cast<std::ptrdiff_t>(first)), count,
                         elements.datatype, comm);
  });
}

namespace {
thread_local Scratch inputs, outputs;
}

Input::Input(const Elements& elements, bool is_read, MPI_Comm comm) {
  if (!is_read) return;
  data_ = static_cast<const std::byte*>(elements.data);
  if (elements.plain != 0) return;
  is_packed_ = true;
  std::byte* copy = inputs.reserve(elements.bytes);
  code_ = pack(elements, copy, comm);
  data_ = copy;
}
Input::~Input() {
  if (is_packed_) inputs.finish();
}

Output::Output(const Elements& elements, bool is_written) : elements_(elements) {
  if (!is_written) return;
  data_ = static_cast<std::byte*>(const_cast<void*>(elements.data));
  if (elements.plain != 0) return;
  is_packed_ = true;
  data_ = outputs.reserve(elements.bytes);
}
Output::~Output() {
  if (is_packed_) outputs.finish();
}

}  // namespace fdl::mpi_preload
