// This header derives the rendezvous of a job and its key from variables that the launcher sets to the same values on
// all ranks.
#pragma once

#include <string>

#include "base/status.h"
#include "bootstrap/launchers/launchers.h"
#include "bootstrap/launchers/variables.h"

namespace fdl {

// Returns facts of the job that are equal on all its ranks; the job key is derived from them. Empty if there are none.
using JobFacts = std::string (*)(const Variables&);
// Returns a rendezvous, or an error that states what to set.
using FindPlace = Result<std::string> (*)(const Variables&, const Identity&);

std::string no_facts(const Variables&);
std::string horovod_facts(const Variables&);
std::string torchrun_facts(const Variables&);
std::string open_mpi_facts(const Variables&);
std::string pmi_facts(const Variables&);
std::string mvapich_facts(const Variables&);
std::string flux_facts(const Variables&);
std::string slurm_facts(const Variables&);

Result<std::string> no_place(const Variables&, const Identity&);
Result<std::string> horovod_place(const Variables&, const Identity&);
Result<std::string> torchrun_place(const Variables&, const Identity&);
Result<std::string> open_mpi_place(const Variables&, const Identity&);
Result<std::string> pmi_place(const Variables&, const Identity&);
Result<std::string> mvapich_place(const Variables&, const Identity&);
Result<std::string> flux_place(const Variables&, const Identity&);
Result<std::string> slurm_place(const Variables&, const Identity&);

// Returns a range of ports directly after the launcher's own port; rank 0 takes the first free one.
std::string place_beside(const std::string& host, int port);

// Returns a key of 64 hexadecimal digits. It is only as secret as the facts are.
std::string derive_key(std::string_view facts);

}  // namespace fdl
