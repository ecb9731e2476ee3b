// The stall functions report names that wait for missing ranks, and what those ranks wait for instead.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "agree/negotiation/negotiator.h"
#include "agree/negotiation/waiting.h"

namespace fdl {

// Finds names that have waited for options.stall_warning_ns since they were submitted or last reported. Names that wait
// for the same ranks form one stall. A due stall also takes in names that have waited half as long, which would
// otherwise be reported on a line of their own soon after. Marks all of them as reported.
std::vector<Stall> find_stalls(Waiting& waiting, const NegotiatorOptions& options, int64_t now_ns);

// Names that have waited for options.stall_shutdown_ns, in the order of submission.
std::vector<std::string> find_overdue(const Waiting& waiting, const NegotiatorOptions& options, int64_t now_ns);

// The earliest time at which either function may return something; INT64_MAX for never.
int64_t next_stall_ns(const Waiting& waiting, const NegotiatorOptions& options);

// The first `most` pending names in the order of submission, each as a stall of its own without a text. Nothing is
// marked as reported.
std::vector<Stall> list_waiting(const Waiting& waiting, const NegotiatorOptions& options, std::size_t most,
                                int64_t now_ns);

// Describes one pending name, without marking it as reported.
Stall stall_of(const Waiting& waiting, const Pending& pending, const NegotiatorOptions& options, int64_t now_ns);

}  // namespace fdl
