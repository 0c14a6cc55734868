//! The user namespace of a test program that is not root's, in which it is. The tests of `runtime` have it, too.

use std::{fs, io};

#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = enter_unless_root;

/// Has a process that is not root's be root in a user namespace of its own, so that it may make network namespaces. Before
/// `main`: a process of several threads gets no user namespace, and each test is a thread.
extern "C" fn enter_unless_root() {
    // SAFETY: no preconditions.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    if user == 0 {
        return;
    }
    if let Err(error) = enter(user, group) {
        eprintln!("no user namespace: {error}");
    }
}

fn enter(user: libc::uid_t, group: libc::gid_t) -> io::Result<()> {
    // SAFETY: no pointer involved; the process has one thread.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER) } != 0 {
        return Err(io::Error::last_os_error());
    }
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {group} 1"))
}
