"""Elastic programs that the tests start: elastic_tasks.py NAME [ARGUMENTS]. Light: only `trains` needs a framework."""

import json
import os
import signal
import sys
import time

import farandole
import numpy as np
from farandole import elastic

WORKER = int(os.environ.get("FARANDOLE_WORKER", "0"))
LAST_STEP = 12


def report(**facts):
    print("SAYS " + json.dumps(dict(worker=WORKER, **facts)), flush=True)


def die(signal_number=signal.SIGKILL):
    os.kill(os.getpid(), signal_number)


def counts(trouble, last_step=LAST_STEP, **attributes):
    """Adds 1 for each rank and step; commits every other step. `trouble(state)` is called in each step."""
    farandole.init()
    state = elastic.ObjectState(step=0, total=0, sizes=[], **attributes)
    state.register_reset_callbacks([lambda: report(reset=[farandole.rank(), farandole.size()])])

    @elastic.run
    def go_on(state):
        report(enters=state.step, rank=farandole.rank(), size=farandole.size())
        while state.step < last_step:
            trouble(state)
            state.total += int(farandole.allreduce(np.ones(1, np.int64), name="one")[0])
            state.step += 1
            if state.step % 2 == 0:
                state.sizes.append(farandole.size())
                state.commit()
        return state.total

    total = go_on(state)
    everybodys = farandole.allgather(np.array([total], np.int64), name="totals")
    report(total=total, rank=farandole.rank(), equal=bool((everybodys == total).all()), sizes=state.sizes)
    return total


def one_dies(worker="1", step="5"):
    return counts(lambda state: die() if (WORKER, state.step) == (int(worker), int(step)) else None)


def some_are_terminated(*workers):
    """These processes get SIGTERM in step 5, and their launcher does not."""
    farandole.on_leave(lambda seconds: report(left=True))
    return counts(lambda state: die(signal.SIGTERM) if (str(WORKER) in workers and state.step == 5) else None)


def two_phases(moment):
    """Two calls of elastic functions. Process 1 dies in the second one (`later`), at the end of the first one, when
    rank 0 has returned from it (`between`), or not at all (`never`)."""
    farandole.init()

    @elastic.run
    def phase(state):
        while state.step < 6:
            if (moment, state.name, state.step, WORKER) == ("later", "second", 3, 1):
                die()
            farandole.allreduce(np.ones(1), name=state.name)
            state.step += 1
            state.commit()
        if moment == "between" and WORKER:
            time.sleep(0.5)  # rank 0 is in the next call
            if WORKER == 1:
                die()
            state.commit()  # fails
        return state.step

    steps = [phase(elastic.ObjectState(step=0, name=name)) for name in ("first", "second")]
    report(steps=steps)


def one_dies_and_its_replacement_is_slow():
    """Rank 1 dies in a step. Its replacement comes when the others have continued; they go on until it is there."""
    farandole.init()
    state = elastic.ObjectState(step=0, total=0, sizes=[])
    flag = os.environ["FARANDOLE_RUN_ID"]
    path = f"/tmp/farandole-continued-{flag}"

    @elastic.run
    def go_on(state):
        size = farandole.size()
        report(enters=state.step, rank=farandole.rank(), size=size)
        while 3 not in state.sizes[3:]:
            if (WORKER, state.step) == (1, 5):
                die()
            state.total += int(farandole.allreduce(np.ones(1, np.int64), name="one")[0])
            state.step += 1
            if state.step % 2 == 0:
                state.sizes.append(size)
                if size == 2:
                    with open(path, "w"):
                        pass
                    time.sleep(0.01)
                state.commit()

    if WORKER == 3:
        while not os.path.exists(path):
            time.sleep(0.01)
    go_on(state)
    if farandole.rank() == 0:
        os.unlink(path)
    report(total=state.total, rank=farandole.rank(), sizes=state.sizes)


def one_dies_and_its_child_lives():
    """The child has the connections of the rank, so that the others see no end of them."""

    def trouble(state):
        if WORKER == 1 and state.step == 5:
            if os.fork() == 0:
                os.setsid()
                time.sleep(600)
            die()

    counts(trouble)


def one_raises():
    def trouble(state):
        if WORKER == 1 and state.step == 5:
            raise KeyError("a fault of its own")

    counts(trouble)


def one_stops():
    def trouble(state):
        if WORKER == 1 and state.step == 5:
            report(stops=os.getpid())
            die(signal.SIGSTOP)

    counts(trouble)


def one_stops_and_another_dies():
    """The others learn of the rank that dies. No rank waits for the stopped one but the launcher."""

    def trouble(state):
        if WORKER == 1 and state.step == 5:
            report(stops=os.getpid())
            die(signal.SIGSTOP)
        if WORKER == 2 and state.step == 5:
            die()

    counts(trouble)


def many_die():
    """Rank 1 dies in a step, its replacement after it has joined, and then the next rank 0."""

    def trouble(state):
        if (WORKER, state.step) in ((1, 5), (0, 9)) or WORKER == 3:
            die()

    counts(trouble)


def one_dies_and_then_rank_0_as_it_sends_the_state():
    class Sent(elastic.ObjectState):
        def sync(self):
            if WORKER == 0 and self.step > 0 and farandole.size() == 2:
                die()
            super().sync()

    elastic.ObjectState = Sent
    one_dies()


def one_never_comes(which):
    """That worker does not come to init(). Rank 1 dies in a step, if it has come."""
    if WORKER == int(which):
        time.sleep(600)
    one_dies()


def the_replacement_has_nothing_to_do():
    """Rank 1 dies in a step, and its replacement ends with 0 before init(). Later rank 2 dies."""
    if WORKER == 3:
        sys.exit(0)
    counts(lambda state: die() if (WORKER, state.step) in ((1, 3), (2, 7)) else None)


def one_dies_while_they_meet():
    """Rank 1 dies in a step, and its replacement between the reply of the launcher and the rendezvous."""
    if WORKER == 2:
        farandole._native.World = lambda *_: die()
    one_dies()


def all_die():
    counts(lambda state: die() if state.step == 5 else None)


def none_begins():
    sys.exit(3 + WORKER)


def replaced_ones_fail():
    if WORKER > 2:
        sys.exit(9)
    one_dies()


def fails_without_a_loss():
    """The program raises HorovodInternalError itself, once, on all ranks."""
    attempts = []

    def trouble(state):
        if state.step == 5 and not attempts:
            attempts.append(1)
            raise farandole.errors.HorovodInternalError("not a number")

    counts(trouble)


def disagrees():
    def trouble(state):
        if state.step == 3:
            farandole.allreduce(np.ones(1 + farandole.rank(), np.int64), name="unlike")

    counts(trouble)


def one_finishes_early():
    farandole.init()
    if farandole.rank() == 0:
        return
    elastic.run(lambda state: farandole.allreduce(np.ones(1), name="alone"))(elastic.ObjectState())


def begins_again_by_itself():
    for turn in range(3):
        farandole.init()
        report(turn=turn, rank=farandole.rank(), sum=int(farandole.allreduce(np.array([farandole.rank()]))[0]))
        farandole.shutdown()


def write_number(folder, number):
    """As a user does, or as the kubelet does in the folder of a ConfigMap."""
    version = f"..version_{number}"
    mounted = os.path.islink(os.path.join(folder, "..data"))
    if mounted:
        os.mkdir(os.path.join(folder, version))
    with open(os.path.join(folder, version if mounted else "", "wanted"), "w") as file:
        file.write(number)
    if mounted:
        os.symlink(version, os.path.join(folder, "..data_tmp"))
        os.rename(os.path.join(folder, "..data_tmp"), os.path.join(folder, "..data"))


def grows(folder):
    """The target number of ranks changes while it runs; steps go on until that has happened."""
    farandole.init()
    state = elastic.ObjectState(step=0, sizes=[])

    @elastic.run
    def go_on(state):
        state.sizes = state.sizes + [farandole.size()]
        report(enters=state.step, rank=farandole.rank(), size=farandole.size(), sizes=state.sizes)
        while len(state.sizes) < 3:
            farandole.allreduce(np.ones(1), name="one")
            state.step += 1
            if farandole.rank() == 0 and state.step % 20 == 0:
                wanted = {1: "3", 2: "1"}[len(state.sizes)]
                if not os.path.exists(os.path.join(folder, f"..version_{wanted}")):
                    write_number(folder, wanted)
            time.sleep(0.002)
            state.check_host_updates()

    go_on(state)
    report(steps=state.step, sizes=state.sizes)


def shows_horovods_variables(folder):
    """As grows(). Reports Horovod's variables when the process starts and in each world."""

    def variables():
        names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME")
        return [os.environ.get(f"HOROVOD_{name}") for name in names]

    report(at_start=variables())
    enter = farandole.init

    def init(*arguments, **options):
        enter(*arguments, **options)
        facts = [farandole.rank(), farandole.size(), farandole.local_rank(), farandole.local_size(),
                 farandole.cross_rank(), farandole.cross_size()]  # fmt: skip
        report(world=[str(fact) for fact in facts], variables=variables())

    farandole.init = elastic.basics.init = init
    grows(folder)


def asks_for_slots(folder):
    """Runs until a third rank has joined, which a discovery script announces."""
    farandole.init()
    state = elastic.ObjectState(step=0, sizes=[])

    @elastic.run
    def go_on(state):
        state.sizes = state.sizes + [farandole.size()]
        while farandole.size() < 3:
            state.step += 1
            if farandole.rank() == 0 and state.step == 5:
                with open(os.path.join(folder, "slots"), "w") as file:
                    file.write("localhost:3")
            time.sleep(0.01)
            state.check_host_updates()

    go_on(state)
    report(sizes=state.sizes)


def spreads(folder, leaves="elsewhere"):
    """Adds 1 for each rank and step and commits each, until there is a file `stop`. Rank 0 prints every step."""
    farandole.on_leave(lambda seconds: report(left=state.step, seconds=seconds))
    farandole.init()
    state = elastic.ObjectState(step=0, total=0, sum_of_sizes=0)

    @elastic.run
    def go_on(state):
        report(
            enters=state.step,
            rank=farandole.rank(),
            size=farandole.size(),
            local=[farandole.local_rank(), farandole.local_size()],
            pid=os.getpid(),
        )
        is_over = False
        while not is_over:
            state.total += int(farandole.allreduce(np.ones(1, np.int64), name="one")[0])
            state.sum_of_sizes += farandole.size()
            state.step += 1
            stop = np.array([os.path.exists(os.path.join(folder, "stop"))], np.int64)
            is_over = bool(farandole.allreduce(stop, name="stop", op=farandole.MAX)[0])
            if farandole.rank() == 0:
                report(step=state.step, size=farandole.size())
            time.sleep(float(os.environ.get("STEP_S", 0.02)))
            state.commit()

    go_on(state)
    report(total=state.total, expected=state.sum_of_sizes, steps=state.step, size=farandole.size())
    if farandole.rank() > 0 or "FAILS_AT_THE_END" in os.environ:
        time.sleep(float(os.environ.get("LINGERS", 0)))
    sys.exit(int(os.environ.get("FAILS_AT_THE_END", 0)))


def spreads_and_ends_at_sigterm(folder):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    spreads(folder)


def spreads_and_kills_its_launcher_as_they_meet(folder):
    """Where KILLS is set: after the launcher has announced the second generation, and before its ranks have met."""
    enter, generations = farandole._native.World, []

    def world(*arguments):
        generations.append(arguments)
        if len(generations) == 2 and "KILLS" in os.environ:
            die_with_launcher()
        return enter(*arguments)

    farandole._native.World = world
    spreads(folder)


def spreads_and_one_joins_as_another_leaves(folder):
    """Where JOINS is set, the rank gets ready after the others were told that a rank leaves, before they meet."""
    told, join = os.path.join(folder, "told"), elastic._join_next_world

    def join_late():
        with open(told, "w"):
            pass
        time.sleep(1)
        join()

    elastic._join_next_world = join_late
    while "JOINS" in os.environ and not os.path.exists(told):
        time.sleep(0.01)
    spreads(folder)


def die_with_launcher():
    os.kill(os.getppid(), signal.SIGKILL)
    die()


def has_a_checkpoint(folder):
    """A program that is not elastic: each loss ends all ranks, and they restart from rank 0's file."""
    farandole.init()
    path, step = os.path.join(folder, "step"), 0
    if farandole.rank() == 0 and os.path.exists(path):
        with open(path) as file:
            step = int(file.read())
    step = int(farandole.broadcast(np.array([step]), 0)[0])
    report(begins=step, rank=farandole.rank(), size=farandole.size(), restart=os.environ["FARANDOLE_RESTART"])
    while step < 6:
        if step == 3 and farandole.rank() == 1 and os.environ["FARANDOLE_RESTART"] == "0":
            die()
        farandole.allreduce(np.ones(1), name="one")
        step += 1
        if farandole.rank() == 0:
            with open(path + ".new", "w") as file:
                file.write(str(step))
            os.replace(path + ".new", path)
        farandole.barrier()
    report(ends=step)


def leaves(folder):
    """A plain loop of one or several ranks, each of which leaves on its own."""
    steps = 0

    @farandole.on_leave
    def save(seconds):
        with open(os.path.join(folder, f"saved.{farandole.rank()}"), "w") as file:
            json.dump({"steps": steps, "seconds": seconds}, file)

    farandole.init()
    report(up=farandole.rank())
    while True:
        steps += 1
        time.sleep(0.01)
        farandole.leave_if_told()


def leaves_at_a_commit(folder):
    """An elastic job of one host that receives SIGTERM: no rank ends within a step."""
    farandole.init()
    state = elastic.ObjectState(step=0)
    farandole.on_leave(lambda seconds: report(left=state.step, rank=os.environ["FARANDOLE_WORKER"]))

    @elastic.run
    def go_on(state):
        while True:
            farandole.allreduce(np.ones(1), name="one")
            state.step += 1
            if state.step == 5:
                report(up=farandole.rank())
            time.sleep(0.01)
            state.commit()

    go_on(state)


def sum_of_ranks():
    farandole.init()
    return int(farandole.allreduce(np.array([1 + farandole.rank()]))[0])


def starts_a_job():
    from elastic_tasks import sum_of_ranks  # from a module, which other processes can import

    farandole.init()
    report(sums=farandole.run(sum_of_ranks, np=2))


def writes_nonsense(folder):
    farandole.init()
    with open(os.path.join(folder, "wanted"), "w") as file:
        file.write("many\n2")


def trains(overlap=""):
    """A model, its optimizer and a sampler; rank 1 dies and is replaced, then rank 2 dies and is not replaced."""
    import farandole.torch as hvd
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(1)
    hvd.init()
    torch.manual_seed(hvd.rank())
    samples = torch.arange(60)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), overlap_forward=bool(overlap))
    sampler = hvd.elastic.ElasticSampler(samples)
    loader = torch.utils.data.DataLoader(samples, batch_size=2, sampler=sampler)
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, batch=0, seen=[], losses=[])

    @hvd.elastic.run
    def train(state):
        report(enters=[state.epoch, state.batch], rank=hvd.rank(), size=hvd.size(), momentum=len(optimizer.state))
        while state.epoch < 3:
            state.sampler.set_epoch(state.epoch)
            for number, batch in enumerate(loader):
                if (WORKER, state.epoch, state.batch) in ((1, 0, 5), (2, 1, 7)):
                    die()
                x = torch.stack([batch / 60, (batch / 60) ** 2, torch.ones(len(batch))], 1)
                optimizer.zero_grad()
                loss = F.mse_loss(state.model(x), (2 * batch / 60 - 1).unsqueeze(1))
                loss.backward()
                if (WORKER, state.epoch, state.batch) == (0, 2, 3):
                    report(in_flight=optimizer._communication.is_in_flight())
                optimizer.step()
                state.sampler.record_batch(number, len(batch))
                state.seen = state.seen + [(state.epoch, int(i)) for i in hvd.allgather(batch, name="batch")]
                state.losses = state.losses + [hvd.allreduce(loss.detach(), name="loss").item()]
                state.batch += 1
                if state.batch % 2 == 0:
                    state.commit()
            state.epoch += 1
            state.batch = 0

    train(state)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    everybodys = hvd.allgather(weights.unsqueeze(0), name="weights")
    report(equal=bool((everybodys == weights).all()), size=hvd.size(), seen=state.seen, losses=state.losses,
        weights=weights.tolist())  # fmt: skip


def epoch_ends_with_a_loss(form):
    """Each batch is committed. Rank 1 dies after the last batch of epoch 0, before the epoch is committed.

    `form`: whether set_epoch() stands before the loop over batches or after it, as in programs for Horovod.
    """
    import farandole.torch as hvd
    import torch

    hvd.init()
    samples = torch.arange(12)
    sampler = hvd.elastic.ElasticSampler(samples)
    loader = torch.utils.data.DataLoader(samples, batch_size=2, sampler=sampler)
    state = hvd.elastic.TorchState(sampler=sampler, epoch=0, seen=[], ended=[])

    @hvd.elastic.run
    def train(state):
        while state.epoch < 2:
            if form == "before":
                state.sampler.set_epoch(state.epoch)
            for number, batch in enumerate(loader):
                state.sampler.record_batch(number, len(batch))
                state.seen = state.seen + [(state.epoch, int(i)) for i in hvd.allgather(batch, name="batch")]
                state.commit()
            if (WORKER, state.epoch) == (1, 0):
                die()
            hvd.allreduce(torch.ones(1), name="validation")
            state.ended = state.ended + [state.epoch]
            if form == "after":
                state.sampler.set_epoch(state.epoch)
            state.epoch += 1
            state.commit()

    train(state)
    report(seen=state.seen, ended=state.ended)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
