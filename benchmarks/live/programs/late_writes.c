/* Preloaded into a rank: what it writes to a socket leaves late, once the file <LATE_WRITES>.<pid> is there.

   The file holds nothing; LATE_WRITES_US says by how much. Communication then takes longer on a thread of the
   communication library, and no line of the program does: a slow network, as the program sees it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

static void late(int fd) {
    static char path[512];
    static pid_t pid;
    static unsigned us;
    const char *begin = getenv("LATE_WRITES"), *given = getenv("LATE_WRITES_US");
    int domain;
    socklen_t size = sizeof domain;
    if (!begin || !given) return;
    if (pid != getpid()) {
        pid = getpid();
        us = (unsigned)atoi(given);
        snprintf(path, sizeof path, "%s.%d", begin, (int)pid);
    }
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) || (domain != AF_INET && domain != AF_INET6)) return;
    if (access(path, F_OK) == 0) usleep(us);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    static ssize_t (*real)(int, const struct iovec *, int);
    if (!real) real = dlsym(RTLD_NEXT, "writev");
    late(fd);
    return real(fd, parts, count);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    static ssize_t (*real)(int, const struct msghdr *, int);
    if (!real) real = dlsym(RTLD_NEXT, "sendmsg");
    late(fd);
    return real(fd, message, flags);
}
