// This header tells on which processor a thread runs, and moves it to another one.
#pragma once

namespace fdl {

// The number of the processor on which the caller runs.
int this_processor();

// Moves the calling thread to another processor that its affinity allows; the affinity is the same afterwards. False if
// there is none, or the kernel refuses. It costs some ten microseconds. For a thread that shares a processor with the
// one that it waits for: the kernel may leave both there for seconds although another processor is free, because a
// thread that yields looks idle to it, and one that is woken is put beside its waker.
bool leave_processor();

}  // namespace fdl
