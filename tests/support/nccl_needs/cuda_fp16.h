// nccl.h includes this one and names nothing of it. Before 2.24 it hides bfloat16 where this is not said.
#pragma once

#define __CUDA_BF16_TYPES_EXIST__
