/* Notes what a process and its children do to some folders: which files come, go and are synced, and in which order.
 *
 * Preloaded into a driver, its JVM, Spark's workers and the containers (LD_PRELOAD). DISK_ROOTS are the folders, with
 * colons between them, DISK_LOG the file of notes, DISK_GRAVES a folder that keeps what is deleted, by inode number.
 * Each note is written when the call has returned and before its caller knows: what follows from it is noted later.
 * A file's bytes are not noted: no file here is changed once it has been given its name, or was synced.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define REAL(name, type, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

static int log_fd(void) {
    static int fd = -1;
    static pid_t owner;
    if (fd < 0 || owner != getpid()) { /* a child may have closed what it inherited */
        const char *path = getenv("DISK_LOG");
        int (*real_open)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open64");
        fd = path ? real_open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666) : -1;
        owner = getpid();
    }
    return fd;
}

/* The whole path without dots; 0 if it is not to be watched. `above`: also a folder that a watched one is in. */
static int watched(int dir, const char *path, char *out, int above) {
    char raw[2 * PATH_MAX], base[PATH_MAX] = "";
    const char *roots = getenv("DISK_ROOTS");
    if (!roots || !path) return 0;
    if (path[0] != '/') {
        if (dir == AT_FDCWD) {
            if (!getcwd(base, sizeof base)) return 0;
        } else {
            char link[64];
            snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
            ssize_t n = readlink(link, base, sizeof base - 1);
            if (n < 0) return 0;
            base[n] = 0;
        }
    }
    snprintf(raw, sizeof raw, "%s/%s", base, path);
    size_t length = 0;
    for (char *state, *part = strtok_r(raw, "/", &state); part; part = strtok_r(NULL, "/", &state)) {
        if (!strcmp(part, ".")) continue;
        if (!strcmp(part, "..")) {
            while (length && out[--length] != '/') {}
            continue;
        }
        if (length + strlen(part) + 2 > PATH_MAX) return 0;
        out[length++] = '/';
        strcpy(out + length, part);
        length += strlen(part);
    }
    out[length] = 0;
    for (const char *root = roots; *root; root += strcspn(root, ":"), root += *root == ':') {
        size_t n = strcspn(root, ":");
        if (!strncmp(out, root, n) && (out[n] == '/' || out[n] == 0)) return 1;
        if (above && length < n && !strncmp(out, root, length) && root[length] == '/') return 1;
    }
    return 0;
}

static void note(const char *what, unsigned long inode, long size, const char *path, const char *to) {
    char line[2 * PATH_MAX + 64];
    int saved = errno, fd = log_fd();
    int n = snprintf(line, sizeof line, "%s\t%lu\t%ld\t%s\t%s\n", what, inode, size, path, to);
    if (fd >= 0 && write(fd, line, n) != n) abort();
    errno = saved;
}

/* What a name stands for now, kept from being reused or lost if the name goes. */
static unsigned long about_to_go(const char *path, int *folder) {
    struct stat is;
    char grave[PATH_MAX];
    int saved = errno;
    int (*real_link)(const char *, const char *) = (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "link");
    if (lstat(path, &is)) {
        errno = saved;
        return 0;
    }
    *folder = S_ISDIR(is.st_mode);
    snprintf(grave, sizeof grave, "%s/%lu", getenv("DISK_GRAVES"), (unsigned long)is.st_ino);
    if (!*folder) real_link(path, grave);
    errno = saved;
    return is.st_ino;
}

static void opened(int fd, const char *path, int was_there, int flags) {
    struct stat is;
    if (fd < 0 || fstat(fd, &is) || !S_ISREG(is.st_mode)) return;
    if (!was_there) note("create", is.st_ino, 0, path, "");
    else if (flags & O_TRUNC) note("truncate", is.st_ino, 0, path, "");
}

#define OPENING(dir, path, flags) \
    char whole[PATH_MAX]; \
    struct stat is; \
    int mine = ((flags) & (O_CREAT | O_TRUNC)) && watched(dir, path, whole, 0), was_there = mine && !lstat(whole, &is)

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, int); va_end(rest); }

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name, int, const char *, int, ...); \
        MODE(flags) OPENING(AT_FDCWD, path, flags); \
        int fd = real(path, flags, mode); \
        if (mine) opened(fd, whole, was_there, flags); \
        return fd; \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int dir, const char *path, int flags, ...) { \
        REAL(name, int, int, const char *, int, ...); \
        MODE(flags) OPENING(dir, path, flags); \
        int fd = real(dir, path, flags, mode); \
        if (mine) opened(fd, whole, was_there, flags); \
        return fd; \
    }
OPENAT(openat)
OPENAT(openat64)

#define FOPEN(name) \
    FILE *name(const char *path, const char *how) { \
        REAL(name, FILE *, const char *, const char *); \
        int flags = how[0] == 'r' ? 0 : O_CREAT | (how[0] == 'w' ? O_TRUNC : 0); \
        OPENING(AT_FDCWD, path, flags); \
        FILE *file = real(path, how); \
        if (mine && file) opened(fileno(file), whole, was_there, flags); \
        return file; \
    }
FOPEN(fopen)
FOPEN(fopen64)

#define SYNC(name) \
    int name(int fd) { \
        REAL(name, int, int); \
        struct stat is; \
        char link[64], path[PATH_MAX], whole[PATH_MAX]; \
        int known = !fstat(fd, &is); /* before: what comes meanwhile may miss it */ \
        int result = real(fd); \
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd); \
        ssize_t n = readlink(link, path, sizeof path - 1); \
        if (result || !known || n < 0) return result; \
        path[n] = 0; \
        if (watched(AT_FDCWD, path, whole, 1)) \
            note(S_ISDIR(is.st_mode) ? "sync-folder" : "sync", is.st_ino, is.st_size, whole, ""); \
        return result; \
    }
SYNC(fsync)
SYNC(fdatasync)

static int moved(int result, int from_dir, const char *from, int to_dir, const char *to, int link) {
    char old[PATH_MAX], new[PATH_MAX];
    struct stat is;
    int a = watched(from_dir, from, old, 0), b = watched(to_dir, to, new, 0), saved = errno;
    if (!result && (a || b) && !lstat(new, &is)) {
        if (S_ISDIR(is.st_mode)) note("move-folder", is.st_ino, 0, old, new);
        else note(link ? "link" : "rename", is.st_ino, is.st_size, a ? old : "", new);
    }
    errno = saved;
    return result;
}

static void bury(int dir, const char *path) {
    char whole[PATH_MAX];
    int folder;
    if (watched(dir, path, whole, 0)) about_to_go(whole, &folder);
}

int rename(const char *from, const char *to) {
    REAL(rename, int, const char *, const char *);
    bury(AT_FDCWD, to);
    return moved(real(from, to), AT_FDCWD, from, AT_FDCWD, to, 0);
}
int renameat(int a, const char *from, int b, const char *to) {
    REAL(renameat, int, int, const char *, int, const char *);
    bury(b, to);
    return moved(real(a, from, b, to), a, from, b, to, 0);
}
int renameat2(int a, const char *from, int b, const char *to, unsigned int flags) {
    REAL(renameat2, int, int, const char *, int, const char *, unsigned int);
    bury(b, to);
    return moved(real(a, from, b, to, flags), a, from, b, to, 0);
}
int link(const char *from, const char *to) {
    REAL(link, int, const char *, const char *);
    return moved(real(from, to), AT_FDCWD, from, AT_FDCWD, to, 1);
}
int linkat(int a, const char *from, int b, const char *to, int flags) {
    REAL(linkat, int, int, const char *, int, const char *, int);
    return moved(real(a, from, b, to, flags), a, from, b, to, 1);
}

#define GOING(dir, path, call) \
    char whole[PATH_MAX]; \
    int folder = 0, mine = watched(dir, path, whole, 0); \
    unsigned long inode = mine ? about_to_go(whole, &folder) : 0; \
    int result = call; \
    if (mine && !result) note(folder ? "rmdir" : "unlink", inode, 0, whole, ""); \
    return result

int unlink(const char *path) {
    REAL(unlink, int, const char *);
    GOING(AT_FDCWD, path, real(path));
}
int remove(const char *path) {
    REAL(remove, int, const char *);
    GOING(AT_FDCWD, path, real(path));
}
int rmdir(const char *path) {
    REAL(rmdir, int, const char *);
    GOING(AT_FDCWD, path, real(path));
}
int unlinkat(int dir, const char *path, int flags) {
    REAL(unlinkat, int, int, const char *, int);
    GOING(dir, path, real(dir, path, flags));
}

static int made(int result, int dir, const char *path) {
    char whole[PATH_MAX];
    if (!result && watched(dir, path, whole, 0)) note("mkdir", 0, 0, whole, "");
    return result;
}
int mkdir(const char *path, mode_t mode) {
    REAL(mkdir, int, const char *, mode_t);
    return made(real(path, mode), AT_FDCWD, path);
}
int mkdirat(int dir, const char *path, mode_t mode) {
    REAL(mkdirat, int, int, const char *, mode_t);
    return made(real(dir, path, mode), dir, path);
}
