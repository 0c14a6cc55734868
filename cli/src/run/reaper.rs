//! Removing the folder when nobody uses it any more.
//!
//! The reaper is not the program's parent nor its child, and in a session of its own: the program does not notice it,
//! and what ends the program does not end it. It waits for the program, then for those of its descendants that live on
//! (they have the folder in their environment), removes the folder, and looks for folders whose reaper was killed.
//!
//! As it outlives them all, it keeps their [last wills](urxe_net::LastWillKeeper): it ends the connections of a process that was killed
//! and was the last of its host.

use std::ffi::{CString, OsStr, c_int};
use std::fs::{self, OpenOptions};
use std::io::Error;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use urxe_net::{LastWillKeeper, last_will_keeper};

use super::folder::{Folder, LOCK, PREFIX, shown_in, try_lock};
use super::remove::remove_all;
use super::this_command;
use super::users::{self, Users};
use super::users_lock::UsersLock;

/// Name of the hidden subcommand.
pub(crate) const SUBCOMMAND: &str = "reaper";

/// How long to wait before looking again, where the kernel cannot tell when a process ends, and after one has.
const PAUSE: Duration = Duration::from_millis(200);

/// For longer than a process takes to become another program, most likely.
const MOMENT: Duration = Duration::from_millis(5);
/// So many of them, and it is a process that has given its environment away (`PR_SET_MM`) and stays like that.
const MOMENTS: usize = 400;

/// Descriptor that a reaper listens at as keeper of last wills; `/dev/null` if it is none.
const WILLS: c_int = 3;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder; its lock is standard output, a descriptor of the program's process standard input; descriptor 3 listens for last wills
    folder: PathBuf,
}

/// Starts a reaper for `folder` and this process, which may become another program. Returns the path of what is shown.
///
/// Everybody may read a process' command line: the reaper's names the outer folder.
pub(super) fn start(folder: Folder) -> Result<PathBuf> {
    let command = this_command()?;
    let path = CString::new(folder.path().as_os_str().as_bytes())?;
    let me = pidfd(std::process::id()).or_else(|_| null(libc::O_RDONLY)).context("opening /dev/null")?;
    let null = null(libc::O_RDWR).context("opening /dev/null")?;
    // The program is to find it there. Without a name nobody has left anything.
    let name = folder.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
    let wills = last_will_keeper::listen(&name).ok();
    let subcommand = CString::new(SUBCOMMAND)?;
    let words = [c"urxe".as_ptr(), subcommand.as_ptr(), path.as_ptr(), std::ptr::null()];
    // Below another `urxe run` the preloaded library would give the reaper that one's variables.
    let none = CString::new(format!("{}=", urxe_options::RUN_VARIABLE))?;
    let environment = [none.as_ptr(), std::ptr::null()];
    let shown = folder.shown().to_path_buf();
    let (kept, lock) = folder.into_parts();

    // SAFETY: this process has one thread, so the child may do what it likes.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: system calls on descriptors and C strings of this process.
        unsafe {
            libc::setsid();
            // The grandchild is not the program's child: a program may wait for all of its own.
            if libc::fork() == 0 {
                libc::dup2(me.as_raw_fd(), 0);
                libc::dup2(lock.as_raw_fd(), 1);
                libc::dup2(null.as_raw_fd(), 2);
                libc::dup2(wills.as_ref().map_or(2, AsRawFd::as_raw_fd), WILLS);
                // If it was there already.
                libc::fcntl(WILLS, libc::F_SETFD, 0);
                close_from(WILLS + 1);
                libc::chdir(c"/".as_ptr());
                libc::execve(command.as_ptr(), words.as_ptr(), environment.as_ptr());
            }
            libc::_exit(0);
        }
    }
    if child < 0 {
        let error = Error::last_os_error();
        remove_all(&kept);
        return Err(error).context("starting a process");
    }
    // SAFETY: our child, which ends at once.
    while unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) } < 0
        && Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
    {}
    Ok(shown)
}

/// The reaper's work.
pub(crate) fn run(args: &Args) {
    // Where the kernel has no descriptors of processes, it is /dev/null.
    let has_handle = !fs::metadata("/proc/self/fd/0").is_ok_and(|file| file.file_type().is_char_device());
    keep_last_wills(|| {
        wait_for(if has_handle { &[0] } else { &[] });
        if let Some(shown) = shown_in(&args.folder) {
            wait_for_users(&shown);
        }
    });
    remove_all(&args.folder);
    if let Some(base) = args.folder.parent() {
        remove_orphans(base);
    }
}

/// Keeps the last wills of processes while `wait` sleeps, and sends those that are left then.
fn keep_last_wills(wait: impl FnOnce()) {
    let is_socket = fs::metadata(format!("/proc/self/fd/{WILLS}")).is_ok_and(|file| file.file_type().is_socket());
    // SAFETY: `start` has put it there for this.
    let listener = is_socket.then(|| unsafe { OwnedFd::from_raw_fd(WILLS) });
    let (Some(listener), Ok((until, ends))) = (listener, std::io::pipe()) else { return wait() };
    std::thread::scope(|scope| {
        let keep = move || LastWillKeeper::new(listener).run(until.as_fd());
        // Where there is no room for a thread, nobody's last wills are kept.
        let _keeper = std::thread::Builder::new().spawn_scoped(scope, keep);
        wait();
        drop(ends);
    });
}

/// Sleeps until nobody uses the folder.
fn wait_for_users(shown: &Path) {
    let lock = UsersLock::open(shown);
    let mut unclear = 0;
    loop {
        lock.wait();
        // A process that is becoming another program has dropped the lock and not taken it again: it is found by its
        // environment, or, if that takes place between the two looks, by its new lock.
        match users::of(shown) {
            Users::These(users) => {
                unclear = 0;
                let handles: Vec<OwnedFd> = users.iter().filter_map(|pid| pidfd(*pid).ok()).collect();
                wait_for(&handles.iter().map(AsRawFd::as_raw_fd).collect::<Vec<_>>());
                std::thread::sleep(PAUSE);
            }
            Users::Unclear if unclear < MOMENTS => {
                unclear += 1;
                std::thread::sleep(MOMENT);
            }
            Users::Unclear | Users::Nobody if lock.is_free() => return,
            Users::Unclear | Users::Nobody => {}
        }
    }
}

/// Sleeps until one of the processes has ended; without such descriptors, for a moment.
fn wait_for(processes: &[c_int]) {
    let mut polled: Vec<libc::pollfd> =
        processes.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    if polled.is_empty() {
        return std::thread::sleep(PAUSE);
    }
    // SAFETY: an array of that many entries.
    while unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, -1) } < 0
        && Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
    {}
}

/// Removes this user's folders that nobody uses and nobody watches.
fn remove_orphans(base: &Path) {
    // SAFETY: no preconditions.
    let me = unsafe { libc::geteuid() };
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let mine = entry.metadata().is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == me);
        if !mine || !name.as_bytes().starts_with(OsStr::new(PREFIX).as_bytes()) {
            continue;
        }
        // Without a lock it is somebody else's, or one that is being made.
        let mut options = OpenOptions::new();
        let options = options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let Ok(lock) = options.open(path.join(LOCK)) else { continue };
        if try_lock(&lock) && !is_used(&path) {
            remove_all(&path);
        }
    }
}

/// Whether somebody uses a folder. Earlier versions showed the outer folder itself.
fn is_used(folder: &Path) -> bool {
    let shown = shown_in(folder).unwrap_or_else(|| folder.to_path_buf());
    !UsersLock::open(&shown).is_free() || users::of(&shown) != Users::Nobody || !UsersLock::open(&shown).is_free()
}

/// Closes what was inherited: the end of a pipe, say, whose reader waits for its end.
fn close_from(first: c_int) {
    // SAFETY: plain numbers; this process is about to become another.
    unsafe {
        if libc::syscall(libc::SYS_close_range, first, c_int::MAX, 0) != 0 {
            // Linux before 5.9.
            let most = libc::sysconf(libc::_SC_OPEN_MAX).clamp(0, 1 << 16);
            for fd in first..c_int::try_from(most).unwrap_or(0) {
                libc::close(fd);
            }
        }
    }
}

fn pidfd(pid: u32) -> std::io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    match c_int::try_from(fd) {
        // SAFETY: new, and ours.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(Error::last_os_error()),
    }
}

fn null(flags: c_int) -> std::io::Result<OwnedFd> {
    // SAFETY: a C string.
    let fd = unsafe { libc::open(c"/dev/null".as_ptr(), flags | libc::O_CLOEXEC) };
    // SAFETY: new, and ours.
    if fd < 0 { Err(Error::last_os_error()) } else { Ok(unsafe { OwnedFd::from_raw_fd(fd) }) }
}
