//! XRC domains that processes share (`ibv_open_xrcd(3)`): queue pairs here, SRQs in other processes.

mod descriptors;
mod endings;
mod messages;
mod owner;
mod part;

use anyhow::ensure;
use urxe_tests::in_world;
use urxe_tests::verbs::child::Child;
use urxe_tests::verbs::{Errno, Op, Options, Qp, SendWr, Status};

use crate::owner::{Owner, QUIET};
use crate::part::Part;

/// File of the domains.
const FILE: &str = "/proc/self/exe";

/// Another file means another domain.
//= spec/hosts.md#net-010
//= type=test
//# Nobody MUST get at another process' part of an XRC domain but who is of the same user and shows the domain's file.
#[test]
fn another_file_is_another_domain() {
    in_world(|| {
        let mut owner = Owner::of(FILE)?;
        owner.post(0, 8, 1)?;
        let part = Part::of("/bin/sh")?;
        let ends = part.pair(&Options::default())?;
        ensure!(ends.complete(&part, &owner.send(&part, 0, 8))? == Status::REM_INV_REQ_ERR);
        let write = SendWr::new(Op::Write(owner.at(0)), &[part.mr.sge(0, 8)]).to_srq(owner.srq);
        let ends = part.pair(&Options::default())?;
        ensure!(ends.complete(&part, &write)? == Status::REM_INV_REQ_ERR);
        // The number next to it is nobody's.
        let part = Part::of(FILE)?;
        let ends = part.pair(&Options::default())?;
        let wrong = SendWr::new(Op::Send, &[]).to_srq(owner.srq ^ 1);
        ensure!(ends.complete(&part, &wrong)? == Status::REM_INV_REQ_ERR);
        owner.tell(QUIET, 0, 0, 0)?;
        owner.end()
    });
}

/// A target queue pair stays with its process.
#[test]
fn a_target_of_another_process_cannot_be_opened() {
    in_world(|| {
        let mut child = Child::fork(|parent| {
            let part = Part::of(FILE)?;
            let [target] = parent.receive()?;
            let opened = Qp::open(&part.pd, &part.xrcd, u32::try_from(target)?);
            ensure!(opened.err() == Some(Errno(libc::EINVAL)));
            Ok(())
        })?;
        let part = Part::of(FILE)?;
        let target = Qp::xrc_target(&part.pd, &part.xrcd)?;
        child.send(&[target.number().into()])?;
        child.finish()
    });
}
