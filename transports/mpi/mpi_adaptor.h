// An adaptor makes an MpiLibrary of an opened library of one ABI.
#pragma once

#include <memory>
#include <string>

#include "transports/mpi/mpi_library.h"

namespace fdl {

// `library` is the handle of dlopen() of `file`. Starts MPI if it has not been started.
using MakeMpiAdaptor = Result<std::unique_ptr<MpiLibrary>> (*)(void* library, const std::string& file);

// Return null in a build without that ABI's header.
MakeMpiAdaptor open_mpi_adaptor();
MakeMpiAdaptor mpich_adaptor();
MakeMpiAdaptor standard_mpi_adaptor();

}  // namespace fdl
