/* Fast mode: what pyfuse3 cannot say to the kernel, said here.
 *
 * Where `open` and `opendir` are answered ENOSYS the kernel never sends them again, keeps pages and listings
 * cached, and a walk of a warm mount reaches the view with no request at all. pyfuse3 alone cannot do that: its
 * `read` and `readdir` handlers get the file handle only, which is 0 then, and the inode is lost.
 *
 * So this library stands between pyfuse3 and libfuse. Loaded with RTLD_GLOBAL before pyfuse3 it is first where
 * the dynamic linker looks for `fuse_session_new`. Ours hands libfuse a copy of pyfuse3's table of handlers in
 * which `open` and `opendir` are answered here and reads carry the inode in the place of the handle. It is
 * linked with libc alone: libfuse is the one that pyfuse3 itself was linked with, whichever that is.
 *
 * The statics belong to the one session that pyfuse3 can have in a process; they could not travel with it,
 * since pyfuse3 gives libfuse no user data and looks its own session up in a global as well. They are written
 * before the session runs and in its first request; all handlers run on the thread of the session's loop.
 */
#define _GNU_SOURCE         /* dladdr */
#define FUSE_USE_VERSION 32 /* pyfuse3's own: the same table from the same header */
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <fuse_lowlevel.h>

enum { WRAPPED = 1, BEGUN = 2, NO_OPEN = 4, NO_OPENDIR = 8 }; /* fast.py knows them too */

static struct fuse_lowlevel_ops theirs;          /* pyfuse3's handlers */
static struct fuse_lowlevel_ops ours;            /* what libfuse gets */
static int (*reply_err)(fuse_req_t req, int err); /* libfuse's own */
static int forbidden;                            /* the next session is to be stock */
static int state;                                /* of the latest session, the bits above */

int chromafuse_fast_state(void) { return state; }
void chromafuse_fast_forbid(void) { forbidden = 1; }

/* The kernel's offer is known: choose before the first open. */
static void begin(void *userdata, struct fuse_conn_info *conn)
{
    /* A kernel that does not offer these takes ENOSYS for a failure (before Linux 3.16 and 5.1). */
    if (conn->capable & FUSE_CAP_NO_OPEN_SUPPORT)
        state |= NO_OPEN;
    if (conn->capable & FUSE_CAP_NO_OPENDIR_SUPPORT)
        state |= NO_OPENDIR;
    state |= BEGUN;
    theirs.init(userdata, conn);
    /* Readahead is dropped, and pages are asked for one by one, from `congestion_threshold` on (9). */
    conn->max_background = 128;
    conn->congestion_threshold = 96;
    /* Requests are small, and so are pushed pages: a pipe costs more calls than it saves copies. */
    conn->want &= ~(FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE);
    /* With this a truncating open carries the truncation, and with no open nobody could refuse it: the kernel
     * would take the page for empty from then on. Without it a setattr comes first, and is refused. */
    if (state & NO_OPEN)
        conn->want &= ~FUSE_CAP_ATOMIC_O_TRUNC;
}

static void open_page(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    if (state & NO_OPEN)
        reply_err(req, ENOSYS); /* for good: the kernel does not ask again */
    else
        theirs.open(req, ino, fi);
}

static void open_directory(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    if (state & NO_OPENDIR)
        reply_err(req, ENOSYS);
    else
        theirs.opendir(req, ino, fi);
}

/* The view's handles are inodes: right as well where the kernel did open. `fi` is libfuse's copy. */
static void read_page(fuse_req_t req, fuse_ino_t ino, size_t size, off_t at, struct fuse_file_info *fi)
{
    fi->fh = ino;
    theirs.read(req, ino, size, at, fi);
}

static void read_directory(fuse_req_t req, fuse_ino_t ino, size_t size, off_t at, struct fuse_file_info *fi)
{
    fi->fh = ino;
    theirs.readdirplus(req, ino, size, at, fi);
}

/* No open refuses a write any more, so writes arrive; only after root remounted read-write. The view is to know
 * which page it was: what was written through a mapping stays in the kernel's cache until the view drops it. */
static void write_page(fuse_req_t req, fuse_ino_t ino, struct fuse_bufvec *data, off_t at,
                       struct fuse_file_info *fi)
{
    fi->fh = ino;
    theirs.write_buf(req, ino, data, at, fi);
}

/* pyfuse3 has no handler for it, and ENOSYS would be another answer than that to a write. */
static void allocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t at, off_t length, struct fuse_file_info *fi)
{
    (void)ino, (void)mode, (void)at, (void)length, (void)fi;
    reply_err(req, EROFS);
}

/* Return the table for libfuse. A table of another size is one of another libfuse's header: leave it alone. */
static const struct fuse_lowlevel_ops *wrap(const struct fuse_lowlevel_ops *ops, size_t size, void *pyfuse3)
{
    if (ops == &ours) /* libfuse, on behalf of an older program: wrapped already */
        return ops;
    state = 0;
    reply_err = (int (*)(fuse_req_t, int))dlsym(pyfuse3, "fuse_reply_err");
    if (forbidden || !reply_err || size != sizeof ours)
        return ops;
    if (!ops->init || !ops->open || !ops->opendir || !ops->read || !ops->readdirplus || !ops->write_buf)
        return ops;
    theirs = ours = *ops;
    ours.init = begin;
    ours.open = open_page;
    ours.opendir = open_directory;
    ours.read = read_page;
    ours.readdirplus = read_directory;
    ours.write_buf = write_page;
    ours.fallocate = allocate;
    state = WRAPPED;
    return &ours;
}

/* Return a handle whose symbols are those of the library that called, and of what it was linked with. By name
 * alone the linker would find the functions below again. */
static void *library_at(void *address)
{
    Dl_info caller;

    return dladdr(address, &caller) ? dlopen(caller.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
}

typedef struct fuse_session *session_new(struct fuse_args *, const struct fuse_lowlevel_ops *, size_t, void *);
typedef struct fuse_session *session_new_versioned(struct fuse_args *, const struct fuse_lowlevel_ops *, size_t,
                                                   void *, void *);

/* The names for the linker are set by hand, since libfuse 3.17 makes the first one a macro. */
session_new until_3_16 __asm__("fuse_session_new");
session_new_versioned since_3_17 __asm__("fuse_session_new_versioned");

struct fuse_session *until_3_16(struct fuse_args *args, const struct fuse_lowlevel_ops *ops, size_t size,
                                void *userdata)
{
    void *caller = library_at(__builtin_return_address(0));
    session_new *real = caller ? (session_new *)dlsym(caller, "fuse_session_new") : NULL;

    return real ? real(args, wrap(ops, size, caller), size, userdata) : NULL;
}

struct fuse_session *since_3_17(struct fuse_args *args, const struct fuse_lowlevel_ops *ops, size_t size,
                                void *version, void *userdata)
{
    void *caller = library_at(__builtin_return_address(0));
    session_new_versioned *real =
        caller ? (session_new_versioned *)dlsym(caller, "fuse_session_new_versioned") : NULL;

    return real ? real(args, wrap(ops, size, caller), size, version, userdata) : NULL;
}
