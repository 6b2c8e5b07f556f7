// Threads that share out the tasks of a call: torch's own, through the OpenMP runtime that it has loaded. They spin for
// a while after each of torch's operations, and other threads would wait for them to stop.
//
// Without that runtime, and in a forked child, which does not have its parent's team, there are threads of ours. They
// are started when a call first wants them and sleep until the next one; a call that finds them busy with another
// thread's call does all of its tasks itself.
#pragma once
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>

enum { MAX_THREADS = 256 };

// A job: `task(context, index, thread)` for 0 <= index < tasks, each once, threads numbered from 0.
typedef void mx_task(void *context, int64_t index, int64_t thread);

// What is left of a job: for each thread tasks that follow each other. Neighbours read and write neighbouring memory,
// which a core fetches before it is asked: two cores that share it out line by line wait for each other. A thread takes
// its own from the front; one that has none left takes another one's from the back.
struct job_parts {
    mx_task *task;
    void *context;
    int64_t threads;
    struct {
        _Alignas(64) _Atomic uint64_t left;  // first task, and above it the one after the last
    } of[MAX_THREADS];
};

static void share_tasks(struct job_parts *j, mx_task *task, void *context, int64_t tasks, int64_t threads) {
    j->task = task;
    j->context = context;
    j->threads = threads;
    for (int64_t t = 0; t < threads; t++) {
        uint64_t first = (uint64_t)(tasks * t / threads), end = (uint64_t)(tasks * (t + 1) / threads);
        atomic_store(&j->of[t].left, first | end << 32);
    }
}

static void work(struct job_parts *j, int64_t thread) {
    for (int64_t i = 0; i < j->threads; i++) {
        _Atomic uint64_t *left = &j->of[(thread + i) % j->threads].left;
        for (uint64_t now = atomic_load(left);;) {
            uint32_t first = (uint32_t)now, end = (uint32_t)(now >> 32);
            if (first == end) break;
            uint64_t then = i ? now - (1ull << 32) : now + 1;
            if (!atomic_compare_exchange_weak(left, &now, then)) continue;
            j->task(j->context, i ? end - 1 : first, thread);
            now = then;
        }
    }
}

static struct {
    pthread_mutex_t lock;
    pthread_cond_t wanted, finished;
    int64_t workers;  // started
    int64_t helpers;  // that the job wants
    int64_t busy;  // that are at it
    uint64_t job;  // its number
    struct job_parts parts;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .wanted = PTHREAD_COND_INITIALIZER, .finished = PTHREAD_COND_INITIALIZER};

static _Atomic int pool_taken;

// GOMP_parallel(function, argument, threads, flags), or NULL.
typedef void start_team(void (*)(void *), void *, unsigned, unsigned);
static start_team *_Atomic team;

struct team_job {
    struct job_parts parts;
    _Atomic int64_t members;
};

static void team_work(void *argument) {
    struct team_job *j = argument;
    work(&j->parts, atomic_fetch_add(&j->members, 1));
}

static void *pool_worker(void *argument) {
    int64_t number = (int64_t)(intptr_t)argument;
    uint64_t done = 0;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        while (pool.job == done || number > pool.helpers) {
            done = pool.job;
            pthread_cond_wait(&pool.wanted, &pool.lock);
        }
        done = pool.job;
        pool.busy++;
        pthread_mutex_unlock(&pool.lock);
        work(&pool.parts, number);
        pthread_mutex_lock(&pool.lock);
        if (--pool.busy == 0) pthread_cond_signal(&pool.finished);
    }
    return NULL;
}

static void pool_forget(void) {  // in a forked child, where no worker is
    pool.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    pool.wanted = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    pool.finished = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    pool.workers = pool.helpers = pool.busy = 0;
    atomic_store(&pool_taken, 0);
    atomic_store(&team, NULL);
}

__attribute__((constructor)) static void pool_watch_forks(void) { pthread_atfork(NULL, NULL, pool_forget); }

// Start workers until there are `wanted`, or as many as the system allows; under the lock.
static int64_t pool_grow(int64_t wanted) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
    while (pool.workers < wanted) {
        pthread_t thread;
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        int failed = pthread_create(&thread, &attributes, pool_worker, (void *)(intptr_t)(pool.workers + 1));
        pthread_attr_destroy(&attributes);
        if (failed) break;
        pool.workers++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return pool.workers;
}

// Run a job with at most `threads` threads, the caller's among them.
static void pool_run(mx_task *task, void *context, int64_t tasks, int64_t threads) {
    int free = 0;
    threads = tasks > UINT32_MAX ? 1 : threads > tasks ? tasks : threads;
    start_team *start = atomic_load(&team);
    if (threads > 1 && start) {
        struct team_job j;
        share_tasks(&j.parts, task, context, tasks, threads);
        atomic_init(&j.members, 0);
        start(team_work, &j, (unsigned)threads, 0);
        return;
    }
    if (threads <= 1 || !atomic_compare_exchange_strong(&pool_taken, &free, 1)) {
        for (int64_t i = 0; i < tasks; i++) task(context, i, 0);
        return;
    }
    pthread_mutex_lock(&pool.lock);
    int64_t workers = pool_grow(threads - 1);
    pool.helpers = workers < threads - 1 ? workers : threads - 1;
    share_tasks(&pool.parts, task, context, tasks, pool.helpers + 1);
    pool.job++;
    pthread_cond_broadcast(&pool.wanted);
    pthread_mutex_unlock(&pool.lock);
    work(&pool.parts, 0);
    pthread_mutex_lock(&pool.lock);
    pool.helpers = 0;  // no task is left for those that have not woken yet
    while (pool.busy) pthread_cond_wait(&pool.finished, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
    atomic_store(&pool_taken, 0);
}
