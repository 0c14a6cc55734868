//! Owners of SRQs that close all descriptors (closefrom(3)) and use the numbers again.

use std::os::fd::RawFd;

use anyhow::{Result, ensure};
use urxe_tests::descriptors::{Stranger, open_numbers};
use urxe_tests::in_world;
use urxe_tests::verbs::child::Parent;
use urxe_tests::verbs::{Options, RecvWr, Status};

use crate::FILE;
use crate::owner::Owner;
use crate::part::Part;

/// Descriptors that a program closes.
#[derive(Clone, Copy, PartialEq)]
enum Closes {
    /// All of the device's, as closefrom(3) does.
    All,
    /// Sockets of the device, by numbers that the program has closed before.
    Sockets,
}

fn is_socket(number: &RawFd) -> bool {
    let target = std::fs::read_link(format!("/proc/self/fd/{number}"));
    target.is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
}

/// An owner that has sockets of its own under numbers of the device's when it is told the first time, and looks at them when it is told the
/// second time.
fn own_and_close(parent: &mut Parent, closes: Closes) -> Result<()> {
    let before = open_numbers()?;
    let part = Part::of(FILE)?;
    let srq = part.srq()?;
    for wr_id in 0..2 {
        srq.post_recv(&RecvWr::new(wr_id, &[part.mr.sge(0, 8)]))?;
    }
    let memory = part.mr.at(0);
    parent.send(&[srq.number()?.into(), memory.addr, memory.rkey.into(), 0, 0])?;
    parent.receive::<1>()?;
    // SAFETY: an open context.
    let raw = unsafe { &*part.context.raw() };
    let library = [raw.cmd_fd, raw.async_fd, part.channel.fd()];
    let mut numbers = open_numbers()?;
    numbers.retain(|number| !before.contains(number) && !library.contains(number));
    numbers.retain(|number| closes == Closes::All || is_socket(number));
    ensure!(numbers.len() > 3, "{numbers:?}");
    let strangers = numbers.into_iter().map(Stranger::put_socket).collect::<Result<Vec<_>>>()?;
    parent.send(&[0])?;
    parent.receive::<1>()?;
    let touched: Vec<RawFd> =
        strangers.iter().filter(|stranger| !stranger.is_untouched()).map(Stranger::number).collect();
    ensure!(touched.is_empty(), "somebody else's: {touched:?}");
    std::mem::forget((part, srq));
    Ok(())
}

/// The thread that answers for the SRQ leaves files alone that are not the device's any more.
#[test]
fn an_owner_that_closes_descriptors() {
    in_world(|| {
        for closes in [Closes::All, Closes::Sockets] {
            let mut owner = Owner::starting(|parent| own_and_close(parent, closes))?;
            let part = Part::of(FILE)?;
            let ends = [part.pair(&Options::default())?, part.pair(&Options::default())?];
            ends[0].succeed(&part, &owner.send(&part, 0, 8))?;
            owner.child.send(&[0])?;
            owner.child.receive::<1>()?;
            // By the connection that is there, and by a new one.
            for ends in &ends {
                let status = ends.complete(&part, &owner.send(&part, 0, 8))?;
                ensure!(status != Status::SUCCESS, "a message has come where nobody is");
            }
            owner.child.send(&[0])?;
            owner.child.finish()?;
        }
        Ok(())
    });
}
