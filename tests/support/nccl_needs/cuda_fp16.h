// nccl.h includes this header and uses nothing of it. Before 2.24 it hides bfloat16 without this header.
#pragma once

#define __CUDA_BF16_TYPES_EXIST__
