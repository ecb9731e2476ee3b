// Views give farandole contiguous bytes of a program's buffers, whose elements may be of derived types with gaps.
#pragma once

#include <cstddef>
#include <memory>

#include "mpi_header.h"

namespace fdl::mpi_preload {

// `count` elements of a datatype at `data`. The bytes that they hold are known on every rank alike: MPI requires the
// signatures of sender and receiver to be equal, not the types.
struct Elements {
  const void* data = nullptr;
  std::size_t count = 0;
  MPI_Datatype datatype;
  std::size_t plain = 0;  // bytes of an element without gaps; 0: packed
  std::size_t bytes = 0;  // of all elements

  Elements(const void* at, MPI_Count elements, MPI_Datatype type);
  // The element number `index`, in the program's memory.
  void* at(std::ptrdiff_t index) const;
};

// Memory that is kept between calls if it is small. One for each purpose and thread.
class Scratch {
 public:
  std::byte* reserve(std::size_t bytes);
  void finish();  // frees large memory

 private:
  static constexpr std::size_t kKept = 4 << 20;
  std::unique_ptr<std::byte[]> memory_;
  std::size_t bytes_ = 0;
};

// Copy elements into `to`, or out of `from`, which have elements.bytes bytes. Return the code of MPI.
int pack(const Elements& elements, std::byte* to, MPI_Comm comm);
int unpack(const std::byte* from, const Elements& elements, MPI_Comm comm);

// What a collective reads: the program's memory, or a packed copy that lives until the next one of the thread.
class Input {
 public:
  // Without `is_read` there is nothing to read.
  Input(const Elements& elements, bool is_read, MPI_Comm comm);
  ~Input();
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;
  const std::byte* data() const { return data_; }
  int code() const { return code_; }

 private:
  const std::byte* data_ = nullptr;
  int code_ = MPI_SUCCESS;
  bool is_packed_ = false;
};

// What a collective writes. finish() puts the elements into the program's memory.
class Output {
 public:
  Output(const Elements& elements, bool is_written);
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  std::byte* data() const { return data_; }
  int finish(MPI_Comm comm) { return is_packed_ ? unpack(data_, elements_, comm) : MPI_SUCCESS; }

 private:
  Elements elements_;
  std::byte* data_ = nullptr;
  bool is_packed_ = false;
};

}  // namespace fdl::mpi_preload
