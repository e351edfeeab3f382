/* libibverbs as it is installed, but for one thing: REFUSE_STATE=STATE:TIMES has the first TIMES
 * changes of a queue pair to the state with this number fail, as a kernel that refuses them. */
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#define IBV_QP_STATE 1

/* The first field of attr is the state. */
int ibv_modify_qp(void *qp, int *attr, int mask)
{
	static atomic_int refused;
	int state = -1, times = 0;
	const char *said = getenv("REFUSE_STATE");

	if (said)
		sscanf(said, "%d:%d", &state, &times);
	if ((mask & IBV_QP_STATE) && attr[0] == state && atomic_fetch_add(&refused, 1) < times)
		return ENOMEM;
	void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
	int (*modify)(void *, int *, int) =
		(int (*)(void *, int *, int))dlvsym(library, "ibv_modify_qp", "IBVERBS_1.1");

	return modify(qp, attr, mask);
}
