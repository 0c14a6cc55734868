//! Network namespaces that live as long as the thread or process in them.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;
use std::process::Command;

/// Runs `f` in a thread of its own that is alone in a new network namespace, with `lo` up. Processes it starts are in
/// there too. The namespace goes with the last of them.
pub(crate) fn alone<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            enter_new();
            set_loopback_up();
            f()
        });
        match thread.join() {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Runs `f` in a thread that is another user's, in the network namespace of the caller. What it makes there stays that
/// user's: the kernel keeps the user with each socket.
pub(crate) fn as_user<T: Send>(user: libc::uid_t, f: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // By number: the C library's function would change the user of all threads.
            // SAFETY: no pointer involved; only the calling thread changes its user.
            let rc = unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) };
            assert_eq!(rc, 0, "user {user}: {} (this test needs root)", io::Error::last_os_error());
            f()
        });
        match thread.join() {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Moves the calling thread to a new network namespace.
pub(crate) fn enter_new() {
    // SAFETY: no pointer involved; only the calling thread changes its namespace.
    let rc = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    assert_eq!(rc, 0, "a network namespace: {} (these tests need root or user namespaces)", io::Error::last_os_error());
}

/// Sets `lo` of the calling thread's namespace up, without a program: until it runs, that would have what the tests have open.
pub(crate) fn set_loopback_up() {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    // SAFETY: all zeros is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { core::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING).try_into().unwrap();
    // SAFETY: SIOCSIFFLAGS reads a valid `ifreq`.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    assert_eq!(rc, 0, "lo: {}", io::Error::last_os_error());
}

/// `ip` of iproute2, in the calling thread's namespace.
pub(crate) fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("iproute2 is installed");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}
