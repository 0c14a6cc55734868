//! Descriptors: programs that close all of them (daemon(7)) with a device open, and programs with very many.

use std::fs;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use urxe_tests::descriptors::{Stranger, open_numbers};
use urxe_tests::verbs::child::Child;
use urxe_tests::verbs::pair::works;
use urxe_tests::verbs::{Context, Op, Options, Pair, SendWr};
use urxe_tests::{in_world, wakes_of_our_thread};

/// Closes every descriptor, uses the numbers again, and then closes the device. `destroys`: its objects before.
fn close_all(destroys: bool) -> Result<()> {
    let before = open_numbers()?;
    let context = Context::open()?;
    let pair = Pair::on(&context, &Options { events: true, ..Options::default() })?;
    works(&pair)?;
    // No thread can be kept from using a number between its look at it and the call.
    wakes_of_our_thread(Duration::ZERO)?;
    // SAFETY: an open context.
    let raw = unsafe { &*context.raw() };
    // Those are libibverbs' to close, whatever they are: no number of theirs is used again.
    let theirs = [raw.cmd_fd, raw.async_fd];
    let channels = [&pair.near, &pair.far].map(|end| end.channel.as_ref().map(|channel| channel.fd()));
    let mut strangers = Vec::new();
    let numbers = open_numbers()?;
    for number in numbers.into_iter().filter(|number| !before.contains(number)) {
        // SAFETY: what the test is about.
        unsafe { libc::close(number) };
        if !theirs.contains(&number) && !channels.contains(&Some(number)) {
            strangers.push(number);
        }
    }
    ensure!(strangers.len() > 5, "{strangers:?}");
    let strangers = strangers.into_iter().map(Stranger::put).collect::<Result<Vec<_>>>()?;
    if destroys {
        drop(pair);
    } else {
        std::mem::forget(pair);
    }
    context.close().context("closing the device")?;
    let touched: Vec<RawFd> =
        strangers.iter().filter(|stranger| !stranger.is_untouched()).map(Stranger::number).collect();
    ensure!(touched.is_empty(), "somebody else's: {touched:?}");
    // Anew, as if nothing had been.
    works(&Pair::new(&Options::default())?)
}

#[test]
fn a_device_is_closed_whose_descriptors_are_somebody_elses() {
    in_world(|| close_all(false));
}

#[test]
fn objects_are_destroyed_whose_descriptors_are_somebody_elses() {
    in_world(|| close_all(true));
}

/// A child closes its copies of the device's descriptors: those that are the device's still.
#[test]
fn a_child_of_fork_keeps_descriptors_that_are_somebody_elses() {
    in_world(|| {
        let before = open_numbers()?;
        let context = Context::open()?;
        std::mem::forget(Pair::on(&context, &Options::default())?);
        wakes_of_our_thread(Duration::ZERO)?;
        // SAFETY: an open context.
        let library = unsafe { (*context.raw()).cmd_fd };
        let mut numbers = open_numbers()?;
        numbers.retain(|number| !before.contains(number));
        for number in &numbers {
            // SAFETY: what the test is about.
            unsafe { libc::close(*number) };
        }
        // libibverbs' own number stays free, for what is made meanwhile.
        numbers.retain(|number| *number != library);
        let strangers = numbers.iter().map(|number| Stranger::put(*number)).collect::<Result<Vec<_>>>()?;
        let child = Child::fork(|_| {
            // SAFETY: a look at a flag.
            let is_closed = |number: &&RawFd| unsafe { libc::fcntl(**number, libc::F_GETFD) } < 0;
            let closed: Vec<_> = numbers.iter().filter(is_closed).collect();
            ensure!(closed.is_empty(), "{closed:?} of {numbers:?}");
            Ok(())
        })?;
        child.finish()?;
        drop(strangers);
        std::mem::forget(context);
        Ok(())
    });
}

/// Messages through shared memory need no descriptors: they may go on for a while, and neither wake anybody nor report completions through
/// sockets that are somebody else's.
#[test]
fn messages_leave_sockets_alone_that_are_somebody_elses() {
    in_world(|| {
        let before = open_numbers()?;
        let context = Context::open()?;
        let pair = Pair::on(&context, &Options { events: true, ..Options::default() })?;
        let (local, remote) = (pair.near.region(64)?, pair.far.region(64)?);
        wakes_of_our_thread(Duration::ZERO)?;
        // SAFETY: an open context.
        let raw = unsafe { &*context.raw() };
        let channels = [&pair.near, &pair.far].map(|end| end.channel.as_ref().map_or(-1, |channel| channel.fd()));
        let library = [raw.cmd_fd, raw.async_fd, channels[0], channels[1]];
        let mut numbers = open_numbers()?;
        numbers.retain(|number| !before.contains(number) && !library.contains(number));
        let strangers = numbers.into_iter().map(Stranger::put_socket).collect::<Result<Vec<_>>>()?;
        let write = || -> Result<()> {
            let wr = SendWr::new(Op::Write(remote.at(0)), &[local.sge(0, 64)]);
            pair.near.send_cq.arm(false)?;
            pair.near.qp.post_send(&wr)?;
            pair.near.send_cq.next()?;
            Ok(())
        };
        // The first one at least was posted and waited for, well or not; the device may find out, and fail.
        let _ = (0..100).try_for_each(|_| write());
        let touched: Vec<RawFd> =
            strangers.iter().filter(|stranger| !stranger.is_untouched()).map(Stranger::number).collect();
        std::mem::forget((pair, local, remote, context));
        ensure!(touched.is_empty(), "somebody else's: {touched:?}");
        Ok(())
    });
}

/// More than a set of 16-bit numbers holds.
#[test]
#[ignore = "needs a hard limit of 80 000 descriptors: make test runs it where there is one"]
fn descriptors_above_65535() {
    in_world(|| {
        let limit = libc::rlimit { rlim_cur: 80_000, rlim_max: 80_000 };
        // SAFETY: a structure to read; room for the other is not wanted.
        let result = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
        ensure!(result == 0, "RLIMIT_NOFILE of 80 000: {}", std::io::Error::last_os_error());
        let null = fs::File::open("/dev/null")?;
        loop {
            // SAFETY: a duplicate of an open file, which lives as long as the process.
            let fd = unsafe { libc::fcntl(null.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 3) };
            ensure!(fd >= 0, "fcntl: {}", std::io::Error::last_os_error());
            if fd >= 66_000 {
                break;
            }
        }
        works(&Pair::new(&Options::default())?)
    });
}
