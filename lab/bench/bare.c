/* The lower bound for every exporter: a C program that calls the driver and does nothing else.
 *
 *   bare LIBRARY init             nvmlInit, one line when it is done
 *   bare LIBRARY first            nvmlInit and one sample of every GPU, one line, exit
 *   bare LIBRARY same HZ SECONDS  the exporter's calls at the exporter's rates (same.c), one line before and one after
 *   bare - crowd COUNT            COUNT children that do nothing, one line with their pids
 *
 * The lines are JSON. All modes except `first` run until their input ends; `same` runs for at most SECONDS.
 * Built on the fly: gcc -O2 -pthread -o bare bare.c same.c telemetry.c nvml.c -ldl
 */
#define _GNU_SOURCE
#include "bare.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void wait_for_end_of_input(void) {
    char buffer[64];
    while (read(STDIN_FILENO, buffer, sizeof buffer) > 0)
        ;
}

static int first(void) {
    find_gpus();
    printf("{\"used\": [");
    for (unsigned int index = 0; index < gpus; index++) {
        memory_v2 memory;
        int code = read_memory(index, &memory);
        if (code) {
            fprintf(stderr, "bare: memory info of GPU %u returned %d\n", index, code);
            return 1;
        }
        printf("%s%llu", index ? ", " : "", memory.used);
    }
    printf("]}\n");
    /* Flushed before the driver library's destructors run, because these are not part of startup. */
    fflush(stdout);
    return 0;
}

/* Starts children that die with this program, however it ends. */
static int crowd(long count) {
    pid_t parent = getpid(), *children = calloc((size_t)count, sizeof *children);
    if (!children)
        return 1;
    int code = 0;
    long born = 0;
    for (; born < count; born++) {
        children[born] = fork();
        if (children[born] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent)
                _exit(0);
            for (;;)
                pause();
        }
        if (children[born] < 0) {
            fprintf(stderr, "bare: child %ld of %ld could not be created\n", born, count);
            code = 1;
            break;
        }
    }
    if (!code) {
        printf("{\"pids\": [");
        for (long child = 0; child < born; child++)
            printf("%s%d", child ? ", " : "", (int)children[child]);
        printf("]}\n");
        fflush(stdout);
        wait_for_end_of_input();
    }
    for (long child = 0; child < born; child++)
        kill(children[child], SIGKILL);
    for (long child = 0; child < born; child++)
        waitpid(children[child], NULL, 0);
    return code;
}

int main(int argc, char **argv) {
    if (argc == 4 && !strcmp(argv[2], "crowd") && atol(argv[3]) > 0)
        return crowd(atol(argv[3]));
    if (argc == 3 && (!strcmp(argv[2], "init") || !strcmp(argv[2], "first"))) {
        open_nvml(argv[1]);
        if (!strcmp(argv[2], "first"))
            return first();
        printf("{}\n");
        fflush(stdout);
        wait_for_end_of_input();
        return 0;
    }
    if (argc == 5 && !strcmp(argv[2], "same") && atof(argv[3]) > 0 && atof(argv[4]) > 0) {
        open_nvml(argv[1]);
        find_gpus();
        return same(atof(argv[3]), atof(argv[4]));
    }
    fprintf(stderr, "usage: bare LIBRARY init|first | bare LIBRARY same HZ SECONDS | bare - crowd COUNT\n");
    return 64;
}
