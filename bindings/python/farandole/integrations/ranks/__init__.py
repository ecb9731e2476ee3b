"""What the integrations of job systems share: the numbers of ranks, their worlds, their processes and their failures.

    placement      from the hosts of the workers to their ranks
    worlds         the variables that init() reads, the job's key, and the rendezvous address
    generations    which workers of an elastic job are the ranks of its next world
    process        one rank as a process of its own, which runs a pickled function
    failures       the first cause among the failures of several ranks

The modules import no job system.
"""
