// Datatypes maps the predefined types and operations of MPI to those of farandole.
#pragma once

#include <farandole/farandole.h>

#include <optional>

#include "mpi_header.h"

namespace fdl::mpi_preload {

// A reduction that farandole computes as MPI does.
struct Fold {
  fdl_dtype dtype;
  fdl_reduce_op op;
};
// Nothing if MPI must do it: operations of the program, types without arithmetic here (complex, long double), and pairs
// that MPI does not allow. All ranks pass the same type and operation, so all get the same answer.
std::optional<Fold> fold_of(MPI_Datatype datatype, MPI_Op op);

// The bytes of an element of a predefined type without gaps; 0 for all other types.
std::size_t plain_bytes(MPI_Datatype datatype);

}  // namespace fdl::mpi_preload
