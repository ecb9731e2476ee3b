// The two handles of CUDA's runtime that nccl.h uses, so that it compiles without a toolkit.
#pragma once

typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
