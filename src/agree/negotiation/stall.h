// Stall: who waits for whom, since when, and for what the missing ranks wait instead.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "agree/negotiation/negotiator.h"
#include "agree/negotiation/waiting.h"

namespace fdl {

// What has waited for options.stall_warning_ns since it was submitted or last reported, one stall for all names that
// wait for the same ranks. Names that have waited half as long are told along with them, lest each makes a line of its
// own a moment later. Marks them as reported.
std::vector<Stall> find_stalls(Waiting& waiting, const NegotiatorOptions& options, int64_t now_ns);

// Names that have waited for options.stall_shutdown_ns, in order of submission.
std::vector<std::string> find_overdue(const Waiting& waiting, const NegotiatorOptions& options, int64_t now_ns);

// When either of them may next have something to say; INT64_MAX for never.
int64_t next_stall_ns(const Waiting& waiting, const NegotiatorOptions& options);

// The facts of one pending name, as a stall that is not marked as reported.
Stall stall_of(const Waiting& waiting, const Pending& pending, const NegotiatorOptions& options, int64_t now_ns);

}  // namespace fdl
