/* farandole.h declares the C API of farandole, a collective-communication library. It is the only ABI of the library.
 *
 * Conventions
 *
 *  1. Errors. Every function that can fail returns fdl_result; FDL_OK is 0. fdl_last_error() describes the last failure
 *     in this thread: code, one sentence (which rank, what happened, what to do), culprit, operation, phase, group.
 *     Ranks that did not cause a failure get the same culprit and sentence as the others. Output arguments are written
 *     only on FDL_OK.
 *  2. State after a failure. FDL_INVALID_ARGUMENT, FDL_UNSUPPORTED and the FDL_MISMATCH of a named operation: nothing
 *     happened, and all objects stay usable. Any other failure of a collective ends its communicator (for named
 *     operations: its group) on all its ranks with the same error. A rank that already has all it needs from the others
 *     completes the collective with FDL_OK, and gets the error in a later call. The world stays usable, and the
 *     surviving ranks can make a new group. Ordered ranks that call different collectives detect it only when their
 *     messages meet, too late to undo: that FDL_MISMATCH ends the communicator.
 *  3. Objects are opaque. One function makes each, one ends it; ending NULL does nothing. An object that is left when
 *     its world is destroyed returns FDL_SHUT_DOWN and must still be destroyed. A communicator must outlive its
 *     requests, except for fdl_request_free.
 *  4. Option structs begin with struct_size and are filled by fdl_..._init, so that they can grow. A NULL pointer means
 *     defaults. Each option can be set in the environment as well; the option wins. `farandole config` lists all.
 *  5. Buffers stay the caller's; the library keeps no pointer after completion. Sizes are bytes, counts are elements,
 *     both size_t; shapes are int64_t; durations are nanoseconds in int64_t fields named ..._ns (0: as configured).
 *     input == output means in place. Input and output that overlap in another way are FDL_INVALID_ARGUMENT; a rank's
 *     own part of the larger buffer (allgather, gather: input; reduce_scatter, scatter: output) is in place too.
 *  6. Threads. Any thread may use a world and a group and submit named operations. A communicator with its requests
 *     belongs to one thread at a time, until fdl_comm_share or the first fdl_call_submit; then any thread may use it.
 *     Any number of threads may wait for a handle. No callback runs under a lock. A callback may call every function
 *     that does not wait for other ranks; the others are FDL_INVALID_ARGUMENT there. A group or communicator that a
 *     callback destroys ends after the callback.
 *     EINTR is never an error. After fork() without exec the child may not use a world: FDL_NOT_INITIALIZED. It may
 *     poll, wait for and free a handle that was done before.
 *  7. The library changes no global state of the process: no signal handler, no atexit, no locale, no environment, no
 *     standard output. Logging goes through one sink (standard error by default) that fdl_log_sink replaces.
 *  8. Determinism. A result has the same bits on every rank, and the same bits again for the same inputs, ranks and
 *     hosts: the order of reduction is fixed by rank, not by arrival. With the option `deterministic` the bits do not
 *     depend on transport, algorithm, fusion or slice size either: one owner sums each element in rank order. This
 *     needs more connections and, over messages, as many steps as there are ranks.
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

/* ---- Results and errors ---- */

/* Numbers never change their meaning; new ones are appended. */
typedef enum fdl_result {
  FDL_OK = 0,
  FDL_INVALID_ARGUMENT = 1, /* an argument is wrong on this rank; nothing happened */
  FDL_MISMATCH = 2,         /* ranks disagree; for a named operation nothing happened, and the group stays usable */
  FDL_PEER_LOST = 3,        /* a rank died, stopped or cannot be reached */
  FDL_TIMEOUT = 4,          /* a deadline passed; the text names the rank that is missing, if this rank knows it */
  FDL_ABORTED = 5,          /* fdl_comm_abort, on this rank or another */
  FDL_SHUT_DOWN = 6,        /* this world, or a rank that is needed, has been shut down */
  FDL_NOT_INITIALIZED = 7,  /* no world, or a world inherited through fork() */
  FDL_UNSUPPORTED = 8,      /* this build, machine or object cannot do it; the text names what is missing */
  FDL_RESOURCE = 9,         /* memory, descriptors, ports or files are short */
  FDL_TRANSPORT = 10,       /* a connection failed or carried an invalid message */
  FDL_AUTHENTICATION = 11,  /* the job keys differ, or bytes were changed on their way */
  FDL_INTERNAL = 12         /* a bug: please report */
} fdl_result;

/* No string is NULL; an unknown one is empty. */
typedef struct fdl_error {
  fdl_result code;
  int culprit_rank; /* in the world; -1 if no single rank is at fault */
  const char* text; /* one sentence: which rank, what happened, what to do */
  const char* culprit_host;
  const char* operation; /* "allreduce 'grad_7'" */
  const char* phase;     /* "ring, step 9: recv_reduce chunk 3 from rank 2" */
  const char* group;
} fdl_error;

/* The last failure in this thread; FDL_OK and empty strings before the first. Never NULL. Valid until the next
 * farandole call in this thread fails. */
FDL_API const fdl_error* fdl_last_error(void);
/* For functions that are built on this library, as those of farandole_mpi.h: makes `text` the last failure in this
 * thread and returns `code`. FDL_INVALID_ARGUMENT, with a text of its own: `text` is NULL, or `code` is FDL_OK or no
 * fdl_result. */
FDL_API fdl_result fdl_fail(fdl_result code, const char* text);
/* The name of a result without its prefix: "PEER_LOST". A static string. */
FDL_API const char* fdl_result_name(fdl_result result);
/* The version of the library at run time: "0.1.0". A static string. */
FDL_API const char* fdl_version(void);

/* ---- Types and operations ---- */

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

/* The bytes of one element; 0 if `dtype` is not a dtype. */
FDL_API size_t fdl_dtype_size(fdl_dtype dtype);
/* "float32"; "no dtype" if it is not one. A static string. */
FDL_API const char* fdl_dtype_name(fdl_dtype dtype);

/* 16-bit and 8-bit floats are computed in float32 and rounded to nearest even. Integer sums and products wrap. Bitwise
 * operations take integers, logical ones bool. Average is a sum divided by the number of ranks: integers toward zero,
 * floats to the nearest, on CPUs and GPUs. An allreduce with a compression multiplies with the rounded 1/ranks. */
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
  FDL_ADASUM = 12 /* named allreduce of floats over 2^n ranks: adds orthogonal vectors, averages parallel ones */
} fdl_reduce_op;

/* Computes target[i] = fold(source[i], target[i]) for `count` elements; `source` comes from the lower rank. Must not
 * call farandole. */
typedef void (*fdl_user_function)(const void* source, void* target, size_t count, fdl_dtype dtype, void* context);
typedef struct fdl_op fdl_op;
/* Makes an operation for FDL_USER. The function must be associative; commutative != 0 means that it is commutative too,
 * which allows more algorithms. `context` is passed to each call. FDL_INVALID_ARGUMENT: function or op is NULL. Any
 * number of communicators and threads may use it at a time, if the function allows that. */
FDL_API fdl_result fdl_op_create(fdl_user_function function, void* context, int commutative, fdl_op** op);
/* No call that uses it may be in flight. */
FDL_API void fdl_op_destroy(fdl_op* op);

/* ---- Library ---- */

typedef enum fdl_log_level {
  FDL_LOG_TRACE = 0,
  FDL_LOG_DEBUG = 1,
  FDL_LOG_INFO = 2,
  FDL_LOG_WARNING = 3,
  FDL_LOG_ERROR = 4,
  FDL_LOG_OFF = 6
} fdl_log_level;
/* `line` has no newline, and is valid during the call only. */
typedef void (*fdl_log_function)(fdl_log_level level, const char* line, void* context);
/* Replaces the sink of the process; NULL restores standard error. May be called from any thread. The library calls the
 * sink from any thread. */
FDL_API void fdl_log_sink(fdl_log_function function, void* context);

/* Describes all options as text: name, value in force, source and meaning, one line each. Copies at most `capacity`
 * bytes with a final 0 into `text` (which may be NULL) and returns the bytes that the whole text needs. If a value in
 * the environment is invalid, the text is one line that begins with "error: ". */
FDL_API size_t fdl_config_describe(char* text, size_t capacity);
/* Describes as text the algorithm with which `ranks` ranks would run a collective of `bytes` bytes over TCP, the reason
 * (the tuning table in force, or the cost model) and its steps. `collective`: "allreduce" and so on; `algorithm`: a
 * name, or NULL to choose one. `ranks`: 1 to 1024. Text, result and errors are as for fdl_config_describe. */
FDL_API size_t fdl_explain(const char* collective, int ranks, size_t bytes, const char* algorithm, char* text,
                           size_t capacity);

/* A text that is equal on all processes of this user that can meet in one abstract socket (the same kernel and network
 * namespace), and different elsewhere. Copies at most `capacity` bytes with a final 0 into `text` (which may be NULL)
 * and returns the bytes that the whole text needs. */
FDL_API size_t fdl_host_identity(char* text, size_t capacity);

/* ---- World: all ranks of a job, from the view of this rank ---- */

typedef struct fdl_world fdl_world;

typedef struct fdl_world_options {
  size_t struct_size;
  int rank; /* -1: from the environment (then size, local_* and rendezvous too) */
  int size;
  int local_rank; /* -1: computed from the hosts of all ranks */
  int local_size;
  const char* rendezvous; /* "tcp://host:port", "file:///path", "memory://name"; NULL: from the environment */
  const char* job_key;    /* NULL: from the environment */
  /* Options by name, as `farandole config` lists them, as name, value, name, value: "transport", "shm", "slice_bytes",
   * "1M". option_count counts pairs. */
  const char* const* options;
  size_t option_count;
  /* May be NULL. A thread that waits in an ordered call calls it whenever nothing has moved for another suspect_after_s
   * (0.4 s). Nonzero ends the communicator with FDL_ABORTED on all ranks, so that a program can stop a call that waits
   * for a rank. So does one that waits for other ranks while the world, a group or a communicator is made, after each
   * signal and every 0.25 s: nonzero ends that call with FDL_ABORTED. It must not call the library. */
  int (*interrupted)(void* context);
  void* interrupted_context;
  /* May be NULL. A thread that waits in an ordered call calls it every 20 us while it spins, and then about every 50 us
   * instead of sleeping longer: so that it keeps another library moving, such as MPI, on which the rank that it waits
   * for may depend. It must return soon and must not call the library. Waits for handles do not call it. */
  void (*waiting)(void* context);
  void* waiting_context;
  /* May be NULL. With rank and size given, it replaces rendezvous and job_key: it passes rank 0's `text` to all ranks,
   * and returns 0, or else a code of the program for an error. Each rank calls it once, in fdl_world_create, with the
   * same `capacity` of at most 1024 bytes, which hold a final 0; text is ignored on the other ranks. It may block until
   * all ranks have called it. If local_size is size, the ranks meet in a socket of the host, and no port is opened. */
  int (*share)(char* text, size_t capacity, void* context);
  void* share_context;
  /* May be NULL. Called on all ranks when operations have waited for some ranks for stall_warning_s (10 s), and again
   * after each further stall_warning_s: `text` names the operations, the ranks that have called them and those that
   * have not. It is called in a thread of the library or in one that waits in it, must return soon and must not call
   * the library. */
  void (*stalled)(const char* text, void* context);
  void* stalled_context;
  /* May be NULL. `farandole where --stacks` asks for it: it writes the stacks of this process's threads to `text`, as
   * lines, and returns their bytes, at most `capacity`. It is called in a thread of its own, may wait, and must not
   * call the library. An answer after half a second comes too late. fdl_world_destroy waits for its return. */
  size_t (*stacks)(char* text, size_t capacity, void* context);
  void* stacks_context;
  /* May be NULL. Called after each `waiting`, with waiting_context. Nonzero: until the next call a thread that waits
   * neither sleeps nor yields, and calls `waiting` about every microsecond, for a program whose other ranks need its
   * answers at once. It has no effect where ranks share cores. */
  int (*stays_awake)(void* context);
} fdl_world_options;

/* Sets all members to their defaults; options must not be NULL. */
FDL_API void fdl_world_options_init(fdl_world_options* options);

/* Joins the ranks of a job. Blocks until all ranks have called it, at most for the option start_timeout_s. Several
 * worlds may live in one process (ranks as threads, with rank, size and "memory://name" given). `options` may be NULL.
 * FDL_INVALID_ARGUMENT: an option is wrong. FDL_TIMEOUT: the text names the missing ranks. FDL_MISMATCH: ranks have
 * different settings. FDL_AUTHENTICATION: the job keys differ. */
FDL_API fdl_result fdl_world_create(const fdl_world_options* options, fdl_world** world);
/* Leaves the job. Named operations that all ranks have agreed on get up to two seconds to finish; all others in flight
 * complete with FDL_SHUT_DOWN, and so do later calls on groups and communicators that are left. Destroy communicators
 * first: if no thread of this rank is in a call on one, ranks that wait in it do not learn that this rank has left
 * until it is destroyed. Ends `world`: no thread may use it afterwards. In a callback the world stays, and the failure
 * is logged: call it after the callback. */
FDL_API void fdl_world_destroy(fdl_world* world);

typedef struct fdl_shrink_options {
  size_t struct_size;
  int64_t timeout_ns; /* until all ranks that are left have called; 0: the option start_timeout_s */
} fdl_shrink_options;
/* Sets all members to their defaults; options must not be NULL. */
FDL_API void fdl_shrink_options_init(fdl_shrink_options* options);
/* Makes a world of the ranks that are left after a loss, in the same processes and with the settings of `world`. The
 * ranks keep their order and are numbered anew from 0. Collective over the ranks that are left, blocking: each calls it
 * once an operation has failed with FDL_PEER_LOST. It needs neither a launcher nor a particular rank. Ranks that are
 * lost during the call are left out too. If no rank is lost, the new world has the same ranks.
 *
 * `world` ends, whether the call succeeds or not: operations in flight complete with their failure or with
 * FDL_SHUT_DOWN, and so do later calls on its groups and communicators. It does not wait for anything to finish.
 * fdl_world_destroy is still needed, and releases its memory. `options` may be NULL. Not in a callback.
 *
 * FDL_TIMEOUT: ranks that live did not call; the text names them, and all others get it. FDL_PEER_LOST, with this rank
 * as culprit: it was stopped or cut off, and the other ranks continue without it. FDL_UNSUPPORTED: the job is elastic,
 * so that its launcher makes the next world; or no listener could be opened when `world` was made. FDL_SHUT_DOWN:
 * `world` has ended already. FDL_INVALID_ARGUMENT: an argument is wrong. The last three change nothing. A network that
 * is cut so that each side loses the other gives two worlds: compare the sizes where that matters. */
FDL_API fdl_result fdl_world_shrink(fdl_world* world, const fdl_shrink_options* options, fdl_world** survivors);

typedef struct fdl_world_facts {
  size_t struct_size;
  int rank, size;
  int local_rank, local_size; /* among the ranks of this host */
  int cross_rank, cross_size; /* among the ranks with this local rank, one on each host */
  const char* host;           /* strings live as long as the world */
  const char* source;         /* the launcher that set rank and size: "torchrun" */
  const char* rendezvous;
  const char* transports; /* the transports that join this rank to the others: "shm", "tcp", "shm+tcp", "none" */
  int is_homogeneous;     /* 1 if all hosts have the same number of ranks */
} fdl_world_facts;
/* Copies the facts of the world. facts->struct_size must be set by the caller, else FDL_INVALID_ARGUMENT. */
FDL_API fdl_result fdl_world_info(fdl_world* world, fdl_world_facts* facts);

typedef struct fdl_counters {
  size_t struct_size;
  uint64_t control_messages;  /* messages that this rank sent to agree on named operations */
  uint64_t wakeups;           /* of this rank's progress thread */
  uint64_t named_operations;  /* completed on this rank */
  uint64_t buckets;           /* collectives that carried them */
  uint64_t strangers_refused; /* connections without the job's key, if this rank serves the rendezvous */
  uint64_t locked_steps;      /* rounds of named operations in a locked order, for which no message was sent */
  uint64_t lock_epochs;       /* how often an order was locked */
} fdl_counters;
/* Copies the counters of the groups that exist. counters->struct_size must be set by the caller, else
 * FDL_INVALID_ARGUMENT. */
FDL_API fdl_result fdl_metrics(fdl_world* world, fdl_counters* counters);

/* Writes the states of each named operation to a file that chrome://tracing and Perfetto show: when each rank was
 * ready, queueing, packing, the collective. It ends with fdl_timeline_stop or with the world. Rank 0 writes `path`; if
 * `path` contains %r, every rank writes a file of its own with its rank in that place. All ranks may call it, also
 * those that write nothing. The file is a complete JSON array after every write. mark_cycles != 0: instants also mark
 * the arrival of plans. FARANDOLE_TIMELINE does the same from the start. FDL_RESOURCE: the file cannot be made.
 * FDL_INVALID_ARGUMENT: a timeline is being written already, or path is NULL or empty. */
FDL_API fdl_result fdl_timeline_start(fdl_world* world, const char* path, int mark_cycles);
/* Completes the file; FDL_OK if none is being written. FDL_RESOURCE: not all of it could be written. */
FDL_API fdl_result fdl_timeline_stop(fdl_world* world);

/* ---- Groups: sets of ranks ---- */

typedef struct fdl_group fdl_group;

/* The group of all ranks. It belongs to the world; fdl_group_destroy ignores it. NULL for a NULL world. */
FDL_API fdl_group* fdl_group_all(fdl_world* world);
/* Makes a group of `count` world ranks, each named once; their order is the order of ranks in the group. Collective
 * over these ranks, blocking; other ranks need not call it. All members must make groups of the same ranks in the same
 * order. FDL_INVALID_ARGUMENT: a rank does not exist or occurs twice, or the caller is not among them. FDL_TIMEOUT: a
 * member did not call. */
FDL_API fdl_result fdl_group_create(fdl_world* world, const int* ranks, size_t count, fdl_group** group);
/* Splits `group` into one new group for each color, with ranks ordered by (key, rank in `group`). Collective over
 * `group`, blocking. With a negative color this rank joins none, and *part is NULL. FDL_TIMEOUT: a member did not
 * call. */
FDL_API fdl_result fdl_group_split(fdl_group* group, int color, int key, fdl_group** part);
/* This rank in the group; -1 for NULL. */
FDL_API int fdl_group_rank(const fdl_group* group);
/* The number of ranks in the group; 0 for NULL. */
FDL_API int fdl_group_size(const fdl_group* group);
/* The world's rank of a rank of the group; -1 if it is not one. */
FDL_API int fdl_group_world_rank(const fdl_group* group, int rank);
/* Ends the group on this rank. Operations that are agreed on get up to two seconds to finish; others in flight complete
 * with FDL_SHUT_DOWN. No thread may use the group afterwards. */
FDL_API void fdl_group_destroy(fdl_group* group);

/* ---- Devices ----
 *
 * Tensors on a device are given with the device's kind and index and a stream. Work that the caller has queued on the
 * stream before runs before the operation. Work that it queues there once it has waited for the operation runs after
 * it: the host waits until it has no more to do, and the stream then waits for the device. A failure that comes later
 * (a rank dies meanwhile) ends the operation on the device, and the next call returns it.
 *
 * Operations by name run on a stream of the group. Until the caller waits (fdl_wait_handle, fdl_run), its stream does
 * not: what it queues meanwhile runs beside the operation. Only calls of the caller use its stream, which may be
 * destroyed in between: fdl_submit and the wait. Stream 2 (cudaStreamPerThread) is that of the calling thread. With
 * NCCL, ordered calls are queued on the given stream itself, and may be captured into a CUDA graph. Without NCCL (or
 * with FARANDOLE_DEVICE_COLLECTIVES=staged) they go through pinned memory of the host, as messages do, unless
 * fdl_call_options says that they are between devices. If such a message is a request, its stream waits for it from
 * fdl_wait, fdl_test, ... or fdl_request_free on, which must not be inside a capture; if it is submitted
 * (fdl_call_submit), from the moment on when both ranks have called. All ranks give a collective tensors on the same
 * kind of device; the two sides of a message may use different ones. */
typedef enum fdl_device_kind { FDL_DEVICE_CPU = 0, FDL_DEVICE_CUDA = 2 /* DLPack's number */ } fdl_device_kind;
/* Opens a device before its first use, which would open it otherwise. From any thread. FDL_UNSUPPORTED: the device
 * cannot be used; the text gives the reason (no driver, a driver that is too old, a build without CUDA).
 * FDL_INVALID_ARGUMENT: the index does not exist. */
FDL_API fdl_result fdl_device_open(fdl_world* world, fdl_device_kind kind, int index);
/* Reserves pinned memory for a message of so many bytes, in case it goes through the host. A driver may wait for all
 * work on the device to allocate it, and a submitted call can do so in the progress thread, for which other ranks wait.
 * A lack of memory is no error here. Errors are those of fdl_device_open. */
FDL_API fdl_result fdl_device_reserve(fdl_world* world, fdl_device_kind kind, int index, size_t bytes);

/* ---- Trust: messages of a program's own that must not be changed on their way, such as code ---- */

#define FDL_SEAL_BYTES 32
/* FDL_OK if this rank may run what the ranks of the group send it as code, for example unpickle it: the job's key is a
 * secret, or all ranks of the group are on one host, or the option trust_derived_key is set. FDL_AUTHENTICATION: the
 * key is derived from facts that others can know; the text says how to set one. The same on all ranks of the group. */
FDL_API fdl_result fdl_group_trust(fdl_group* group);
/* Computes the seal of a message of this rank: of `count` parts, in order, for a purpose that the receivers know. The
 * message may then travel in any way. The key of the seal is fresh for each world and known to its ranks alone. `seal`
 * has FDL_SEAL_BYTES bytes; in a group whose ranks share memory they are 0. From any thread.
 * FDL_INVALID_ARGUMENT: group, purpose, seal, or parts or sizes of a count above 0 are NULL. */
FDL_API fdl_result fdl_group_seal(fdl_group* group, const char* purpose, const void* const* parts, const size_t* sizes,
                                  size_t count, void* seal);
/* FDL_OK if rank `sender` of the group made this seal of these parts for this purpose. FDL_AUTHENTICATION: something on
 * the way changed the message; the text names both ranks. A seal does not tell how often or when it was made: put a
 * number into the purpose. FDL_INVALID_ARGUMENT: as above, or `sender` is no rank of the group. */
FDL_API fdl_result fdl_group_open(fdl_group* group, int sender, const char* purpose, const void* const* parts,
                                  const size_t* sizes, size_t count, const void* seal);

/* ---- Ordered communicators: every member calls the same collectives in the same order ---- */

typedef struct fdl_comm fdl_comm;
typedef struct fdl_request fdl_request;
typedef struct fdl_handle fdl_handle;

/* Makes a communicator of the group's ranks. Collective over the group, blocking, in the same order on all ranks. */
FDL_API fdl_result fdl_comm_create(fdl_group* group, fdl_comm** comm);
/* Ends the communicator on this rank, with its operations in flight. No thread may use it afterwards; its requests may
 * only be passed to fdl_request_free. */
FDL_API void fdl_comm_destroy(fdl_comm* comm);
/* Ends the communicator on all ranks with FDL_ABORTED, this rank's name and `reason` (which may be NULL). From any
 * thread; the communicator must still be destroyed. */
FDL_API fdl_result fdl_comm_abort(fdl_comm* comm, const char* reason);
/* This rank in the communicator, that is, in its group; -1 for NULL. */
FDL_API int fdl_comm_rank(const fdl_comm* comm);
/* The number of ranks; 0 for NULL. */
FDL_API int fdl_comm_size(const fdl_comm* comm);

/* Formats in which values pass between the ranks, in blocks of 64 elements with one scale each; docs/compression.md
 * describes them. All members of a group give the same one. They take memory of the CPU, FLOAT32, and allreduce and
 * reduce_scatter with FDL_SUM or FDL_AVERAGE, and allgather; FDL_INVALID_ARGUMENT otherwise. */
typedef enum fdl_compression {
  FDL_COMPRESSION_NONE = 0,
  FDL_COMPRESSION_INT8 = 1,        /* 3.88 times fewer bytes than float32 */
  FDL_COMPRESSION_INT4 = 2,        /* 7.5 times fewer */
  FDL_COMPRESSION_FLOAT8_E4M3 = 3, /* 3.88 times fewer */
  FDL_COMPRESSION_FLOAT8_E5M2 = 4, /* 3.88 times fewer */
  FDL_COMPRESSION_BFLOAT16 = 5     /* 2 times fewer */
} fdl_compression;

/* "int8"; "no compression" if it is not one. A static string. */
FDL_API const char* fdl_compression_name(fdl_compression compression);
/* output: what the ranks read of `input` when this rank contributes it, element by element; input == output is in
 * place. A program that adds input - output to its next contribution loses nothing for good (error feedback).
 * *error_bound: a bound of |input - output|, infinite if an input is not finite; may be NULL. FDL_INVALID_ARGUMENT:
 * input or output is NULL, or compression is FDL_COMPRESSION_NONE or does not exist. */
FDL_API fdl_result fdl_compression_round_trip(fdl_compression compression, const float* input, float* output,
                                              size_t count, double* error_bound);

/* Options that few calls need. The simple forms below use the defaults. */
typedef struct fdl_call_options {
  size_t struct_size;
  const char* algorithm; /* NULL or "auto": the library chooses */
  /* result = postscale * reduce(prescale * x). A factor of 1.0/n divides by the integer n, which is below 2^31 for
   * integers and at most 2^20 for floats; others multiply. Scaled integers are rounded toward zero and limited to the
   * range of their type. Quotients of integers are exact; so is a product that exceeds 2^53, or whose integer does, and
   * others are computed in float64. Sums of integers wrap around, as in C. So int8 inputs that prescale has limited to
   * 127 still wrap when they are added: scale down before the sum, and up after it. The postscale of an average is the
   * product in float64 of the one given here and 1.0/ranks. */
  double prescale;
  double postscale;
  /* Of a blocking call, or of a wait for a request, from its begin on; 0: as configured. fdl_test applies none. */
  int64_t timeout_ns;
  const fdl_op* user_op; /* with FDL_USER only */
  int deterministic;     /* 0 or 1; -1: as configured */
  int may_never_come;    /* 1: of a submitted receive. If its sender leaves, only this call fails, and only here */
  fdl_compression compression;
  /* With a compression: where the call writes, before it has completed, a bound of |result - exact result| over all
   * elements and ranks, the same on every rank; infinite if a value is not finite. NULL: not wanted. */
  double* error_bound;
  /* 1: of a message whose two sides lie on devices. NCCL then moves it from one device to the other, where both ranks
   * can use it; else it goes through pinned memory. Both sides say so, and the messages of a communicator say so all,
   * or none of them. A side may still lie in memory of the CPU. */
  int between_devices;
  /* With between_devices: how many such messages with this peer are started at once, to both directions. NCCL then gets
   * them as one group where the peer starts as many. 0: not said. */
  int batch;
} fdl_call_options;
/* Sets all members to their defaults; options must not be NULL. */
FDL_API void fdl_call_options_init(fdl_call_options* options);

/* Blocking collectives and messages on memory of the CPU. Ranks, `root` and `peer` are the communicator's. All members
 * give the same dtype, op and root, and counts that fit together. Below, `size` is the number of ranks, and arrays of
 * counts have one entry for each rank, in elements. FDL_INVALID_ARGUMENT: an argument is wrong on this rank; the text
 * names it. FDL_TIMEOUT: the option timeout_s has passed (0: no limit). Other failures are as in convention 2. */

/* input and output: count elements on every rank. */
FDL_API fdl_result fdl_allreduce(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype,
                                 fdl_reduce_op op);
/* input: count elements on every rank; output: count elements on `root`, ignored elsewhere. */
FDL_API fdl_result fdl_reduce(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype,
                              fdl_reduce_op op, int root);
/* buffer: count elements, read on `root`, written elsewhere. */
FDL_API fdl_result fdl_broadcast(fdl_comm* comm, void* buffer, size_t count, fdl_dtype dtype, int root);
/* input: count elements on every rank; output: size * count elements, in the order of ranks. */
FDL_API fdl_result fdl_allgather(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype);
/* counts: elements of each rank's input; output holds their sum. */
FDL_API fdl_result fdl_allgatherv(fdl_comm* comm, const void* input, void* output, const size_t* counts,
                                  fdl_dtype dtype);
/* input: size * count elements; output: count elements, the reduction of this rank's part of all inputs. */
FDL_API fdl_result fdl_reduce_scatter(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype,
                                      fdl_reduce_op op);
/* counts: elements of each rank's output; input holds their sum. */
FDL_API fdl_result fdl_reduce_scatterv(fdl_comm* comm, const void* input, void* output, const size_t* counts,
                                       fdl_dtype dtype, fdl_reduce_op op);
/* input and output: size * count elements; count of them for, and from, each rank. */
FDL_API fdl_result fdl_alltoall(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype);
/* send_counts: elements of input for each rank; recv_counts: elements of output from each rank. */
FDL_API fdl_result fdl_alltoallv(fdl_comm* comm, const void* input, const size_t* send_counts, void* output,
                                 const size_t* recv_counts, fdl_dtype dtype);
/* input: count elements on every rank; output: size * count elements on `root`, ignored elsewhere. */
FDL_API fdl_result fdl_gather(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype, int root);
/* input: size * count elements on `root`, ignored elsewhere; output: count elements on every rank. */
FDL_API fdl_result fdl_scatter(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype,
                               int root);
/* Returns once all ranks have called it. */
FDL_API fdl_result fdl_barrier(fdl_comm* comm);
/* Sends count elements to `peer`, which must receive the same number of bytes. Messages between two ranks arrive in the
 * order in which they were started. */
FDL_API fdl_result fdl_send(fdl_comm* comm, const void* buffer, size_t count, fdl_dtype dtype, int peer);
/* Receives count elements from `peer`. */
FDL_API fdl_result fdl_recv(fdl_comm* comm, void* buffer, size_t count, fdl_dtype dtype, int peer);

/* The same operations as requests: each starts its operation and returns at once. Arguments are those of the blocking
 * form; buffers must stay in place until the request is done, arrays of counts are copied. Collectives of one
 * communicator run in the order in which they were started; messages run beside them. Progress is made inside fdl_test,
 * the waits and the blocking calls on the same communicator. FDL_INVALID_ARGUMENT: request is NULL, or as above. */

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

/* All arguments of an ordered collective or a message; the functions above are short forms of fdl_call_ex. Fields that
 * a collective does not use are ignored. */
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
  FDL_SEND = 9, /* a message: count elements of input go to rank `root` */
  FDL_RECV = 10 /* a message: count elements come from rank `root` to output */
} fdl_collective;
typedef struct fdl_call {
  size_t struct_size;
  fdl_collective collective;
  const void* input;
  void* output;
  size_t count;         /* as in the short forms; ignored if counts is given */
  const size_t* counts; /* allgather, gather: of each input; reduce_scatter, scatter: of each output; alltoall: sent */
  const size_t* recv_counts; /* alltoall: received; with counts or not at all */
  fdl_dtype dtype;
  fdl_reduce_op op;
  int root;                    /* for a message: the peer */
  fdl_device_kind device_kind; /* the device of input and output */
  int device_index;
  void* stream; /* of the device (CUstream, cudaStream_t); NULL: its default stream */
  /* The sizes of the caller's memory: elements of input and output, entries of counts and recv_counts. A size other
   * than what the call needs is FDL_INVALID_ARGUMENT on this rank before anything is read, written or sent.
   * fdl_call_init sets them to FDL_UNSTATED, which is not checked. */
  size_t input_elements;
  size_t output_elements;
  size_t counts_length;
  size_t recv_counts_length;
} fdl_call;
/* Sets all members to their defaults; call must not be NULL. */
FDL_API void fdl_call_init(fdl_call* call);
/* Registers memory on a device, such as a segment of a framework's allocator, with NCCL where that runs the
 * communicator's collectives: NCCL then reads and writes it without copies of its own. Otherwise it does nothing. It is
 * this rank's own decision, and takes effect with the next collective. FDL_INVALID_ARGUMENT: memory is NULL, bytes is
 * 0, or the memory is registered already. From any thread. */
FDL_API fdl_result fdl_comm_register(fdl_comm* comm, fdl_device_kind kind, int index, void* memory, size_t bytes);
/* Ends the registration, before the memory is freed. All work on it must have run on the device.
 * FDL_INVALID_ARGUMENT: the memory is not registered. FDL_TIMEOUT: NCCL is busy on the host for too long. */
FDL_API fdl_result fdl_comm_deregister(fdl_comm* comm, void* memory);
/* Runs the collective or message. `options` may be NULL. If `request` is NULL it blocks; else it returns at once, and
 * the request gets the outcome. */
FDL_API fdl_result fdl_call_ex(fdl_comm* comm, const fdl_call* call, const fdl_call_options* options,
                               fdl_request** request);
/* Submitted calls: as fdl_call_ex, but the call progresses whether or not a thread waits for it, and any thread may
 * submit. fdl_poll, fdl_wait_handle, fdl_handle_notify and fdl_handle_free work on the handle; a thread that waits may
 * drive the call itself. Returns at once. The structures may be freed at once, the buffers and options->user_op must
 * stay in place until the handle is done. Collectives run in the order of submission, and messages beside them.
 * options->timeout_ns (0: the option timeout_s) limits the time in which a collective runs, or from the submission of a
 * message on; when it has passed, the communicator ends with FDL_TIMEOUT, also if no thread waits.
 *
 * The first call shares the communicator, see fdl_comm_share. FDL_INVALID_ARGUMENT: an argument is wrong, or as for
 * fdl_comm_share. fdl_comm_destroy ends calls in flight with FDL_SHUT_DOWN. */
FDL_API fdl_result fdl_call_submit(fdl_comm* comm, const fdl_call* call, const fdl_call_options* options,
                                   fdl_handle** handle);
/* Submits several collectives that are launched together where the backend can: NCCL gets those on a device as one
 * group of calls. They run in their order, as if each were submitted behind the one before, and all ranks submit the
 * same. `options` may be NULL, and so may each of its elements. On success `handles` has one handle for each call; on
 * failure nothing was submitted. FDL_INVALID_ARGUMENT: as for fdl_call_submit, or a call is a message. */
FDL_API fdl_result fdl_call_submit_group(fdl_comm* comm, const fdl_call* const* calls,
                                         const fdl_call_options* const* options, size_t count, fdl_handle** handles);
/* From now on the world makes the communicator's progress, on this rank, and any thread may use the communicator.
 * Blocking calls run behind the calls that were submitted before, and must not be made in a handle's callback;
 * requests, fdl_comm_serve and fdl_comm_wake are FDL_INVALID_ARGUMENT. No other thread may be using the communicator
 * during this call, unless it is shared already. FDL_INVALID_ARGUMENT: requests are in flight. */
FDL_API fdl_result fdl_comm_share(fdl_comm* comm);
/* Ends a shared communicator with FDL_TIMEOUT if a submitted call is in flight after timeout_ns. Replaces the former
 * limit; timeout_ns < 0: none. From any thread. FDL_INVALID_ARGUMENT: the communicator is not shared. */
FDL_API fdl_result fdl_comm_limit(fdl_comm* comm, int64_t timeout_ns);
/* fdl_allreduce with options, which may be NULL. */
FDL_API fdl_result fdl_allreduce_ex(fdl_comm* comm, const void* input, void* output, size_t count, fdl_dtype dtype,
                                    fdl_reduce_op op, const fdl_call_options* options);

/* Makes progress and sets *done to 0 or 1 without waiting. With *done = 1 it returns the outcome and frees the request.
 * timeout_ns counts from the begin of a wait and does not limit it: that would cost a read of the clock in each call. A
 * program that only polls keeps a limit of its own, and calls fdl_comm_abort. A lost rank ends the request here too. */
FDL_API fdl_result fdl_test(fdl_request* request, int* done);
/* Waits, returns the outcome and frees the request, also on failure. FDL_TIMEOUT: the option timeout_s has passed,
 * which ends the communicator. */
FDL_API fdl_result fdl_wait(fdl_request* request);
/* Waits for all requests, frees them and sets their entries to NULL. Returns the first failure. NULL entries are
 * skipped; the requests may belong to several communicators. */
FDL_API fdl_result fdl_wait_all(fdl_request** requests, size_t count);
/* Waits for one of several requests of one communicator. Frees it, sets its entry to NULL and *index to its position,
 * and returns its outcome. FDL_INVALID_ARGUMENT: all entries are NULL, or of several communicators. FDL_TIMEOUT: the
 * limit of the request at *index has passed, as in fdl_wait. */
FDL_API fdl_result fdl_wait_any(fdl_request** requests, size_t count, size_t* index);
/* For a thread that serves the requests of other threads: as fdl_wait_any for requests of `comm` (perhaps none). It
 * also returns, with FDL_OK and *index = count, if fdl_comm_wake was called since the last time. timeout_ns < 0: no
 * limit. A limit that passes ends the communicator, and its requests with FDL_TIMEOUT. */
FDL_API fdl_result fdl_comm_serve(fdl_comm* comm, fdl_request** requests, size_t count, int64_t timeout_ns,
                                  size_t* index);
/* Makes the present or the next fdl_comm_serve of `comm` return. From any thread. */
FDL_API fdl_result fdl_comm_wake(fdl_comm* comm);
/* Call from any thread while another one waits in `comm`, or while submitted calls are in flight. Returns FDL_TIMEOUT,
 * and fdl_last_error() names the operation in flight and the first rank that it waits for; no operation ends. FDL_OK:
 * no thread waits, or it did not answer within timeout_ns. */
FDL_API fdl_result fdl_comm_diagnose(fdl_comm* comm, int64_t timeout_ns);
/* Waits for the request, ignores its outcome and frees it. Legal after its communicator was destroyed, which ended it.
 */
FDL_API void fdl_request_free(fdl_request* request);

/* ---- Named operations: submitted in any order, asynchronous, agreed upon by name, fused ---- */

typedef enum fdl_kind {
  FDL_NAMED_ALLREDUCE = 0,
  FDL_NAMED_ALLGATHER = 1, /* the first dimensions may differ between ranks */
  FDL_NAMED_BROADCAST = 2,
  FDL_NAMED_ALLTOALL = 3,       /* splits: rows for each rank */
  FDL_NAMED_REDUCE_SCATTER = 4, /* divides the first dimension; the first ranks get one row more if needed */
  FDL_NAMED_BARRIER = 5
} fdl_kind;

/* Contiguous, in row-major order. */
typedef struct fdl_tensor {
  void* data;
  fdl_dtype dtype;
  int ndim;             /* 0 to 64 */
  const int64_t* shape; /* ndim dimensions, in elements */
  int device_kind;      /* an fdl_device_kind; of input and output */
  int device_index;     /* on each rank, all tensors of a group that are on devices lie on one device */
  void* stream;         /* of the device; NULL: its default stream */
} fdl_tensor;

typedef struct fdl_operation {
  size_t struct_size;
  fdl_kind kind;
  const char* name; /* the same on all ranks; not empty */
  fdl_tensor input;
  void* output; /* allreduce, broadcast: memory of input's shape, and input.data == output is in place. NULL, and for
                   the other kinds: the library allocates the result, see fdl_handle_output */
  fdl_reduce_op op;
  int root; /* rank in the group */
  double prescale, postscale;
  const int64_t* splits; /* alltoall: rows for each rank of the group; NULL: equal parts */
  int priority;          /* among the operations that are ready at once, higher ones run first. Operations above 0 are
                            started at most 1 MiB ahead, so that one of a higher priority that comes later overtakes
                            those that wait; submit a large tensor in parts, because what runs is not interrupted */
  /* The sizes of the caller's memory, checked as those of fdl_call: elements of output and entries of splits.
   * fdl_operation_init sets them to FDL_UNSTATED. */
  size_t output_elements;
  size_t splits_length;
  fdl_compression compression; /* fdl_output.error_bound tells the bound */
} fdl_operation;
/* Sets all members to their defaults; operation must not be NULL. */
FDL_API void fdl_operation_init(fdl_operation* operation);

/* Submits `count` operations, 1 to 65536; several of them all run or all fail together. Returns at once; the handle
 * gets the outcome. From any thread. The structures may be freed at once, the tensors must stay in place until the
 * handle is done, and on a device until a stream waits for it. FDL_INVALID_ARGUMENT: an argument is wrong, the name is
 * taken, or the names, shapes and splits of all operations take more than 16 MiB.
 *
 * A name is taken from the submission until this rank has observed the end of the operation: fdl_wait_handle or fdl_run
 * has returned its outcome, fdl_poll has found it done, or its callback runs. Whether a second submission is refused
 * thus follows from the order of this rank's calls, and not from the speed of the ranks. There are two exceptions: a
 * handle that is freed before keeps the name until its operation is done, and fdl_poll may find one done or not. After
 * either, submit the name again only once the outcome is known on this rank: else some ranks may refuse it. */
FDL_API fdl_result fdl_submit(fdl_group* group, const fdl_operation* operations, size_t count, fdl_handle** handle);
/* Submits and waits, in the calling thread if possible, so that a short operation needs no switch between threads. The
 * result is that of fdl_submit or fdl_wait_handle. `handle` may be NULL. Otherwise it gets the operations' handle, on
 * failure too (after FDL_TIMEOUT they are still in flight), or NULL if nothing was submitted. */
FDL_API fdl_result fdl_run(fdl_group* group, const fdl_operation* operations, size_t count, int64_t timeout_ns,
                           fdl_handle** handle);
/* Declares that this rank has no more tensors. The handle is done when all ranks of the group have joined; until then
 * this rank contributes zeros to the other ranks' allreduces. Returns at once, from any thread. */
FDL_API fdl_result fdl_join(fdl_group* group, fdl_handle** handle);
/* Sets *done to 0 or 1 without waiting; fdl_wait_handle returns the outcome. From any thread. */
FDL_API fdl_result fdl_poll(fdl_handle* handle, int* done);
/* Waits for the outcome: FDL_OK or the failure. It stays with the handle, and each call returns the same. While it
 * waits, the calling thread may do the progress thread's work, for all operations of the world. Any number of threads
 * may wait. timeout_ns < 0: no limit. FDL_TIMEOUT of the wait itself leaves the operation in flight. Its text names a
 * named operation and for how long it has been in flight. Once this rank has got a report of ranks that have not
 * submitted it (after the option stall_warning_s, and again after as long), the text has the report and its age.
 *
 * On a device, the streams of the operations' tensors wait for the results; those streams must still exist.
 * FDL_UNSUPPORTED: one of them is being captured into a graph; wait again after the capture. */
FDL_API fdl_result fdl_wait_handle(fdl_handle* handle, int64_t timeout_ns);
/* The same, for operations on devices of which `stream` uses the results: it waits for them, in place of the streams of
 * the tensors, and the outputs that the library has allocated belong to it. It waits for a submitted collective without
 * waiting for what is queued on that one's stream behind it. */
FDL_API fdl_result fdl_wait_handle_on(fdl_handle* handle, int64_t timeout_ns, void* stream);
/* Sets *done to 1 if the operation is done and the device has finished it, or it has failed; else to 0. Without
 * waiting, from any thread. A handle that is freed without a wait orders no stream: until *done is 1, the device may
 * use its tensors. */
FDL_API fdl_result fdl_poll_device(fdl_handle* handle, int* done);
/* Sets the handle's only callback, which is called once. The thread that completes the handle calls it: the progress
 * thread, any thread that waits in fdl_wait_handle, fdl_run or a blocking call, or the one that destroys the
 * communicator. If the handle is done already, this call does. Nothing progresses meanwhile, so the callback should be
 * short. It may submit, but must not wait (FDL_INVALID_ARGUMENT) and must not destroy groups and communicators. */
FDL_API fdl_result fdl_handle_notify(fdl_handle* handle, void (*function)(void* context), void* context);
/* The output of an operation, see fdl_handle_output. */
typedef struct fdl_output {
  size_t struct_size;
  void* data; /* on the device of the operation's input; NULL if the result is in the caller's output */
  int ndim;
  const int64_t* shape;           /* ndim dimensions, valid as long as the handle */
  const int64_t* received_splits; /* alltoall: rows from each rank, valid as long as the handle; else NULL */
  int last_joined;                /* fdl_join: the last rank of the group that joined; else -1 */
  double error_bound;             /* with a compression: as fdl_call_options.error_bound, of the bucket; else 0 */
} fdl_output;
/* The output of operation `index` (from 0) of a handle that is done; a submitted call is one without data. Memory that
 * the library allocated passes to the caller, which frees it with fdl_output_free; a second call gets NULL data. One
 * thread at a time for a handle. output->struct_size must be set. FDL_INVALID_ARGUMENT: not done, or no such index.
 * Otherwise the handle's failure. */
FDL_API fdl_result fdl_handle_output(fdl_handle* handle, size_t index, fdl_output* output);
/* Frees `data` of an fdl_output; NULL does nothing. On a device, work that is queued on the stream of the operation's
 * tensor, or of fdl_wait_handle_on, may still use it; that stream must still exist. */
FDL_API void fdl_output_free(void* data);
/* Makes a handle that the application completes, for an operation of its own that consists of several submitted ones.
 * A thread that waits for it does so as for any other handle, and makes progress meanwhile. */
FDL_API fdl_result fdl_handle_create(fdl_world* world, fdl_handle** handle);
/* Completes a handle of fdl_handle_create with FDL_OK, once. From any thread, also in a callback. Another thread that
 * waits for the handle may free it before this call returns. FDL_INVALID_ARGUMENT: it is complete, or not such a
 * handle.
 */
FDL_API fdl_result fdl_handle_complete(fdl_handle* handle);
/* Legal at any time. An operation in flight goes on, and its outcome is ignored. */
FDL_API void fdl_handle_free(fdl_handle* handle);

/* ---- Memory ---- */

/* Allocates zeroed, 64-byte aligned memory that all ranks of this host map if they can (FARANDOLE_MEMORY_BYTES limits
 * it). Otherwise it is ordinary memory, and the log has a warning. Collectives larger than some KiB whose buffers all
 * lie in such memory are not staged: ranks read and write each other's buffers. It lives until it is freed, also after
 * its world. A forked child sees the parent's memory itself, not a copy; freeing it there does nothing. From any
 * thread. FDL_RESOURCE: memory is short. */
FDL_API fdl_result fdl_alloc(fdl_world* world, size_t bytes, void** memory);
/* Frees memory of fdl_alloc or fdl_device_alloc. From any thread; NULL does nothing. */
FDL_API void fdl_free(void* memory);
/* Allocates memory of a device for tensors of this group's named operations. Collective over the group and blocking:
 * all members call it in the same order with the same number of bytes (at least 1), and all get memory or the same
 * error, after which the group stays usable. The memory is zeroed in the stream's order.
 *
 * If NCCL runs the group's collectives, the memory is registered with NCCL, which then works in it without copies. Sums
 * whose tensors lie side by side in it, alike on all ranks, are neither packed nor unpacked. Sums whose tensors lie
 * differently are packed; any other operation on such tensors is FDL_MISMATCH.
 *
 * fdl_free ends it, also after its group and world. Work that the stream holds may still use it; the stream must still
 * exist. Memory that all ranks have freed is returned with the group's next fdl_device_alloc, the rest when the group
 * ends. */
FDL_API fdl_result fdl_device_alloc(fdl_group* group, fdl_device_kind kind, int index, void* stream, size_t bytes,
                                    void** memory);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* FARANDOLE_FARANDOLE_H_ */
