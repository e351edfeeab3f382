/*
 * Reports to the thread sanitizer the order that the standard library's locks establish.
 *
 * The standard library is compiled without the sanitizer. The sanitizer observes the code that is
 * inlined into this repository's code (atomics, locking a free mutex, unlocking). It does not
 * observe code inside the library: a contended lock, a wait on a condition variable, a Once, the
 * end of a scoped thread. It would report a race on the data that each of these guards. The
 * linker's --wrap redirects those calls to the functions of this file. The address of a lock
 * is the address of its futex word, which the inlined parts use as well, so both kinds of
 * access have the same address.
 *
 * Compiled by `./build.sh tsan`, which defines each name below as the compiler's symbol.
 */
#include <stdbool.h>
#include <stdint.h>

void __tsan_acquire(void *word);
void __tsan_release(void *word);

#define GLUE(a, b) a##b
#define REAL(name) GLUE(__real_, name)
#define WRAP(name) GLUE(__wrap_, name)

#define LOCK(name)                   \
    void REAL(name)(void *lock);     \
    void WRAP(name)(void *lock)      \
    {                                \
        REAL(name)(lock);            \
        __tsan_acquire(lock);        \
    }

LOCK(MUTEX_LOCK)
LOCK(RWLOCK_READ)
LOCK(RWLOCK_WRITE)

void REAL(CONDVAR_WAIT)(void *condvar, void *mutex);
void WRAP(CONDVAR_WAIT)(void *condvar, void *mutex)
{
    __tsan_release(mutex);
    REAL(CONDVAR_WAIT)(condvar, mutex);
    __tsan_acquire(mutex);
}

/* A Duration is passed as two values: seconds and nanoseconds. */
bool REAL(CONDVAR_WAIT_TIMEOUT)(void *condvar, void *mutex, uint64_t s, uint32_t ns);
bool WRAP(CONDVAR_WAIT_TIMEOUT)(void *condvar, void *mutex, uint64_t s, uint32_t ns)
{
    __tsan_release(mutex);
    bool woken = REAL(CONDVAR_WAIT_TIMEOUT)(condvar, mutex, s, ns);
    __tsan_acquire(mutex);
    return woken;
}

/* The closure is passed as two values: data and vtable. */
void REAL(ONCE_CALL)(void *once, bool poisoned, void *data, void *table, void *caller);
void WRAP(ONCE_CALL)(void *once, bool poisoned, void *data, void *table, void *caller)
{
    REAL(ONCE_CALL)(once, poisoned, data, table, caller);
    __tsan_acquire(once);
    __tsan_release(once);
}

/*
 * The end of a scope waits for a counter, which is one of the first three words of this struct;
 * the language does not define which one. Releasing the other two is harmless.
 */
void REAL(SCOPED_THREAD_ENDS)(void *scope, bool panicked);
void WRAP(SCOPED_THREAD_ENDS)(void *scope, bool panicked)
{
    for (int i = 0; i < 3; i++)
        __tsan_release((uint64_t *)scope + i);
    REAL(SCOPED_THREAD_ENDS)(scope, panicked);
}
