// This header counts the windows of one-sided communication that this process has. While there are any, other ranks may
// need its answers at any time, also while it waits in a collective of farandole, as they have them in one of MPI.
#pragma once

namespace fdl::mpi_preload {

void note_window();
void note_freed_window();
bool has_windows();

}  // namespace fdl::mpi_preload
