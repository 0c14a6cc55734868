/* Every function of libc that takes a path, with paths that `urxe run` shows. Prints one line for each that fails. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <ftw.h>
#include <glob.h>
#include <linux/filter.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <spawn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>
#include <wordexp.h>

#define CLASS "/sys/class/infiniband"
#define DEVICE CLASS "/urxe0"
#define GUID DEVICE "/node_guid"
#define REAL "/sys/devices/virtual/infiniband/urxe0"
#define NODE "/dev/infiniband/uverbs0"
#define PATH_OF_FOLDER "urxe-"

static int failures;
#define CHECK(what) do { \
    errno = 0; \
    if (!(what)) { printf("%d: %s (errno %d, %s)\n", __LINE__, #what, errno, strerror(errno)); failures++; } \
} while (0)
/* The function of this name, as a program that was linked with it would call it; true if this libc has none. */
#define HAS(name) (dlsym(RTLD_DEFAULT, name) != NULL)
#define CALL(type, name, ...) (((type (*)())dlsym(RTLD_DEFAULT, name))(__VA_ARGS__))
#define FAILS(call, error) ((call) == -1 && errno == (error))

static int visited, strange;
static void look(const char *path, int base) {
    visited++;
    if (strncmp(path, DEVICE, strlen(DEVICE)) && strncmp(path, "/sys/class/infiniband_verbs", 27)) strange++;
    if (base >= 0 && (base == 0 || path[base - 1] != '/')) strange++;
}
static int visit(const char *path, const struct stat *s, int flag) { look(path, -1); return 0; }
static int visit_n(const char *path, const struct stat *s, int flag, struct FTW *ftw) { look(path, ftw->base); return 0; }
static int visit_nested(const char *path, const struct stat *s, int flag, struct FTW *ftw) {
    look(path, ftw->base);
    return ftw->level == 0 ? nftw("/sys/class/infiniband_verbs", visit_n, 8, 0) : 0;
}

static int lists(const char *folder, const char *name) {
    int count = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));) count += !strcmp(entry->d_name, name);
    if (dir) {
        rewinddir(dir);
        for (struct dirent *entry; (entry = readdir(dir));) count += !strcmp(entry->d_name, name);
        closedir(dir);
    }
    return count;
}

/* Bytes that can be read from a descriptor, which is closed. */
static int reads(int fd) {
    char text[64];
    int n = fd < 0 ? -1 : (int)read(fd, text, sizeof text);
    if (fd >= 0) close(fd);
    return n;
}

/* What a child reads whose standard input is opened by a file action. */
static int spawned(const char *folder, const char *path) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    if (folder && posix_spawn_file_actions_addchdir_np(&actions, folder)) return -1;
    if (posix_spawn_file_actions_addopen(&actions, 0, path, O_RDONLY, 0)) return -1;
    pid_t pid; int status;
    char *words[] = {"sh", "-c", "read line && test -n \"$line\"", NULL};
    if (posix_spawn(&pid, "/bin/sh", &actions, NULL, words, environ)) return -1;
    waitpid(pid, &status, 0);
    posix_spawn_file_actions_destroy(&actions);
    return status;
}

static int openat2_of(int dir, const char *path, unsigned long long flags) {
    struct open_how how = {.flags = flags};
    return syscall(SYS_openat2, dir, path, &how, sizeof how);
}

/* Forbids getcwd(2) to this process (seccomp(2)). */
static int forbid_getcwd(unsigned what) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getcwd, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, what),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* A program that does not call getcwd does not notice that it may not. */
static void without_getcwd(void) {
    int status = -1;
    if (fork() == 0) {
        struct stat st;
        if (chdir("/usr") || forbid_getcwd(SECCOMP_RET_KILL_PROCESS)) _exit(1);
        if (stat("../etc/passwd", &st) || open("../etc/passwd", O_RDONLY) < 0 || !FAILS(unlink("no-such"), ENOENT)) _exit(2);
        _exit(access("symbol_error", F_OK) == 0 || stat(GUID, &st) ? 3 : 0);
    }
    CHECK(wait(&status) > 0 && status == 0);
    if (fork() == 0) {
        struct stat st;
        if (chdir(DEVICE) || forbid_getcwd(SECCOMP_RET_ERRNO | EPERM)) _exit(1);
        _exit(stat("node_guid", &st) || open("ports/1/state", O_RDONLY) < 0 || !FAILS(stat("ports/9", &st), ENOENT) ? 2 : 0);
    }
    CHECK(wait(&status) > 0 && status == 0);
}

static jmp_buf back;

static int visit_and_leave(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)path, (void)st, (void)type, (void)ftw;
    longjmp(back, 1);
}

/* Leaves a walk and begins another, in a callback of a walk too, more often than there can be walks at once. */
static int visit_with_walks_that_are_left(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    static int left;
    for (left = 0; left < 3; left++)
        if (!setjmp(back)) nftw(DEVICE "/ports", visit_and_leave, 8, FTW_PHYS);
    return visit_n(path, st, type, ftw);
}

static void walks_that_are_left(void) {
    static int left;
    for (left = 0; left < 40; left++)
        if (!setjmp(back)) nftw(DEVICE "/ports", visit_and_leave, 8, FTW_PHYS);
    visited = strange = 0;
    CHECK(nftw(DEVICE "/ports", visit_n, 8, FTW_PHYS) == 0 && visited > 10 && !strange);
    visited = strange = 0;
    CHECK(nftw(DEVICE "/ports", visit_with_walks_that_are_left, 8, FTW_PHYS) == 0 && visited > 10 && !strange);
}

/* Every position leads to the entry that came after it. */
static void positions(const char *path) {
    static char names[4096][256];
    static long places[4096];
    DIR *dir = opendir(path);
    struct dirent *entry;
    int count = 0, wrong = 0;
    if (!dir) { CHECK(!"opendir"); return; }
    for (; places[count] = telldir(dir), (entry = readdir(dir)) && count < 4095; count++) strcpy(names[count], entry->d_name);
    for (int i = count; i >= 0; i--) {
        seekdir(dir, places[i]);
        entry = readdir(dir);
        wrong += i == count ? entry != NULL : !entry || strcmp(entry->d_name, names[i]);
    }
    CHECK(count > 2 && !wrong);
    seekdir(dir, places[count / 2]);
    rewinddir(dir);
    CHECK((entry = readdir(dir)) && !strcmp(entry->d_name, names[0]));
    closedir(dir);
}

static void walks(void) {
    struct dirent **list;
    int sys = open("/sys", O_RDONLY | O_DIRECTORY), root = open("/", O_RDONLY | O_DIRECTORY);
    CHECK(scandir(DEVICE "/ports", &list, NULL, alphasort) == 3);
    CHECK(scandirat(sys, "class/infiniband", &list, NULL, alphasort) == 3 && !strcmp(list[2]->d_name, "urxe0"));
    CHECK(CALL(int, "scandirat64", root, "sys/class/infiniband", &list, NULL, alphasort) == 3);
    CHECK(lists(CLASS, "urxe0") == 2);
    CHECK(lists("/sys/class", "infiniband") == 2 && lists("/sys/class", "net") == 2);
    CHECK(lists("/dev", "infiniband") == 2 && lists("/dev", "null") == 2);
    const char *ftws[] = {"ftw", "ftw64"}, *nftws[] = {"nftw", "nftw64"};
    for (int i = 0; i < 2; i++) {
        visited = strange = 0;
        CHECK(CALL(int, ftws[i], DEVICE "/ports", visit, 8) == 0 && visited > 10 && !strange);
        visited = strange = 0;
        CHECK(CALL(int, nftws[i], DEVICE "/ports", visit_n, 8, FTW_PHYS) == 0 && visited > 10 && !strange);
        visited = strange = 0;
        CHECK(CALL(int, nftws[i], DEVICE "/ports/", visit_nested, 8, FTW_DEPTH) == 0 && visited > 10 && !strange);
        visited = strange = 0;
        CHECK(CALL(int, nftws[i], DEVICE "/ports", visit_n, 8, FTW_CHDIR) == 0 && visited > 10 && !strange);
    }
    for (int options = FTS_PHYSICAL, i = 0; i < 2; i++, options |= FTS_NOCHDIR) {
        char *paths[] = {CLASS "_verbs", DEVICE "/", NULL};
        char home[4096];
        if (!getcwd(home, sizeof home)) abort();
        FTS *tree = fts_open(paths, options, NULL);
        int entries = 0, wrong = 0, files = 0;
        CHECK(tree != NULL);
        for (FTSENT *entry; tree && (entry = fts_read(tree));) {
            entries++;
            files += entry->fts_info == FTS_F;
            wrong += strncmp(entry->fts_path, CLASS, strlen(CLASS)) || strlen(entry->fts_path) != entry->fts_pathlen;
            wrong += strstr(entry->fts_accpath, PATH_OF_FOLDER) != NULL;
            if (entry->fts_info == FTS_F) wrong += access(entry->fts_accpath, F_OK);
            if (entry->fts_info == FTS_D && fts_children(tree, 0)) wrong += strncmp(entry->fts_path, CLASS, strlen(CLASS)) != 0;
        }
        if (tree) fts_close(tree);
        CHECK(entries > 20 && files > 10 && !wrong);
        char here[4096];
        CHECK(getcwd(here, sizeof here) && !strcmp(here, home));
    }
    glob_t found = {0};
    const char *globs[] = {"glob", "glob64"};
    for (int i = 0; i < 2; i++) {
        CHECK(CALL(int, globs[i], DEVICE "/ports/*/state", 0, NULL, &found) == 0 && found.gl_pathc == 1);
        CHECK(!strcmp(found.gl_pathv[0], DEVICE "/ports/1/state"));
        globfree(&found);
        CHECK(CALL(int, globs[i], "/sys/class/infini*/urx*", 0, NULL, &found) == 0 && found.gl_pathc == 1);
        CHECK(!strcmp(found.gl_pathv[0], DEVICE));
        globfree(&found);
        CHECK(CALL(int, globs[i], "/dev/infini*/uv*", GLOB_NOSORT, NULL, &found) == 0 && found.gl_pathc == 1);
        CHECK(!strcmp(found.gl_pathv[0], NODE));
        globfree(&found);
        CHECK(CALL(int, globs[i], "/etc/hostnam[e]", 0, NULL, &found) == 0 && found.gl_pathc == 1);
        globfree(&found);
    }
    wordexp_t words;
    CHECK(wordexp("one " DEVICE "/ports/*/state '" DEVICE "/*'", &words, 0) == 0 && words.we_wordc == 3);
    CHECK(!strcmp(words.we_wordv[1], DEVICE "/ports/1/state") && !strcmp(words.we_wordv[2], DEVICE "/*"));
    words.we_offs = 2;
    CHECK(wordexp(NODE " /dev/infiniband/uv*", &words, WRDE_DOOFFS) == 0 && words.we_wordc == 2);
    CHECK(!strcmp(words.we_wordv[2], NODE) && !strcmp(words.we_wordv[3], NODE));
}

static void relative(void) {
    struct stat st; char text[4096];
    int sys = open("/sys", O_RDONLY | O_DIRECTORY), root = open("/", O_RDONLY | O_DIRECTORY);
    int dev = open("/dev", O_PATH), class = open(CLASS, O_RDONLY | O_DIRECTORY);
    CHECK(reads(openat(sys, "class/infiniband/urxe0/node_guid", O_RDONLY)) > 0);
    CHECK(reads(openat(root, "sys/class/infiniband/urxe0/node_guid", O_RDONLY)) > 0);
    CHECK(reads(openat(root, "./sys//class/../class/infiniband/urxe0/node_guid", O_RDONLY)) > 0);
    CHECK(fstatat(dev, "infiniband/uverbs0", &st, 0) == 0 && S_ISCHR(st.st_mode));
    CHECK(openat(dev, "infiniband/uverbs0", O_RDWR) >= 0);
    CHECK(faccessat(class, "../net/lo", F_OK, 0) == 0 && faccessat(class, "../../bus", F_OK, 0) == 0);
    CHECK(faccessat(class, "../../../etc/passwd", F_OK, 0) == 0);
    CHECK(reads(open("/sys/class/net/../infiniband/urxe0/node_guid", O_RDONLY)) > 0);
    /* /sys/class/net/lo is a link: `..` is its target's. */
    CHECK(reads(open("/sys/class/net/lo/../../infiniband/urxe0/node_guid", O_RDONLY)) > 0);
    CHECK(open("/sys/class/net/lo/../infiniband/urxe0/node_guid", O_RDONLY) < 0 && errno == ENOENT);
    CHECK(stat("/sys/class/infiniband/../net/lo", &st) == 0 && stat("/sys/class/infiniband/urxe0/..", &st) == 0);
    CHECK(stat("/sys/class/infiniband/none/../urxe0", &st) < 0 && errno == ENOENT);
    CHECK(reads(open("/proc/self/root/sys/class/infiniband/urxe0/node_guid", O_RDONLY)) > 0);
    CHECK(reads(open("/etc/../sys/class/infiniband/urxe0/node_guid", O_RDONLY)) > 0);
    CHECK(lstat(DEVICE, &st) == 0 && S_ISLNK(st.st_mode) && lstat(DEVICE "/", &st) == 0 && S_ISDIR(st.st_mode));
    CHECK(reads(openat2_of(AT_FDCWD, GUID, O_RDONLY)) > 0 && reads(openat2_of(sys, "class/infiniband/urxe0/node_guid", 0)) > 0);

    CHECK(chdir("/sys") == 0 && reads(open("class/infiniband/urxe0/node_guid", O_RDONLY)) > 0);
    CHECK(access("class/net/../infiniband/urxe0", F_OK) == 0 && !strcmp(getcwd(text, sizeof text), "/sys"));
    CHECK(chdir("class/infiniband") == 0 && !strcmp(getcwd(text, sizeof text), CLASS));
    char *name = get_current_dir_name();
    CHECK(name && !strcmp(name, CLASS));
    setenv("PWD", CLASS, 1);
    name = get_current_dir_name();
    CHECK(name && !strcmp(name, CLASS));
    CHECK(!strcmp(CALL(char *, "getwd", text), CLASS));
    CHECK(readlink("/proc/self/cwd", memset(text, 0, sizeof text), sizeof text) > 0 && !strcmp(text, CLASS));
    CHECK(syscall(SYS_getcwd, text, sizeof text) == sizeof CLASS && !strcmp(text, CLASS));
    CHECK(reads(open("urxe0/node_guid", O_RDONLY)) > 0 && access("../net/lo", F_OK) == 0);
    CHECK(access("../../bus", F_OK) == 0 && access("../../../etc/passwd", R_OK) == 0 && access("../infiniband", F_OK) == 0);
    CHECK(chdir("../..") == 0 && !strcmp(getcwd(text, sizeof text), "/sys"));
    CHECK(fchdir(class) == 0 && access("../../../etc/passwd", R_OK) == 0 && chdir("..") == 0);
    CHECK(!strcmp(getcwd(text, sizeof text), "/sys/class") && access("infiniband/urxe0", F_OK) == 0);
    CHECK(chdir("/dev/infiniband") == 0 && stat("uverbs0", &st) == 0 && S_ISCHR(st.st_mode));
    CHECK(!strcmp(realpath("../../sys/class/infiniband/urxe0", text), REAL));
    CHECK(chdir("/") == 0 && access("sys/class/infiniband/urxe0", F_OK) == 0 && access("dev/infiniband/rdma_cm", F_OK) == 0);
}

static void questions(void) {
    struct stat st; struct statfs fs; struct statfs here; struct statvfs vfs; struct statx sx; char text[4096];
    /* Mounts are file systems of their own. */
    int isolated = getenv("ISOLATED") != NULL;
    CHECK(statfs("/sys", &here) == 0 && statfs(DEVICE, &fs) == 0 && (isolated || fs.f_type == here.f_type));
    CHECK(CALL(int, "statfs64", GUID, &fs) == 0 && (isolated || fs.f_type == here.f_type));
    CHECK(statfs(DEVICE "/none", &fs) < 0 && errno == ENOENT);
    CHECK(statvfs(DEVICE, &vfs) == 0 && CALL(int, "statvfs64", NODE, &vfs) == 0);
    CHECK((vfs.f_flag & ST_RDONLY) && statvfs(DEVICE, &vfs) == 0 && (vfs.f_flag & ST_RDONLY) && statvfs(".", &vfs) == 0);
    CHECK(syscall(SYS_statfs, DEVICE, &fs) == 0 && (fs.f_flags & ST_RDONLY) && !statvfs("/proc", &vfs) && !(vfs.f_flag & ST_RDONLY));
    CHECK(pathconf(DEVICE, _PC_NAME_MAX) == 255);
    CHECK(access(GUID, R_OK) == 0 && FAILS(access(GUID, W_OK), EROFS) && access(NODE, R_OK | W_OK) == 0);
    CHECK(faccessat(AT_FDCWD, GUID, R_OK, AT_EACCESS) == 0 && eaccess(GUID, R_OK) == 0);
    CHECK(stat(NODE, &st) == 0 && S_ISCHR(st.st_mode) && st.st_rdev == 0x103);
    CHECK(syscall(SYS_faccessat, AT_FDCWD, GUID, R_OK) == 0 && syscall(SYS_newfstatat, AT_FDCWD, DEVICE, &st, 0) == 0);
    CHECK(syscall(SYS_statx, AT_FDCWD, DEVICE, 0, STATX_TYPE, &sx) == 0);
    CHECK(syscall(SYS_readlinkat, AT_FDCWD, DEVICE, text, sizeof text) > 0 && !strncmp(text, "../../devices", 13));
    CHECK(reads(syscall(SYS_openat, AT_FDCWD, GUID, O_RDONLY)) > 0);
#ifdef SYS_open
    CHECK(reads(syscall(SYS_open, GUID, O_RDONLY)) > 0 && syscall(SYS_stat, GUID, &st) == 0);
#endif
    CHECK(syscall(SYS_getpid) == getpid() && syscall(SYS_openat, AT_FDCWD, "/none", 0) == -1 && errno == ENOENT);
    CHECK(spawned(NULL, GUID) == 0 && spawned(CLASS, "/etc/passwd") == 0 && spawned(DEVICE, "node_guid") == 0);
}

/* Where nothing is, calls fail as the kernel has them fail. */
static void bad_pointers(void) {
    char *bad[] = {NULL, (char *)22, (char *)-1, (char *)(1L << 62)}, *words[] = {"true", NULL};
    for (int i = 0; i < 4; i++) {
        struct stat st; struct statfs fs; struct statx sx; char text[64], *p = bad[i];
        CHECK(FAILS(open(p, O_RDONLY), EFAULT) && FAILS(openat(AT_FDCWD, p, O_RDONLY), EFAULT) && FAILS(creat(p, 0600), EFAULT));
        CHECK(FAILS(stat(p, &st), EFAULT) && FAILS(lstat(p, &st), EFAULT) && FAILS(fstatat(AT_FDCWD, p, &st, 0), EFAULT));
        CHECK(FAILS(access(p, F_OK), EFAULT) && FAILS(chdir(p), EFAULT) && FAILS(readlink(p, text, sizeof text), EFAULT));
        CHECK(FAILS(statfs(p, &fs), EFAULT) && FAILS(chmod(p, 0600), EFAULT) && FAILS(unlink(p), EFAULT));
        CHECK(FAILS(rename(p, "/x"), EFAULT) && FAILS(rename("/x", p), EFAULT) && FAILS(mkdir(p, 0700), EFAULT));
        CHECK(FAILS(syscall(SYS_openat, AT_FDCWD, p, O_RDONLY), EFAULT) && FAILS(execve(p, words, environ), EFAULT));
        CHECK(i == 0 || (FAILS(statx(AT_FDCWD, p, AT_EMPTY_PATH, 0, &sx), EFAULT) && FAILS(openat2_of(AT_FDCWD, p, 0), EFAULT)));
    }
    /* What no number tells is asked of the kernel, where calls are rare. */
    char *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *variables[] = {"A=1", page, NULL};
    CHECK(page != MAP_FAILED && FAILS(syscall(SYS_openat2, AT_FDCWD, GUID, page, sizeof(struct open_how)), EFAULT));
    CHECK(FAILS(execve("/bin/true", words, (char **)page), EFAULT) && FAILS(execve("/bin/true", words, variables), EFAULT));
    CHECK(FAILS(execve("/bin/true", words, (char **)-1), EFAULT));
    int netlink = socket(AF_NETLINK, SOCK_RAW, 20 /* NETLINK_RDMA */);
    struct iovec piece = {page, 64}, pieces[2] = {{"", 0}, {"", (size_t)-1}};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
    if (netlink >= 0) {
        CHECK(FAILS(bind(netlink, (void *)page, 12), EFAULT) && FAILS(send(netlink, page, 64, 0), EFAULT));
        CHECK(FAILS(sendto(netlink, "", 0, 0, (void *)page, 12), EFAULT) && FAILS(sendmsg(netlink, &message, 0), EFAULT));
        message.msg_iov = (void *)page;
        CHECK(FAILS(sendmsg(netlink, &message, 0), EFAULT) && FAILS(sendmsg(netlink, (void *)page, 0), EFAULT));
        message.msg_iov = pieces, message.msg_iovlen = 2;
        CHECK(sendmsg(netlink, &message, 0) < 0);
        close(netlink);
    }
    munmap(page, 4096);
}

/* As on a file system that is mounted read-only. */
static void changes(void) {
    struct stat before, after; struct timeval times[2] = {{0}}; struct timespec stamps[2] = {{0}}; struct utimbuf old = {0};
    int dev = open("/dev/infiniband", O_RDONLY | O_DIRECTORY);
    CHECK(stat("/dev/null", &before) == 0);
    CHECK(FAILS(chmod(NODE, 0600), EROFS) && FAILS(fchmodat(AT_FDCWD, NODE, 0600, 0), EROFS));
    CHECK(FAILS(chmod(GUID, 0600), EROFS) && FAILS(chmod(DEVICE "/none", 0600), ENOENT));
    CHECK(FAILS(fchmodat(dev, "uverbs0", 0600, 0), EROFS) && FAILS(syscall(SYS_fchmodat, AT_FDCWD, NODE, 0600), EROFS));
    CHECK(FAILS(chown(NODE, 1, 1), EROFS) && FAILS(lchown(GUID, 1, 1), EROFS));
    CHECK(FAILS(fchownat(AT_FDCWD, NODE, 1, 1, 0), EROFS) && FAILS(fchownat(dev, "rdma_cm", 1, 1, 0), EROFS));
    CHECK(FAILS(utime(NODE, &old), EROFS) && FAILS(utimes(NODE, times), EROFS) && FAILS(lutimes(GUID, times), EROFS));
    CHECK(FAILS(utimensat(AT_FDCWD, NODE, stamps, 0), EROFS) && FAILS(futimesat(dev, "uverbs0", times), EROFS));
    CHECK(FAILS(truncate(GUID, 0), EROFS) && FAILS(CALL(int, "truncate64", GUID, 0L), EROFS));
    CHECK(FAILS(setxattr(GUID, "user.a", "b", 1, 0), EROFS) && FAILS(removexattr(GUID, "user.a"), EROFS));
    CHECK(FAILS(mkdir(DEVICE "/none", 0777), EROFS) && FAILS(mkdir(DEVICE, 0777), EEXIST));
    CHECK(FAILS(mkdirat(dev, "none", 0777), EROFS) && FAILS(mkfifo("/dev/infiniband/none", 0777), EROFS));
    CHECK(FAILS(mknod("/dev/infiniband/none", S_IFREG | 0777, 0), EROFS) && FAILS(symlink("a", CLASS "/none"), EROFS));
    CHECK(FAILS(symlinkat("a", dev, "none"), EROFS) && FAILS(mknodat(dev, "none", S_IFREG, 0), EROFS));
    CHECK(FAILS(unlink(NODE), EROFS) && FAILS(unlinkat(dev, "uverbs0", 0), EROFS) && FAILS(remove(GUID), EROFS));
    CHECK(FAILS(rmdir(DEVICE "/ports"), EROFS) && FAILS(rename(NODE, "/dev/infiniband/x"), EROFS));
    CHECK(FAILS(renameat(dev, "uverbs0", dev, "x"), EROFS) && FAILS(renameat2(dev, "uverbs0", dev, "x", 0), EROFS));
    CHECK(FAILS(rename("/etc/passwd", "/dev/infiniband/x"), EXDEV) && FAILS(link(GUID, "/tmp/a name of urxe's tests that nobody has"), EXDEV));
    CHECK(FAILS(link(GUID, DEVICE "/x"), EROFS) && FAILS(linkat(dev, "uverbs0", dev, "x", 0), EROFS));
    CHECK(FAILS(creat("/dev/infiniband/none", 0666), EROFS) && FAILS(CALL(int, "creat64", GUID, 0666), EROFS));
    CHECK(FAILS(open(DEVICE "/none", O_CREAT | O_RDONLY, 0666), EROFS) && FAILS(open(GUID, O_WRONLY), EROFS));
    CHECK(FAILS(open(GUID, O_RDONLY | O_TRUNC), EROFS) && FAILS(open(GUID, O_RDWR | O_CREAT | O_EXCL, 0600), EEXIST));
    CHECK(FAILS(openat2_of(AT_FDCWD, GUID, O_RDWR), EROFS));
    CHECK(reads(open(GUID, O_RDONLY | O_CREAT, 0666)) > 0 && open(DEVICE "/none", O_WRONLY) < 0 && errno == ENOENT);
    CHECK(!fopen(GUID, "w") && errno == EROFS);
    CHECK(!fopen(GUID, "r+") && errno == EROFS);
    /* A device can be opened for writing, in each way. */
    CHECK(creat(NODE, 0666) >= 0 && open(NODE, O_RDWR | O_CREAT | O_TRUNC, 0600) >= 0 && fopen(NODE, "w"));
    CHECK(stat("/dev/null", &after) == 0 && before.st_mode == after.st_mode && before.st_uid == after.st_uid);
    CHECK(before.st_mtim.tv_sec == after.st_mtim.tv_sec && before.st_ctim.tv_sec == after.st_ctim.tv_sec);
    CHECK(stat(GUID, &after) == 0 && after.st_size > 0);

    /* Elsewhere they do what they do. */
    char home[] = "/tmp/paths-XXXXXX", text[64];
    CHECK(mkdtemp(home) && chdir(home) == 0 && mkdir("infiniband", 0755) == 0 && symlink("infiniband", "link") == 0);
    CHECK(creat("infiniband/a", 0644) >= 0 && chmod("infiniband/a", 0600) == 0 && rename("infiniband/a", "link/b") == 0);
    CHECK(link("link/../infiniband/b", "c") == 0 && truncate("c", 9) == 0 && utimes("c", NULL) == 0);
    CHECK(readlink("link", text, sizeof text) == 10 && stat("infiniband/b", &after) == 0 && after.st_size == 9);
    CHECK(unlink("c") == 0 && unlink("infiniband/b") == 0 && remove("link") == 0 && rmdir("infiniband") == 0);
    CHECK(chdir("/") == 0 && rmdir(home) == 0);
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    without_getcwd();
    walks();
    walks_that_are_left();
    positions("/sys/class");
    positions("/dev");
    positions("/sys/class/infiniband");
    questions();
    bad_pointers();
    changes();
    relative();
    walks();
    if (!failures) puts("all");
    return 0;
}
