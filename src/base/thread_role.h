// This header tells whether the calling thread is one that farandole has started, or one of the program.
#pragma once

namespace fdl {

// Set by such a thread at its start. A transport that only some threads may drive lets the library's threads wait, and
// reports an error to a thread of the program. A device stays current in the library's threads between calls, because
// no framework depends on the current device there.
inline thread_local bool is_library_thread = false;

}  // namespace fdl
