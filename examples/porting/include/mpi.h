/* The declarations of MPI that halo.c uses, so that a machine without MPI can check the file. The
 * parameters are those of the standard; the types are opaque. */
#ifndef PORTING_MPI_H
#define PORTING_MPI_H

typedef struct porting_comm *MPI_Comm;
typedef struct porting_request *MPI_Request;
typedef struct porting_datatype *MPI_Datatype;
typedef struct porting_op *MPI_Op;
typedef struct { int MPI_SOURCE, MPI_TAG, MPI_ERROR; } MPI_Status;

extern MPI_Comm MPI_COMM_WORLD;
extern MPI_Datatype MPI_UINT64_T;
extern MPI_Op MPI_MIN;
#define MPI_PROC_NULL (-1)
#define MPI_IN_PLACE ((void *)-1)
#define MPI_STATUSES_IGNORE ((MPI_Status *)0)

int MPI_Comm_rank(MPI_Comm comm, int *rank);
int MPI_Comm_size(MPI_Comm comm, int *size);
int MPI_Irecv(void *buf, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm,
              MPI_Request *request);
int MPI_Isend(const void *buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm,
              MPI_Request *request);
int MPI_Waitall(int count, MPI_Request requests[], MPI_Status statuses[]);
int MPI_Allreduce(const void *sendbuf, void *recvbuf, int count, MPI_Datatype type, MPI_Op op,
                  MPI_Comm comm);

#endif
