/* farandole.h: the C API of farandole, a collective-communication library. The only ABI of the library.
 *
 * Conventions
 *
 *  1. Errors. Every function that can fail returns fdl_result; FDL_OK is 0. The whole story of the last failure in this
 *     thread is fdl_last_error(): code, one sentence (who, what, what to do), culprit, operation, phase, group. Ranks
 *     that did not cause a failure get the same culprit and sentence as everybody. Output arguments are written only on
 *     FDL_OK.
 *  2. What a failure leaves. FDL_INVALID_ARGUMENT, FDL_UNSUPPORTED and the FDL_MISMATCH of a named operation: nothing
 *     happened, everything stays usable. Any other failure of a collective ends its communicator (for named operations:
 *     its group) and says so, on all its ranks alike; the world lives on, and a new group of the survivors can be made.
 *     Ordered ranks that called different things learn of it when they meet, too late to undo: FDL_MISMATCH ends those.
 *  3. Objects are opaque. One function makes each, one ends it; ending NULL does nothing. What was left when its world
 *     is destroyed answers FDL_SHUT_DOWN and is still to be destroyed; a communicator outlives its requests.
 *  4. Option structs begin with struct_size and are filled by fdl_..._options_init, so that they can grow. A NULL
 *     pointer means defaults. What an option can say, the environment can say; the option wins. `farandole config`
 *     lists all.
 *  5. Buffers stay the caller's; the library keeps no pointer after completion. Sizes are bytes, counts are elements,
 *     both size_t; shapes are int64_t; durations are nanoseconds in int64_t fields named ..._ns (0: as configured).
 *     input == output means in place. Input and output that overlap in another way are FDL_INVALID_ARGUMENT; a rank's
 *     own part of the larger buffer (allgather, gather: input; reduce_scatter, scatter: output) is in place too.
 *  6. Threads. Any thread may use a world and a group and submit named operations; a communicator (and its requests)
 *     belongs to one thread at a time; a handle may be waited for by any number of threads. No callback runs under a
 *     lock. EINTR is never an error. After fork() without exec the child may not use a world: FDL_NOT_INITIALIZED.
 *  7. The library changes no global state of the process: no signal handler, no atexit, no locale, no environment, no
 *     standard output. Logging goes through one sink (standard error by default) that fdl_log_sink replaces.
 *  8. Determinism. A result is the same bits on every rank, and the same bits again for the same inputs, ranks and
 *     hosts: the order of reduction is fixed by rank, not by arrival. With the option `deterministic` the bits do not
 * depend on transport, algorithm, fusion or slice size either: each element is summed by one owner in rank order. Its
 * price is more connections and, over messages, as many steps as there are ranks.
 */
#ifndef FARANDOLE_FARANDOLE_H_
#define FARANDOLE_FARANDOLE_H_

#include <stddef.h>
#include <stdint.h>

#define FDL_VERSION_MAJOR 0
#define FDL_VERSION_MINOR 1
#define FDL_VERSION_PATCH 0

#if defined(FDL_BUILDING)
#define FDL_API __attribute__((visibility("default")))
#else
#define FDL_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Results and errors --------------------------------------------------------------------------------------------
 */

/* Numbers never change their meaning; new ones are appended. */
typedef enum fdl_result {
  FDL_OK = 0,
  FDL_INVALID_ARGUMENT = 1, /* the caller erred; nothing happened */
  FDL_MISMATCH = 2,         /* ranks disagree; nothing happened, the group lives on */
  FDL_PEER_LOST = 3,        /* a rank died, stopped or cannot be reached */
  FDL_TIMEOUT = 4,          /* a deadline passed; the text names who is missing */
  FDL_ABORTED = 5,          /* fdl_comm_abort, here or elsewhere */
  FDL_SHUT_DOWN = 6,        /* this world, or a rank that is needed, has been shut down */
  FDL_NOT_INITIALIZED = 7,  /* no world, or a world inherited through fork() */
  FDL_UNSUPPORTED = 8,
  FDL_RESOURCE = 9, /* memory, descriptors, files */
  FDL_TRANSPORT = 10,
  FDL_AUTHENTICATION = 11, /* the job keys differ */
  FDL_INTERNAL = 12        /* a bug: please report */
} fdl_result;

typedef struct fdl_error {
  fdl_result code;
  int culprit_rank; /* in the world; -1 where nobody in particular is at fault */
  const char* text; /* one sentence: who, what, what to do. Never NULL, nor are the others; empty if unknown */
  const char* culprit_host;
  const char* operation; /* "allreduce 'grad_7'" */
  const char* phase;     /* "ring, step 9: recv_reduce chunk 3 from rank 2" */
  const char* group;
} fdl_error;

/* The last failure in this thread. Valid until the next farandole call in this thread fails. */
FDL_API const fdl_error* fdl_last_error(void);
FDL_API const char* fdl_result_name(fdl_result result); /* "PEER_LOST" */
FDL_API const char* fdl_version(void);                  /* "0.1.0" */

/* ---- Types and operations ------------------------------------------------------------------------------------------
 */

typedef enum fdl_dtype {
  FDL_UINT8 = 0,
  FDL_INT8 = 1,
  FDL_UINT16 = 2,
  FDL_INT16 = 3,
  FDL_UINT32 = 4,
  FDL_INT32 = 5,
  FDL_UINT64 = 6,
  FDL_INT64 = 7,
  FDL_FLOAT16 = 8,
  FDL_BFLOAT16 = 9,
  FDL_FLOAT32 = 10,
  FDL_FLOAT64 = 11,
  FDL_BOOL = 12,
  FDL_FLOAT8_E4M3 = 13, /* OCP, the "fn" form: no infinities */
  FDL_FLOAT8_E5M2 = 14
} fdl_dtype;

FDL_API size_t fdl_dtype_size(fdl_dtype dtype);      /* bytes of one element; 0 for what is no dtype */
FDL_API const char* fdl_dtype_name(fdl_dtype dtype); /* "float32" */

/* 16-bit and 8-bit floats are computed in float32 and rounded to nearest even. Integer sums and products wrap. Bitwise
 * operations take integers, logical ones bool. Average is a sum divided by the number of ranks (integers: toward zero).
 */
typedef enum fdl_reduce_op {
  FDL_SUM = 0,
  FDL_AVERAGE = 1,
  FDL_MIN = 2,
  FDL_MAX = 3,
  FDL_PRODUCT = 4,
  FDL_BIT_AND = 5,
  FDL_BIT_OR = 6,
  FDL_BIT_XOR = 7,
  FDL_LOGICAL_AND = 8,
  FDL_LOGICAL_OR = 9,
  FDL_LOGICAL_XOR = 10,
  FDL_USER = 11,  /* with fdl_call_options.user_op */
  FDL_ADASUM = 12 /* named allreduce of floats, 2^n ranks: adds what is orthogonal, averages what is parallel */
} fdl_reduce_op;

/* target[i] = fold(source[i], target[i]) for count elements; `source` comes from the lower rank. Must not call
 * farandole. */
typedef void (*fdl_user_function)(const void* source, void* target, size_t count, fdl_dtype dtype, void* context);
typedef struct fdl_op fdl_op;
/* Makes a reduction of the caller's own. `commutative` 0: the sources are folded in rank order. */
FDL_API fdl_result fdl_op_create(fdl_user_function function, void* context, int commutative, fdl_op** op);
/* Ends the reduction. No call that uses it may be in flight. */
FDL_API void fdl_op_destroy(fdl_op* op);

/* ---- Library -------------------------------------------------------------------------------------------------------
 */

typedef enum fdl_log_level {
  FDL_LOG_TRACE = 0,
  FDL_LOG_DEBUG = 1,
  FDL_LOG_INFO = 2,
  FDL_LOG_WARNING = 3,
  FDL_LOG_ERROR = 4,
  FDL_LOG_OFF = 6
} fdl_log_level;
typedef void (*fdl_log_function)(fdl_log_level level, const char* line, void* context);
/* Replaces the sink; NULL restores standard error. May be called from any thread; the sink is too. */
FDL_API void fdl_log_sink(fdl_log_function function, void* context);

/* The table of knobs with the values in force and where each came from, as text. Copies at most `capacity` bytes with a
 * final 0 into `text` and returns how many the whole needs. A value that does not parse is in the text's first line. */
FDL_API size_t fdl_config_describe(char* text, size_t capacity);
/* By which algorithm so many ranks would run a collective of this size over TCP, why (by the tuning table in force, or
 * by the model), and its steps: as fdl_config_describe. */
FDL_API size_t fdl_explain(const char* collective, int ranks, size_t bytes, const char* algorithm, char* text,
                           size_t capacity);

/* ---- World: all ranks of a job, as this rank knows them -------------------------------------------------------------
 */

typedef struct fdl_world fdl_world;

typedef struct fdl_world_options {
  size_t struct_size;
  int rank; /* -1: from the environment (then size, local_* and rendezvous too) */
  int size;
  int local_rank; /* -1: found out */
  int local_size;
  const char* rendezvous; /* "tcp://host:port", "file:///path", "memory://name"; NULL: from the environment */
  const char* job_key;    /* NULL: from the environment */
  /* Knobs by name, as `farandole config` lists them: "transport", "shm", "slice_bytes", "1M", ... name, value, name,
   * value; option_count counts pairs. */
  const char* const* options;
  size_t option_count;
} fdl_world_options;

/* Fills in the defaults and struct_size. */
FDL_API void fdl_world_options_init(fdl_world_options* options);

/* Meets the other ranks. Blocks until all are there, or fails with FDL_TIMEOUT and names the missing. Several worlds
 * may live in one process (ranks as threads with rank, size and "memory://name" given). */
FDL_API fdl_result fdl_world_create(const fdl_world_options* options, fdl_world** world);
/* Says good-bye. Operations in flight complete with FDL_SHUT_DOWN; ends groups and communicators that were left. */
FDL_API void fdl_world_destroy(fdl_world* world);

typedef struct fdl_world_facts {
  size_t struct_size;
  int rank, size;
  int local_rank, local_size; /* among the ranks of this host */
  int cross_rank, cross_size; /* among the ranks with this local rank, one a host */
  const char* host;           /* strings live as long as the world */
  const char* source;         /* which launcher told: "torchrun" */
  const char* rendezvous;
  const char* transports; /* "shm", "tcp", "shm+tcp": what joins the ranks of this world */
  int is_homogeneous;     /* 1 where all hosts have as many ranks */
} fdl_world_facts;
FDL_API fdl_result fdl_world_info(fdl_world* world, fdl_world_facts* facts); /* facts->struct_size must be set */

typedef struct fdl_counters {
  size_t struct_size;
  uint64_t control_messages;  /* sent by this rank for agreement */
  uint64_t wakeups;           /* of this rank's background thread */
  uint64_t named_operations;  /* completed */
  uint64_t buckets;           /* collectives that carried them */
  uint64_t strangers_refused; /* connections without the job's key, where this rank serves the rendezvous */
  uint64_t locked_steps;      /* of named operations that ran in a locked order: no message was sent for them */
  uint64_t lock_epochs;       /* how often an order was locked */
} fdl_counters;
FDL_API fdl_result fdl_metrics(fdl_world* world, fdl_counters* counters); /* counters->struct_size must be set */

/* Writes what becomes of each named operation to a file that chrome://tracing and Perfetto show, until it is stopped or
 * the world is destroyed: who was ready when, queueing, packing, the collective. Rank 0 writes `path`; where it
 * contains %r, every rank writes a file of its own with its rank in that place. All ranks may call it, those that write
 * nothing too. The file is a whole JSON array after every write, also while operations go on. mark_cycles: also marks
 * when plans come. FARANDOLE_TIMELINE does the same from the start. A file that cannot be made is FDL_RESOURCE, one
 * timeline at a time FDL_INVALID_ARGUMENT. */
FDL_API fdl_result fdl_timeline_start(fdl_world* world, const char* path, int mark_cycles);
FDL_API fdl_result fdl_timeline_stop(fdl_world* world); /* FDL_RESOURCE: not all of it could be written */

/* ---- Groups: sets of ranks ------------------------------------------------------------------------------------------
 */

typedef struct fdl_group fdl_group;

FDL_API fdl_group* fdl_group_all(fdl_world* world); /* the world's own; never to be destroyed */
/* Collective over `ranks` (world ranks, each once; their order is the order of ranks in the group). Others need not
 * call. Groups of the same ranks must be made in the same order by all their members. */
FDL_API fdl_result fdl_group_create(fdl_world* world, const int* ranks, size_t count, fdl_group** group);
/* Collective over `group`: one new group a color, ranks ordered by (key, rank). A negative color: none (*part = NULL).
 */
FDL_API fdl_result fdl_group_split(fdl_group* group, int color, int key, fdl_group** part);
FDL_API int fdl_group_rank(const fdl_group* group);                 /* this rank's number in the group */
FDL_API int fdl_group_size(const fdl_group* group);                 /* how many ranks the group has */
FDL_API int fdl_group_world_rank(const fdl_group* group, int rank); /* -1 for what is no rank of the group */
/* Ends the group on this rank. Operations in flight complete with FDL_SHUT_DOWN. */
FDL_API void fdl_group_destroy(fdl_group* group);

/* ---- Devices --------------------------------------------------------------------------------------------------------
 *
 * Tensors on a device are given with the device's kind and index and a stream. What the caller has queued on the stream
 * before comes before the operation, and what it queues there once the operation is done comes after it: "done" says
 * that the host has no more to do, not that the device is through, so that the host need not wait. A failure that comes
 * later (a rank that dies meanwhile) ends the operation on the device, and is the next call's. With NCCL, ordered calls
 * are queued on the given stream itself, and may be captured into a CUDA graph; without it (or with
 * FARANDOLE_DEVICE_COLLECTIVES=staged) they go through pinned memory of the host, as messages always do. All ranks give
 * a collective tensors on the same kind of device; of a message each side may lie where it likes. */
typedef enum fdl_device_kind { FDL_DEVICE_CPU = 0, FDL_DEVICE_CUDA = 2 /* DLPack's number */ } fdl_device_kind;
/* Opens a device before its first use, which does so otherwise. FDL_UNSUPPORTED: it cannot be used, and why: no driver,
 * one that is too old, a build without it. FDL_INVALID_ARGUMENT: there are fewer. */
FDL_API fdl_result fdl_device_open(fdl_world* world, fdl_device_kind kind, int index);

/* ---- Ordered communicators: every member calls the same collectives in the same order -------------------------------
 */

typedef struct fdl_comm fdl_comm;
typedef struct fdl_request fdl_request;

FDL_API fdl_result fdl_comm_create(fdl_group* group, fdl_comm** comm); /* collective over the group */
/* Ends the communicator on this rank, and the requests of it that are in flight. */
FDL_API void fdl_comm_destroy(fdl_comm* comm);
/* Ends the communicator on all ranks: they get FDL_ABORTED, this rank's name and `reason`. From any thread. */
FDL_API fdl_result fdl_comm_abort(fdl_comm* comm, const char* reason);
FDL_API int fdl_comm_rank(const fdl_comm* comm); /* this rank's number in the communicator */
FDL_API int fdl_comm_size(const fdl_comm* comm); /* how many ranks the communicator has */

/* What is rare. The simple forms below use defaults. */
typedef struct fdl_call_options {
  size_t struct_size;
  const char* algorithm; /* NULL or "auto": chosen */
  double prescale;       /* result = postscale * reduce(prescale * x): integers in float64, rounded toward zero */
  double postscale;
  int64_t timeout_ns;    /* 0: as configured */
  const fdl_op* user_op; /* with FDL_USER */
  int deterministic;     /* -1: as configured */
} fdl_call_options;
/* Fills in the defaults and struct_size. */
FDL_API void fdl_call_options_init(fdl_call_options* options);

/* ---- Collectives ----------------------------------------------------------------------------------------------------
 *
 * These block. Ranks are the communicator's; counts, send_counts and recv_counts have one entry a rank. Parts of the
 * ranks lie one behind the other in rank order. */

/* output on every rank: the reduction of all inputs, count elements. */
FDL_API fdl_result fdl_allreduce(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype,
                                 fdl_reduce_op op);
/* As fdl_allreduce, for rank `root` only; other ranks' output is ignored. */
FDL_API fdl_result fdl_reduce(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype,
                              fdl_reduce_op op, int root);
/* Copies count elements of rank `root`'s buffer into the buffers of all ranks. */
FDL_API fdl_result fdl_broadcast(fdl_comm* comm, void* buffer, size_t count, fdl_dtype dtype, int root);
/* output on every rank: the inputs of all ranks. count: of each rank's input. output holds size * count elements. */
FDL_API fdl_result fdl_allgather(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype);
/* As fdl_allgather, with counts[r] elements of rank r. */
FDL_API fdl_result fdl_allgatherv(fdl_comm* comm, const void* input, void* output, const size_t* counts,
                                  fdl_dtype dtype);
/* output: this rank's part of the reduction. count: of each rank's output. input holds size * count elements. */
FDL_API fdl_result fdl_reduce_scatter(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype,
                                      fdl_reduce_op op);
/* As fdl_reduce_scatter, with counts[r] elements for rank r. */
FDL_API fdl_result fdl_reduce_scatterv(fdl_comm* comm, const void* input, void* output, const size_t* counts,
                                       fdl_dtype dtype, fdl_reduce_op op);
/* Part r of input goes to rank r; part r of output comes from rank r. count: for each pair of ranks. */
FDL_API fdl_result fdl_alltoall(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype);
/* As fdl_alltoall, with send_counts[r] elements to rank r and recv_counts[r] elements from it. */
FDL_API fdl_result fdl_alltoallv(fdl_comm* comm, const void* input, const size_t* send_counts, void* output,
                                 const size_t* recv_counts, fdl_dtype dtype);
/* As fdl_allgather, for rank `root` only; other ranks' output is ignored. */
FDL_API fdl_result fdl_gather(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype, int root);
/* Part r of rank `root`'s input goes to rank r; other ranks' input is ignored. count: of each rank's output. */
FDL_API fdl_result fdl_scatter(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype,
                               int root);
/* Returns when all ranks have called it. */
FDL_API fdl_result fdl_barrier(fdl_comm* comm);
/* Sends count elements to rank `peer`. Its k-th fdl_recv from this rank meets the k-th fdl_send to it. */
FDL_API fdl_result fdl_send(fdl_comm* comm, const void* buffer, size_t count, fdl_dtype dtype, int peer);
/* Receives count elements from rank `peer`. */
FDL_API fdl_result fdl_recv(fdl_comm* comm, void* buffer, size_t count, fdl_dtype dtype, int peer);

/* ---- Requests -------------------------------------------------------------------------------------------------------
 *
 * The same as requests. Collectives of one communicator run in the order in which they were started; messages run
 * beside them. Progress is made inside fdl_test and fdl_wait. */

/* Starts fdl_allreduce. */
FDL_API fdl_result fdl_iallreduce(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype,
                                  fdl_reduce_op op, fdl_request** request);
/* Starts fdl_reduce. */
FDL_API fdl_result fdl_ireduce(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype,
                               fdl_reduce_op op, int root, fdl_request** request);
/* Starts fdl_broadcast. */
FDL_API fdl_result fdl_ibroadcast(fdl_comm* comm, void* buffer, size_t count, fdl_dtype dtype, int root,
                                  fdl_request** request);
/* Starts fdl_allgather. */
FDL_API fdl_result fdl_iallgather(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype,
                                  fdl_request** request);
/* Starts fdl_allgatherv. */
FDL_API fdl_result fdl_iallgatherv(fdl_comm* comm, const void* input, void* output, const size_t* counts,
                                   fdl_dtype dtype, fdl_request** request);
/* Starts fdl_reduce_scatter. */
FDL_API fdl_result fdl_ireduce_scatter(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype,
                                       fdl_reduce_op op, fdl_request** request);
/* Starts fdl_reduce_scatterv. */
FDL_API fdl_result fdl_ireduce_scatterv(fdl_comm* comm, const void* input, void* output, const size_t* counts,
                                        fdl_dtype dtype, fdl_reduce_op op, fdl_request** request);
/* Starts fdl_alltoall. */
FDL_API fdl_result fdl_ialltoall(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype,
                                 fdl_request** request);
/* Starts fdl_alltoallv. */
FDL_API fdl_result fdl_ialltoallv(fdl_comm* comm, const void* input, const size_t* send_counts, void* output,
                                  const size_t* recv_counts, fdl_dtype dtype, fdl_request** request);
/* Starts fdl_gather. */
FDL_API fdl_result fdl_igather(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype, int root,
                               fdl_request** request);
/* Starts fdl_scatter. */
FDL_API fdl_result fdl_iscatter(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype,
                                int root, fdl_request** request);
/* Starts fdl_barrier. */
FDL_API fdl_result fdl_ibarrier(fdl_comm* comm, fdl_request** request);
/* Starts fdl_send. */
FDL_API fdl_result fdl_isend(fdl_comm* comm, const void* buffer, size_t count, fdl_dtype dtype, int peer,
                             fdl_request** request);
/* Starts fdl_recv. */
FDL_API fdl_result fdl_irecv(fdl_comm* comm, void* buffer, size_t count, fdl_dtype dtype, int peer,
                             fdl_request** request);

/* A size that the caller does not state: see fdl_call and fdl_operation. */
#define FDL_UNSTATED ((size_t)-1)

/* Everything that an ordered collective or a message can be told; the functions above are short forms of this one.
 * `request` NULL blocks. Fields that a collective does not use are ignored. */
typedef enum fdl_collective {
  FDL_ALLREDUCE = 0,
  FDL_REDUCE = 1,
  FDL_BROADCAST = 2,
  FDL_ALLGATHER = 3,
  FDL_REDUCE_SCATTER = 4,
  FDL_ALLTOALL = 5,
  FDL_GATHER = 6,
  FDL_SCATTER = 7,
  FDL_BARRIER = 8,
  FDL_SEND = 9, /* messages: count elements of input go to rank `root`, */
  FDL_RECV = 10 /* or come from it to output */
} fdl_collective;
typedef struct fdl_call {
  size_t struct_size;
  fdl_collective collective;
  const void* input;
  void* output;
  size_t count;         /* as in the even forms; ignored where counts is given */
  const size_t* counts; /* allgather, gather: of each input; reduce_scatter, scatter: of each output; alltoall: sent */
  const size_t* recv_counts; /* alltoall */
  fdl_dtype dtype;
  fdl_reduce_op op;
  int root;                    /* of a message: the peer */
  fdl_device_kind device_kind; /* where input and output lie */
  int device_index;
  void* stream; /* of the device (CUstream, cudaStream_t); NULL: its default stream */
  /* The sizes of the caller's memory, for callers that know them: how many elements input and output have, and how many
   * entries counts and recv_counts. A number other than what the call needs is FDL_INVALID_ARGUMENT on this rank before
   * anything is read, written or sent. fdl_call_init sets them to FDL_UNSTATED, which is not checked. */
  size_t input_elements;
  size_t output_elements;
  size_t counts_length;
  size_t recv_counts_length;
} fdl_call;
/* Fills in the defaults and struct_size. */
FDL_API void fdl_call_init(fdl_call* call);
/* Runs the call, or with `request` starts it. `options` NULL: the defaults. */
FDL_API fdl_result fdl_call_ex(fdl_comm* comm, const fdl_call* call, const fdl_call_options* options,
                               fdl_request** request);
/* fdl_allreduce with options. */
FDL_API fdl_result fdl_allreduce_ex(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype,
                                    fdl_reduce_op op, const fdl_call_options* options);

/* A request is freed by the wait (or the test that says done) that returns its outcome, success or failure. */
FDL_API fdl_result fdl_test(fdl_request* request, int* done);
/* Waits for the request, frees it and returns its outcome. */
FDL_API fdl_result fdl_wait(fdl_request* request);
/* All are freed; the result is the first failure. NULL entries are passed over. */
FDL_API fdl_result fdl_wait_all(fdl_request** requests, size_t count);
/* Waits for one of requests of one communicator, frees it, sets its entry to NULL and *index. */
FDL_API fdl_result fdl_wait_any(fdl_request** requests, size_t count, size_t* index);
/* For a thread that serves the requests of others: as fdl_wait_any for requests of `comm` (perhaps none), and returns
 * also, with *index = count, when fdl_comm_wake was called since the last time. timeout_ns < 0: no limit; a limit that
 * passes ends the communicator, and its requests with FDL_TIMEOUT. */
FDL_API fdl_result fdl_comm_serve(fdl_comm* comm, fdl_request** requests, size_t count, int64_t timeout_ns,
                                  size_t* index);
FDL_API fdl_result fdl_comm_wake(fdl_comm* comm); /* from any thread */
/* From any thread while another one waits in `comm`: FDL_TIMEOUT, and fdl_last_error() names the operation in flight
 * and the first rank that it waits for. Nothing ends. FDL_OK: no thread waits, or it did not answer within timeout_ns.
 */
FDL_API fdl_result fdl_comm_diagnose(fdl_comm* comm, int64_t timeout_ns);
/* Waits for it and forgets its outcome. Legal after its communicator was destroyed, which ended it. */
FDL_API void fdl_request_free(fdl_request* request);

/* ---- Named operations: any order, asynchronous, agreed upon, fused ----------------------------------------------- */

typedef enum fdl_kind {
  FDL_NAMED_ALLREDUCE = 0,
  FDL_NAMED_ALLGATHER = 1, /* first dimensions may differ */
  FDL_NAMED_BROADCAST = 2,
  FDL_NAMED_ALLTOALL = 3,       /* splits: rows for each rank */
  FDL_NAMED_REDUCE_SCATTER = 4, /* first dimension divided; the first ranks get one row more */
  FDL_NAMED_BARRIER = 5
} fdl_kind;

typedef struct fdl_tensor {
  void* data;
  fdl_dtype dtype;
  int ndim;
  const int64_t* shape;
  int device_kind;  /* an fdl_device_kind; of input and output */
  int device_index; /* a group's tensors on devices all lie on one of each rank */
  void* stream;
} fdl_tensor;

typedef struct fdl_operation {
  size_t struct_size;
  fdl_kind kind;
  const char* name;
  fdl_tensor input;
  void* output; /* same shape as input (allreduce, broadcast); NULL where the library allocates (see fdl_handle_output).
                   input.data == output: in place */
  fdl_reduce_op op;
  int root; /* rank in the group */
  double prescale, postscale;
  const int64_t* splits; /* alltoall; NULL: even */
  int priority;          /* higher first, within what is ready at once */
  /* The sizes of the caller's memory, checked as those of fdl_call: how many elements output has, and how many entries
   * splits. fdl_operation_init sets them to FDL_UNSTATED. */
  size_t output_elements;
  size_t splits_length;
} fdl_operation;
/* Fills in the defaults and struct_size. */
FDL_API void fdl_operation_init(fdl_operation* operation);

typedef struct fdl_handle fdl_handle;

/* Submits one operation, or several that are all or nothing. Returns at once; the outcome is the handle's. A name that
 * is in flight already is FDL_INVALID_ARGUMENT. Tensors stay where they are until the handle is done. */
FDL_API fdl_result fdl_submit(fdl_group* group, const fdl_operation* operations, size_t count, fdl_handle** handle);
/* Submits and waits, in the calling thread where possible: what is done soon needs no switch between threads. The
 * result is that of fdl_submit or fdl_wait_handle. `handle` may be NULL; else it is the operations' own, on failure
 * too (after FDL_TIMEOUT they are in flight), and NULL where nothing was submitted. */
FDL_API fdl_result fdl_run(fdl_group* group, const fdl_operation* operations, size_t count, int64_t timeout_ns,
                           fdl_handle** handle);
/* Done when all ranks of the group have joined; until then this rank contributes zeros to others' allreduces. */
FDL_API fdl_result fdl_join(fdl_group* group, fdl_handle** handle);
FDL_API fdl_result fdl_poll(fdl_handle* handle, int* done); /* the outcome is told by fdl_wait_handle */
/* The outcome: FDL_OK or the failure, which stays with the handle: asking again tells the same. While it waits, the
 * calling thread may do the background thread's work, for all operations of the world.
 * timeout_ns < 0: no limit. FDL_TIMEOUT of the wait itself leaves the operation in flight. */
FDL_API fdl_result fdl_wait_handle(fdl_handle* handle, int64_t timeout_ns);
/* Calls back when done, from the thread that completes it: the background thread, or any that waits in fdl_wait_handle
 * or fdl_run (or at once, from this one). The callback may submit and must not wait (FDL_INVALID_ARGUMENT). */
FDL_API fdl_result fdl_handle_notify(fdl_handle* handle, void (*function)(void* context), void* context);
/* What an operation has made. */
typedef struct fdl_output {
  size_t struct_size;
  void* data; /* on the device of the operation's input */
  int ndim;
  const int64_t* shape; /* lives as long as the handle */
  const int64_t* received_splits;
  int last_joined; /* fdl_join */
} fdl_output;
/* Of operation `index`, once done. What the library allocated passes to the caller, who ends it with fdl_output_free; a
 * second call gets NULL data. received_splits: alltoall, one entry a rank, lives as long as the handle. */
FDL_API fdl_result fdl_handle_output(fdl_handle* handle, size_t index, fdl_output* output);
/* On a device: what is queued on the operation's stream, which still exists, may still use it. */
FDL_API void fdl_output_free(void* data);
/* Legal at any time; an operation in flight goes on and its outcome is forgotten. */
FDL_API void fdl_handle_free(fdl_handle* handle);

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* 64-byte aligned memory that all ranks of this host map where they can (FARANDOLE_MEMORY_BYTES says how much), else
 * ordinary memory, after a line in the log. Zeroed. Collectives larger than some KiB whose buffers all lie in such
 * memory are not staged: ranks read and write each other's buffers. It lives until it is freed, also after its world. A
 * forked child sees the parent's memory itself, no copy of it; freeing it there does nothing. */
FDL_API fdl_result fdl_alloc(fdl_world* world, size_t bytes, void** memory);
FDL_API void fdl_free(void* memory); /* frees memory of fdl_alloc and fdl_device_alloc */
/* Memory of a device for tensors of this group's named operations. Collective over the group: all call it, in one order
 * and with as many bytes; it blocks, and all get memory or the same error, after which the group lives on. Zeroed, in
 * the stream's order. Where NCCL runs the group's collectives it is NCCL's own and registered with the group's
 * communicator, so that NCCL works in it without copies; sums whose tensors lie in it side by side, alike on all ranks,
 * are neither packed nor unpacked. Where they do not lie alike they are packed; any other operation is FDL_MISMATCH
 * then. fdl_free ends it, also after its group and world: what the stream, which still exists then, holds may still
 * use it. What is free on all ranks goes back with the group's next fdl_device_alloc, the rest when the group ends. */
FDL_API fdl_result fdl_device_alloc(fdl_group* group, fdl_device_kind kind, int index, void* stream, size_t bytes,
                                    void** memory);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* FARANDOLE_FARANDOLE_H_ */
