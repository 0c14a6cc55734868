//! Files of completion channels in epoll instances of the application's.

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, anyhow, ensure};
use urxe_tests::in_world;
use urxe_tests::verbs::{Channel, Context, Errno};

/// Destroys channels whose descriptors are in an epoll instance: it sees nothing of their end, as of a kernel's files. nfs-ganesha counts on it.
#[test]
fn epoll_sees_nothing_of_a_channel_that_is_destroyed() {
    in_world(|| {
        let context = Context::open()?;
        // SAFETY: no pointers involved.
        let epoll = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut seen = libc::epoll_event { events: 0, u64: 0 };
                while !ended.load(Ordering::Acquire) {
                    // SAFETY: room for one event.
                    if unsafe { libc::epoll_wait(epoll.as_raw_fd(), &raw mut seen, 1, 10) } > 0 {
                        return Some(seen.events);
                    }
                }
                None
            });
            let made = (0..2000).try_for_each(|_| -> Result<()> {
                let channel = Channel::new(&context)?;
                let mut wanted = libc::epoll_event { events: libc::EPOLLIN.cast_unsigned(), u64: 0 };
                // SAFETY: descriptors that are open, and an event.
                let added =
                    unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, channel.fd(), &raw mut wanted) };
                ensure!(added == 0, "epoll_ctl: {:?}", Errno::last());
                Ok(channel.destroy()?)
            });
            ended.store(true, Ordering::Release);
            let seen = watcher.join().map_err(|_| anyhow!("the thread"))?;
            ensure!(seen.is_none(), "events {seen:x?} of a channel that is gone");
            made
        })
    });
}
