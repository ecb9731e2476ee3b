"""Plants faults in the control plane, one at a time, and counts how many simulated jobs it takes until one is seen.

`bash tests/simulate.sh --planted` runs it. A fault is a change of some words in a copy of one source, which is compiled
and linked before the others; of a header, all sources that include it are compiled. A fault that no job shows fails the
run: the simulation has lost a check, or an event. Those of the agreement are in planted_agreement.py.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import planted_agreement

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("SIMULATION_BUILD", "build")
COPY = BUILD / "planted"
TIMEOUT_S = 1800
COORDINATOR = "src/bootstrap/coordinator/"
CLIENT = "src/bootstrap/client/client_protocol.cpp"
CLIENT_SET_UPS = "src/bootstrap/client/client_protocol_set_ups.cpp"
SURVIVORS = "src/bootstrap/recovery/survivors.cpp"
SURVIVOR_CALLS = "src/bootstrap/recovery/survivor_calls.cpp"
GENERATIONS = "src/cli/elastic/generations.cpp"
FAILURES = COORDINATOR + "job_membership_failures.cpp"
DEPARTURES = COORDINATOR + "job_membership_departures.cpp"
MEMBERSHIP = COORDINATOR + "job_membership.cpp"
ROUNDS = COORDINATOR + "coordinator_rounds.cpp"

# What is wrong, the file, the words that stand there, and those that are planted.
CONTROL_PLANE = [
    (
        "the rank that serves the coordinator gets its messages first",
        MEMBERSHIP,
        "return one.peer != first.peer;",
        "return one.peer == first.peer;",
    ),
    (
        "the messages of a connection that has ended do not count",
        ROUNDS,
        "  for (CoordinatorMessage& message : messages) {\n    if (!handle",
        "  if (end == End::closed) return connections_.close(peer);\n"
        "  for (CoordinatorMessage& message : messages) {\n    if (!handle",
    ),
    (
        "a member is dropped like a stranger",
        ROUNDS,
        "  if (connection.is_member) strangers_.erase(peer);\n",
        "",
    ),
    (
        "connections are closed before the last messages of the round",
        ROUNDS,
        "    std::vector<Peer> reached;\n",
        "    for (const Peer peer : hang_ups) connections_.close(peer);\n    std::vector<Peer> reached;\n",
    ),
    (
        "a rank is lost as soon as it is silent",
        FAILURES,
        "member.pong_until = Deadline::at_ns(now_ns + seconds_to_ns(options_.lost_after_s));",
        "member.pong_until = Deadline::at_ns(now_ns + seconds_to_ns(options_.silence_warning_s));",
    ),
    (
        "a pause of the coordinator counts as silence of the ranks",
        FAILURES,
        "|| late_ns < kCoordinatorPause_ns) return;",
        "|| late_ns >= 0) return;",
    ),
    (
        "a pong does not end the wait for it",
        FAILURES,
        "if (member.last_pong == member.last_ping) {\n    end_wait_for_pong(member);",
        "if (member.last_pong == member.last_ping) {\n    end_silence(member, now_ns);",
    ),
    (
        "a reported rank is not pinged",
        FAILURES,
        "  ping(*member, now_ns);\n  failure.culprit",
        "  failure.culprit",
    ),
    (
        "the loss of a rank that is asked about a set-up decides nothing",
        FAILURES,
        "one.culprit == rank || (one.query && one.query->unanswered.contains(rank))",
        "one.culprit == rank",
    ),
    (
        "a set-up that all ranks have begun is not decided",
        FAILURES,
        "  examine(failure, now_ns);\n  decide_against_alive(now_ns);\n",
        "  decide_against_alive(now_ns);\n",
    ),
    (
        "ranks of a set-up that name each other are not decided",
        FAILURES,
        "  if (failure.culprit < 0) return await_culprit(failure, why, now_ns);\n",
        "",
    ),
    (
        "a rank has begun no set-up",
        CLIENT,
        "has_begun(message.key) ? 1 : 0",
        "0",
    ),
    (
        "the loss of a reported rank decides nothing",
        DEPARTURES,
        "  decide_reports_of(member.hello.rank, end_with_reason(member));\n",
        "",
    ),
    (
        "a lost rank is not told why",
        DEPARTURES,
        "  for (const int rank : lost_by_silence_) add(*member_at(rank));\n",
        "",
    ),
    (
        "a rank reads of the losses that followed its own",
        CLIENT,
        "    if (rank == hello_.rank) break;\n",
        "",
    ),
    (
        "the end of a connection is no loss",
        DEPARTURES,
        "lose(*member, kConnectionEnded);",
        "static_cast<void>(member->state);",
    ),
    (
        "a goodbye is not confirmed",
        DEPARTURES,
        "  send(member.peer, {.kind = Kind::left, .rank = member.hello.rank, .why = member.end});\n",
        "",
    ),
    (
        "open requests of a rank that has gone stay",
        DEPARTURES,
        "  std::erase_if(many_fetches_, [&](const auto& one) { return one.first.first == member.peer; });\n",
        "",
    ),
    (
        "readers that have gone stay in the store",
        "src/bootstrap/rendezvous/store.cpp",
        "void Store::forget_all_of(uint64_t peer) {",
        "void Store::forget_all_of(uint64_t peer) {\n  if (peer > 0) return;",
    ),
    (
        "a rank that connects late does not learn of earlier losses",
        MEMBERSHIP,
        "  send_earlier_events(peer);\n",
        "",
    ),
    (
        "a rank that gives up after a pause of the coordinator is called lost",
        FAILURES,
        "if (!is_behind_a_pause) return lose",
        "if (is_behind_a_pause || !is_behind_a_pause) return lose",
    ),
    (
        "a set-up is not told of losses",
        CLIENT,
        "if (watch && std::ranges::binary_search(watch->ranks(), message.rank)) watch->fire(message.why, moment);",
        "static_cast<void>(moment);",
    ),
    (
        "a set-up that begins after losses does not fail",
        CLIENT_SET_UPS,
        "  if (gone != nullptr && !(is_decided && decided->second.number < gone->number)) {\n",
        "  if (false) {\n",
    ),
    (
        "a set-up that begins after losses fails with that of the lowest rank, not with the first one",
        CLIENT,
        "return std::pair(news.why.code() != Code::peer_lost, news.number);",
        "return std::pair(news.why.code() != Code::peer_lost, news.number * 0);",
    ),
    (
        "a set-up that begins after losses fails with the end of the coordinator, not with the first loss",
        CLIENT_SET_UPS,
        "  const auto decided = decided_.find(watch->comm());",
        "  if (!is_open()) watch->fire(coordinator_lost_, now_ns);\n"
        "  const auto decided = decided_.find(watch->comm());",
    ),
    (
        "a decision does not end a set-up",
        CLIENT,
        "if (watch && watch->comm() == message.key) watch->decide(message.why, now_ns);",
        "",
    ),
    (
        "a rank that has reported does not look at the coordinator",
        CLIENT_SET_UPS,
        "bool any = !undecided_.empty() || !replies_.empty();",
        "bool any = false;",
    ),
    (
        "an answer of the coordinator does not end its silence",
        "src/bootstrap/client/silence.h",
        "    unanswered_ = false;\n    warned_ = false;\n    silent_ns_ = 0;",
        "    warned_ = false;",
    ),
    (
        "a coordinator that does not answer is never given up",
        CLIENT,
        "      is_silent_ = true;\n",
        "",
    ),
    (
        "a rank that was lost blames the coordinator",
        CLIENT,
        "if (const auto mine = gone_.find(hello_.rank); mine != gone_.end()) {",
        "if (const auto mine = gone_.find(-1); mine != gone_.end()) {",
    ),
    (
        "a survivor waits for a rank that has ended",
        SURVIVORS,
        "  gone_.insert(rank);\n  decide_if_complete(now_ns);",
        "  decide_if_complete(now_ns);",
    ),
    (
        "a survivor does not tell the next serving rank that it is here",
        SURVIVORS,
        "if (std::exchange(announced_, now) == now) return;",
        "if (std::exchange(announced_, now) != std::pair<uint64_t, int>{0, -1}) return;",
    ),
    (
        "a survivor takes its own loss for an error of the others",
        SURVIVORS,
        "  if (message.gone.contains(options_.me)) return fail(excluded());\n  add_gone",
        "  add_gone",
    ),
    (
        "a rank that cannot be reached is never lost",
        SURVIVOR_CALLS,
        "now_ns - peer.unreached_since_ns >= lost_after_ns_;",
        "now_ns - peer.unreached_since_ns < 0;",
    ),
    (
        "a replacement that has not received the state counts as a holder",
        GENERATIONS,
        "lacks_state && found->second.joined > state_since_;",
        "lacks_state && found->second.joined < 0;",
    ),
]
FAULTS = CONTROL_PLANE + planted_agreement.FAULTS


def run(command: list[str], **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, text=True, capture_output=True, check=False, **more)


# The protocol: each of these sources is an object of its own here, and linked before the libraries. Functions of a
# library that call each other are compiled for each other, so those that call a changed one are in the list too.
PROTOCOL = [
    CLIENT,
    MEMBERSHIP,
    FAILURES,
    DEPARTURES,
    ROUNDS,
    COORDINATOR + "job_membership_queries.cpp",
    "src/bootstrap/rendezvous/store.cpp",
    SURVIVORS,
    SURVIVOR_CALLS,
    GENERATIONS,
]
AGREEMENT = [
    *[f"src/agree/negotiation/{one}.cpp" for one in ("negotiator", "rules", "stall", "waiting")],
    "src/agree/order/locked_order.cpp",
    planted_agreement.ROOT_SESSION,
    planted_agreement.CACHE,
    planted_agreement.EXECUTOR,
    planted_agreement.OPERATIONS,
    planted_agreement.NAMED + "plan_exchange.cpp",
    *[
        f"{planted_agreement.NAMED}order/{one}.cpp"
        for one in ("order_follower", "order_timeout", "published_readiness")
    ],
]
# The sources that a change of a header concerns.
USERS = {
    "src/bootstrap/client/silence.h": [CLIENT],
    planted_agreement.LOCKED_ORDER + ".h": AGREEMENT[4:5] + AGREEMENT[7:],
    planted_agreement.SUBMISSIONS: AGREEMENT[7:],
}


def is_agreement(name: str) -> bool:
    return name.startswith(("src/agree/", planted_agreement.NAMED))


def compile_flags() -> list[str]:
    """Returns the command that compiles a source of the simulation, without its files."""
    commands = json.loads((BUILD / "compile_commands.json").read_text())
    command = next(one["command"] for one in commands if one["file"].endswith("tests/simulation/checks.cpp"))
    words = shlex.split(command)
    words = words[words.index(next(word for word in words if word.endswith("++"))) :]  # c++, g++, clang++
    kept = [word for word in words if word not in ("-c", "-o", "-Werror") and not word.endswith((".o", ".cpp"))]
    return [kept[0], "-I", str(COPY / "src"), *kept[1:]]


def compile_source(source: Path, target: Path) -> str:
    done = run([*compile_flags(), "-c", str(source), "-o", str(target)])
    return "" if done.returncode == 0 else done.stderr[-1000:]


def build(name: str, whole: str) -> str:
    """Builds the simulation with this content of a source. Returns the compiler's words if it refuses."""
    changed = COPY / name
    changed.parent.mkdir(parents=True, exist_ok=True)
    changed.write_text(whole)
    objects = {one: object_of(one) for one in [*PROTOCOL, *AGREEMENT]}
    for number, user in enumerate(USERS.get(name, [name])):
        objects[user] = COPY / f"changed{number}.o"
        if words := compile_source(changed if user == name else ROOT / user, objects[user]):
            return words
    changed.unlink()
    return link(list(objects.values()))


def object_of(source: str) -> Path:
    return COPY / (Path(source).stem + ".o")


def link(objects: list[Path]) -> str:
    """Links as the build does, with these objects first: what comes first is taken."""
    commands = run(["ninja", "-C", str(BUILD), "-t", "commands", "bin/simulation_test"]).stdout.splitlines()
    words = [word for word in shlex.split(commands[-1]) if word not in (":", "&&")]
    words[words.index("-o") + 1] = str(COPY / "simulation")
    first = next(index for index, word in enumerate(words) if word.endswith(".o"))
    words[first:first] = ["-Wl,--allow-multiple-definition", *map(str, objects)]
    done = run(words, cwd=BUILD)
    return "" if done.returncode == 0 else done.stderr[-1000:]


def simulate(seeds: int, jobs: str) -> tuple[int, str]:
    """Returns the first seed that fails, or 0, and what was violated."""
    variables = {"SIMULATION_SEEDS": str(seeds), "SIMULATION_FAILURES": "1", "PATH": "/usr/bin:/bin"}
    command = [str(COPY / "simulation"), f"--gtest_filter={jobs}.*WhateverHappens"]
    try:
        done = run(command, env=variables, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return 0, f"no job showed it within {TIMEOUT_S} s"
    if done.returncode == 0:
        return 0, ""
    seed = re.search(r"^seed (\d+)$", done.stdout, re.MULTILINE)
    what = re.search(r"VIOLATION  (.*)", done.stdout)
    return int(seed[1]) if seed else -1, what[1] if what else f"exit code {done.returncode}"


def jobs_for(name: str) -> list[str]:
    return ["SimulatedNamedJobs"] if is_agreement(name) else ["SimulatedJobs", "SimulatedLateJobs"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=30000, help="at most so many jobs for each fault")
    parser.add_argument("--only", default="", help="only faults whose description contains these words")
    options = parser.parse_args()
    COPY.mkdir(exist_ok=True)
    for source in [*PROTOCOL, *AGREEMENT]:
        if words := compile_source(ROOT / source, object_of(source)):
            sys.exit(words)
    if words := build(MEMBERSHIP, (ROOT / MEMBERSHIP).read_text()):
        sys.exit(words)
    for jobs in ("SimulatedJobs", "SimulatedLateJobs", "SimulatedNamedJobs"):
        seed, violation = simulate(min(options.seeds, 2000), jobs)
        if seed != 0:
            sys.exit(f"without a planted fault, seed {seed} of {jobs} fails: {violation}")
    unseen = 0
    for what, name, there, planted in FAULTS:
        if options.only not in what:
            continue
        whole = (ROOT / name).read_text()
        if whole.count(there) != 1:
            print(f"   stale  {what}: {name} does not have these words once", flush=True)
            unseen += 1
            continue
        words = build(name, whole.replace(there, planted))
        seed, violation = -1, words
        for jobs in [] if words else jobs_for(name):
            seed, violation = simulate(options.seeds, jobs)
            if seed != 0:
                violation = f"{jobs}: {violation}"
                break
        unseen += 1 if seed == 0 or words else 0
        shown = "unseen" if seed == 0 else "crash" if seed < 0 else seed
        print(f"{shown:>8}  {what}: {violation}", flush=True)
    print(f"{len(FAULTS)} faults, {unseen} not seen within {options.seeds} jobs")
    return 1 if unseen else 0


if __name__ == "__main__":
    sys.exit(main())
