/* The declarations of CUDA that halo.c uses, so that a machine without CUDA can check the file. */
#ifndef PORTING_CUDA_RUNTIME_H
#define PORTING_CUDA_RUNTIME_H

typedef struct porting_stream *cudaStream_t;
int cudaStreamSynchronize(cudaStream_t stream);

#endif
