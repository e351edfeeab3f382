/* The installed libibverbs with one change: REFUSE_STATE=STATE:TIMES:BEFORE makes TIMES changes
 * of a queue pair to the state with this number fail, after the first BEFORE of them (0 if left
 * out), as if the kernel refused them. With HOLD_UNTIL=FILE these changes are not refused but
 * wait until FILE exists. */
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define IBV_QP_STATE 1

/* The first field of attr is the state. */
int ibv_modify_qp(void *qp, int *attr, int mask)
{
	static atomic_int seen;
	int state = -1, times = 0, before = 0;
	const char *said = getenv("REFUSE_STATE");

	if (said)
		sscanf(said, "%d:%d:%d", &state, &times, &before);
	if ((mask & IBV_QP_STATE) && attr[0] == state) {
		int number = atomic_fetch_add(&seen, 1);

		if (number >= before && number < before + times) {
			const char *until = getenv("HOLD_UNTIL");

			if (!until)
				return ENOMEM;
			while (access(until, F_OK))
				usleep(1000);
		}
	}
	void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
	int (*modify)(void *, int *, int) =
		(int (*)(void *, int *, int))dlvsym(library, "ibv_modify_qp", "IBVERBS_1.1");

	return modify(qp, attr, mask);
}
