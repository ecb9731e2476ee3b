"""The faults that planted_faults.py plants in the agreement on named operations and in the locked order."""

SESSIONS = "src/agree/session/"
ROOT_SESSION = SESSIONS + "root_session.cpp"
LOCKED_ORDER = "src/agree/order/locked_order"
SUBMISSIONS = SESSIONS + "submissions.h"
NEGOTIATION = "src/agree/negotiation/"
CACHE = "src/agree/wire/root_request_cache.cpp"
NAMED = "src/runtime/named/"
EXECUTOR = NAMED + "bucket_executor.cpp"
OPERATIONS = NAMED + "named_operations.cpp"

# What is wrong, the file, the words that stand there, and those that are planted.
FAULTS = [
    (
        "tensors with a priority that are held back are never started",
        ROOT_SESSION,
        "return backlog_bytes < Negotiator::kBytesAhead && state_->negotiator.holds_back();",
        "return backlog_bytes > Negotiator::kBytesAhead && state_->negotiator.holds_back();",
    ),
    (
        "a join ends operations that are held back",
        NEGOTIATION + "negotiator.cpp",
        "const bool waits = unit.is_join ? !held.empty() : is_prior",
        "const bool waits = unit.is_join ? false : is_prior",
    ),
    (
        "the root keeps the requests that the ranks submit to the order that it locks",
        ROOT_SESSION,
        "  negotiator.drop_pending();\n",
        "",
    ),
    (
        "the root takes requests that were sent before their rank has locked the order",
        ROOT_SESSION,
        "if (message.acknowledged < locked_by) {",
        "if (message.acknowledged < locked_by && from < 0) {",
    ),
    (
        "the order is locked while a rank has joined",
        ROOT_SESSION,
        "  repetitions.note(message.plan, negotiator.decided_without_all().empty());\n"
        "  if (!repetitions.may_lock() || !negotiator.all_take_part()) return;",
        "  repetitions.note(message.plan, true);\n  if (!repetitions.may_lock()) return;",
    ),
    (
        "the least count of an optimistic order is that of the last rank",
        ROOT_SESSION,
        "*counts = {std::min(counts->least, *frozen[rank]),",
        "*counts = {*frozen[rank],",
    ),
    (
        "a rank does not leave the order when another one does",
        LOCKED_ORDER + ".h",
        "    if (frozen) freeze();\n",
        "",
    ),
    (
        "a position is published although a tensor of it is missing",
        LOCKED_ORDER + ".cpp",
        "      if (missing_[bucket] > 0) return;\n",
        "      if (missing_[bucket] > 1) return;\n",
    ),
    (
        "a request of another shape takes the place in the order",
        LOCKED_ORDER + ".cpp",
        "if (tensor.present || !fits(tensor, request)) return std::nullopt;",
        "if (tensor.present || (!fits(tensor, request) && request.name != tensor.expected->name)) return std::nullopt;",
    ),
    (
        "results of positions that some ranks have not begun are returned",
        EXECUTOR,
        "is_real ? running_->go_on() : running_->withdraw();",
        "running_->go_on();",
    ),
    (
        "the operations of a position that was dropped are lost",
        EXECUTOR,
        "return order_.take_back(std::move(run.entries()));",
        "return;",
    ),
    (
        "operations of a communicator that failed do not wait for the decision",
        EXECUTOR,
        "  failure_.strand(run.entries());\n  failure_.report(run.status());\n}",
        "  operations_.complete(run.entries(), run.status());\n  failure_.report(run.status());\n}",
    ),
    (
        "a plan after the last round of an order does not wait for the end of that order",
        OPERATIONS,
        "!(deferred_.front().order_ended && submissions_.order() != nullptr)",
        "(deferred_.front().order_ended || submissions_.order() == nullptr)",
    ),
    (
        "a former meaning of a cached request is forgotten",
        CACHE,
        "if (const Request* former = cache_.at(*position)) former_[*position] = {*former, since_[*position], next};",
        "static_cast<void>(next);",
    ),
    (
        "a stall names ranks as missing that have submitted",
        NEGOTIATION + "stall.cpp",
        "    if (!done) stall.missing.push_back(rank);",
        "    if (!done || rank > 0) stall.missing.push_back(rank);",
    ),
    (
        "a stall is never reported",
        NEGOTIATION + "stall.cpp",
        "  if (limit <= 0) return {};",
        "  if (limit >= 0) return {};",
    ),
    (
        "ranks with different types are summed",
        NEGOTIATION + "rules.cpp",
        "[](const Request& request) { return request.dtype; }",
        "[](const Request& request) { return request.dtype == Dtype::float16; }",
    ),
    (
        "an error names the rank that agrees with the lowest one",
        NEGOTIATION + "rules.cpp",
        "    return Mismatch{lowest.rank, vote.rank, text_of(*lowest.request), text_of(*vote.request),",
        "    return Mismatch{lowest.rank, lowest.rank, text_of(*lowest.request), text_of(*vote.request),",
    ),
    (
        "the request of a late rank meets the next operation after the one that has failed without it",
        SUBMISSIONS,
        "    if (!late_.empty() && refuse(entry)) return;\n",
        "",
    ),
]
