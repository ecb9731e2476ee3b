// LauncherService passes one fact from rank 0 to all ranks of a job through the service that the launcher itself runs:
// PMIx (Open MPI, PRRTE, Slurm) or PMI-1 (MPICH's hydra, Intel MPI, Slurm). Ranks on several hosts so learn the
// coordinator's address and a fresh job key, without a variable that the user sets and without MPI_Init.
#pragma once

#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/config.h"
#include "base/status.h"
#include "bootstrap/launchers/variables.h"

namespace fdl {

class LauncherService {
 public:
  virtual ~LauncherService() = default;
  // Returns rank 0's value on every rank. Collective over all ranks that the launcher started; ranks other than 0
  // ignore their own `value`. The value is at most 900 bytes of printable characters without spaces, because PMI-1
  // separates words by spaces and limits values to 1024 bytes.
  virtual Result<std::string> share(int rank, const std::string& value, Deadline deadline) = 0;
  // Tells the launcher that this process ends. Does nothing in a forked child.
  virtual void leave() = 0;
};

// Returns the error of share() at its deadline. Launchers do not tell which ranks they wait for.
Status not_all_came(std::string_view service);

// Returns the service of this process: "pmix" or "pmi". It stays open until the process ends, because a launcher takes
// a process that has left its service for one that has ended, and the program may call MPI_Init later. The first call
// registers an exit handler that leaves the service.
Result<LauncherService*> launcher_service(std::string_view name, const Variables& variables, const Config& config);

// Returns whether launcher_service() can be expected to succeed. Sends nothing.
bool has_launcher_service(std::string_view name, const Variables& variables, const Config& config);

}  // namespace fdl
