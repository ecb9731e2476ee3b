// What nccl.h names of CUDA's runtime: two handles. So it is read where no toolkit is.
#pragma once

typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
