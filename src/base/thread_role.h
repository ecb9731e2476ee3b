// This header tells whether the calling thread is one that farandole has started, or one of the program, and whether it
// drives.
#pragma once

#include <atomic>

namespace fdl {

// Set by such a thread at its start. A transport that only some threads may drive lets the library's threads wait, and
// reports an error to a thread of the program. A device stays current in the library's threads between calls, because
// no framework depends on the current device there.
inline thread_local bool is_library_thread = false;

// Set while the thread drives a world, which a thread of the program may do while it waits.
inline thread_local bool drives_progress = false;

// Whether the device may be busy with a kernel that waits for a peer, which waits for this thread. Such a thread must
// not wait for the device.
inline bool must_not_wait_for_devices() { return is_library_thread || drives_progress; }

// How many callbacks of handles run now, in all threads. A call that must not wait in a callback reads this first,
// because it is one load, and the variables of a thread cost a function call in a shared library.
inline std::atomic<int> running_callbacks{0};

}  // namespace fdl
