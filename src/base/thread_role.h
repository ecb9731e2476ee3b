// This header tells whether the calling thread is farandole's own progress thread or one of the program.
#pragma once

namespace fdl {

// Set by a progress thread at its start. A transport that only some threads may drive lets the progress thread wait,
// and reports an error to a thread of the program.
inline thread_local bool is_progress_thread = false;

}  // namespace fdl
