"""What the integrations of job systems share: the numbers of ranks, their worlds, their processes and their failures.

    placement      from the hosts of the workers to their ranks
    worlds         the variables that init() reads, the job's key, and the rendezvous address
    generations    which workers of an elastic job are the ranks of its next world
    process        one rank as a process of its own, which runs a pickled function
    agent          what a worker of a job system runs: it starts rank processes as the driver says
    job            the driver of a function on ranks that agents start; fixed_job and elastic_job decide its worlds
    channel        authenticated messages between driver and agents; server is the driver's end
    elastic_worlds the worlds of an elastic job
    failures       the first cause among the failures of several ranks

The modules import no job system.
"""
